//! Slices that any shop has. Each query is in the first that fits.
//!
//! | slice | queries |
//! |---|---|
//! | `unclicked` | of the held-out days: nobody chose an item then |
//! | `new` | of the held-out days: never searched before them |
//! | `head` | the most frequent ones that make up a third of all searches |
//! | `torso` | the next third |
//! | `tail` | the rest |

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::period::{Period, Periods};
use super::searches::SearchLog;
use souk_io::ubi::Action;

/// Names of the slices.
pub const NAMES: [&str; 5] = ["unclicked", "new", "head", "torso", "tail"];

/// Slice of each query of the log, in its order.
pub fn slices(log: &SearchLog, periods: &Periods) -> Vec<&'static str> {
    #[derive(Clone, Default)]
    struct Query {
        searches: u64,
        trained: bool,
        held_out: bool,
        chosen: bool,
    }
    let mut queries = vec![Query::default(); log.queries.len()];
    for search in &log.searches {
        if let Some(query) = queries.get_mut(search.query as usize) {
            query.searches += 1;
            *(if periods.of(search.time) == Period::Train { &mut query.trained } else { &mut query.held_out }) = true;
        }
    }
    for shown in log.shown.iter().filter(|shown| shown.action > Action::Impression) {
        let search = log.searches[shown.search as usize];
        if periods.of(search.time) != Period::Train {
            queries[search.query as usize].chosen = true;
        }
    }
    let total: u64 = queries.iter().map(|query| query.searches).sum();
    let mut by_frequency: Vec<usize> = (0..queries.len()).collect();
    by_frequency.sort_by_key(|at| (std::cmp::Reverse(queries[*at].searches), *at));
    let (mut slices, mut before) = (vec!["tail"; queries.len()], 0);
    for at in by_frequency {
        let query = &queries[at];
        slices[at] = match query {
            Query { held_out: true, chosen: false, .. } => "unclicked",
            Query { held_out: true, trained: false, .. } => "new",
            _ if 3 * before < total => "head",
            _ if 3 * before < 2 * total => "torso",
            _ => "tail",
        };
        before += query.searches;
    }
    slices
}

/// A query of the held-out days after which nobody chose an item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnclickedQuery {
    pub query: String,
    /// Searches in those days.
    pub searches: u64,
}

/// The most frequent queries of the slice `unclicked`, at most `num`.
pub fn unclicked(log: &SearchLog, periods: &Periods, slices: &[&str], num: usize) -> Vec<UnclickedQuery> {
    let mut counts: HashMap<usize, u64> = HashMap::new();
    for search in log.searches.iter().filter(|search| periods.of(search.time) != Period::Train) {
        let query = search.query as usize;
        if slices.get(query) == Some(&"unclicked") {
            *counts.entry(query).or_default() += 1;
        }
    }
    let mut counts: Vec<(usize, u64)> = counts.into_iter().collect();
    counts.sort_by_key(|(query, searches)| (std::cmp::Reverse(*searches), *query));
    let named = |(query, searches): (usize, u64)| UnclickedQuery { query: log.queries[query].clone(), searches };
    counts.into_iter().take(num).map(named).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judgements::searches::{LogCounts, Search, Shown};

    #[test]
    fn each_query_is_in_the_first_slice_that_fits() {
        let periods = Periods { dev: 100, test: 200, first: 0, last: 300 };
        // query: its searches' times; the held-out searches of queries 0, 1, 2 and 5 have a click
        let times: [&[i64]; 6] = [&[1, 2, 3, 150], &[4, 5, 210], &[6, 120], &[7, 130], &[8], &[140]];
        let (mut searches, mut shown) = (Vec::new(), Vec::new());
        for (query, times) in (0..).zip(times) {
            for time in times {
                if *time > 100 && query != 3 {
                    let search = searches.len() as u32;
                    shown.push(Shown { search, item: 0, position: 1, action: Action::Click });
                }
                searches.push(Search { query, time: *time });
            }
        }
        let queries = (0..6).map(|at| format!("query {at}")).collect();
        let log = SearchLog { queries, searches, shown, has_impressions: true, counts: LogCounts::default() };
        // of 13 searches, the first query makes 4, so the second is still in the first third
        let found = slices(&log, &periods);
        assert_eq!(found, ["head", "head", "torso", "unclicked", "tail", "new"]);
        let unclicked = unclicked(&log, &periods, &found, 9);
        assert_eq!(unclicked, [UnclickedQuery { query: "query 3".into(), searches: 1 }]);
    }
}
