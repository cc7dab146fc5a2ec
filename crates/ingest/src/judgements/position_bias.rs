//! Position bias: how often shoppers look at each position, compared with the first.
//!
//! Learned from items that a query's searches showed at several positions. If an item is chosen with the probability
//! (look at position k) · (appeal of the item for the query), then the positions of its choices do not depend on its appeal: a
//! choice fell on position k with probability N_k p_k / Σ_j N_j p_j, for N_k impressions there. The p that make the log's choices
//! most likely are found by minorisation-maximisation (Hunter, "MM algorithms for generalized Bradley-Terry models", 2004).
//! Between position 1 and each other, `prior_clicks` imagined choices follow the assumed bias, so a log that never shows an item at
//! two positions gives exactly that. Related: Agarwal et al., "Estimating position bias without intrusive interventions", 2019.

use std::collections::HashMap;

use serde::Serialize;

use super::JudgementSettings;
use super::searches::{SearchLog, Shown};
use souk_io::ubi::Action;

/// Positions from here on share one value.
pub const MAX_POSITION: usize = 50;
const MAX_ROUNDS: usize = 500;
const TOLERANCE: f64 = 1e-6;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PositionBias {
    /// Looks at each position, from the first on, in units of the first.
    pub looks: Vec<f64>,
    /// Choices of items that were shown at several positions: the evidence behind `looks`.
    pub informative_choices: u64,
}

/// Impressions and choices of one item for one query, by position.
type Cells = Vec<(usize, f64, f64)>;

impl PositionBias {
    pub fn estimate(log: &SearchLog, settings: &JudgementSettings) -> Self {
        let pairs = moved_pairs(log);
        let informative_choices = pairs.iter().flatten().map(|(_, _, chosen)| *chosen).sum::<f64>() as u64;
        let deepest = log.shown.iter().map(|shown| place(shown).map_or(0, |at| at + 1)).max().unwrap_or(1).max(1);
        let assumed: Vec<f64> = (1..=deepest).map(|k| (k as f64).powf(-settings.position_bias)).collect();
        Self { looks: fit(&pairs, &assumed, settings.prior_clicks), informative_choices }
    }

    /// Looks at a position, counted from 1; a missing position (0) is not corrected.
    pub fn looks(&self, position: u16) -> f64 {
        match usize::from(position).checked_sub(1) {
            Some(at) => self.looks[at.min(self.looks.len() - 1)],
            None => 1.0,
        }
    }
}

/// Index of a position.
fn place(shown: &Shown) -> Option<usize> {
    usize::from(shown.position).checked_sub(1).map(|at| at.min(MAX_POSITION - 1))
}

/// Pairs of query and item that were shown at two positions or more, and chosen.
fn moved_pairs(log: &SearchLog) -> Vec<Cells> {
    let mut pairs: HashMap<(u32, u32), Cells> = HashMap::new();
    for shown in &log.shown {
        let Some(at) = place(shown) else { continue };
        let cells = pairs.entry((log.searches[shown.search as usize].query, shown.item)).or_default();
        let chosen = if shown.action > Action::Impression { 1.0 } else { 0.0 };
        match cells.iter_mut().find(|(place, _, _)| *place == at) {
            Some(cell) => (cell.1, cell.2) = (cell.1 + 1.0, cell.2 + chosen),
            None => cells.push((at, 1.0, chosen)),
        }
    }
    let is_informative = |cells: &Cells| cells.len() > 1 && cells.iter().any(|(_, _, chosen)| *chosen > 0.0);
    let mut found: Vec<_> = pairs.into_iter().filter(|(_, cells)| is_informative(cells)).collect();
    // sums are rounded in a fixed order
    found.sort_unstable_by_key(|(pair, _)| *pair);
    found.into_iter().map(|(_, cells)| cells).collect()
}

/// The most likely looks; `assumed` gives the imagined choices.
fn fit(pairs: &[Cells], assumed: &[f64], imagined: f64) -> Vec<f64> {
    let mut looks = assumed.to_vec();
    let mut choices = vec![0.0; looks.len()];
    for (at, _, chosen) in pairs.iter().flatten() {
        choices[*at] += chosen;
    }
    for at in 1..looks.len() {
        choices[0] += imagined * assumed[0] / (assumed[0] + assumed[at]);
        choices[at] += imagined * assumed[at] / (assumed[0] + assumed[at]);
    }
    for _ in 0..MAX_ROUNDS {
        let mut expected = vec![0.0; looks.len()];
        for cells in pairs {
            let chosen: f64 = cells.iter().map(|(_, _, chosen)| chosen).sum();
            let all: f64 = cells.iter().map(|(at, shown, _)| shown * looks[*at]).sum();
            cells.iter().for_each(|(at, shown, _)| expected[*at] += chosen * shown / all);
        }
        for at in 1..looks.len() {
            let each = imagined / (looks[0] + looks[at]);
            expected[0] += each;
            expected[at] += each;
        }
        let mut next: Vec<f64> = choices.iter().zip(&expected).map(|(choices, expected)| choices / expected).collect();
        let first = next[0];
        if !(first.is_finite() && first > 0.0) {
            return assumed.to_vec();
        }
        next.iter_mut().for_each(|looks| *looks /= first);
        let moved = next.iter().zip(&looks).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        looks = next;
        if moved < TOLERANCE {
            break;
        }
    }
    looks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_evidence_it_is_the_assumed_bias() {
        let assumed = [1.0, 0.5, 1.0 / 3.0];
        let found = fit(&[], &assumed, 20.0);
        assert!(found.iter().zip(assumed).all(|(a, b)| (a - b).abs() < 1e-5), "{found:?}");
    }

    #[test]
    fn choices_of_moved_items_tell_the_bias_whatever_their_appeal() {
        // 1,000 impressions at both positions; the second is looked at 0.8 times as often. Appeals of 0.5 and 0.05.
        let pairs = [vec![(0, 1000.0, 500.0), (1, 1000.0, 400.0)], vec![(0, 1000.0, 50.0), (1, 1000.0, 40.0)]];
        let found = fit(&pairs, &[1.0, 0.5], 1e-6);
        assert!((found[1] - 0.8).abs() < 1e-4, "{found:?}");
        // a popular item mostly at the first position does not make that position look better
        let uneven = [vec![(0, 2000.0, 1000.0), (1, 100.0, 40.0)], vec![(0, 100.0, 5.0), (1, 2000.0, 80.0)]];
        let found = fit(&uneven, &[1.0, 0.5], 1e-6);
        assert!((found[1] - 0.8).abs() < 1e-4, "{found:?}");
        // the imagined clicks pull towards what is assumed
        let pulled = fit(&pairs, &[1.0, 0.5], 200.0);
        assert!(pulled[1] < 0.78 && pulled[1] > 0.6, "{pulled:?}");
    }
}
