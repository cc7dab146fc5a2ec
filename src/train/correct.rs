//! Retrieval-GRPO, the arrow: draw a batch, let the policy of now retrieve its candidates, have them judged, correct the
//! policy at once. While a judge thinks, candidates of later steps may be retrieved already (`lookahead`): the
//! probabilities they were retrieved with are kept, so that the ratio stays right.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tch::{Device, Kind, Tensor};

use super::batch::{Batch, share};
use super::judge::Asked;
use super::judged::{Bench, Lesson, Rewarded};
use super::policy::{ShownCandidate, ShownGroup, Sums};
use super::proposals::Proposals;
use super::step::{Encoded, Parts, Stepped};
use crate::candidates::top;
use crate::collective::gather_rows;
use crate::encoder::Encoder;
use crate::error::{Error, Result};
use crate::objective::{RGrpo, cosines};
use crate::optimizer::Optimizer;
use crate::reward::Reward;

/// Which step it is of how many, at which learning rate.
#[derive(Clone, Copy)]
pub struct Turn {
    pub at: u64,
    pub steps: u64,
    pub rate: f64,
}

pub struct Corrector {
    rule: RGrpo,
    bench: Bench,
    proposals: Option<Proposals>,
    /// Steps whose candidates are with the judge, the next one first.
    waiting: VecDeque<Vec<(Retrieved, Asked)>>,
    /// The next step to retrieve for; none before the first.
    next: Option<u64>,
}

/// The candidates of one batch.
struct Retrieved {
    draws: (u64, u64),
    /// Items of the catalogue that joined the batch's own.
    joined: Vec<u32>,
    /// `[b, g]`: places among the batch's items.
    candidates: Tensor,
    /// `[b, g]`: log-probabilities they were retrieved with.
    old: Tensor,
}

/// Candidates whose rewards are there.
struct Answered {
    retrieved: Retrieved,
    rewards: Vec<Option<Reward>>,
    rewarded: Rewarded,
}

impl Answered {
    fn judged(&self, share: f64) -> Lesson<'_> {
        let Retrieved { candidates, old, .. } = &self.retrieved;
        Lesson { candidates, old: Some(old), rewarded: &self.rewarded, share }
    }
}

impl Retrieved {
    /// The batch as it was when its candidates were retrieved.
    fn batch<'a>(&self, parts: &Parts<'a>) -> Batch<'a> {
        batch(parts, self.draws, &self.joined)
    }
}

fn batch<'a>(parts: &Parts<'a>, draws: (u64, u64), joined: &[u32]) -> Batch<'a> {
    let mut batch = parts.draw(draws.0, draws.1);
    for row in joined {
        batch.add(*row);
    }
    batch
}

/// What the tensors of a checkpoint begin with that belong to this.
pub const WAITING: &str = "waiting/";

impl Corrector {
    pub fn new(rule: RGrpo, bench: Bench, proposals: Option<Proposals>) -> Self {
        Self { rule, bench, proposals, waiting: VecDeque::new(), next: None }
    }

    pub fn judge_id(&self) -> &str {
        self.bench.judge.blend().source().id()
    }

    /// One step; `None` if the stage was asked to stop before its rewards were there.
    pub fn step(
        &mut self,
        parts: &Parts,
        (encoder, optimizer): (&Encoder, &mut Optimizer),
        turn: Turn,
        stop: &AtomicBool,
    ) -> Result<Option<Stepped>> {
        let mut stepped = Stepped::default();
        let mut fresh = self.retrieve_ahead(parts, (encoder, optimizer), turn, &mut stepped)?;
        let Some(lessons) = self.judged(parts, stop, &mut stepped)? else { return Ok(None) };
        let mut sums = Sums::default();
        lessons.iter().for_each(|lesson| sums.rewards(lesson.rewards.iter().copied()));
        for _ in 0..self.rule.inner_epochs {
            optimizer.zero();
            let mut loss = Tensor::zeros([1], (Kind::Float, Device::Cpu));
            let all = lessons.iter().map(|lesson| lesson.retrieved.draws).map(|(from, to)| to - from).sum::<u64>();
            for lesson in &lessons {
                let (from, to) = lesson.retrieved.draws;
                let batch = lesson.retrieved.batch(parts);
                let encoded = match fresh.take() {
                    Some(encoded) => encoded,
                    None => parts.encode(encoder, &batch, (from, parts.settings.keep_tokens), &mut stepped)?,
                };
                let lesson = lesson.judged((to - from) as f64 / all as f64);
                loss += self.bench.correct(parts, (&batch, encoded), &lesson, (&mut sums, &mut stepped))?;
            }
            parts.update(optimizer, &loss, (turn.rate, stop.load(Ordering::Relaxed)), &mut stepped)?;
            if !stepped.loss.is_finite() || !stepped.grad_norm.is_finite() {
                break;
            }
        }
        stepped.pairs =
            lessons.iter().map(|lesson| (lesson.retrieved.draws.1 - lesson.retrieved.draws.0) as usize).sum();
        stepped.policy = Some(sums.gather(parts.collective)?);
        stepped.shown = lessons.first().map(|lesson| self.shown(parts, lesson)).transpose()?.flatten();
        Ok(Some(stepped))
    }

    /// The first query's candidates, to be looked at.
    fn shown(&self, parts: &Parts, lesson: &Answered) -> Result<Option<ShownGroup>> {
        let batch = lesson.retrieved.batch(parts);
        let own = parts.own(&batch).0;
        if own.is_empty() {
            return Ok(None);
        }
        let first = |x: &Tensor| Vec::<f32>::try_from(x.get(0).to_kind(Kind::Float));
        let places = Vec::<i64>::try_from(lesson.retrieved.candidates.get(0))?;
        let old = first(&lesson.retrieved.old)?;
        let advantages = first(&lesson.rewarded.advantages(self.rule.advantage))?;
        let mut candidates = Vec::with_capacity(places.len());
        for (at, place) in places.iter().enumerate() {
            let item = parts.catalogue.item(batch.items[*place as usize])?;
            let reward = lesson.rewards[at];
            candidates.push(ShownCandidate {
                title: item.passage().chars().take(160).collect(),
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

    /// Fills what waits up to `lookahead` steps beyond this one. Where nothing lies between retrieving and correcting, the
    /// vectors are kept with their graphs.
    fn retrieve_ahead<'e>(
        &mut self,
        parts: &Parts,
        (encoder, optimizer): (&'e Encoder, &Optimizer),
        turn: Turn,
        stepped: &mut Stepped,
    ) -> Result<Option<Encoded<'e>>> {
        let lookahead = self.bench.judge.blend().settings().lookahead as u64;
        let mut fresh = None;
        let mut next = self.next.unwrap_or(turn.at);
        while next <= turn.at + lookahead && next < turn.steps {
            if let Some(proposals) = &mut self.proposals {
                proposals.refresh(parts, (encoder, optimizer), next, turn)?;
            }
            let batches: Vec<(u64, u64)> = parts.settings.batches(parts.draws(next)).map(|(draws, _)| draws).collect();
            let keep = if lookahead == 0 && batches.len() == 1 { parts.settings.keep_tokens } else { 0 };
            let mut retrieved = Vec::with_capacity(batches.len());
            for draws in batches {
                let (found, encoded) = self.retrieve(parts, encoder, (draws, keep), stepped)?;
                retrieved.push(found);
                fresh = (keep > 0).then_some(encoded);
            }
            self.waiting.push_back(retrieved);
            next += 1;
        }
        self.next = Some(next);
        Ok(fresh)
    }

    /// What the policy of now finds for the queries of one batch, handed to the judge.
    fn retrieve<'e>(
        &self,
        parts: &Parts,
        encoder: &'e Encoder,
        (draws, keep): ((u64, u64), usize),
        stepped: &mut Stepped,
    ) -> Result<((Retrieved, Asked), Encoded<'e>)> {
        let mut batch = parts.draw(draws.0, draws.1);
        let own_items = batch.items.len();
        if let Some(proposals) = &self.proposals {
            proposals.join(parts, encoder, &mut batch)?;
        }
        let encoded = parts.encode(encoder, &batch, (draws.0, keep), stepped)?;
        let _guard = tch::no_grad_guard();
        let scores = cosines(&encoded.queries, &encoded.items.all);
        let candidates = top(&scores, self.rule.group);
        let old = self.rule.candidates_policy(&scores, &candidates);
        let asked = self.ask(parts, &batch, &candidates)?;
        let joined = batch.items[own_items..].to_vec();
        Ok(((Retrieved { draws, joined, candidates, old }, asked), encoded))
    }

    fn ask(&self, parts: &Parts, batch: &Batch, candidates: &Tensor) -> Result<Asked> {
        let places = Vec::<Vec<i64>>::try_from(candidates)?;
        let rows: Vec<Vec<u32>> =
            places.iter().map(|places| places.iter().map(|place| batch.items[*place as usize]).collect()).collect();
        let queries = batch.pairs[parts.own(batch).0].iter().map(|pair| (pair.query_number, pair.query));
        let questions = self.bench.questions(parts, queries, &rows)?;
        self.bench.judge.ask(questions.each, questions.places)
    }

    /// Waits for the rewards of the next step; until they are there, it is still one of those that wait.
    fn judged(&mut self, parts: &Parts, stop: &AtomicBool, stepped: &mut Stepped) -> Result<Option<Vec<Answered>>> {
        let mut clock = Instant::now();
        let next = self.waiting.front_mut().ok_or_else(|| Error::device("no step was retrieved for"))?;
        let mut rewards = Vec::with_capacity(next.len());
        for (_, asked) in next {
            let Some(found) = self.bench.judge.wait(asked, parts.collective, stop)? else { return Ok(None) };
            rewards.push(found);
        }
        let next = self.waiting.pop_front().into_iter().flatten();
        let lessons = next.zip(rewards).map(|((retrieved, _), rewards)| {
            let rewarded = Rewarded::of(&rewards, retrieved.candidates.size()[1] as usize, parts.device);
            Answered { retrieved, rewards, rewarded }
        });
        let lessons = lessons.collect();
        parts.lap(&mut clock, &mut stepped.seconds.judge);
        Ok(Some(lessons))
    }

    /// What waits, so that a stage goes on with the very candidates it would have gone on with. All processes call it.
    pub fn state(&self, parts: &Parts) -> Result<BTreeMap<String, Tensor>> {
        let mut state = BTreeMap::new();
        for (step, batches) in self.waiting.iter().enumerate() {
            for (at, (retrieved, _)) in batches.iter().enumerate() {
                let batch = retrieved.batch(parts);
                let items: Vec<i64> = batch.items.iter().map(|row| i64::from(*row)).collect();
                let rows = Tensor::from_slice(&items).to_device(parts.device).take(&retrieved.candidates);
                let joined: Vec<i64> = retrieved.joined.iter().map(|row| i64::from(*row)).collect();
                let name = |part: &str| format!("{WAITING}{step:03}/{at:03}/{part}");
                state.insert(name("rows"), gather_rows(parts.collective, &rows)?.all.to_device(Device::Cpu));
                state.insert(name("old"), gather_rows(parts.collective, &retrieved.old)?.all.to_device(Device::Cpu));
                state.insert(name("joined"), Tensor::from_slice(&joined));
            }
        }
        Ok(state)
    }

    /// Puts back what `state` gave, at the step that comes next; the judge is asked again.
    pub fn restore(&mut self, parts: &Parts, mut state: BTreeMap<String, Tensor>, at: u64) -> Result<()> {
        let damaged = || Error::input("the checkpoint lacks a part of what waits for the judge");
        let mut next = at;
        while !state.is_empty() {
            let mut batches = Vec::new();
            for (number, (draws, _)) in parts.settings.batches(parts.draws(next)).enumerate() {
                let mut part = |part: &str| state.remove(&format!("{WAITING}{:03}/{number:03}/{part}", next - at));
                let (rows, old) = (part("rows").ok_or_else(damaged)?, part("old").ok_or_else(damaged)?);
                let joined: Vec<i64> = Vec::try_from(part("joined").ok_or_else(damaged)?)?;
                let joined: Vec<u32> = joined.into_iter().map(|row| row as u32).collect();
                let batch = batch(parts, draws, &joined);
                let own = share(batch.pairs.len(), parts.collective.rank(), parts.collective.size());
                let narrow = |x: &Tensor| x.narrow(0, own.start as i64, own.len() as i64);
                let places: Option<Vec<i64>> = Vec::<i64>::try_from(narrow(&rows).contiguous().view([-1]))?
                    .into_iter()
                    .map(|row| batch.place(row as u32))
                    .collect();
                let candidates = Tensor::from_slice(&places.ok_or_else(damaged)?).view_as(&narrow(&rows));
                let candidates = candidates.to_device(parts.device);
                let asked = self.ask(parts, &batch, &candidates)?;
                let old = narrow(&old).to_device(parts.device);
                batches.push((Retrieved { draws, joined, candidates, old }, asked));
            }
            self.waiting.push_back(batches);
            next += 1;
        }
        self.next = Some(next);
        Ok(())
    }
}
