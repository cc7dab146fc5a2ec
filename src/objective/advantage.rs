//! Group-relative advantages (GRPO; Retrieval-GRPO, eq. 7): `A_j = (r_j − mean) / (std + ε)` over the known rewards of a group (`std`),
//! or the difference alone (`mean`, GRACE). A deviation below `min_std` counts as `min_std`, so that small differences of a judge with
//! continuous scores do not become large advantages. Missing rewards are left out of mean and deviation, and have an advantage of 0.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

/// Added to the deviation; a group with less spread has no gradient. Rewards have two or three significant digits.
const EPSILON: f64 = 1e-6;

/// Scaling of advantages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scaling {
    /// Divides by the population standard deviation of the group.
    #[default]
    Std,
    /// No division (GRACE).
    Mean,
}

/// Letters: b queries, g candidates of each.
pub struct Advantages {
    /// `[b, g]`
    pub values: Tensor,
    /// `[b]`: whether a group has at least two known rewards and a difference between them.
    pub has_spread: Tensor,
}

/// Advantages of rewards `[b, g]`; a reward that is not `known` may be any number.
pub fn group_advantages(reward: &Tensor, known: &Tensor, scaling: Scaling, min_std: f64) -> Advantages {
    let reward = reward.where_self(known, &reward.zeros_like());
    let known = known.to_kind(Kind::Float);
    let row = |x: &Tensor| x.sum_dim_intlist(1, true, Kind::Float);
    let num = row(&known);
    let centred = (&reward - row(&reward) / num.clamp_min(1.0)) * &known;
    let std = (row(&centred.square()) / num.clamp_min(1.0)).sqrt();
    let has_spread = std.gt(EPSILON);
    let values = match scaling {
        Scaling::Std => centred / (std.clamp_min(min_std) + EPSILON),
        Scaling::Mean => centred,
    };
    let values = values.where_self(&has_spread, &values.zeros_like());
    Advantages { values, has_spread: has_spread.squeeze_dim(1) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(rewards: &[f32], known: &[bool], scaling: Scaling) -> (Vec<f32>, bool) {
        at_least(0.0, rewards, known, scaling)
    }

    fn at_least(min_std: f64, rewards: &[f32], known: &[bool], scaling: Scaling) -> (Vec<f32>, bool) {
        let found = group_advantages(
            &Tensor::from_slice(rewards).unsqueeze(0),
            &Tensor::from_slice(known).unsqueeze(0),
            scaling,
            min_std,
        );
        let values = Vec::<f32>::try_from(found.values.view([-1])).unwrap();
        (values, found.has_spread.int64_value(&[0]) == 1)
    }

    #[test]
    fn it_is_the_formula_over_what_is_known() {
        // mean 0.5, deviations 0.5 0.0 -0.5, std sqrt(0.5 / 3)
        let std = (0.5_f32 / 3.0).sqrt();
        let (values, has_spread) = of(&[1.0, 0.5, f32::NAN, 0.0], &[true, true, false, true], Scaling::Std);
        let expected = [0.5 / std, 0.0, 0.0, -0.5 / std];
        assert!(has_spread && values.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-4), "{values:?}");
        let (values, _) = of(&[1.0, 0.5, 9.0, 0.0], &[true, true, false, true], Scaling::Mean);
        assert_eq!(values, [0.5, 0.0, 0.0, -0.5]);
    }

    #[test]
    fn a_small_deviation_counts_as_the_least_one() {
        // deviation 0.01
        let rewards = [0.91, 0.89];
        let (values, _) = at_least(0.05, &rewards, &[true; 2], Scaling::Std);
        assert!((values[0] - 0.2).abs() < 1e-4 && (values[1] + 0.2).abs() < 1e-4, "{values:?}");
        let (values, _) = at_least(0.005, &rewards, &[true; 2], Scaling::Std);
        assert!((values[0] - 1.0).abs() < 1e-3, "{values:?}");
        let (values, _) = at_least(0.05, &rewards, &[true; 2], Scaling::Mean);
        assert!((values[0] - 0.01).abs() < 1e-4, "{values:?}");
    }

    #[test]
    fn a_group_without_a_difference_has_spread_nothing() {
        for (rewards, known) in
            [([0.7, 0.7, 0.7], [true; 3]), ([1.0, 0.0, 0.0], [true, false, false]), ([1.0, 0.5, 0.0], [false; 3])]
        {
            assert_eq!(of(&rewards, &known, Scaling::Std), (vec![0.0; 3], false));
        }
    }

    proptest! {
        #[test]
        fn advantages_sum_to_zero_and_ignore_a_shift(
            rewards in prop::collection::vec(0.0_f32..1.0, 2..20), unknown in 0_usize..20, shift in -3.0_f32..3.0,
        ) {
            let known: Vec<bool> = (0..rewards.len()).map(|i| i != unknown).collect();
            let (values, has_spread) = of(&rewards, &known, Scaling::Std);
            prop_assert!(values.iter().sum::<f32>().abs() < 1e-3);
            let spread = rewards.iter().copied().fold(0.0, f32::max) - rewards.iter().copied().fold(1.0, f32::min);
            if has_spread && spread > 0.01 {
                let moved: Vec<f32> = rewards.iter().map(|reward| reward + shift).collect();
                let (again, _) = of(&moved, &known, Scaling::Std);
                prop_assert!(values.iter().zip(&again).all(|(a, b)| (a - b).abs() < 2e-2), "{values:?} {again:?}");
            }
        }

        #[test]
        fn what_is_missing_changes_nothing_for_the_others(
            rewards in prop::collection::vec(0.0_f32..1.0, 2..10), missing in -5.0_f32..5.0, at in 0_usize..10,
        ) {
            let at = at % (rewards.len() + 1);
            let (alone, _) = of(&rewards, &vec![true; rewards.len()], Scaling::Std);
            let (mut more, mut known) = (rewards.clone(), vec![true; rewards.len()]);
            more.insert(at, missing);
            known.insert(at, false);
            let (mut values, _) = of(&more, &known, Scaling::Std);
            prop_assert_eq!(values.remove(at), 0.0);
            prop_assert!(values.iter().zip(&alone).all(|(a, b)| (a - b).abs() < 1e-5));
        }
    }
}
