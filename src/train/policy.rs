//! What one step says about the policy and its rewards, over all processes.

use std::collections::BTreeMap;

use serde::Serialize;
use tch::Tensor;

use crate::collective::Collective;
use crate::domain::Level;
use crate::error::Result;
use crate::objective::Tally;
use crate::reward::{Part, Reward};
use crate::telemetry::{Rewarded, TRAIN};

/// As a line of `steps.jsonl` has it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Policy {
    /// Candidates whose reward was asked for, and those that have none.
    pub asked: u64,
    pub missing: u64,
    pub reward: Spread,
    /// Before their weights.
    pub reward_parts: BTreeMap<&'static str, Spread>,
    /// Shares of L1 to L4 among the candidates.
    pub levels: [f64; 4],
    /// Share of groups without a difference between rewards.
    pub frac_group_zero_std: f64,
    /// A mean over all updates with these rewards, as all that follows; the largest of `log_ratio_max`.
    pub kl: f64,
    pub entropy: f64,
    pub clip_share: f64,
    pub log_ratio: f64,
    pub log_ratio_max: f64,
}

impl Policy {
    /// Into the process's metrics.
    pub fn note(&self) {
        let mut reward: Vec<(&str, f64)> =
            self.reward_parts.iter().map(|(part, spread)| (*part, spread.mean)).collect();
        reward.push(("total", self.reward.mean));
        let Self { levels, kl, entropy, clip_share, missing, .. } = *self;
        TRAIN.rewarded(&Rewarded { reward: &reward, levels, kl, entropy, clip_share, missing });
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    pub mean: f64,
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
    /// That the policy gave it.
    pub probability: f32,
    /// None where it is missing, as the level and the parts.
    pub reward: Option<f32>,
    pub level: Option<Level>,
    pub parts: Option<[f32; 3]>,
    pub advantage: f32,
}

/// Sums of one process.
#[derive(Default)]
pub struct Sums {
    asked: f64,
    known: f64,
    /// Sum and sum of squares of the whole reward, then of each part.
    rewards: [[f64; 2]; 4],
    levels: [f64; 4],
    tally: Tally,
}

impl Sums {
    pub fn rewards(&mut self, rewards: impl Iterator<Item = Option<Reward>>) {
        for reward in rewards {
            self.asked += 1.0;
            let Some(Reward { total, level, parts }) = reward else { continue };
            self.known += 1.0;
            self.levels[level as usize - Level::L1 as usize] += 1.0;
            for (sums, value) in self.rewards.iter_mut().zip([total, parts[0], parts[1], parts[2]]) {
                sums[0] += f64::from(value);
                sums[1] += f64::from(value).powi(2);
            }
        }
    }

    pub fn tally(&mut self, more: &Tally) {
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

    /// All processes call it together.
    pub fn gather(self, collective: &dyn Collective) -> Result<Policy> {
        let Self { asked, known, rewards, levels, tally } = self;
        let Tally { groups, flat, kl, entropy, known: weighed, clipped, log_ratio, log_ratio_max } = tally;
        let mut own = vec![asked, known, groups, flat, kl, entropy, weighed, clipped, log_ratio];
        own.extend(levels);
        own.extend(rewards.as_flattened());
        let mut sums = Tensor::from_slice(&own);
        collective.all_reduce(&mut sums)?;
        let sums = Vec::<f64>::try_from(&sums)?;
        let largest = collective.all_gather(&Tensor::from_slice(&[log_ratio_max]))?.max().double_value(&[]);
        let [known, groups, weighed] = [sums[1], sums[2], sums[6]].map(|num| num.max(1.0));
        let spread = |at: usize| {
            let [mean, square] = [sums[13 + 2 * at] / known, sums[14 + 2 * at] / known];
            Spread { mean, std: (square - mean * mean).max(0.0).sqrt() }
        };
        Ok(Policy {
            asked: sums[0] as u64,
            missing: (sums[0] - sums[1]) as u64,
            reward: spread(0),
            reward_parts: Part::ALL.into_iter().zip(1..).map(|(part, at)| (part.name(), spread(at))).collect(),
            levels: std::array::from_fn(|level| sums[9 + level] / known),
            frac_group_zero_std: sums[3] / groups,
            kl: sums[4] / groups,
            entropy: sums[5] / groups,
            clip_share: sums[7] / weighed,
            log_ratio: sums[8] / weighed,
            log_ratio_max: largest,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::Solo;

    #[test]
    fn means_are_over_what_is_known() {
        let mut sums = Sums::default();
        let reward = |total, level| Some(Reward { total, level, parts: [total, 0.0, 1.0] });
        sums.rewards([reward(1.0, Level::L4), None, reward(0.0, Level::L1), reward(0.5, Level::L4)].into_iter());
        sums.tally(&Tally {
            groups: 2.0,
            flat: 1.0,
            kl: 0.4,
            known: 3.0,
            clipped: 1.0,
            log_ratio_max: 0.3,
            ..Tally::default()
        });
        sums.tally(&Tally { groups: 2.0, kl: 0.4, known: 3.0, log_ratio_max: 0.1, ..Tally::default() });
        let policy = sums.gather(&Solo).unwrap();
        assert_eq!((policy.asked, policy.missing), (4, 1));
        assert!((policy.reward.mean - 0.5).abs() < 1e-9 && (policy.reward.std - (0.5_f64 / 3.0).sqrt()).abs() < 1e-6);
        assert_eq!(policy.reward_parts["exclusivity"], Spread { mean: 1.0, std: 0.0 });
        assert_eq!(policy.levels, [1.0 / 3.0, 0.0, 0.0, 2.0 / 3.0]);
        assert!((policy.kl - 0.2).abs() < 1e-9 && (policy.frac_group_zero_std - 0.25).abs() < 1e-9);
        assert!((policy.clip_share - 1.0 / 6.0).abs() < 1e-9 && policy.log_ratio_max == 0.3);
    }
}
