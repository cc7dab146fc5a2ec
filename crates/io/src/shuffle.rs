//! Order in which examples are drawn: a permutation of rows that depends on the seed alone. It is computed row by row, so it
//! takes no memory and can start at any row.

use crate::splitmix::{mix, scale};

const ROUNDS: usize = 6;

/// A permutation of `0..num`: a Feistel network on the smallest power of two, repeated until the result is in range.
#[derive(Clone, Debug)]
pub struct Permutation {
    num: u64,
    /// Bits of the lower half; the upper half has as many or one fewer.
    low_bits: u32,
    low_mask: u64,
    high_mask: u64,
    keys: [u64; ROUNDS],
}

impl Permutation {
    pub fn new(num: u64, seed: u64) -> Self {
        let bits = (u64::BITS - num.saturating_sub(1).leading_zeros()).max(2);
        let low_bits = bits.div_ceil(2);
        let keys = std::array::from_fn(|round| mix(seed ^ mix(round as u64 + 1)));
        let mask = |bits: u32| (1_u64 << bits) - 1;
        Self { num, low_bits, low_mask: mask(low_bits), high_mask: mask(bits - low_bits), keys }
    }

    /// Row at position `at`, which must be below the number of rows.
    pub fn at(&self, at: u64) -> u64 {
        let mut at = at;
        loop {
            let (mut high, mut low) = (at >> self.low_bits, at & self.low_mask);
            for pair in self.keys.chunks_exact(2) {
                high ^= mix(low ^ pair[0]) & self.high_mask;
                low ^= mix(high ^ pair[1]) & self.low_mask;
            }
            at = high << self.low_bits | low;
            if at < self.num {
                return at;
            }
        }
    }
}

/// The seed's uniform number in `0..num` of this draw, in constant time. Biased by less than `num / 2^64`.
pub(super) fn uniform(seed: u64, draw: u64, num: u64) -> u64 {
    scale(mix(seed ^ mix(draw)), num)
}

/// Shuffle settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    pub seed: u64,
    /// Shuffle within blocks of this many rows, so that older events come first; all rows together if `None`.
    pub block: Option<u64>,
}

impl Order {
    /// Block of draw number `draw`: its first row, its length, and the position within it.
    fn block_of(&self, draw: u64, num: u64) -> (u64, u64, u64) {
        let in_epoch = draw % num;
        let size = self.block.unwrap_or(num).clamp(1, num);
        let first = in_epoch / size * size;
        (first, size.min(num - first), in_epoch - first)
    }

    fn permutation(&self, draw: u64, num: u64) -> Permutation {
        let (first, length, _) = self.block_of(draw, num);
        Permutation::new(length, mix(self.seed ^ mix(draw / num)) ^ mix(first))
    }

    /// Rows of `draw`'s block that are drawn at `draw` or later, and the row after the block.
    pub fn rest_of_block(&self, draw: u64, num: u64) -> (impl Iterator<Item = u64> + use<>, u64) {
        let (first, length, place) = self.block_of(draw, num);
        let permutation = self.permutation(draw, num);
        ((place..length).map(move |place| first + permutation.at(place)), first + length)
    }
}

/// Endless iterator over rows, epoch after epoch.
pub struct Draw {
    num: u64,
    order: Order,
    at: u64,
    block: Option<(u64, u64, Permutation)>,
}

impl Draw {
    /// Draws from `num` rows, beginning with draw number `at`.
    pub fn new(num: u64, order: Order, at: u64) -> Self {
        Self { num, order, at, block: None }
    }

    /// Number of the next draw.
    pub fn at(&self) -> u64 {
        self.at
    }
}

impl Iterator for Draw {
    type Item = u64;

    /// `None` only if there are no rows.
    fn next(&mut self) -> Option<u64> {
        if self.num == 0 {
            return None;
        }
        let (first, _, place) = self.order.block_of(self.at, self.num);
        let epoch = self.at / self.num;
        let known = self.block.take().filter(|(of_epoch, of_first, _)| (*of_epoch, *of_first) == (epoch, first));
        let (_, _, permutation) =
            self.block.insert(known.unwrap_or_else(|| (epoch, first, self.order.permutation(self.at, self.num))));
        self.at += 1;
        Some(first + permutation.at(place))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_row_comes_once(num in 1..3000_u64, seed: u64) {
            let permutation = Permutation::new(num, seed);
            let mut rows: Vec<u64> = (0..num).map(|at| permutation.at(at)).collect();
            rows.sort_unstable();
            prop_assert!(rows.into_iter().eq(0..num));
        }

        #[test]
        fn a_block_keeps_its_rows(num in 1..500_u64, block in 1..600_u64, seed: u64) {
            let order = Order { seed, block: Some(block) };
            let mut rows = Vec::new();
            let mut draw = 0;
            while draw < num {
                let (rest, end) = order.rest_of_block(draw, num);
                rows.extend(rest);
                draw = end;
                let mut sorted = rows.clone();
                sorted.sort_unstable();
                prop_assert!(sorted.into_iter().eq(0..end));
            }
        }
    }

    #[test]
    fn a_shuffle_is_not_the_identity_and_seeds_differ() {
        let rows = |seed| (0..1000).map(|at| Permutation::new(1000, seed).at(at)).collect::<Vec<_>>();
        assert_ne!(rows(1), rows(2));
        // of a uniform permutation one row stays in place on average; three standard deviations are four
        let fixed = rows(1).iter().zip(0..).filter(|(row, at)| **row == *at).count();
        assert!(fixed < 5, "{fixed} rows stay in place");
        let neighbours = rows(1).windows(2).filter(|pair| pair[0].abs_diff(pair[1]) == 1).count();
        assert!(neighbours < 9, "{neighbours} neighbours stay together; two are expected");
    }

    #[test]
    fn uniform_numbers_are_uniform() {
        let mut counts = [0_u32; 10];
        (0..100_000).for_each(|draw| counts[uniform(7, draw, 10) as usize] += 1);
        // the standard deviation of a count is 95
        assert!(counts.iter().all(|count| count.abs_diff(10_000) < 400), "{counts:?}");
    }
}
