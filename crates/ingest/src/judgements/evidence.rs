//! Adds up what the searches of each period say about a query's items.

use super::period::{Period, Periods};
use super::position_bias::PositionBias;
use super::searches::SearchLog;
use crate::dataset::Strength;
use souk_io::ubi::Action;

/// A query's item in one period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pair {
    pub period: Period,
    pub query: u32,
    pub item: u32,
    pub impressions: u32,
    /// Impressions, each weighted with how often its position is looked at.
    pub looks: f64,
    /// Sum of the weights of the strongest action of each search.
    pub gain: f64,
}

pub struct Evidence {
    /// In the order of period, query and item.
    pub pairs: Vec<Pair>,
    /// Gain per look over all pairs.
    pub average: f64,
    /// Whether items that were not chosen are in the log.
    pub has_impressions: bool,
}

impl Evidence {
    pub fn gather(log: &SearchLog, periods: &Periods, bias: &PositionBias, strength: &Strength) -> Self {
        let mut pairs: Vec<Pair> = log
            .shown
            .iter()
            .map(|shown| {
                let search = log.searches[shown.search as usize];
                let gain = match shown.action {
                    Action::Impression => 0.0,
                    action => f64::from(strength.of_event(action, None)),
                };
                let (period, looks) = (periods.of(search.time), bias.looks(shown.position));
                Pair { period, query: search.query, item: shown.item, impressions: 1, looks, gain }
            })
            .collect();
        // stable, so that sums are rounded in the order of the log
        pairs.sort_by_key(|pair| (pair.period, pair.query, pair.item));
        pairs.dedup_by(|next, sum| {
            let is_same = (next.period, next.query, next.item) == (sum.period, sum.query, sum.item);
            if is_same {
                sum.impressions += next.impressions;
                sum.looks += next.looks;
                sum.gain += next.gain;
            }
            is_same
        });
        let (gain, looks) = pairs.iter().fold((0.0, 0.0), |(gain, looks), pair| (gain + pair.gain, looks + pair.looks));
        Self { pairs, average: gain / looks, has_impressions: log.has_impressions }
    }
}
