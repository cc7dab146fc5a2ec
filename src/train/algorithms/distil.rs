//! Distillation: the encoder learns the ranking in a TREC run, which hybrid search, a reranker or any other engine wrote for the
//! training queries. The hits join the batch, so that each query is also told apart from the hits of all others.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use tch::Tensor;

use super::{Algorithm, Preparation};
use crate::objective::{DistilSettings, DistilTargets};
use crate::train::batch::Batch;
use crate::train::context::{Outcome, StageContext, StepContext};
use crate::train::judge_context::query_ids;
use souk_io::beir::DataFolder;
use souk_io::domain::normalized_query;
use souk_io::error::{Error, Result};
use souk_report::{RunLine, read_run};

pub struct Distil {
    settings: DistilSettings,
    /// Query ids by normalised text.
    ids: HashMap<String, Arc<str>>,
    /// Rows of the catalogue with their scores, best first, by number of the query.
    hits: HashMap<u32, Vec<(u32, f32)>>,
}

/// The hits that one process trains on in a step, `[b, g]`.
struct ShownHits {
    /// Places among the batch's items.
    places: Tensor,
    scores: Tensor,
}

impl Algorithm for Distil {
    fn prepare(&mut self, at: &Preparation, _: &mut dyn FnMut(usize, usize)) -> Result<bool> {
        self.read(&at.stage).map(|()| true)
    }

    fn step(&mut self, cx: &mut StepContext) -> Result<Outcome> {
        let stage = cx.stage;
        cx.zero_grad();
        for micro in cx.micro_batches() {
            let mut batch = cx.draw_batch(micro.draws);
            let shown = self.show(&stage, &mut batch);
            cx.metrics.masked += batch.num_masked();
            cx.metrics.pairs += batch.pairs.len();
            let encoded = cx.encode(&batch)?;
            let own = stage.own_pairs(&batch);
            let weight = micro.weight / batch.pairs.len() as f64;
            cx.backward(encoded, |vectors| {
                let targets = DistilTargets {
                    chosen: &Tensor::from_slice(&batch.chosen[own.clone()]).to_device(stage.device),
                    hits: &shown.places,
                    scores: &shown.scores,
                    known: &batch.known(&own, stage.device),
                };
                Ok(self.settings.loss(vectors, &targets) * weight)
            })?;
        }
        cx.optimizer_step()?;
        Ok(Outcome::Done)
    }

    fn restore(&mut self, stage: &StageContext, _: BTreeMap<String, Tensor>, _: u64, _: &Path) -> Result<()> {
        self.read(stage)
    }
}

impl Distil {
    pub fn new(settings: DistilSettings, data: &DataFolder) -> Result<Self> {
        Ok(Self { settings, ids: query_ids(data)?, hits: HashMap::new() })
    }

    /// Reads the hits of all training queries.
    fn read(&mut self, stage: &StageContext) -> Result<()> {
        let file = &self.settings.run;
        let mut by_query: HashMap<String, Vec<(u32, f32)>> = HashMap::new();
        for line in read_run(file)? {
            let RunLine { line, query, item, score } = line?;
            let unknown = || Error::data(file, Some(line), format!("the catalogue has no item `{item}`"));
            by_query.entry(query).or_default().push((stage.catalogue.row(&item).ok_or_else(unknown)?, score));
        }
        let mut seen = HashSet::new();
        let pairs = (0..stage.pairs.len()).map(|row| stage.pairs.row(row));
        for pair in pairs.filter(|pair| seen.insert(pair.query_number)) {
            let id = self.ids.get(&normalized_query(pair.query));
            let mut hits = id.and_then(|id| by_query.get(&**id)).cloned().unwrap_or_default();
            hits.sort_by(|a, b| b.1.total_cmp(&a.1));
            hits.truncate(self.settings.depth);
            if hits.len() < self.settings.group {
                let (query, found, group) = (pair.query, hits.len(), self.settings.group);
                let problem = format!(
                    "has {found} hits of the training query `{query}`, but objective.group is {group}: write the run with \
                     `souk evaluate --split train`, or lower objective.group"
                );
                return Err(Error::data(file, None, problem));
            }
            self.hits.insert(pair.query_number, hits);
        }
        Ok(())
    }

    /// Adds this draw's part of every query's hits to the batch, in one order in all processes.
    fn show(&self, stage: &StageContext, batch: &mut Batch) -> ShownHits {
        let (own, group) = (stage.own_pairs(batch), self.settings.group);
        let (mut places, mut scores) = (Vec::new(), Vec::new());
        for at in 0..batch.pairs.len() {
            let hits = &self.hits[&batch.pairs[at].query_number];
            for shown in stage.sample(hits.len(), group, batch.draws.start + at as u64) {
                let (row, score) = hits[shown];
                let place = batch.add(row);
                if own.contains(&at) {
                    places.push(place);
                    scores.push(score);
                }
            }
        }
        batch.find_known(stage.pairs);
        let shape = [own.len() as i64, group as i64];
        let tensor = |x: Tensor| x.view(shape).to_device(stage.device);
        ShownHits { places: tensor(Tensor::from_slice(&places)), scores: tensor(Tensor::from_slice(&scores)) }
    }
}
