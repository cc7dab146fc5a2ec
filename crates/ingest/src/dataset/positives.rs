//! Known positives of each query. Takes pairs of a query number and an item row, gives the items that a loss must not
//! use as negatives.

/// Known positive items of every query, by query number.
pub struct Positives {
    /// Items of query `n`: `items[starts[n]..starts[n + 1]]`, ascending.
    items: Vec<u32>,
    starts: Vec<u64>,
}

impl Positives {
    /// Builds from (query number, item row) pairs; duplicates are dropped.
    pub fn new(pairs: impl Iterator<Item = (u32, u32)>, num_queries: u32) -> Self {
        let mut pairs: Vec<u64> = pairs.map(|(query, item)| u64::from(query) << 32 | u64::from(item)).collect();
        pairs.sort_unstable();
        pairs.dedup();
        let mut starts = vec![0; num_queries as usize + 1];
        for pair in &pairs {
            starts[(pair >> 32) as usize + 1] += 1;
        }
        for query in 0..num_queries as usize {
            starts[query + 1] += starts[query];
        }
        Self { items: pairs.into_iter().map(|pair| pair as u32).collect(), starts }
    }

    pub fn num_queries(&self) -> u32 {
        self.starts.len() as u32 - 1
    }

    pub fn items(&self, query: u32) -> &[u32] {
        let [start, end] = [0, 1].map(|next| self.starts[query as usize + next] as usize);
        &self.items[start..end]
    }
}
