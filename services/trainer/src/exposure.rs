//! Each seller's share of the hits. Bought clicks on one seller's items make a model that shows them after any query. Judgements from
//! the same log cannot tell it from a better model, but the seller's share of all hits can.

use std::collections::HashMap;
use std::path::Path;

use souk::Result;
use souk::beir::DataFolder;
use souk::domain::Item;
use souk::report::read_run;

/// Hits of a query that count.
const DEPTH: usize = 100;
/// A seller with a smaller share of the hits does no harm.
const MIN_SHARE: f64 = 0.01;

/// Sellers of a catalogue's items.
pub struct Sellers {
    names: Vec<String>,
    of_item: HashMap<String, usize>,
}

impl Sellers {
    pub fn read(data: &DataFolder) -> Result<Self> {
        let (mut names, mut numbers, mut of_item) = (Vec::new(), HashMap::new(), HashMap::new());
        for item in data.items()? {
            let (_, item) = item?;
            if let Some(name) = seller(&item) {
                let number = *numbers.entry(name.to_owned()).or_insert_with(|| {
                    names.push(name.to_owned());
                    names.len() - 1
                });
                of_item.insert(item.id, number);
            }
        }
        Ok(Self { names, of_item })
    }

    /// Sellers whose share of the hits is more than `limit` times their share before and of the catalogue, as reasons.
    pub fn grown(&self, before: &Path, after: &Path, limit: f64) -> Result<Vec<String>> {
        let catalogue = self.shares(self.of_item.values().copied());
        let (before, after) = (self.shares_of_hits(before)?, self.shares_of_hits(after)?);
        let mut grown = Vec::new();
        for (number, share) in after.iter().enumerate() {
            if *share > MIN_SHARE && *share > limit * before[number].max(catalogue[number]) {
                let [before, after, catalogue] = [before[number], *share, catalogue[number]].map(|share| 100.0 * share);
                grown.push(format!(
                    "`{}` has {after:.1} % of the hits, {before:.1} % with the live model and {catalogue:.1} % of the catalogue, \
                     which is more than {limit} times as much",
                    self.names[number]
                ));
            }
        }
        Ok(grown)
    }

    /// Each seller's share of the first hits of a run.
    fn shares_of_hits(&self, run: &Path) -> Result<Vec<f64>> {
        let (mut query, mut rank, mut found) = (String::new(), 0, Vec::new());
        for line in read_run(run)? {
            let line = line?;
            if line.query != query {
                (query, rank) = (line.query, 0);
            }
            rank += 1;
            if rank <= DEPTH {
                found.extend(self.of_item.get(&line.item));
            }
        }
        Ok(self.shares(found.into_iter()))
    }

    fn shares(&self, sellers: impl Iterator<Item = usize>) -> Vec<f64> {
        let mut counts = vec![0.0; self.names.len()];
        sellers.for_each(|number| counts[number] += 1.0);
        let total = counts.iter().sum::<f64>().max(1.0);
        counts.iter().map(|count| count / total).collect()
    }
}

/// The item's seller, else its brand.
pub fn seller(item: &Item) -> Option<&str> {
    let field = |name: &&str| item.fields.get(*name)?.as_str().filter(|text| !text.is_empty());
    ["seller", "brand"].iter().find_map(field)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_seller_that_is_suddenly_everywhere_is_named() {
        let home = tempfile::tempdir().unwrap();
        let item = |number: usize| format!("{{\"_id\":\"i{number}\",\"brand\":\"{}\"}}\n", ["A", "B", "C"][number % 3]);
        let items: String = (0..30).map(item).collect();
        fs::write(home.path().join("corpus.jsonl"), items + "{\"_id\":\"unknown\"}\n").unwrap();
        let sellers = Sellers::read(&DataFolder::open(home.path()).unwrap()).unwrap();
        let run = |name: &str, of: &dyn Fn(usize) -> usize| {
            let line = |at: usize| format!("q{} Q0 i{} {} {} souk\n", at / 20, of(at), at % 20 + 1, -(at as f64));
            let path = home.path().join(name);
            fs::write(&path, (0..40).map(line).collect::<String>() + "q2 Q0 unknown 1 0.5 souk\n").unwrap();
            path
        };
        let mixed = run("mixed", &|at| at % 30);
        let only_b = run("only-b", &|at| at % 10 * 3 + 1);
        assert!(sellers.grown(&mixed, &mixed, 1.5).unwrap().is_empty());
        let reasons = sellers.grown(&mixed, &only_b, 2.0).unwrap();
        let [reason] = &reasons[..] else { panic!("{reasons:?}") };
        assert!(reason.starts_with("`B` has 100.0 % of the hits, 32.5 % with the live model and 33.3 %"), "{reason}");
        assert!(sellers.grown(&mixed, &only_b, 4.0).unwrap().is_empty());
        assert!(sellers.grown(&only_b, &mixed, 2.0).unwrap().is_empty(), "its share of the catalogue is not too much");
    }
}
