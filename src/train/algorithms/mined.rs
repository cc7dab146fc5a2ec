//! Baselines on mined hard negatives: a pairwise ranking loss and DPO (Retrieval-GRPO, Tables 1 to 5). The model that the stage
//! begins with finds each query's nearest items in the whole catalogue, a judge rewards them once, and every step trains on a part
//! of them that changes from draw to draw.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};
use tch::Tensor;

use super::{Algorithm, Preparation};
use crate::candidates::{Bank, BankSearch};
use crate::objective::{DpoSettings, Group, GroupLoss, Losses, MinedSettings, PairwiseSettings, Vectors};
use crate::train::batch::Batch;
use crate::train::catalogue_candidates::{BankSpec, nearest};
use crate::train::context::{Outcome, StageContext, StepContext, read_queries};
use crate::train::grad_cache::GradCache;
use crate::train::judge_context::{GroupRewards, JudgeContext};
use crate::train::policy_metrics::PolicySums;
use souk_ingest::dataset::TrainingPair;
use souk_io::atomic_dir::fsync;
use souk_io::beir;
use souk_io::error::{Error, Result};
use souk_nn::collective::gather_json;
use souk_reward::Reward;

/// File in the stage's folder.
pub const MINED: &str = "mined.jsonl";
/// Candidates that are judged between two reports of progress, in each process.
const BLOCK: usize = 2048;

pub struct MinedNegatives {
    loss: PreferenceLoss,
    settings: MinedSettings,
    judge: JudgeContext,
    by_query: BTreeMap<u32, MinedQuery>,
}

enum PreferenceLoss {
    Pairwise(PairwiseSettings),
    Dpo(DpoSettings),
}

/// A line of `mined.jsonl`: what was found for one query, nearest first.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct MinedQuery {
    number: u32,
    query: String,
    items: Vec<u32>,
    rewards: Vec<Option<Reward>>,
}

/// The candidates that one process trains on in a step.
struct ShownCandidates {
    /// `[b, g]`: places among the batch's items.
    places: Tensor,
    rewards: Vec<Option<Reward>>,
    tensors: GroupRewards,
}

impl Algorithm for MinedNegatives {
    fn prepare(&mut self, at: &Preparation, report: &mut dyn FnMut(usize, usize)) -> Result<bool> {
        let stage = &at.stage;
        let spec = BankSpec::new(stage, BankSearch::Exact, 1);
        let bank = spec.build(stage.catalogue, at.encoder, &AtomicBool::new(false))?;
        let mut seen = HashSet::new();
        let mut queries: Vec<TrainingPair<'_>> = (0..stage.pairs.len()).map(|row| stage.pairs.row(row)).collect();
        queries.retain(|pair| seen.insert(pair.query_number));
        let block = (BLOCK / self.settings.depth).max(1) * stage.collective.size();
        for block in queries.chunks(block) {
            let own = &block[stage.shard(block.len())];
            let Some(mined) = self.mine(at, &bank, own)? else { return Ok(false) };
            for mined in gather_json(stage.collective, &mined)?.into_iter().flatten() {
                self.by_query.insert(mined.number, mined);
            }
            report(self.by_query.len(), queries.len());
        }
        if stage.collective.rank() == 0 {
            self.save(at.out)?;
        }
        Ok(true)
    }

    fn step(&mut self, cx: &mut StepContext) -> Result<Outcome> {
        cx.zero_grad();
        let mut sums = PolicySums::default();
        for micro in cx.micro_batches() {
            let mut batch = cx.draw_batch(micro.draws);
            let shown = self.show(&cx.stage, &mut batch);
            cx.metrics.pairs += batch.pairs.len();
            sums.add_rewards(&shown.rewards);
            let encoded = cx.encode(&batch)?;
            let reference = self.judge.reference_scores(&cx.stage, &batch, &[])?;
            let weight = micro.weight / batch.pairs.len() as f64;
            cx.backward(encoded, |vectors| {
                let GroupLoss { loss, tally } =
                    self.loss.of(vectors, &shown.tensors.as_group(&shown.places, None, reference.as_ref()))?;
                sums.add(&tally);
                Ok(loss * weight)
            })?;
        }
        cx.optimizer_step()?;
        cx.metrics.policy = Some(sums.gather(cx.stage.collective)?);
        Ok(Outcome::Done)
    }

    fn restore(&mut self, _: &StageContext, _: BTreeMap<String, Tensor>, _: u64, out: &Path) -> Result<()> {
        let path = out.join(MINED);
        for line in beir::lines(&path)? {
            let (number, line) = line?;
            let mined: MinedQuery = serde_json::from_slice(&line).map_err(|e| {
                let problem = "is not a line of mined candidates: start a new stage";
                Error::data(&path, Some(number), problem).because(e)
            })?;
            self.by_query.insert(mined.number, mined);
        }
        Ok(())
    }

    fn judge_id(&self) -> Option<&str> {
        Some(self.judge.id())
    }
}

impl PreferenceLoss {
    fn of(&self, vectors: &Vectors, group: &Group) -> Result<GroupLoss> {
        match self {
            Self::Pairwise(settings) => Ok(settings.loss(vectors, group)),
            Self::Dpo(settings) => settings.loss(vectors, group),
        }
    }
}

impl MinedNegatives {
    pub fn pairwise(settings: PairwiseSettings, judge: JudgeContext) -> Result<Self> {
        if settings.losses == Losses::Apart && judge.settings().is_reshaped() {
            let problem = "is \"apart\", but reward.clip, reward.quality_baseline and reward.normalize change the fused reward: \
                           leave them out";
            return Err(Error::config("objective.losses", problem));
        }
        let mined = settings.mined.clone();
        Ok(Self { loss: PreferenceLoss::Pairwise(settings), settings: mined, judge, by_query: BTreeMap::new() })
    }

    pub fn dpo(settings: DpoSettings, judge: JudgeContext) -> Self {
        let mined = settings.mined.clone();
        Self { loss: PreferenceLoss::Dpo(settings), settings: mined, judge, by_query: BTreeMap::new() }
    }

    /// Finds and judges the nearest items of this process's queries; none if the stage was asked to stop.
    fn mine(&self, at: &Preparation, bank: &Bank, queries: &[TrainingPair<'_>]) -> Result<Option<Vec<MinedQuery>>> {
        let (stage, encoder, _guard) = (&at.stage, at.encoder, tch::no_grad_guard());
        let read: Vec<&str> = queries.iter().map(|pair| pair.query).collect();
        let texts = read_queries(&encoder.reader(), &read)?;
        let (_, vectors) = GradCache::encode(encoder, texts, stage.inference_chunking())?;
        let found = nearest(stage, bank, &vectors, self.settings.depth)?;
        let rows = found.all[found.own].to_vec();
        let mut pending = self.judge.ask_rows(stage, queries, &rows)?;
        let Some(rewards) = self.judge.wait(&mut pending, stage.collective, at.stop)? else { return Ok(None) };
        let mut rewards = rewards.rewards.into_iter();
        let mined = queries.iter().zip(rows).map(|(pair, items)| MinedQuery {
            number: pair.query_number,
            query: pair.query.into(),
            rewards: rewards.by_ref().take(items.len()).collect(),
            items,
        });
        Ok(Some(mined.collect()))
    }

    fn save(&self, out: &Path) -> Result<()> {
        let (path, aside) = (out.join(MINED), out.join("mined.jsonl.part"));
        let file = File::create(&aside).map_err(Error::store(&aside, "write it"))?;
        let mut file = BufWriter::new(file);
        for mined in self.by_query.values() {
            writeln!(file, "{}", serde_json::json!(mined)).map_err(Error::store(&aside, "write it"))?;
        }
        let file = file.into_inner().map_err(|e| Error::store(&aside, "write it")(e.into_error()))?;
        file.sync_all().map_err(Error::store(&aside, "write it to disk"))?;
        fs::rename(&aside, &path).map_err(Error::store(&path, "put it in place"))?;
        fsync(out)
    }

    /// Adds this draw's part of every query's candidates to the batch, in one order in all processes.
    fn show(&self, stage: &StageContext, batch: &mut Batch) -> ShownCandidates {
        let own = stage.own_pairs(batch);
        let (mut places, mut rewards) = (Vec::new(), Vec::new());
        for at in 0..batch.pairs.len() {
            let shown = self.draw_candidates(stage, batch.pairs[at].query_number, batch.draws.start + at as u64);
            let placed: Vec<i64> = shown.iter().map(|(row, _)| batch.add(*row)).collect();
            if own.contains(&at) {
                places.extend(placed);
                rewards.extend(shown.iter().map(|(_, reward)| *reward));
            }
        }
        let width = rewards.len() / own.len().max(1);
        let places = Tensor::from_slice(&places).view([own.len() as i64, width as i64]).to_device(stage.device);
        let tensors = GroupRewards::new(self.judge.settings(), &rewards, width, stage.device);
        ShownCandidates { places, rewards, tensors }
    }

    /// The part of a query's candidates that one draw trains on.
    fn draw_candidates(&self, stage: &StageContext, query: u32, draw: u64) -> Vec<(u32, Option<Reward>)> {
        let Some(mined) = self.by_query.get(&query) else { return Vec::new() };
        let places = stage.sample(mined.items.len(), self.settings.group, draw);
        places.map(|place| (mined.items[place], mined.rewards[place])).collect()
    }
}
