//! How many examples there are, commit by commit, without opening them: what is new since some point, and how far back a
//! number of them reaches. Takes a folder of examples again and again; each commit's page is read once.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::chain::{Commit, Commits};
use super::examples::Extent;
use souk_io::error::{Error, Result};

#[derive(Default)]
pub struct Stock {
    lanes: BTreeMap<String, Shelf>,
}

/// One lane.
#[derive(Default)]
struct Shelf {
    first: u64,
    /// The log's time at the end of each commit, and its examples.
    commits: Vec<(i64, u64)>,
}

impl Shelf {
    fn end(&self) -> u64 {
        self.first + self.commits.len() as u64
    }
}

impl Stock {
    /// Counts what has come since the last look. A folder that is not there yet holds nothing.
    pub fn look(&mut self, home: &Path) -> Result<()> {
        let entries = match fs::read_dir(home) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(e) => return Err(Error::store(home, "open the examples")(e)),
        };
        for entry in entries {
            let lane = entry.map_err(Error::store(home, "list the lanes"))?.path();
            if !lane.is_dir() {
                continue;
            }
            let commits = Commits::list(&lane)?;
            let name = lane.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let shelf = self.lanes.entry(name).or_insert_with(|| Shelf { first: commits.first, commits: Vec::new() });
            shelf.commits.drain(..(commits.first.saturating_sub(shelf.first) as usize).min(shelf.commits.len()));
            shelf.first = shelf.first.max(commits.first);
            let known = shelf.end();
            for (_, folder) in commits.numbered().filter(|(number, _)| *number >= known) {
                let commit = Commit::load(folder)?;
                shelf.commits.push((commit.state.now, commit.counts.examples));
            }
        }
        Ok(())
    }

    /// Everything that is there.
    pub fn extent(&self) -> Extent {
        self.lanes.iter().map(|(lane, shelf)| (lane.clone(), shelf.end())).collect()
    }

    /// Examples that came after `from`.
    pub fn since(&self, from: &Extent) -> u64 {
        let of = |(lane, shelf): (&String, &Shelf)| {
            let known = from.get(lane).map_or(0, |from| from.saturating_sub(shelf.first) as usize);
            shelf.commits.iter().skip(known).map(|(_, examples)| examples).sum::<u64>()
        };
        self.lanes.iter().map(of).sum()
    }

    /// An extent before `from`, so that at least `wanted` examples lie between, or as many as are kept.
    pub fn back(&self, from: &Extent, wanted: u64) -> Extent {
        let mut back: Extent = self.lanes.keys().map(|lane| (lane.clone(), 0)).collect();
        let mut before: Vec<(i64, &String, u64, u64)> = Vec::new();
        for (lane, shelf) in &self.lanes {
            let end = from.get(lane).copied().unwrap_or_default().clamp(shelf.first, shelf.end());
            back.insert(lane.clone(), end);
            let numbered = (shelf.first..end).zip(&shelf.commits);
            before.extend(numbered.map(|(number, (now, examples))| (*now, lane, number, *examples)));
        }
        before.sort_unstable();
        let mut found = 0;
        for (_, lane, number, examples) in before.into_iter().rev() {
            if found >= wanted {
                break;
            }
            found += examples;
            back.insert(lane.clone(), number);
        }
        back
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(ends: &[(&str, u64)]) -> Extent {
        ends.iter().map(|(lane, end)| ((*lane).to_owned(), *end)).collect()
    }

    #[test]
    fn what_is_new_is_counted_and_what_is_old_is_reached_from_its_end() {
        let shelf = |first, commits: &[(i64, u64)]| Shelf { first, commits: commits.into() };
        // the second lane has forgotten its first four commits
        let lanes = [("a", shelf(0, &[(1, 10), (3, 20), (5, 30)])), ("b", shelf(4, &[(2, 100), (4, 200)]))];
        let stock = Stock { lanes: lanes.map(|(lane, shelf)| (lane.to_owned(), shelf)).into() };
        let all = extent(&[("a", 3), ("b", 6)]);
        assert_eq!(stock.extent(), all);
        assert_eq!(stock.since(&all), 0);
        assert_eq!(stock.since(&extent(&[("a", 2), ("b", 5)])), 230);
        assert_eq!(stock.since(&Extent::new()), 360, "a lane that was never seen is new");
        assert_eq!(stock.back(&all, 0), all);
        assert_eq!(stock.back(&all, 30), extent(&[("a", 2), ("b", 6)]), "the latest commit is enough");
        assert_eq!(stock.back(&all, 31), extent(&[("a", 2), ("b", 5)]));
        assert_eq!(stock.back(&extent(&[("a", 1)]), 1000), extent(&[("a", 0), ("b", 4)]), "no more than is kept");
    }
}
