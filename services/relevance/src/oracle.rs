//! The simulated shop's oracle as a backend: finds queries by text, and items by id or, on routes without ids, by passage.
//! Unknown queries and items have no verdict.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;

use sha2::{Digest, Sha256};
use souk::Result;
use souk::beir::DataFolder;
use souk::domain::normalized_query;
use souk::item_text::ItemText;
use souk::reward::{MarketOracle, Question, RewardSource, Verdict};

pub struct OracleJudge {
    oracle: MarketOracle,
    /// Query id by text; none if two queries have the same text.
    queries: HashMap<String, Option<Box<str>>>,
    /// Item id by hash of its passage; none if two items have the same passage.
    passages: HashMap<[u8; 16], Option<Box<str>>>,
}

impl OracleJudge {
    /// Opens a folder written by `souk market`; clients ask about texts of the template `item_text`.
    pub fn load(shop: &Path, item_text: &ItemText) -> Result<Self> {
        let oracle = MarketOracle::load(shop)?;
        let data = DataFolder::open(shop)?;
        let (mut queries, mut passages) = (HashMap::new(), HashMap::new());
        for query in data.queries()? {
            let query = query?;
            put(&mut queries, normalized_query(&query.text), query.id);
        }
        for item in data.items()? {
            let (_, item) = item?;
            put(&mut passages, digest(&item_text.render(&item)), item.id);
        }
        Ok(Self { oracle, queries, passages })
    }

    pub fn id(&self) -> &str {
        self.oracle.id()
    }

    pub fn query(&self, text: &str) -> Option<&str> {
        self.queries.get(&normalized_query(text))?.as_deref()
    }

    pub fn item(&self, passage: &str) -> Option<&str> {
        self.passages.get(&digest(passage))?.as_deref()
    }

    /// One entry per item.
    pub fn judge(&self, query_id: &str, items: &[Option<&str>]) -> Result<Vec<Option<Verdict>>> {
        let known: Vec<Question> =
            items.iter().flatten().map(|item_id| Question { query_id, query: "", item_id, item: "" }).collect();
        let mut verdicts = self.oracle.judge(&known)?.into_iter();
        Ok(items.iter().map(|item| item.and_then(|_| verdicts.next().flatten())).collect())
    }
}

fn put<K: std::hash::Hash + Eq>(map: &mut HashMap<K, Option<Box<str>>>, key: K, id: String) {
    match map.entry(key) {
        Entry::Vacant(place) => drop(place.insert(Some(id.into()))),
        Entry::Occupied(mut place) => drop(place.insert(None)),
    }
}

fn digest(text: &str) -> [u8; 16] {
    let whole: [u8; 32] = Sha256::digest(text).into();
    std::array::from_fn(|at| whole[at])
}
