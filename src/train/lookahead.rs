//! Groups that were retrieved and wait for their rewards: of the next step, and of later ones while the judge is at work. What
//! waits is part of a checkpoint, so that a resumed stage trains on the same candidates with the same old log-probabilities.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use tch::{Device, Tensor};

use super::batch::Batch;
use super::context::{StageContext, StepContext, StepSchedule};
use super::judge::{JudgedCandidates, PendingRewards};
use super::judge_context::{GroupRewards, JudgeContext};
use crate::objective::Group;
use souk_io::error::{Error, Result};
use souk_nn::collective::gather_rows;

/// Prefix of this state's tensors in a checkpoint.
pub const WAITING: &str = "waiting/";

#[derive(Default)]
pub struct Lookahead {
    /// A list of groups for each step, the next step first.
    waiting: VecDeque<Vec<PendingGroup>>,
    /// The next step to retrieve for; none before the first.
    next: Option<u64>,
}

/// The candidates of one batch.
pub struct RetrievedGroup {
    pub draws: Range<u64>,
    /// Items of the catalogue that joined the batch's own.
    pub joined: Vec<u32>,
    /// `[b, g]`: places among the batch's items.
    pub candidates: Tensor,
    /// `[b, p·g]`: log-probabilities under the policy that retrieved them, by each of p prefixes.
    pub old: Tensor,
}

pub struct PendingGroup {
    pub retrieved: RetrievedGroup,
    pub rewards: PendingRewards,
}

pub struct RewardedGroup {
    pub retrieved: RetrievedGroup,
    pub judged: JudgedCandidates,
    pub tensors: GroupRewards,
}

impl RetrievedGroup {
    /// The batch as it was when its candidates were retrieved.
    pub fn batch<'a>(&self, stage: &StageContext<'a>) -> Batch<'a> {
        let mut batch = stage.draw_batch(self.draws.clone());
        for row in &self.joined {
            batch.add(*row);
        }
        batch
    }
}

impl RewardedGroup {
    pub fn num_pairs(&self) -> u64 {
        self.retrieved.draws.end - self.retrieved.draws.start
    }

    pub fn as_group<'a>(&'a self, reference: Option<&'a Tensor>) -> Group<'a> {
        self.tensors.as_group(&self.retrieved.candidates, Some(&self.retrieved.old), reference)
    }
}

impl Lookahead {
    /// The next step to retrieve for, if it is at most `ahead` steps beyond the present one.
    pub fn next_step(&mut self, schedule: &StepSchedule, ahead: u64) -> Option<u64> {
        let next = *self.next.get_or_insert(schedule.step);
        (next <= schedule.step + ahead && next < schedule.num_steps).then_some(next)
    }

    /// Adds the groups of the step that `next_step` named.
    pub fn push(&mut self, groups: Vec<PendingGroup>) {
        self.waiting.push_back(groups);
        self.next = self.next.map(|next| next + 1);
    }

    /// Waits for the rewards of the present step. None if the stage was asked to stop: its groups go on waiting.
    pub fn rewards(&mut self, cx: &mut StepContext, judge: &JudgeContext) -> Result<Option<Vec<RewardedGroup>>> {
        let groups = self.waiting.front_mut().ok_or_else(|| Error::device("no group was retrieved for this step"))?;
        let mut rewards = Vec::with_capacity(groups.len());
        for group in groups {
            let Some(found) = judge.wait(&mut group.rewards, cx.stage.collective, cx.stop)? else { return Ok(None) };
            rewards.push(found);
        }
        let groups = self.waiting.pop_front().into_iter().flatten().zip(rewards);
        let groups = groups.map(|(PendingGroup { retrieved, .. }, judged)| {
            let width = retrieved.candidates.size()[1] as usize;
            let tensors = GroupRewards::new(judge.settings(), &judged.rewards, width, cx.stage.device);
            RewardedGroup { retrieved, judged, tensors }
        });
        let groups = groups.collect();
        cx.lap(|seconds| &mut seconds.judge);
        Ok(Some(groups))
    }

    /// All processes call it.
    pub fn state(&self, stage: &StageContext) -> Result<BTreeMap<String, Tensor>> {
        let mut state = BTreeMap::new();
        for (step, groups) in self.waiting.iter().enumerate() {
            for (at, PendingGroup { retrieved, .. }) in groups.iter().enumerate() {
                let items: Vec<i64> = retrieved.batch(stage).items.iter().map(|row| i64::from(*row)).collect();
                let rows = Tensor::from_slice(&items).to_device(stage.device).take(&retrieved.candidates);
                let joined: Vec<i64> = retrieved.joined.iter().map(|row| i64::from(*row)).collect();
                let name = |part: &str| format!("{WAITING}{step:03}/{at:03}/{part}");
                let gathered =
                    |x: &Tensor| Ok::<_, Error>(gather_rows(stage.collective, x)?.all.to_device(Device::Cpu));
                state.insert(name("rows"), gathered(&rows)?);
                state.insert(name("old"), gathered(&retrieved.old)?);
                state.insert(name("joined"), Tensor::from_slice(&joined));
            }
        }
        Ok(state)
    }

    /// Takes up what `state` gave, before step `at`, and asks the judge again.
    pub fn restore(
        &mut self,
        stage: &StageContext,
        mut state: BTreeMap<String, Tensor>,
        at: u64,
        judge: &JudgeContext,
    ) -> Result<()> {
        let mut next = at;
        while !state.is_empty() {
            let mut groups = Vec::new();
            for (number, micro) in stage.micro_batches(next).enumerate() {
                let prefix = format!("{WAITING}{:03}/{number:03}/", next - at);
                let retrieved = RetrievedGroup::restore(stage, micro.draws, &prefix, &mut state)?;
                let rewards = judge.ask(stage, &retrieved.batch(stage), &retrieved.candidates)?;
                groups.push(PendingGroup { retrieved, rewards });
            }
            self.waiting.push_back(groups);
            next += 1;
        }
        self.next = Some(next);
        Ok(())
    }
}

impl RetrievedGroup {
    fn restore(
        stage: &StageContext,
        draws: Range<u64>,
        prefix: &str,
        state: &mut BTreeMap<String, Tensor>,
    ) -> Result<Self> {
        let damaged = || Error::input("the checkpoint lacks a group that waits for the judge");
        let mut part = |name: &str| state.remove(&format!("{prefix}{name}")).ok_or_else(damaged);
        let (rows, old, joined) = (part("rows")?, part("old")?, Vec::<i64>::try_from(part("joined")?)?);
        let joined = joined.into_iter().map(|row| row as u32).collect();
        let mut group = Self { draws, joined, candidates: rows, old };
        let batch = group.batch(stage);
        let own = stage.own_pairs(&batch);
        let own = |x: &Tensor| x.narrow(0, own.start as i64, own.len() as i64);
        let rows = own(&group.candidates);
        let places: Option<Vec<i64>> = Vec::<i64>::try_from(rows.contiguous().view([-1]))?
            .into_iter()
            .map(|row| batch.place(row as u32))
            .collect();
        let places = Tensor::from_slice(&places.ok_or_else(damaged)?).view_as(&rows).to_device(stage.device);
        group.old = own(&group.old).to_device(stage.device);
        group.candidates = places;
        Ok(group)
    }
}
