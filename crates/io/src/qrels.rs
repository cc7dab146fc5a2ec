//! Judgements of a split. Takes the rows of `qrels/SPLIT.tsv`, gives one level for each pair: where a pair is judged with
//! different levels, the highest counts. Nobody else settles such pairs.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::domain::{Judgement, Level};

/// One judgement for each pair, in the order in which pairs first appear.
#[derive(Debug, PartialEq, Eq)]
pub struct Settled {
    pub judgements: Vec<Judgement>,
    /// Pairs that had different levels.
    pub num_conflicts: usize,
}

pub fn settle(rows: Vec<Judgement>) -> Settled {
    let mut pairs: HashMap<(&str, &str), Pair> = HashMap::with_capacity(rows.len());
    let (mut is_first, mut num_conflicts) = (Vec::with_capacity(rows.len()), 0);
    for (row, judgement) in rows.iter().enumerate() {
        let Judgement { query, item, level } = judgement;
        let new = Pair { row, level: *level, conflicts: false };
        let pair = pairs.entry((query, item)).or_insert(new);
        is_first.push(pair.row == row);
        if pair.level != *level {
            num_conflicts += usize::from(!pair.conflicts);
            *pair = Pair { row: pair.row, level: pair.level.max(*level), conflicts: true };
        }
    }
    let raised: Vec<(usize, Level)> =
        pairs.into_values().filter(|pair| pair.conflicts).map(|pair| (pair.row, pair.level)).collect();
    let mut judgements = rows;
    for (row, level) in raised {
        judgements[row].level = level;
    }
    let mut is_first = is_first.into_iter();
    judgements.retain(|_| is_first.next() == Some(true));
    Settled { judgements, num_conflicts }
}

/// A pair where it first appears.
struct Pair {
    row: usize,
    /// The highest so far.
    level: Level,
    conflicts: bool,
}

/// Warns about the conflicts of a file, once per process: a trainer reads its judgements in every round.
pub fn warn_once(file: &Path, num_conflicts: usize) {
    static WARNED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    if num_conflicts > 0 && WARNED.lock().unwrap_or_else(PoisonError::into_inner).insert(file.into()) {
        let file = file.display();
        tracing::warn!("{file}: pairs judged with different levels: {num_conflicts}; the highest level of each counts");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rows: &[(&str, &str, i64)]) -> Vec<Judgement> {
        let row = |(query, item, level): &(&str, &str, i64)| Judgement {
            query: (*query).into(),
            item: (*item).into(),
            level: Level::from_number(*level).unwrap(),
        };
        rows.iter().map(row).collect()
    }

    #[test]
    fn the_highest_level_counts_in_any_order() {
        let written = [("q1", "a", 2), ("q2", "a", 1), ("q1", "a", 4), ("q1", "b", 3), ("q1", "a", 2), ("q1", "a", 1)];
        let mut reversed = written;
        reversed.reverse();
        let settled = settle(rows(&written));
        assert_eq!(settled.judgements, rows(&[("q1", "a", 4), ("q2", "a", 1), ("q1", "b", 3)]));
        assert_eq!(settled.num_conflicts, 1, "a pair counts once, however often it stands there");
        let again = settle(rows(&reversed));
        assert_eq!(again.judgements, rows(&[("q1", "a", 4), ("q1", "b", 3), ("q2", "a", 1)]));
        assert_eq!(again.num_conflicts, 1);
    }

    #[test]
    fn repeated_rows_are_no_conflict() {
        let settled = settle(rows(&[("q", "a", 3), ("q", "a", 3)]));
        assert_eq!((settled.judgements, settled.num_conflicts), (rows(&[("q", "a", 3)]), 0));
    }
}
