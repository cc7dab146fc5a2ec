//! Which states of a pair the head reads. With `first`, `last` or `mean`, the backbone must learn to compare the two texts.
//! `sides` pools each text separately, after each has attended to the other, and passes both means, their product and their
//! distance to the head, so a retriever's backbone is useful from the first step.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

use super::reader::PairText;
use souk_io::error::{Error, Result};
use souk_nn::encoder::{Pooling, Spans};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reading {
    /// The first token.
    Cls,
    /// The last token.
    LastToken,
    /// Mean of all tokens.
    Mean,
    /// The mean of each text, their product and their distance.
    Sides,
}

impl Reading {
    /// Input width of the head for states of `width`.
    pub(super) fn width(self, width: i64) -> i64 {
        if self == Self::Sides { 4 * width } else { width }
    }

    /// The head's inputs `[b, w]` for packed pairs, in f32. `states` computes the hidden states of all tokens, or of those whose
    /// indices it gets.
    pub(super) fn pool(
        self,
        starts: &[i64],
        pairs: &[&PairText],
        device: Device,
        states: impl FnOnce(Option<&Tensor>) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let plain = |pooling: Pooling, starts: &[i64]| {
            let skip = vec![0; starts.len().saturating_sub(1)];
            pooling.pool(&Spans { starts, skip: &skip }, device, states)
        };
        match self {
            Self::Cls => plain(Pooling::Cls, starts),
            Self::LastToken => plain(Pooling::LastToken, starts),
            Self::Mean => plain(Pooling::Mean, starts),
            Self::Sides => Ok(compared(&plain(Pooling::Mean, &sides(starts, pairs)?)?)),
        }
    }
}

/// Offsets of both texts of each pair, and the end.
fn sides(starts: &[i64], pairs: &[&PairText]) -> Result<Vec<i64>> {
    let mut cuts = vec![0];
    for (ends, pair) in starts.windows(2).zip(pairs) {
        let first = pair.num_first;
        if first == 0 || first == pair.ids.len() {
            let problem =
                "this tokenizer does not tell the two texts of a pair apart: choose another relevance.pooling";
            return Err(Error::input(problem));
        }
        cuts.extend([ends[0] + first as i64, ends[1]]);
    }
    Ok(cuts)
}

/// `[2 b, d]`, query and item alternating, to `[b, 4 d]`: both scaled to one length, their product, their distance.
fn compared(means: &Tensor) -> Tensor {
    let width = means.size()[1];
    let norm = means.square().sum_dim_intlist(1, true, Kind::Float).sqrt().clamp_min(1e-12);
    let both = (means / norm * (width as f64).sqrt()).view([-1, 2, width]);
    let (query, item) = (both.select(1, 0), both.select(1, 1));
    let (product, distance) = (&query * &item, (&query - &item).abs());
    Tensor::cat(&[query, item, product, distance], 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(types: &[i64]) -> PairText {
        let num_first = types.iter().filter(|kind| **kind == 0).count();
        PairText { ids: vec![7; types.len()], types: types.to_vec(), num_first, cut: false }
    }

    #[test]
    fn sides_are_checked_by_hand() {
        let states = Tensor::from_slice(&[3.0_f32, 0.0, 1.0, 0.0, 0.0, 2.0, 5.0, 5.0, -1.0, 1.0]).view([5, 2]);
        let pairs = [pair(&[0, 0, 1]), pair(&[0, 1])];
        let pairs = pairs.iter().collect::<Vec<_>>();
        let pool = |starts: &[i64], pairs: &[&PairText]| {
            Reading::Sides.pool(starts, pairs, Device::Cpu, |_| Ok(states.shallow_clone()))
        };
        let pooled = pool(&[0, 3, 5], &pairs).unwrap();
        let found = Vec::<Vec<f32>>::try_from(&pooled).unwrap();
        let root = 2.0_f32.sqrt();
        // means (2, 0) and (0, 2); (5, 5) and (-1, 1), each scaled to length √2
        let expected = [[root, 0.0, 0.0, root, 0.0, 0.0, root, root], [1.0, 1.0, -1.0, 1.0, -1.0, 1.0, 2.0, 0.0]];
        for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
            assert!((found - expected).abs() < 1e-6, "{found} {expected}");
        }
        assert!(pool(&[0, 5], &[&pair(&[0; 5])]).is_err());
        assert_eq!((Reading::Sides.width(2), Reading::Cls.width(2)), (8, 2));
    }
}
