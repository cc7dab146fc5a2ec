//! Levels of a query's items: clicks over expected clicks (COEC), shrunk towards the average.
//!
//! `rate = (gain + m μ) / (looks + m)`, with the gain of clicks, carts and purchases, the looks that the positions let expect, the
//! average rate μ and the weight m of that average (`prior_looks`). In multiples of μ:
//!
//! | item | level |
//! |---|---|
//! | chosen, rate of `best` or more | L4 |
//! | chosen, rate of `good` or more | L3 |
//! | chosen less often than that | L2 |
//! | never chosen in `unchosen_looks` or more | L1 |
//! | never chosen in fewer looks, or shown less than `min_impressions` times | none |
//!
//! In a log without impressions, each chosen item is at least L3, and the others have no level.

use super::JudgementSettings;
use super::evidence::{Evidence, Pair};
use super::period::Period;
use souk_io::domain::Level;

/// Levels by period, query and item, in this order.
pub struct Grades {
    pub graded: Vec<Graded>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Graded {
    pub period: Period,
    pub query: u32,
    pub item: u32,
    pub level: Level,
}

impl Grades {
    pub fn of(evidence: &Evidence, settings: &JudgementSettings) -> Self {
        let graded = evidence.pairs.iter().filter_map(|pair| {
            let level = level(pair, evidence, settings)?;
            Some(Graded { period: pair.period, query: pair.query, item: pair.item, level })
        });
        Self { graded: graded.collect() }
    }
}

fn level(pair: &Pair, evidence: &Evidence, settings: &JudgementSettings) -> Option<Level> {
    let average = evidence.average;
    if pair.gain == 0.0 {
        let is_seen = pair.impressions >= settings.min_impressions && pair.looks >= settings.unchosen_looks;
        return (evidence.has_impressions && is_seen).then_some(Level::L1);
    }
    let rate = (pair.gain + settings.prior_looks * average) / (pair.looks + settings.prior_looks);
    let found = match rate / average {
        ratio if ratio >= settings.best => Level::L4,
        ratio if ratio >= settings.good => Level::L3,
        _ => Level::L2,
    };
    Some(if evidence.has_impressions { found } else { found.max(Level::L3) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use Level::{L1, L2, L3, L4};

    fn levels(has_impressions: bool, pairs: &[(u32, f64, f64)]) -> Vec<Option<Level>> {
        let settings = JudgementSettings { min_impressions: 2, ..JudgementSettings::default() };
        let pair = |(impressions, looks, gain): &(u32, f64, f64)| Pair {
            period: Period::Train,
            query: 0,
            item: 0,
            impressions: *impressions,
            looks: *looks,
            gain: *gain,
        };
        let pairs: Vec<Pair> = pairs.iter().map(pair).collect();
        let evidence = Evidence { pairs: Vec::new(), average: 0.2, has_impressions };
        pairs.iter().map(|pair| level(pair, &evidence, &settings)).collect()
    }

    #[test]
    fn levels_follow_the_rate() {
        // with an average of 0.2, three imagined looks are worth a gain of 0.6
        let found = levels(
            true,
            &[
                (1, 1.0, 1.0),  // (1 + 0.6) / 4 = 0.40, twice the average
                (1, 0.5, 2.0),  // (2 + 0.6) / 3.5 = 0.74
                (9, 8.0, 1.0),  // (1 + 0.6) / 11 = 0.15
                (2, 0.09, 0.0), // fewer looks than 0.1
                (2, 0.1, 0.0),
                (1, 1.0, 0.0), // shown only once
            ],
        );
        assert_eq!(found, [Some(L3), Some(L4), Some(L2), None, Some(L1), None]);
    }

    #[test]
    fn without_impressions_only_what_was_chosen_has_a_level() {
        assert_eq!(levels(false, &[(9, 8.0, 1.0), (9, 9.0, 0.0), (1, 0.5, 4.0)]), [Some(L3), None, Some(L4)]);
    }
}
