//! Supervised contrastive learning: InfoNCE over in-batch and global negatives (Retrieval-GRPO, eq. 4 and 5), and its iterative
//! refinement over soft tokens (GIRCSE, eq. 7 and 8).
//!
//! The large batch `B̂` is gathered over all processes by gradient caching: vectors first, then the loss over all of them, then a
//! second, chunked forward pass that back-propagates the vectors' gradients.

use tch::{Device, Kind, Tensor};

use super::Algorithm;
use crate::objective::{IcrSettings, InfoNceSettings, JudgedLevels, JudgedTargets, PairTargets, Vectors};
use crate::train::batch::Batch;
use crate::train::context::{Outcome, StageContext, StepContext};
use crate::train::frozen::FrozenEncoder;
use crate::train::judged_items::{JudgedItems, JudgedPlaces};
use souk_ingest::dataset::PairSource;
use souk_io::beir::DataFolder;
use souk_io::error::Result;
use souk_nn::collective::gather_rows;
use souk_nn::encoder::Encoder;

pub struct InfoNce {
    loss: PairLoss,
    /// Share of the queries that get a typing error.
    mistyped: f64,
    /// Judged items that join the batch, so many of each query.
    judged: Option<(JudgedItems, usize)>,
    /// The encoder that decides which items are no negatives, if it is not the one that learns.
    guide: Option<FrozenEncoder>,
}

/// Besides vectors, what the loss of a batch needs.
struct LossInputs<'a> {
    batch: &'a Batch<'a>,
    judged: Option<JudgedLists>,
    /// Queries and items by the guide.
    guide: Option<(Tensor, Tensor)>,
}

/// The judged items of one process's queries as tensors `[b, j]`.
struct JudgedLists {
    places: Tensor,
    gains: Tensor,
    known: Tensor,
}

impl JudgedLists {
    fn new(judged: &JudgedPlaces, device: Device) -> Self {
        let width = judged.iter().map(Vec::len).max().unwrap_or(0);
        let shape = [judged.len() as i64, width as i64];
        let (mut places, mut gains, mut known) = (Vec::new(), Vec::new(), Vec::new());
        for of_query in judged {
            for at in 0..width {
                let item = of_query.get(at);
                places.push(item.map_or(0, |(place, _)| *place));
                gains.push(item.map_or(0.0, |(_, level)| level.gain() as f32));
                known.push(item.is_some());
            }
        }
        let tensor = |x: Tensor| x.view(shape).to_device(device);
        Self {
            places: tensor(Tensor::from_slice(&places)),
            gains: tensor(Tensor::from_slice(&gains)),
            known: tensor(Tensor::from_slice(&known)),
        }
    }
}

enum PairLoss {
    InfoNce(InfoNceSettings),
    Icr(IcrSettings),
}

impl InfoNce {
    pub fn new(settings: InfoNceSettings, data: &DataFolder, guide: Option<Encoder>) -> Result<Self> {
        let split = settings.judged_split.as_ref();
        let judged = open_judged(data, split, settings.judged_levels)?.map(|judged| (judged, settings.judged));
        let guide = guide.map(FrozenEncoder::new).transpose()?;
        Ok(Self { mistyped: settings.mistyped, loss: PairLoss::InfoNce(settings), judged, guide })
    }

    pub fn refined(settings: IcrSettings, data: &DataFolder) -> Result<Self> {
        let judged = open_judged(data, settings.judged_split.as_ref(), JudgedLevels::Rejected)?;
        let judged = judged.map(|judged| (judged, settings.judged));
        Ok(Self { loss: PairLoss::Icr(settings), mistyped: 0.0, judged, guide: None })
    }

    /// This process's part of the weighted mean loss over all pairs of the batch.
    fn mean_loss(&self, stage: &StageContext, inputs: &LossInputs, vectors: &Vectors) -> Result<Tensor> {
        let batch = inputs.batch;
        let own = &stage.own_pairs(batch);
        let judged = inputs.judged.as_ref();
        let judged = judged.map(|JudgedLists { places, gains, known }| JudgedTargets { places, gains, known });
        let guide = inputs.guide.as_ref().map(|(queries, items)| Vectors { queries, items, steps: 1 });
        let (device, all_queries) = (vectors.items.device(), stage.needs.all_queries);
        let first = if all_queries { own.start as i64 } else { 0 };
        let weights = batch.weights(stage.settings.weigh_by_strength).to_device(device);
        let known_queries = all_queries.then(|| batch.known_queries(own, device));
        let targets = PairTargets {
            query: &Tensor::arange_start(first, first + own.len() as i64, (Kind::Int64, device)),
            item: &Tensor::from_slice(&batch.chosen[own.clone()]).to_device(device),
            known: &batch.known(own, device),
            known_queries: known_queries.as_ref(),
            weight: &weights.narrow(0, own.start as i64, own.len() as i64),
            judged: judged.as_ref(),
            guide: guide.as_ref(),
        };
        // weights that are all zero must not divide by zero
        let total_weight = weights.sum(Kind::Float).clamp_min(f64::from(f32::MIN_POSITIVE));
        let weighted_sum = match &self.loss {
            PairLoss::InfoNce(settings) => settings.loss(vectors, &targets),
            PairLoss::Icr(settings) => {
                let losses = settings.step_losses(vectors, &targets);
                let weighted = losses.detach() * targets.weight.unsqueeze(1) / &total_weight;
                let mut means = weighted.sum_dim_intlist(0, false, Kind::Double).to_device(Device::Cpu);
                stage.collective.all_reduce(&mut means)?;
                settings.loss(&losses, targets.weight, &means.to_kind(Kind::Float).to_device(device))
            }
        };
        Ok(weighted_sum / total_weight)
    }
}

fn open_judged(data: &DataFolder, split: Option<&String>, levels: JudgedLevels) -> Result<Option<JudgedItems>> {
    split.map(|split| JudgedItems::open(data, split, levels, "objective.judged_split")).transpose()
}

impl Algorithm for InfoNce {
    fn step(&mut self, cx: &mut StepContext) -> Result<Outcome> {
        let stage = cx.stage;
        cx.zero_grad();
        for micro in cx.micro_batches() {
            let mut batch = cx.draw_batch(micro.draws);
            if stage.settings.pairs == PairSource::Excerpts {
                batch.ask_by_excerpts(stage.catalogue, stage.settings.seed)?;
            }
            batch.mistype(self.mistyped, stage.settings.seed);
            let judged = self.judged.as_ref().map(|(judged, limit)| {
                let places = judged.join(&stage, &mut batch, *limit);
                batch.find_known(stage.pairs);
                JudgedLists::new(&places, stage.device)
            });
            cx.metrics.masked += batch.num_masked();
            cx.metrics.pairs += batch.pairs.len();
            let encoded = cx.encode(&batch)?;
            let guide = self.guide.as_mut().map(|guide| guide.encode(&stage, &batch)).transpose()?;
            let guide = match guide {
                Some((queries, items)) if stage.needs.all_queries => {
                    Some((gather_rows(stage.collective, &queries)?.all, items))
                }
                guide => guide,
            };
            let inputs = LossInputs { batch: &batch, judged, guide };
            cx.backward(encoded, |vectors| Ok(self.mean_loss(&stage, &inputs, vectors)? * micro.weight))?;
        }
        cx.optimizer_step()?;
        Ok(Outcome::Done)
    }
}
