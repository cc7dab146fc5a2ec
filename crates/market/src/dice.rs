//! Chance that can be replayed: a number that depends on a seed and on where it is drawn (SplitMix64), and what is made
//! of such numbers. Never draws from the machine.

/// A stream of numbers of its own for every place that draws.
#[derive(Clone, Debug)]
pub struct Dice {
    state: u64,
}

/// Scatters the bits of a number over all 64 (SplitMix64's finish).
fn scatter(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// A fixed number for a place.
pub fn hash(place: &[u64]) -> u64 {
    place
        .iter()
        .fold(0x9e37_79b9_7f4a_7c15, |sum, part| scatter(sum.wrapping_add(*part).wrapping_mul(0xd6e8_feb8_6659_fd93)))
}

/// A fixed number for a name.
pub fn hash_text(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

impl Dice {
    pub fn new(place: &[u64]) -> Self {
        Self { state: hash(place) }
    }

    pub fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        scatter(self.state)
    }

    /// From 0 up to, not including, 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// From 0 up to, not including, `count`, which is not 0.
    pub fn below(&mut self, count: usize) -> usize {
        ((u128::from(self.next()) * count as u128) >> 64) as usize
    }

    /// One of several, which are not none.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    /// A place in `weights`, by weight.
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

    /// Normal with mean 0 and deviation 1, as a sum of twelve: no tails beyond 6, the same on every machine.
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
    fn the_stream_is_splitmix64() {
        // the reference implementation's first numbers from state 0
        let mut dice = Dice { state: 0 };
        let drawn = [dice.next(), dice.next(), dice.next()];
        assert_eq!(drawn, [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]);
    }

    #[test]
    fn places_differ_and_draws_stay_in_bounds() {
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
