//! The training algorithms, one file each. The trainer (`run`) knows none of them: it asks for the next step, writes down what it
//! reports, and keeps its state in checkpoints.

mod distil;
mod grace;
mod info_nce;
mod mined;
mod next_token;
mod r_grpo;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use tch::Tensor;

pub use self::next_token::perplexity;
use self::{
    distil::Distil, grace::Grace, info_nce::InfoNce, mined::MinedNegatives, next_token::NextToken, r_grpo::RGrpo,
};
use super::catalogue_candidates::CatalogueCandidates;
use super::context::{Outcome, StageContext, StepContext};
use super::frozen::FrozenEncoder;
use super::judge_context::JudgeContext;
use super::judged_items::JudgedItems;
use super::writer::Writer;
use super::{FrozenEncoders, StageRewards};
use crate::objective::{JudgedLevels, Objective};
use crate::train::TrainSettings;
use souk_io::beir::DataFolder;
use souk_io::error::{Error, Result};
use souk_nn::encoder::Encoder;

/// One way to learn. All processes call each method together.
pub trait Algorithm: Send {
    /// Work before the first step; false if the stage was asked to stop during it.
    fn prepare(&mut self, _: &Preparation, _report: &mut dyn FnMut(usize, usize)) -> Result<bool> {
        Ok(true)
    }

    /// One step: gradients, and an update of the weights.
    fn step(&mut self, cx: &mut StepContext) -> Result<Outcome>;

    /// State for checkpoints, besides weights and moments.
    fn state(&self, _: &StageContext) -> Result<BTreeMap<String, Tensor>> {
        Ok(BTreeMap::new())
    }

    /// Resumes before step `step`, with what `state` gave and what `prepare` wrote to the stage's folder.
    fn restore(&mut self, _: &StageContext, _state: BTreeMap<String, Tensor>, _step: u64, _out: &Path) -> Result<()> {
        Ok(())
    }

    /// The id of the judge whose rewards are learned from.
    fn judge_id(&self) -> Option<&str> {
        None
    }
}

/// Context of the work before the first step.
pub struct Preparation<'a> {
    /// Data and settings.
    pub stage: StageContext<'a>,
    /// The model before training.
    pub encoder: &'a Encoder,
    /// The stage's folder.
    pub out: &'a Path,
    /// Set when this process is asked to stop.
    pub stop: &'a AtomicBool,
}

/// Builds the algorithm of an objective.
pub fn build(
    objective: &Objective,
    settings: &TrainSettings,
    rewards: Option<StageRewards>,
    frozen: FrozenEncoders,
    data: &DataFolder,
) -> Result<Box<dyn Algorithm>> {
    if settings.writer.is_some() && !matches!(objective, Objective::Grace(_)) {
        let problem = "has no effect: only the objective `grace` learns from written rationales";
        return Err(Error::config("train.writer", problem));
    }
    let FrozenEncoders { guide, mut reference } = frozen;
    let judged = rewards.as_ref().and_then(|rewards| rewards.candidates.judged_split.clone());
    let mut judge = |rewards: Option<StageRewards>| -> Result<(JudgeContext, Option<CatalogueCandidates>)> {
        let rewards =
            rewards.ok_or_else(|| Error::config("judge", "is missing: this objective needs a [judge] section"))?;
        let reference = reference.take().map(FrozenEncoder::new).transpose()?;
        let candidates = CatalogueCandidates::open(rewards.candidates, rewards.model_copy, settings)?;
        Ok((JudgeContext::new(data, rewards.blend, reference)?, candidates))
    };
    Ok(match objective {
        Objective::InfoNce(settings) => Box::new(InfoNce::new(settings.clone(), data, guide)?),
        Objective::Icr(settings) => Box::new(InfoNce::refined(settings.clone(), data)?),
        Objective::RGrpo(settings) => {
            let (judge, candidates) = judge(rewards)?;
            let open = |split: String| JudgedItems::open(data, &split, JudgedLevels::All, "candidates.judged_split");
            let judged = judged.map(open).transpose()?;
            Box::new(RGrpo::new(settings.clone(), judge, candidates, judged))
        }
        Objective::Pairwise(settings) => Box::new(MinedNegatives::pairwise(settings.clone(), judge(rewards)?.0)?),
        Objective::Dpo(settings) => Box::new(MinedNegatives::dpo(settings.clone(), judge(rewards)?.0)),
        Objective::Distil(settings) => Box::new(Distil::new(settings.clone(), data)?),
        Objective::Grace(rule) => {
            let reference = reference.map(Encoder::freeze).transpose()?;
            Box::new(Grace::new(rule.clone(), Writer::open(settings.writer.as_ref())?, reference))
        }
        Objective::NextToken(settings) => Box::new(NextToken::new(settings.clone())),
    })
}
