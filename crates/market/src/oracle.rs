//! The judge of any pair of a market's folder. Takes the folder's seed and counts and makes everything else anew, so it
//! knows what items are and what shoppers meant; never reads a text.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::catalogue::Catalogue;
use super::dice::{hash, hash_text};
use super::requests::{self, Request, query_at};
use super::seller::item_row;
use souk_io::domain::Level;
use souk_io::error::{Error, Result};

/// The file of a market's folder that says how to make it again.
pub const MANIFEST: &str = "market.json";
/// How large a market is to be, and from which seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    pub seed: u64,
    pub items: u32,
    pub queries: usize,
    pub events: u64,
}

#[derive(Serialize, Deserialize)]
pub struct Manifest {
    #[serde(flatten)]
    plan: Plan,
    /// Of all that the plan was made into: a program that makes something else of it cannot judge.
    digest: String,
}

pub struct Oracle {
    catalogue: Catalogue,
    requests: Vec<Request>,
}

impl Plan {
    /// The most that fits into the memory of one machine and the identifiers of files.
    pub const MAX_ITEMS: u32 = 20_000_000;
    pub const MAX_QUERIES: usize = 1_000_000;
    pub const MAX_EVENTS: u64 = 10_000_000_000;

    fn check(&self) -> Result<()> {
        let fits = (1..=Self::MAX_ITEMS).contains(&self.items)
            && (2..=Self::MAX_QUERIES).contains(&self.queries)
            && self.events <= Self::MAX_EVENTS;
        let most = (Self::MAX_ITEMS, Self::MAX_QUERIES, Self::MAX_EVENTS);
        let problem =
            || format!("a market has 1 to {} items, 2 to {} queries and up to {} events", most.0, most.1, most.2);
        if fits { Ok(()) } else { Err(Error::input(problem())) }
    }
}

impl Oracle {
    pub fn build(plan: &Plan) -> Result<Self> {
        plan.check()?;
        let catalogue = Catalogue::build(plan.seed, plan.items);
        let requests = requests::draw(plan.seed, &catalogue, plan.queries)?;
        Ok(Self { catalogue, requests })
    }

    /// Of a folder that `souk market` wrote.
    pub fn load(folder: &Path) -> Result<Self> {
        let file = folder.join(MANIFEST);
        let text = fs::read_to_string(&file).map_err(Error::store(&file, "read it"))?;
        let manifest: Manifest = serde_json::from_str(&text)
            .map_err(|e| Error::data(&file, None, "not the manifest of a market").because(e))?;
        let oracle = Self::build(&manifest.plan)?;
        if oracle.manifest(&manifest.plan).digest != manifest.digest {
            let problem = "was written by another version of the market: write the folder again with `souk market`";
            return Err(Error::config(file.display(), problem));
        }
        Ok(oracle)
    }

    pub fn manifest(&self, plan: &Plan) -> Manifest {
        let queries = self.requests.iter().map(|request| hash_text(&format!("{request:?}")));
        let items = self.catalogue.iter().map(|(_, item)| item.digest());
        let digest = queries.chain(items).fold(0, |sum, part| hash(&[sum, part]));
        Manifest { plan: *plan, digest: format!("{digest:016x}") }
    }

    pub fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    /// All queries in the order of their identifiers.
    pub fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// By places; `None` where there is no such query or item.
    pub fn judge(&self, query: usize, row: u32) -> Option<Level> {
        Some(self.requests.get(query)?.intent.judge(self.catalogue.get(row)?))
    }

    /// By identifiers of the folder's files.
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
    fn a_folder_of_another_version_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let plan = Plan { seed: 1, items: 300, queries: 12, events: 0 };
        let load = |text: &str| {
            fs::write(folder.path().join(MANIFEST), text).unwrap();
            Oracle::load(folder.path()).map(|oracle| oracle.requests().len())
        };
        let manifest = serde_json::to_string(&Oracle::build(&plan).unwrap().manifest(&plan)).unwrap();
        assert_eq!(load(&manifest).unwrap(), 12);
        let error = load(&manifest.replace("\"items\":300", "\"items\":301")).unwrap_err();
        assert!(error.to_string().contains("another version"), "{error}");
        assert!(load("{}").is_err());
    }

    #[test]
    fn identifiers_and_places_name_the_same_pair() {
        let oracle = Oracle::build(&Plan { seed: 2, items: 500, queries: 12, events: 0 }).unwrap();
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
