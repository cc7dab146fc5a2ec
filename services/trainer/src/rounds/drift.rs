//! Drift between two distributions: queries and items by hash bucket, levels by number. The population stability index,
//! Σ (b − a) · ln(b / a) over buckets, with half a count added to each so that none is empty.

use std::hash::{DefaultHasher, Hasher};

const BUCKETS: usize = 20;

/// Counts by bucket.
#[derive(Clone, Debug, PartialEq)]
pub struct Mix(Vec<f64>);

impl Default for Mix {
    fn default() -> Self {
        Self(vec![0.0; BUCKETS])
    }
}

impl Mix {
    /// From existing counts.
    pub fn of(counts: &[f64]) -> Self {
        Self(counts.into())
    }

    /// Counts one thing by its name.
    pub fn count(&mut self, name: &str) {
        let mut hash = DefaultHasher::new();
        hash.write(name.as_bytes());
        let bucket = (hash.finish() % self.0.len() as u64) as usize;
        self.0[bucket] += 1.0;
    }

    pub fn num(&self) -> f64 {
        self.0.iter().sum()
    }
}

/// The population stability index; none with fewer than ten counts of either for each bucket.
pub fn stability(before: &Mix, after: &Mix) -> Option<f64> {
    let buckets = before.0.len() as f64;
    if before.0.len() != after.0.len() || before.num().min(after.num()) < 10.0 * buckets {
        return None;
    }
    let shares = |mix: &Mix| -> Vec<f64> {
        let all = mix.num() + 0.5 * buckets;
        mix.0.iter().map(|count| (count + 0.5) / all).collect()
    };
    let terms = shares(before).into_iter().zip(shares(after)).map(|(a, b)| (b - a) * (b / a).ln());
    Some(terms.sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_is_that_of_the_formula() {
        // shares 100.5/201 = 0.5 each, then 150.5/201 and 50.5/201
        let (before, after) = (Mix::of(&[100.0, 100.0]), Mix::of(&[150.0, 50.0]));
        let [b, c] = [150.5 / 201.0, 50.5 / 201.0_f64];
        let expected = (b - 0.5) * (b / 0.5).ln() + (c - 0.5) * (c / 0.5).ln();
        assert!((stability(&before, &after).unwrap() - expected).abs() < 1e-12);
        assert_eq!(stability(&before, &before), Some(0.0));
        assert_eq!(stability(&before, &Mix::of(&[9.0, 9.0])), None, "too few");
    }

    #[test]
    fn a_flood_of_one_thing_is_seen_and_chance_is_not() {
        let mix = |flood: usize, shift: usize| {
            let mut mix = Mix::default();
            (0..4000).for_each(|at| mix.count(&format!("item {}", (at * 31 + shift) % 977)));
            (0..flood).for_each(|_| mix.count("pushed"));
            mix
        };
        assert!(stability(&mix(0, 0), &mix(0, 400)).unwrap() < 0.01);
        assert!(stability(&mix(0, 0), &mix(1000, 400)).unwrap() > 0.25, "a fifth of the clicks on one item");
    }
}
