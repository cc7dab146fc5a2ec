//! Hard negatives as they are mined offline, for the rules that Retrieval-GRPO is compared with: the model that a stage
//! begins with finds each query's first items, a judge rewards them once, and the stage learns from what was written down.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

use super::batch::share;
use super::correct::Turn;
use super::judged::{Bench, Lesson, Rewarded};
use super::policy::Sums;
use super::proposals::{Plan, nearest};
use super::share::Share;
use super::step::{Parts, Stepped};
use crate::beir;
use crate::candidates::{Bank, Search};
use crate::claim::sync_one;
use crate::collective::gather_json;
use crate::dataset::{Pair, Permutation};
use crate::encoder::Encoder;
use crate::error::{Error, Result};
use crate::optimizer::Optimizer;
use crate::reward::Reward;

/// The file in a stage's folder.
pub const MINED: &str = "mined.jsonl";
/// Candidates that a process has judged before it is said how far it is.
const BLOCK: usize = 2048;

/// What was found for one query, best first.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Found {
    number: u32,
    query: String,
    items: Vec<u32>,
    rewards: Vec<Option<Reward>>,
}

pub struct Miner {
    bench: Bench,
    /// Of each query, how many are judged, and how many of these a step sees.
    counts: (usize, usize),
    found: BTreeMap<u32, Found>,
}

impl Miner {
    pub fn new(bench: Bench, counts: (usize, usize)) -> Self {
        Self { bench, counts, found: BTreeMap::new() }
    }

    pub fn judge_id(&self) -> &str {
        self.bench.judge.blend().source().id()
    }

    /// What an earlier process of this stage mined.
    pub fn load(&mut self, out: &Path) -> Result<()> {
        let path = out.join(MINED);
        for line in beir::lines(&path)? {
            let (number, line) = line?;
            let found: Found = serde_json::from_slice(&line).map_err(|e| {
                let problem = "is no line of mined candidates: begin the stage anew";
                Error::data(&path, Some(number), problem).because(e)
            })?;
            self.found.insert(found.number, found);
        }
        Ok(())
    }

    /// Mines for every query of the pairs, by the encoder of now; false if the stage was asked to stop before.
    pub fn mine(
        &mut self,
        (parts, encoder): (&Parts, &Encoder),
        out: &Path,
        stop: &AtomicBool,
        told: &mut dyn FnMut(usize, usize),
    ) -> Result<bool> {
        let bank = Plan::of(parts, Search::Exact, 1).bank(parts.catalogue, encoder, &AtomicBool::new(false))?;
        let mut seen = HashSet::new();
        let mut queries: Vec<Pair<'_>> = (0..parts.pairs.len()).map(|row| parts.pairs.row(row)).collect();
        queries.retain(|pair| seen.insert(pair.query_number));
        let block = (BLOCK / self.counts.0).max(1) * parts.collective.size();
        for block in queries.chunks(block) {
            let own = &block[share(block.len(), parts.collective.rank(), parts.collective.size())];
            let Some(found) = self.judge(parts, encoder, (&bank, own), stop)? else { return Ok(false) };
            for found in gather_json(parts.collective, &found)?.into_iter().flatten() {
                self.found.insert(found.number, found);
            }
            told(self.found.len(), queries.len());
        }
        if parts.collective.rank() == 0 {
            self.write(out)?;
        }
        Ok(true)
    }

    fn judge(
        &self,
        parts: &Parts,
        encoder: &Encoder,
        (bank, queries): (&Bank, &[Pair<'_>]),
        stop: &AtomicBool,
    ) -> Result<Option<Vec<Found>>> {
        let _guard = tch::no_grad_guard();
        let mut texts = Vec::with_capacity(queries.len());
        for pair in queries {
            texts.push(parts.read_query(&encoder.reader(), pair.query)?);
        }
        let (_, vectors) = Share::encode(encoder, texts, parts.plain_chunking())?;
        let found = nearest(parts, bank, &vectors, self.counts.0)?;
        let rows = found.all[found.own].to_vec();
        let named = queries.iter().map(|pair| (pair.query_number, pair.query));
        let questions = self.bench.questions(parts, named, &rows)?;
        let mut asked = self.bench.judge.ask(questions.each, questions.places)?;
        let Some(rewards) = self.bench.judge.wait(&mut asked, parts.collective, stop)? else { return Ok(None) };
        let mut rewards = rewards.into_iter();
        let found = queries.iter().zip(rows).map(|(pair, items)| Found {
            number: pair.query_number,
            query: pair.query.into(),
            rewards: rewards.by_ref().take(items.len()).collect(),
            items,
        });
        Ok(Some(found.collect()))
    }

    fn write(&self, out: &Path) -> Result<()> {
        let (path, aside) = (out.join(MINED), out.join("mined.jsonl.part"));
        let file = File::create(&aside).map_err(Error::store(&aside, "write it"))?;
        let mut file = BufWriter::new(file);
        for found in self.found.values() {
            writeln!(file, "{}", serde_json::json!(found)).map_err(Error::store(&aside, "write it"))?;
        }
        let file = file.into_inner().map_err(|e| Error::store(&aside, "write it")(e.into_error()))?;
        file.sync_all().map_err(Error::store(&aside, "write it to disk"))?;
        fs::rename(&aside, &path).map_err(Error::store(&path, "put it in place"))?;
        sync_one(out)
    }

    /// One step on what was mined.
    pub fn step(
        &self,
        parts: &Parts,
        (encoder, optimizer): (&Encoder, &mut Optimizer),
        turn: Turn,
        stop: &AtomicBool,
    ) -> Result<Stepped> {
        let mut stepped = Stepped::default();
        optimizer.zero();
        let mut sums = Sums::default();
        let mut loss = Tensor::zeros([1], (Kind::Float, Device::Cpu));
        for (draws, share) in parts.settings.batches(parts.draws(turn.at)) {
            let mut clock = Instant::now();
            let mut batch = parts.draw(draws.0, draws.1);
            let (mut places, mut rewards) = (Vec::new(), Vec::new());
            let own = parts.own(&batch).0;
            for at in 0..batch.pairs.len() {
                let shown = self.shown(parts, batch.pairs[at].query_number, draws.0 + at as u64);
                // items of all processes, in one order
                let placed: Vec<i64> = shown.iter().map(|(row, _)| batch.add(*row)).collect();
                if own.contains(&at) {
                    places.extend(placed);
                    rewards.extend(shown.iter().map(|(_, reward)| *reward));
                }
            }
            parts.lap(&mut clock, &mut stepped.seconds.data);
            stepped.pairs += batch.pairs.len();
            let width = rewards.len() / own.len().max(1);
            let candidates = Tensor::from_slice(&places).view([own.len() as i64, width as i64]).to_device(parts.device);
            let rewarded = Rewarded::of(&rewards, width, parts.device);
            sums.rewards(rewards.into_iter());
            let encoded = parts.encode(encoder, &batch, (draws.0, parts.settings.keep_tokens), &mut stepped)?;
            let lesson = Lesson { candidates: &candidates, old: None, rewarded: &rewarded, share };
            loss += self.bench.correct(parts, (&batch, encoded), &lesson, (&mut sums, &mut stepped))?;
        }
        parts.update(optimizer, &loss, (turn.rate, stop.load(Ordering::Relaxed)), &mut stepped)?;
        stepped.policy = Some(sums.gather(parts.collective)?);
        Ok(stepped)
    }

    /// What a step sees of a query's candidates: a part of them that changes from draw to draw.
    fn shown(&self, parts: &Parts, query: u32, draw: u64) -> Vec<(u32, Option<Reward>)> {
        let Some(found) = self.found.get(&query) else { return Vec::new() };
        let num = found.items.len() as u64;
        let order = Permutation::new(num, parts.settings.seed ^ draw.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let places = (0..num.min(self.counts.1 as u64)).map(|at| order.at(at) as usize);
        places.map(|place| (found.items[place], found.rewards[place])).collect()
    }
}
