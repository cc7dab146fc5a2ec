//! Metrics of GRACE's rationales in one step, over all processes.

use serde::Serialize;
use tch::Tensor;

use super::policy_metrics::Spread;
use souk_io::error::Result;
use souk_nn::collective::Collective;

/// Metrics of one step's rationales, over all processes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RationaleMetrics {
    /// After the over-length penalty.
    pub reward: Spread,
    /// Similarity to the query minus that to negatives; agreement among rollouts; distance from other pairs.
    pub close: f64,
    /// Agreement among rollouts.
    pub alike: f64,
    /// Distance from other pairs.
    pub apart: f64,
    /// Mean tokens of a rationale, and the share of rationales with an end token.
    pub length: f64,
    /// Share of rationales with an end token.
    pub ended: f64,
    /// Share of groups whose rewards are all equal.
    pub frac_group_zero_std: f64,
    /// KL divergence from the model that the stage began with, per token (`objective.beta`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kl: Option<f64>,
}

/// Sums over rationales that add up over processes.
#[derive(Default)]
pub struct RationaleSums {
    pub sampled: f64,
    pub reward: f64,
    pub reward_squares: f64,
    pub close: f64,
    /// Agreement among rollouts.
    pub alike: f64,
    /// Distance from other pairs.
    pub apart: f64,
    pub length: f64,
    /// Share of rationales with an end token.
    pub ended: f64,
    pub groups: f64,
    /// Groups without a difference between rewards.
    pub flat: f64,
    pub trained_tokens: f64,
}

impl RationaleSums {
    pub fn all_reduce(&mut self, collective: &dyn Collective) -> Result<()> {
        let Self { sampled, reward, reward_squares, close, alike, apart, length, ended, groups, flat, trained_tokens } =
            self;
        let all = [sampled, reward, reward_squares, close, alike, apart, length, ended, groups, flat, trained_tokens];
        let own: Vec<f64> = all.iter().map(|number| **number).collect();
        let mut sums = Tensor::from_slice(&own);
        collective.all_reduce(&mut sums)?;
        for (number, sum) in all.into_iter().zip(Vec::<f64>::try_from(sums)?) {
            *number = sum;
        }
        Ok(())
    }

    pub fn metrics(&self) -> RationaleMetrics {
        let (num, groups) = (self.sampled.max(1.0), self.groups.max(1.0));
        let mean = self.reward / num;
        RationaleMetrics {
            reward: Spread { mean, std: (self.reward_squares / num - mean * mean).max(0.0).sqrt() },
            close: self.close / num,
            alike: self.alike / num,
            apart: self.apart / num,
            length: self.length / num,
            ended: self.ended / num,
            frac_group_zero_std: self.flat / groups,
            kl: None,
        }
    }
}

impl RationaleMetrics {
    /// Warns if few rationales have room for their end token: those that have one are rewarded most, and brevity is learned.
    pub fn warn_if_cut(&self, max_tokens: usize) {
        if self.ended < 0.5 {
            let share = 100.0 * self.ended;
            tracing::warn!(
                "only {share:.0} % of rationales end within {max_tokens} tokens; the others are penalised, so the model will \
                 learn to be brief: set encoder.rationale.max_tokens higher"
            );
        }
    }
}
