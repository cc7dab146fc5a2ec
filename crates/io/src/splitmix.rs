//! SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators"): reproducible random numbers from
//! a seed. Never uses the machine's entropy, and is not for secrets.

/// 2^64 divided by the golden ratio, made odd: the step of the generator's state.
pub const GOLDEN_GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// Stream of random bits.
#[derive(Clone, Debug)]
pub struct SplitMix64 {
    state: u64,
}

impl SplitMix64 {
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    pub fn next_bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(GOLDEN_GAMMA);
        finalize(self.state)
    }

    /// Uniform number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.next_bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Uniform number in `0..num`; biased by less than `num / 2^64`.
    pub fn below(&mut self, num: usize) -> usize {
        scale(self.next_bits(), num as u64) as usize
    }
}

/// Hash of a number: the first output of the generator with this seed.
#[inline]
pub fn mix(seed: u64) -> u64 {
    finalize(seed.wrapping_add(GOLDEN_GAMMA))
}

/// Mixes all bits of a number.
#[inline]
pub fn finalize(bits: u64) -> u64 {
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Maps uniform bits to `0..num`.
pub fn scale(bits: u64, num: u64) -> u64 {
    ((u128::from(bits) * u128::from(num)) >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_the_reference_implementation() {
        // the first outputs of https://prng.di.unimi.it/splitmix64.c for the seed 1234567
        let mut stream = SplitMix64::new(1_234_567);
        let outputs = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423_u64];
        assert_eq!(outputs.map(|_| stream.next_bits()), outputs);
        assert_eq!(mix(1_234_567), outputs[0]);
    }
}
