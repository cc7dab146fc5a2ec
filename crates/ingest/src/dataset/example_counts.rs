//! Number of examples per commit. Takes a folder of examples, gives the number of new ones since an extent and the
//! extent that covers a wanted number. Never opens the examples; each commit's metadata is read once.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::chain::{Commit, Commits};
use super::examples::Extent;
use souk_io::error::{Error, Result};

#[derive(Default)]
pub struct ExampleCounts {
    lanes: BTreeMap<String, LaneCounts>,
}

/// Counts of one lane.
#[derive(Default)]
struct LaneCounts {
    first: u64,
    /// Log time at the end of each commit, and its number of examples.
    commits: Vec<(i64, u64)>,
}

impl LaneCounts {
    fn end(&self) -> u64 {
        self.first + self.commits.len() as u64
    }
}

impl ExampleCounts {
    /// Reads the commits added since the last refresh. A missing folder counts as empty.
    pub fn refresh(&mut self, home: &Path) -> Result<()> {
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
            let counts =
                self.lanes.entry(name).or_insert_with(|| LaneCounts { first: commits.first, commits: Vec::new() });
            counts.commits.drain(..(commits.first.saturating_sub(counts.first) as usize).min(counts.commits.len()));
            counts.first = counts.first.max(commits.first);
            let known = counts.end();
            for (_, folder) in commits.numbered().filter(|(number, _)| *number >= known) {
                let commit = Commit::load(folder)?;
                counts.commits.push((commit.state.now, commit.counts.examples));
            }
        }
        Ok(())
    }

    /// Extent of all commits.
    pub fn extent(&self) -> Extent {
        self.lanes.iter().map(|(lane, counts)| (lane.clone(), counts.end())).collect()
    }

    /// Number of examples after `from`.
    pub fn since(&self, from: &Extent) -> u64 {
        let num_new = |(lane, counts): (&String, &LaneCounts)| {
            let known = from.get(lane).map_or(0, |from| from.saturating_sub(counts.first) as usize);
            counts.commits.iter().skip(known).map(|(_, examples)| examples).sum::<u64>()
        };
        self.lanes.iter().map(num_new).sum()
    }

    /// Returns an extent at least `wanted` examples before `from`, or the earliest one if fewer are retained.
    pub fn rewind(&self, from: &Extent, wanted: u64) -> Extent {
        let mut start: Extent = self.lanes.keys().map(|lane| (lane.clone(), 0)).collect();
        let mut before: Vec<(i64, &String, u64, u64)> = Vec::new();
        for (lane, counts) in &self.lanes {
            let end = from.get(lane).copied().unwrap_or_default().clamp(counts.first, counts.end());
            start.insert(lane.clone(), end);
            let numbered = (counts.first..end).zip(&counts.commits);
            before.extend(numbered.map(|(number, (now, examples))| (*now, lane, number, *examples)));
        }
        before.sort_unstable();
        let mut found = 0;
        for (_, lane, number, examples) in before.into_iter().rev() {
            if found >= wanted {
                break;
            }
            found += examples;
            start.insert(lane.clone(), number);
        }
        start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(ends: &[(&str, u64)]) -> Extent {
        ends.iter().map(|(lane, end)| ((*lane).to_owned(), *end)).collect()
    }

    #[test]
    fn counts_new_examples_and_rewinds() {
        let counts = |first, commits: &[(i64, u64)]| LaneCounts { first, commits: commits.into() };
        // the first four commits of the second lane were pruned
        let lanes = [("a", counts(0, &[(1, 10), (3, 20), (5, 30)])), ("b", counts(4, &[(2, 100), (4, 200)]))];
        let counts = ExampleCounts { lanes: lanes.map(|(lane, counts)| (lane.to_owned(), counts)).into() };
        let all = extent(&[("a", 3), ("b", 6)]);
        assert_eq!(counts.extent(), all);
        assert_eq!(counts.since(&all), 0);
        assert_eq!(counts.since(&extent(&[("a", 2), ("b", 5)])), 230);
        assert_eq!(counts.since(&Extent::new()), 360, "an unknown lane is new");
        assert_eq!(counts.rewind(&all, 0), all);
        assert_eq!(counts.rewind(&all, 30), extent(&[("a", 2), ("b", 6)]), "the latest commit is enough");
        assert_eq!(counts.rewind(&all, 31), extent(&[("a", 2), ("b", 5)]));
        assert_eq!(
            counts.rewind(&extent(&[("a", 1)]), 1000),
            extent(&[("a", 0), ("b", 4)]),
            "no further than the retained commits"
        );
    }
}
