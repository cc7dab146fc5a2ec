//! "Retrieval-GRPO: A Multi-Objective Reinforcement Learning Framework for Dense Retrieval in Taobao Search", eq. 7. The encoder is a
//! policy that picks an item for a query; the loss is minimised:
//!
//! ```text
//! π_θ(d|q) = exp(s_θ(q,d)/τ) / Σ_{d'∈S} exp(s_θ(q,d')/τ)
//! L = −(1/|Q|) Σ_q (1/G) Σ_j min(ρ_j A_j, clip(ρ_j, 1−ε, 1+ε) A_j)  +  β · KL(π_θ ‖ π_ref)(q)                 (eq. 7)
//! ```
//!
//! With `weights = "policy"`, 1/G is `π_θold(d_j|q)`: the loss is then that of the policy's mean advantage, lowest at π_ref · exp(A/β).
//! `ρ_j = π_θ(d_j|q) / π_θold(d_j|q)`, `A_j = (r_j − mean) / std` over the group, and the support `S` is every item of the gathered
//! batch or the group alone. Rewards `r` are the fused ones of eq. 6 (`souk_reward::Blend`). A candidate whose reward is missing is left
//! out of the mean, the deviation and the loss: `G` counts the others.
//!
//! While the judge is at work on one step, candidates of later steps may be retrieved (`reward.lookahead`); the log-probabilities
//! they were retrieved with are kept, so that the ratio stays right. With nested prefixes, the loss is their mean, each prefix being a
//! policy of its own over the same candidates.

use std::collections::BTreeMap;
use std::path::Path;

use tch::{Kind, Tensor};

use super::Algorithm;
use crate::candidates::top;
use crate::objective::{
    CandidateWeights, Group, GroupLoss, RGrpoSettings, Support, Tally, Vectors, clipped_surrogate, cosines, entropy,
    exact_kl, group_advantages, log_softmax, prefix_cosines,
};
use crate::train::batch::Batch;
use crate::train::catalogue_candidates::CatalogueCandidates;
use crate::train::context::{EncodedBatch, Outcome, StageContext, StepContext};
use crate::train::judge_context::JudgeContext;
use crate::train::judged_items::{JudgedItems, JudgedPlaces};
use crate::train::lookahead::{Lookahead, PendingGroup, RetrievedGroup, RewardedGroup};
use crate::train::policy_metrics::{PolicySums, ShownCandidate, ShownGroup};
use souk_io::error::Result;

pub struct RGrpo {
    settings: RGrpoSettings,
    judge: JudgeContext,
    catalogue: Option<CatalogueCandidates>,
    judged: Option<JudgedItems>,
    lookahead: Lookahead,
}

impl Algorithm for RGrpo {
    fn step(&mut self, cx: &mut StepContext) -> Result<Outcome> {
        let mut fresh = self.retrieve_ahead(cx)?;
        let Some(groups) = self.lookahead.rewards(cx, &self.judge)? else { return Ok(Outcome::Stopped) };
        let num_pairs: u64 = groups.iter().map(RewardedGroup::num_pairs).sum();
        let mut sums = PolicySums::default();
        for RewardedGroup { judged, .. } in &groups {
            sums.add_rewards(&judged.rewards);
            sums.add_refused(judged.refused);
        }
        for _ in 0..self.settings.inner_epochs {
            cx.zero_grad();
            for group in &groups {
                let batch = group.retrieved.batch(&cx.stage);
                let encoded = match fresh.take() {
                    Some(encoded) => encoded,
                    None => cx.encode(&batch)?,
                };
                let prefixes = &self.settings.dimensions;
                let reference = self.judge.reference_scores(&cx.stage, &batch, prefixes)?;
                let weight = group.num_pairs() as f64 / num_pairs as f64 / batch.pairs.len() as f64;
                cx.backward(encoded, |vectors| {
                    let GroupLoss { loss, tally } = loss(&self.settings, vectors, &group.as_group(reference.as_ref()));
                    sums.add(&tally);
                    Ok(loss * weight)
                })?;
            }
            if !cx.optimizer_step()? {
                break;
            }
        }
        cx.metrics.pairs = num_pairs as usize;
        cx.metrics.policy = Some(sums.gather(cx.stage.collective)?);
        cx.metrics.shown = groups.first().map(|group| self.shown(&cx.stage, group)).transpose()?.flatten();
        Ok(Outcome::Done)
    }

    fn state(&self, stage: &StageContext) -> Result<BTreeMap<String, Tensor>> {
        self.lookahead.state(stage)
    }

    fn restore(&mut self, stage: &StageContext, state: BTreeMap<String, Tensor>, step: u64, _: &Path) -> Result<()> {
        self.lookahead.restore(stage, state, step, &self.judge)
    }

    fn judge_id(&self) -> Option<&str> {
        Some(self.judge.id())
    }
}

/// The mean of eq. 7 over the prefixes, summed over this process's queries. The tally is that of the first prefix.
pub(super) fn loss(settings: &RGrpoSettings, vectors: &Vectors, group: &Group) -> GroupLoss {
    let scores = prefix_cosines(&settings.dimensions, vectors.queries, vectors.items);
    let num = scores.len() as i64;
    let of_prefix = |(at, scores): (usize, &Tensor)| {
        let part = |x: &Tensor| x.chunk(num, 1).swap_remove(at);
        let (old, reference) = (group.old.map(part), group.reference.map(part));
        loss_of_scores(settings, scores, &Group { old: old.as_ref(), reference: reference.as_ref(), ..*group })
    };
    let losses: Vec<GroupLoss> = scores.iter().enumerate().map(of_prefix).collect();
    let tally = losses.first().map_or_else(Tally::default, |first| first.tally);
    let losses: Vec<&Tensor> = losses.iter().map(|of| &of.loss).collect();
    GroupLoss { loss: Tensor::stack(&losses, 0).mean(Kind::Float), tally }
}

fn loss_of_scores(settings: &RGrpoSettings, scores: &Tensor, group: &Group) -> GroupLoss {
    let (log_pi, log_pi_group) = log_policy(settings, scores, group.candidates);
    let log_pi_old = group.old.map_or_else(|| log_pi_group.detach(), Tensor::shallow_clone);
    let advantages = group_advantages(group.reward, group.known, settings.advantage, settings.min_std);
    let (surrogate, clipped) = clipped_surrogate(&log_pi_group, &log_pi_old, &advantages.values, settings.clip);

    let known = group.known.to_kind(Kind::Float);
    let sum = |x: &Tensor| x.sum_dim_intlist(1, false, Kind::Float);
    let gain = match settings.weights {
        CandidateWeights::Equal => sum(&(surrogate * &known)) / sum(&known).clamp_min(1.0),
        CandidateWeights::Policy => sum(&(surrogate * &known * log_pi_old.exp())),
    };
    let mut loss = -gain.sum(Kind::Float);
    let mut tally = Tally::default();
    if let Some(reference) = group.reference {
        let (log_ref, _) = log_policy(settings, reference, group.candidates);
        let kl = exact_kl(&log_pi, &log_ref).sum(Kind::Float);
        tally.kl = kl.double_value(&[]);
        loss += kl * settings.beta;
    }

    let log_ratio = (log_pi_group.detach() - log_pi_old) * &known;
    tally.groups = advantages.has_spread.numel() as f64;
    tally.flat = tally.groups - advantages.has_spread.sum(Kind::Float).double_value(&[]);
    tally.entropy = entropy(&log_pi.detach()).sum(Kind::Float).double_value(&[]);
    tally.known = known.sum(Kind::Float).double_value(&[]);
    tally.clipped = (clipped.to_kind(Kind::Float) * &known).sum(Kind::Float).double_value(&[]);
    tally.log_ratio = log_ratio.sum(Kind::Float).double_value(&[]);
    tally.log_ratio_max = if log_ratio.numel() > 0 { log_ratio.abs().max().double_value(&[]) } else { 0.0 };
    GroupLoss { loss, tally }
}

/// Log-probabilities of the policy: `[b, n]` over the support, and `[b, g]` of the candidates.
pub(super) fn log_policy(settings: &RGrpoSettings, scores: &Tensor, candidates: &Tensor) -> (Tensor, Tensor) {
    match settings.support {
        Support::Batch => {
            let log_pi = log_softmax(scores, settings.temperature);
            let of_candidates = log_pi.gather(1, candidates, false);
            (log_pi, of_candidates)
        }
        Support::Group => {
            let log_pi = log_softmax(&scores.gather(1, candidates, false), settings.temperature);
            let of_candidates = log_pi.shallow_clone();
            (log_pi, of_candidates)
        }
    }
}

/// Cosines `[b, n]`, raised above all others at these places of each row.
fn put_first(scores: &Tensor, judged: &JudgedPlaces) -> Tensor {
    let raised = scores.copy();
    for (row, judged) in judged.iter().enumerate().filter(|(_, judged)| !judged.is_empty()) {
        let places: Vec<i64> = judged.iter().map(|(place, _)| *place).collect();
        let places = Tensor::from_slice(&places).to_device(scores.device());
        let _ = raised.get(row as i64).index_fill_(0, &places, 2.0);
    }
    raised
}

impl RGrpo {
    pub fn new(
        settings: RGrpoSettings,
        judge: JudgeContext,
        catalogue: Option<CatalogueCandidates>,
        judged: Option<JudgedItems>,
    ) -> Self {
        Self { settings, judge, catalogue, judged, lookahead: Lookahead::default() }
    }

    /// Retrieves for this step and up to `reward.lookahead` later ones. A batch that is trained on at once keeps its graphs.
    fn retrieve_ahead<'a>(&mut self, cx: &mut StepContext<'a>) -> Result<Option<EncodedBatch<'a>>> {
        let ahead = self.judge.settings().lookahead as u64;
        let mut fresh = None;
        while let Some(step) = self.lookahead.next_step(&cx.schedule, ahead) {
            if let Some(catalogue) = &mut self.catalogue {
                catalogue.refresh(cx, step)?;
            }
            let micro_batches: Vec<_> = cx.stage.micro_batches(step).collect();
            let at_once = ahead == 0 && micro_batches.len() == 1;
            let mut groups = Vec::with_capacity(micro_batches.len());
            for micro in micro_batches {
                let mut batch = cx.draw_batch(micro.draws);
                let num_own = batch.items.len();
                if let Some(catalogue) = &self.catalogue {
                    catalogue.join(&cx.stage, cx.encoder, &mut batch)?;
                }
                // at most half of a group, so that the policy still retrieves the rest
                let limit = self.settings.group / 2;
                let judged = self.judged.as_ref().map(|judged| judged.join(&cx.stage, &mut batch, limit));
                let keep_tokens = if at_once { cx.stage.settings.keep_tokens } else { 0 };
                let encoded = cx.encode_keeping(&batch, keep_tokens)?;
                groups.push(self.retrieve(&cx.stage, &batch, &encoded, (num_own, judged))?);
                fresh = (keep_tokens > 0).then_some(encoded);
            }
            self.lookahead.push(groups);
        }
        Ok(fresh)
    }

    /// G items of the batch, handed to the judge: the judged ones, then the first under the policy being trained now.
    fn retrieve(
        &self,
        stage: &StageContext,
        batch: &Batch,
        encoded: &EncodedBatch,
        more: (usize, Option<JudgedPlaces>),
    ) -> Result<PendingGroup> {
        let _guard = tch::no_grad_guard();
        let (num_own, judged) = more;
        let scores = cosines(&encoded.queries, &encoded.items.all);
        let candidates = top(&put_first(&scores, &judged.unwrap_or_default()), self.settings.group);
        let by_prefix = prefix_cosines(&self.settings.dimensions, &encoded.queries, &encoded.items.all);
        let old: Vec<Tensor> =
            by_prefix.iter().map(|scores| log_policy(&self.settings, scores, &candidates).1).collect();
        let old = Tensor::cat(&old, 1);
        let rewards = self.judge.ask(stage, batch, &candidates)?;
        let (draws, joined) = (batch.draws.clone(), batch.items[num_own..].to_vec());
        Ok(PendingGroup { retrieved: RetrievedGroup { draws, joined, candidates, old }, rewards })
    }

    /// The first query's candidates, for `groups.jsonl`.
    fn shown(&self, stage: &StageContext, group: &RewardedGroup) -> Result<Option<ShownGroup>> {
        let batch = group.retrieved.batch(stage);
        let own = stage.own_pairs(&batch);
        if own.is_empty() {
            return Ok(None);
        }
        let first = |x: &Tensor| Vec::<f32>::try_from(x.get(0).to_kind(Kind::Float));
        let places = Vec::<i64>::try_from(group.retrieved.candidates.get(0))?;
        let old = first(&group.retrieved.old)?;
        let advantages = first(&group.tensors.advantages(&self.settings))?;
        let mut candidates = Vec::with_capacity(places.len());
        for (at, place) in places.iter().enumerate() {
            let item = stage.catalogue.item(batch.items[*place as usize])?;
            let reward = group.judged.rewards[at];
            candidates.push(ShownCandidate {
                title: stage.catalogue.text_of(&item).chars().take(160).collect(),
                item: item.id,
                probability: old[at].exp(),
                reward: reward.map(|reward| reward.total),
                level: reward.map(|reward| reward.level),
                parts: reward.map(|reward| reward.parts),
                advantage: advantages[at],
            });
        }
        Ok(Some(ShownGroup { query: batch.pairs[own.start].query.into(), candidates }))
    }
}
