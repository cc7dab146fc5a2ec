//! Relevance oracle of a market's folder. Takes the folder's seed and counts and regenerates item traits and query intents;
//! never reads a text.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::catalogue::MarketCatalogue;
use super::dice::hash;
use super::requests::{self, Request, query_at};
use super::seller::item_row;
use souk_io::domain::Level;
use souk_io::error::{Error, Result};
use souk_io::fnv::hash_text;

/// File of a market's folder with its seed and counts.
pub const MANIFEST: &str = "market.json";

/// Seed and size of a market.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MarketSpec {
    pub seed: u64,
    pub items: u32,
    pub queries: usize,
    pub events: u64,
}

#[derive(Serialize, Deserialize)]
pub struct MarketManifest {
    #[serde(flatten)]
    spec: MarketSpec,
    /// Hash of all queries and item traits: a program that generates others cannot judge the folder.
    digest: String,
}

pub struct Oracle {
    catalogue: MarketCatalogue,
    requests: Vec<Request>,
}

impl MarketSpec {
    /// Upper bounds: the memory of one machine, and the range of the identifiers.
    pub const MAX_ITEMS: u32 = 20_000_000;
    pub const MAX_QUERIES: usize = 1_000_000;
    pub const MAX_EVENTS: u64 = 10_000_000_000;

    fn check(&self) -> Result<()> {
        let fits = (1..=Self::MAX_ITEMS).contains(&self.items)
            && (2..=Self::MAX_QUERIES).contains(&self.queries)
            && self.events <= Self::MAX_EVENTS;
        let most = (Self::MAX_ITEMS, Self::MAX_QUERIES, Self::MAX_EVENTS);
        let problem =
            || format!("a market has 1 to {} items, 2 to {} queries and at most {} events", most.0, most.1, most.2);
        if fits { Ok(()) } else { Err(Error::input(problem())) }
    }
}

impl Oracle {
    pub fn build(spec: &MarketSpec) -> Result<Self> {
        spec.check()?;
        let catalogue = MarketCatalogue::build(spec.seed, spec.items);
        let requests = requests::draw(spec.seed, &catalogue, spec.queries)?;
        Ok(Self { catalogue, requests })
    }

    /// Loads the oracle of a folder written by `souk market`.
    pub fn load(folder: &Path) -> Result<Self> {
        let file = folder.join(MANIFEST);
        let text = fs::read_to_string(&file).map_err(Error::store(&file, "read it"))?;
        let manifest: MarketManifest = serde_json::from_str(&text)
            .map_err(|e| Error::data(&file, None, "is not the manifest of a market").because(e))?;
        let oracle = Self::build(&manifest.spec)?;
        if oracle.manifest(&manifest.spec).digest != manifest.digest {
            let problem = "was written by another version of the market: write the folder again with `souk market`";
            return Err(Error::config(file.display(), problem));
        }
        Ok(oracle)
    }

    pub fn manifest(&self, spec: &MarketSpec) -> MarketManifest {
        let queries = self.requests.iter().map(|request| hash_text(&format!("{request:?}")));
        let items = self.catalogue.iter().map(|(_, item)| item.digest());
        let digest = queries.chain(items).fold(0, |sum, part| hash(&[sum, part]));
        MarketManifest { spec: *spec, digest: format!("{digest:016x}") }
    }

    pub fn catalogue(&self) -> &MarketCatalogue {
        &self.catalogue
    }

    /// All queries, in the order of their identifiers.
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// Relevance level by query index and item row; `None` if one of them does not exist.
    pub fn judge(&self, query: usize, row: u32) -> Option<Level> {
        Some(self.requests.get(query)?.intent.judge(self.catalogue.get(row)?))
    }

    /// Relevance level by identifiers of the folder's files.
    pub fn judge_ids(&self, query: &str, item: &str) -> Option<Level> {
        self.judge(query_at(query)?, item_row(item)?)
    }

    /// All Good items of a query, by row.
    pub fn good(&self, query: usize) -> impl Iterator<Item = (u32, Level)> + '_ {
        self.requests.get(query).into_iter().flat_map(|request| request.intent.good(&self.catalogue))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_a_folder_of_another_version() {
        let folder = tempfile::tempdir().unwrap();
        let spec = MarketSpec { seed: 1, items: 300, queries: 12, events: 0 };
        let load = |text: &str| {
            fs::write(folder.path().join(MANIFEST), text).unwrap();
            Oracle::load(folder.path()).map(|oracle| oracle.requests().len())
        };
        let manifest = serde_json::to_string(&Oracle::build(&spec).unwrap().manifest(&spec)).unwrap();
        assert_eq!(load(&manifest).unwrap(), 12);
        let error = load(&manifest.replace("\"items\":300", "\"items\":301")).unwrap_err();
        assert!(error.to_string().contains("another version"), "{error}");
        assert!(load("{}").is_err());
    }

    #[test]
    fn identifiers_and_indices_name_the_same_pair() {
        let oracle = Oracle::build(&MarketSpec { seed: 2, items: 500, queries: 12, events: 0 }).unwrap();
        for query in 0..12 {
            let scanned: Vec<_> = (0..500)
                .filter_map(|row| Some((row, oracle.judge(query, row)?)))
                .filter(|(_, l)| l.is_good())
                .collect();
            assert_eq!(oracle.good(query).collect::<Vec<_>>(), scanned);
            let (row, level) = scanned[0];
            assert_eq!(oracle.judge_ids(&format!("q{query}"), &format!("i{row}")), Some(level));
        }
        assert_eq!(oracle.judge_ids("q12", "i0"), None);
        assert_eq!(oracle.judge_ids("q0", "i500"), None);
        assert_eq!(oracle.judge_ids("0", "i5"), None);
    }
}
