//! Deterministic random numbers (SplitMix64) by seed and stream, and distributions over them. Never uses the machine's
//! entropy.

use souk_io::splitmix::{GOLDEN_GAMMA, SplitMix64, finalize};

// Random streams: each draw uses the seed, one of these and an index. The values are fixed: they determine every folder.
pub const STREAM_TRAITS: u64 = 1;
pub const STREAM_SALES: u64 = 2;
pub const STREAM_TEXT: u64 = 3;
pub const STREAM_REQUESTS: u64 = 4;
pub const STREAM_CHANNEL: u64 = 5;
pub const STREAM_SESSIONS: u64 = 6;
pub const STREAM_DRIFT: u64 = 7;
pub const STREAM_LOOKS: u64 = 8;
pub const STREAM_TYPING: u64 = 9;
pub const STREAM_MAKERS: u64 = 10;

/// Random number generator; each use has its own stream.
#[derive(Clone, Debug)]
pub struct Dice {
    stream: SplitMix64,
}

/// Hash of a list of numbers.
pub fn hash(parts: &[u64]) -> u64 {
    parts.iter().fold(GOLDEN_GAMMA, |sum, part| finalize(sum.wrapping_add(*part).wrapping_mul(0xd6e8_feb8_6659_fd93)))
}

impl Dice {
    /// Starts a stream; `key` is usually seed, stream constant and index.
    pub fn new(key: &[u64]) -> Self {
        Self { stream: SplitMix64::new(hash(key)) }
    }

    /// The random bits themselves.
    pub fn stream(&mut self) -> &mut SplitMix64 {
        &mut self.stream
    }

    pub fn next(&mut self) -> u64 {
        self.stream.next_bits()
    }

    /// Uniform number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        self.stream.unit()
    }

    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Uniform integer in [0, `count`); `count` must not be 0.
    pub fn below(&mut self, count: usize) -> usize {
        self.stream.below(count)
    }

    /// Uniform choice from a slice that must not be empty.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// Random index, by weight.
    pub fn weighted(&mut self, weights: impl Iterator<Item = f32> + Clone) -> usize {
        let mut left = self.unit() * weights.clone().map(f64::from).sum::<f64>();
        let mut last = 0;
        for (at, weight) in weights.enumerate() {
            last = at;
            left -= f64::from(weight);
            if left < 0.0 {
                break;
            }
        }
        last
    }

    /// Approximately standard normal, as a sum of 12 uniforms: bounded by ±6 and identical on every machine.
    pub fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.unit()).sum::<f64>() - 6.0
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            let other = self.below(end + 1);
            items.swap(end, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_differ_and_draws_stay_in_bounds() {
        assert_ne!(hash(&[1, 2]), hash(&[2, 1]));
        let mut dice = Dice::new(&[7]);
        let mut seen = [0; 3];
        for _ in 0..3000 {
            seen[dice.weighted([1.0, 0.0, 3.0].into_iter())] += 1;
            assert!(dice.below(5) < 5 && dice.unit() < 1.0);
        }
        assert_eq!(seen[1], 0);
        assert!((600..900).contains(&seen[0]), "a quarter of 3000: {seen:?}");
        let mean = (0..2000).map(|_| dice.normal()).sum::<f64>() / 2000.0;
        assert!(mean.abs() < 0.1, "{mean}");
    }
}
