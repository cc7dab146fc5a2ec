//! Number of examples per commit. Takes a folder of examples, gives the number in a span, and extents by log time or by number.
//! Never opens the examples; each commit's metadata is read once.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::chain::{Commit, Commits};
use super::examples::{Extent, Span};
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
                // log time also moves back, if some records had a wrong time
                let latest = counts.commits.last().map_or(i64::MIN, |(now, _)| *now);
                counts.commits.push((commit.state.now.max(latest), commit.counts.examples));
            }
        }
        Ok(())
    }

    /// Extent of all commits.
    pub fn extent(&self) -> Extent {
        self.lanes.iter().map(|(lane, counts)| (lane.clone(), counts.end())).collect()
    }

    /// Newest log time of all lanes, in milliseconds since 1970.
    pub fn newest(&self) -> Option<i64> {
        self.lanes.values().filter_map(|counts| counts.commits.last()).map(|(now, _)| *now).max()
    }

    /// Extent of the commits whose examples are all older than a log time. The log time at the end of a commit is the median of its
    /// last records, so only the commits before another one count whose log time is not later.
    pub fn extent_before(&self, time: i64) -> Extent {
        let end = |counts: &LaneCounts| {
            let num_until = counts.commits.partition_point(|(now, _)| *now <= time);
            let last = counts.commits[..num_until].last().map_or(time, |(now, _)| *now);
            counts.first + counts.commits.partition_point(|(now, _)| *now < last) as u64
        };
        self.lanes.iter().map(|(lane, counts)| (lane.clone(), end(counts))).collect()
    }

    /// Number of examples of a span.
    pub fn within(&self, span: &Span) -> u64 {
        let num = |(lane, counts): (&String, &LaneCounts)| {
            let at = |extent: &Extent| extent.get(lane).map_or(0, |at| at.saturating_sub(counts.first) as usize);
            let (from, to) = (at(&span.from), at(&span.to).min(counts.commits.len()));
            counts.commits.get(from..to).unwrap_or_default().iter().map(|(_, examples)| examples).sum::<u64>()
        };
        self.lanes.iter().map(num).sum()
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
        let within = |from: &Extent, to: &Extent| counts.within(&Span { from: from.clone(), to: to.clone() });
        assert_eq!(within(&all, &all), 0);
        assert_eq!(within(&extent(&[("a", 2), ("b", 5)]), &all), 230);
        assert_eq!(within(&Extent::new(), &all), 360, "an unknown lane is new");
        assert_eq!(counts.newest(), Some(5));
        let before = counts.extent_before(4);
        assert_eq!(before, extent(&[("a", 1), ("b", 5)]));
        assert_eq!(counts.extent_before(1), extent(&[("a", 0), ("b", 4)]));
        assert_eq!(counts.extent_before(0), extent(&[("a", 0), ("b", 4)]));
        assert_eq!(within(&Extent::new(), &before), 110);
        assert_eq!(within(&all, &before), 0, "what was learned already");
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
