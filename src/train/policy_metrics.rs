//! Metrics of the policy and its rewards in one step, over all processes (the paper's Figure 3, KL, entropy, clip fraction).

use std::collections::BTreeMap;

use serde::Serialize;
use tch::Tensor;

use crate::objective::Tally;
use souk_io::domain::Level;
use souk_io::error::Result;
use souk_io::telemetry::{StepRewards, TRAIN};
use souk_nn::collective::Collective;
use souk_reward::{Reward, RewardComponent};

/// Policy metrics in a line of `steps.jsonl`.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PolicyMetrics {
    /// Candidates that were sent to the judge.
    pub asked: u64,
    /// Candidates without a reward.
    pub missing: u64,
    /// Those of them that the judge refuses: asking again does not help.
    #[serde(skip_serializing_if = "is_zero")]
    pub refused: u64,
    /// Total reward.
    pub reward: Spread,
    /// Components of the reward, unweighted.
    pub reward_parts: BTreeMap<&'static str, Spread>,
    /// Fractions of L1 to L4 among candidates with a reward.
    pub levels: [f64; 4],
    /// Fraction of groups whose known rewards are all equal, or fewer than two.
    pub frac_group_zero_std: f64,
    /// Means over all updates with these rewards; `log_ratio_max` is the largest.
    pub kl: f64,
    /// Entropy of the policy.
    pub entropy: f64,
    /// Fraction of clipped candidates.
    pub clip_share: f64,
    /// Mean log ratio to the old policy.
    pub log_ratio: f64,
    /// Largest absolute log ratio.
    pub log_ratio_max: f64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl PolicyMetrics {
    /// Exports them as Prometheus metrics.
    pub fn export(&self) {
        let mut reward: Vec<(&str, f64)> =
            self.reward_parts.iter().map(|(part, spread)| (*part, spread.mean)).collect();
        reward.push(("total", self.reward.mean));
        let Self { levels, kl, entropy, clip_share, missing, .. } = *self;
        TRAIN.record_rewards(&StepRewards { reward: &reward, levels, kl, entropy, clip_share, missing });
    }
}

/// Mean and standard deviation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// Mean.
    pub mean: f64,
    /// Population standard deviation.
    pub std: f64,
}

/// One query's candidates at one step, best first: a line of `groups.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ShownGroup {
    pub query: String,
    pub candidates: Vec<ShownCandidate>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ShownCandidate {
    pub item: String,
    pub title: String,
    /// Log-probability under the policy that retrieved it.
    pub probability: f32,
    /// None if missing, like the level and the components.
    pub reward: Option<f32>,
    pub level: Option<Level>,
    pub parts: Option<[f32; 3]>,
    pub advantage: f32,
}

/// Sums over one process's queries or candidates.
#[derive(Default)]
pub struct PolicySums {
    asked: f64,
    refused: f64,
    known: f64,
    levels: [f64; 4],
    reward: Moments,
    /// In the order of [`RewardComponent::ALL`].
    parts: [Moments; 3],
    tally: Tally,
}

/// A sum and a sum of squares.
#[derive(Clone, Copy, Default)]
struct Moments {
    sum: f64,
    squares: f64,
}

impl Moments {
    fn add(&mut self, value: f32) {
        self.sum += f64::from(value);
        self.squares += f64::from(value).powi(2);
    }

    fn spread(self, num: f64) -> Spread {
        let [mean, square] = [self.sum / num, self.squares / num];
        Spread { mean, std: (square - mean * mean).max(0.0).sqrt() }
    }
}

impl PolicySums {
    pub fn add_rewards(&mut self, rewards: &[Option<Reward>]) {
        self.asked += rewards.len() as f64;
        for Reward { total, level, parts } in rewards.iter().flatten() {
            self.known += 1.0;
            self.levels[*level as usize - Level::L1 as usize] += 1.0;
            self.reward.add(*total);
            self.parts.iter_mut().zip(parts).for_each(|(moments, value)| moments.add(*value));
        }
    }

    pub fn add_refused(&mut self, num: usize) {
        self.refused += num as f64;
    }

    pub fn add(&mut self, more: &Tally) {
        let tally = &mut self.tally;
        tally.groups += more.groups;
        tally.flat += more.flat;
        tally.kl += more.kl;
        tally.entropy += more.entropy;
        tally.known += more.known;
        tally.clipped += more.clipped;
        tally.log_ratio += more.log_ratio;
        tally.log_ratio_max = tally.log_ratio_max.max(more.log_ratio_max);
    }

    /// Sums over all processes, which call this together.
    pub fn gather(mut self, collective: &dyn Collective) -> Result<PolicyMetrics> {
        self.all_reduce(collective)?;
        let Self { asked, refused, known: num_known, levels, reward, parts, tally } = self;
        let [known, groups, weighed] = [num_known, tally.groups, tally.known].map(|num| num.max(1.0));
        let parts = RewardComponent::ALL.into_iter().zip(parts);
        Ok(PolicyMetrics {
            asked: asked as u64,
            missing: (asked - num_known) as u64,
            refused: refused as u64,
            reward: reward.spread(known),
            reward_parts: parts.map(|(part, moments)| (part.name(), moments.spread(known))).collect(),
            levels: levels.map(|count| count / known),
            frac_group_zero_std: tally.flat / groups,
            kl: tally.kl / groups,
            entropy: tally.entropy / groups,
            clip_share: tally.clipped / weighed,
            log_ratio: tally.log_ratio / weighed,
            log_ratio_max: tally.log_ratio_max,
        })
    }

    /// All numbers in turn, for summing over processes.
    fn numbers_mut(&mut self) -> Vec<&mut f64> {
        let Self { asked, refused, known, levels, reward, parts, tally } = self;
        let Tally { groups, flat, kl, entropy, known: weighed, clipped, log_ratio, log_ratio_max: _ } = tally;
        let mut all = vec![asked, refused, known, groups, flat, kl, entropy, weighed, clipped, log_ratio];
        all.extend(levels);
        let moments = std::iter::once(reward).chain(parts);
        all.extend(moments.flat_map(|Moments { sum, squares }| [sum, squares]));
        all
    }

    fn all_reduce(&mut self, collective: &dyn Collective) -> Result<()> {
        let own: Vec<f64> = self.numbers_mut().into_iter().map(|number| *number).collect();
        let mut sums = Tensor::from_slice(&own);
        collective.all_reduce(&mut sums)?;
        for (number, sum) in self.numbers_mut().into_iter().zip(Vec::<f64>::try_from(&sums)?) {
            *number = sum;
        }
        let largest = collective.all_gather(&Tensor::from_slice(&[self.tally.log_ratio_max]))?;
        self.tally.log_ratio_max = largest.max().double_value(&[]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use souk_nn::collective::Solo;

    #[test]
    fn means_are_over_what_is_known() {
        let mut sums = PolicySums::default();
        let reward = |total, level| Some(Reward { total, level, parts: [total, 0.0, 1.0] });
        sums.add_rewards(&[reward(1.0, Level::L4), None, reward(0.0, Level::L1), reward(0.5, Level::L4)]);
        sums.add_refused(1);
        sums.add(&Tally {
            groups: 2.0,
            flat: 1.0,
            kl: 0.4,
            known: 3.0,
            clipped: 1.0,
            log_ratio_max: 0.3,
            ..Tally::default()
        });
        sums.add(&Tally { groups: 2.0, kl: 0.4, known: 3.0, log_ratio_max: 0.1, ..Tally::default() });
        let policy = sums.gather(&Solo).unwrap();
        assert_eq!((policy.asked, policy.missing, policy.refused), (4, 1, 1));
        assert!((policy.reward.mean - 0.5).abs() < 1e-9 && (policy.reward.std - (0.5_f64 / 3.0).sqrt()).abs() < 1e-6);
        assert_eq!(policy.reward_parts["exclusivity"], Spread { mean: 1.0, std: 0.0 });
        assert_eq!(policy.levels, [1.0 / 3.0, 0.0, 0.0, 2.0 / 3.0]);
        assert!((policy.kl - 0.2).abs() < 1e-9 && (policy.frac_group_zero_std - 0.25).abs() < 1e-9);
        assert!((policy.clip_share - 1.0 / 6.0).abs() < 1e-9 && policy.log_ratio_max == 0.3);
    }
}
