//! One step of training: draw a batch, encode this process's share, gather, take the objective's loss, back-propagate the
//! share, sum the gradients over all processes, update.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use tch::{Device, Kind, Tensor};

use super::TrainSettings;
use super::batch::{Batch, share};
use super::policy::{Policy, ShownGroup};
use super::rationales::Wrote;
use super::share::{Chunking, Share};
use crate::collective::{Collective, Rows, gather_rows, return_rows};
use crate::dataset::{Catalogue, Draw, Order, Pairs};
use crate::domain::TextKind;
use crate::encoder::{Encoder, Reader, Text};
use crate::error::{Error, Result};
use crate::objective::{Objective, Pairs as Chosen, Vectors};
use crate::optimizer::Optimizer;

/// Gradients are summed in pieces of about so many entries.
const PIECE: usize = 1 << 24;

/// What a stage is made of; it does not change from step to step.
pub struct Parts<'a> {
    pub settings: &'a TrainSettings,
    pub objective: &'a Objective,
    pub pairs: &'a Pairs,
    pub catalogue: &'a Arc<Catalogue>,
    pub collective: &'a dyn Collective,
    pub bf16: bool,
    pub device: Device,
}

/// How one step went, over all processes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Stepped {
    pub loss: f64,
    /// Before it was cut.
    pub grad_norm: f64,
    /// Items left out of some query's sum, for it is known to have found them.
    pub masked: usize,
    pub pairs: usize,
    /// Texts and tokens that this process encoded.
    pub texts: usize,
    pub tokens: usize,
    pub seconds: Seconds,
    /// Of stages that learn from rewards.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
    /// Of stages that learn to write.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub wrote: Option<Wrote>,
    /// Of the first process, written down apart.
    #[serde(skip)]
    pub shown: Option<ShownGroup>,
    /// A process was asked to stop.
    #[serde(skip)]
    pub stop: bool,
}

/// Where the time of a step went.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Seconds {
    pub data: f64,
    pub forward: f64,
    /// Waiting for the judge.
    pub judge: f64,
    /// The objective, and gathering vectors and returning their gradients.
    pub loss: f64,
    pub backward: f64,
    /// Summing gradients over processes.
    pub reduce: f64,
    pub optimizer: f64,
}

impl Seconds {
    pub fn by_phase(&self) -> [(&'static str, f64); 7] {
        let Self { data, forward, judge, loss, backward, reduce, optimizer } = *self;
        [
            ("data", data),
            ("forward", forward),
            ("judge", judge),
            ("loss", loss),
            ("backward", backward),
            ("reduce", reduce),
            ("optimizer", optimizer),
        ]
    }
}

impl<'a> Parts<'a> {
    pub fn order(&self) -> Order {
        Order { seed: self.settings.seed, block: self.settings.shuffle_block }
    }

    /// The gradient of one batch, from draw number `from` to `to`, added to what the weights hold already; and its loss.
    /// Both count `share` of a step.
    pub fn accumulate(
        &self,
        encoder: &Encoder,
        ((from, to), share): ((u64, u64), f64),
        stepped: &mut Stepped,
    ) -> Result<Tensor> {
        let mut clock = Instant::now();
        let batch = self.draw(from, to);
        stepped.masked += batch.num_masked();
        stepped.pairs += batch.pairs.len();
        self.lap(&mut clock, &mut stepped.seconds.data);
        let encoded = self.encode(encoder, &batch, (from, self.settings.keep_tokens), stepped)?;
        let own = self.own(&batch).0;
        let all_queries = self.objective.needs().all_queries;
        encoded.learn(self, all_queries, |vectors| Ok(self.loss(&batch, &own, vectors)? * share), stepped)
    }

    /// This process's texts as vectors, `keep` tokens of them with their graphs, and the item vectors of all processes.
    pub fn encode<'e>(
        &self,
        encoder: &'e Encoder,
        batch: &Batch,
        (from, keep): (u64, usize),
        stepped: &mut Stepped,
    ) -> Result<Encoded<'e>> {
        let mut clock = Instant::now();
        let texts = self.read(encoder, batch)?;
        stepped.texts += texts.len();
        stepped.tokens += texts.iter().map(|text| text.ids.len()).sum::<usize>();
        self.lap(&mut clock, &mut stepped.seconds.data);
        let seed = self.settings.seed ^ (from << 20) ^ ((self.collective.rank() as u64) << 10);
        let steps = self.objective.needs().steps;
        let chunking = Chunking { keep_tokens: keep, steps, ..Chunking::of(self.settings, self.bf16, seed) };
        let (share, vectors) = Share::encode(encoder, texts, chunking)?;
        let (own_pairs, own_items) = self.own(batch);
        let [queries, items] = [(0, own_pairs.len()), (own_pairs.len(), own_items.len())]
            .map(|(start, length)| vectors.narrow(0, start as i64, length as i64));
        self.lap(&mut clock, &mut stepped.seconds.forward);
        let items = gather_rows(self.collective, &items)?;
        self.lap(&mut clock, &mut stepped.seconds.loss);
        Ok(Encoded { share, queries, items })
    }

    /// This process's part of the batch's mean loss.
    fn loss(&self, batch: &Batch, own: &Range<usize>, vectors: &Vectors) -> Result<Tensor> {
        let (device, all_queries) = (vectors.items.device(), self.objective.needs().all_queries);
        let first = if all_queries { own.start as i64 } else { 0 };
        let query = Tensor::arange_start(first, first + own.len() as i64, (Kind::Int64, device));
        let item = Tensor::from_slice(&batch.chosen[own.clone()]).to_device(device);
        let weights = batch.weights(self.settings.weigh_by_strength).to_device(device);
        let known_queries = all_queries.then(|| batch.known_queries(own, device));
        let chosen = Chosen {
            query: &query,
            item: &item,
            known: &batch.known(own, device),
            known_queries: known_queries.as_ref(),
            weight: &weights.narrow(0, own.start as i64, own.len() as i64),
        };
        // pairs that all count nothing teach nothing
        let all = weights.sum(Kind::Float).clamp_min(f64::from(f32::MIN_POSITIVE));
        Ok(self.objective.loss(vectors, &chosen)? / all)
    }

    /// Sums the gradients over all processes, piece by piece.
    pub fn reduce(&self, gradients: &mut [Tensor]) -> Result<()> {
        if self.collective.size() == 1 {
            return Ok(());
        }
        let mut rest = gradients;
        while !rest.is_empty() {
            let mut filled = 0;
            let mut fits = |gradient: &Tensor| {
                filled += gradient.numel();
                filled <= PIECE
            };
            let count = rest.iter().map_while(|gradient| fits(gradient).then_some(())).count().max(1);
            let (piece, later) = rest.split_at_mut(count);
            let sizes: Vec<i64> = piece.iter().map(|gradient| gradient.numel() as i64).collect();
            let mut flat = Tensor::cat(&piece.iter().map(|gradient| gradient.reshape([-1])).collect::<Vec<_>>(), 0);
            self.collective.all_reduce(&mut flat)?;
            for (gradient, summed) in piece.iter_mut().zip(flat.split_with_sizes(&sizes[..], 0)) {
                *gradient = summed.view_as(gradient).contiguous();
            }
            rest = later;
        }
        Ok(())
    }

    /// Adds the time since `clock` to a phase, and starts the clock anew.
    pub fn lap(&self, clock: &mut Instant, phase: &mut f64) {
        if let Device::Cuda(index) = self.device {
            // a GPU works on after a call returns
            tch::Cuda::synchronize(index as i64);
        }
        *phase += clock.elapsed().as_secs_f64();
        *clock = Instant::now();
    }

    /// The draws of a step.
    pub fn draws(&self, step: u64) -> (u64, u64) {
        let per_step = (self.settings.batch * self.settings.accumulate) as u64;
        let (all, _) = self.settings.length(self.pairs.len());
        (step * per_step, all.min((step + 1) * per_step))
    }

    pub fn draw(&self, from: u64, to: u64) -> Batch<'a> {
        let rows: Vec<u64> = Draw::new(self.pairs.len(), self.order(), from).take((to - from) as usize).collect();
        let negatives = self.objective.needs().global_negatives as u64;
        // as many for each batch, however many pairs it has
        let first = from / self.settings.batch as u64 * negatives;
        Batch::gather(self.pairs, &rows, self.catalogue, (self.settings.seed, first..first + negatives))
    }

    /// This process's pairs and items of a batch.
    pub fn own(&self, batch: &Batch) -> (Range<usize>, Range<usize>) {
        let (rank, size) = (self.collective.rank(), self.collective.size());
        (share(batch.pairs.len(), rank, size), share(batch.items.len(), rank, size))
    }

    /// This process's texts: the queries of its pairs, then its items.
    fn read(&self, encoder: &Encoder, batch: &Batch) -> Result<Vec<Text>> {
        let (reader, (pairs, items)) = (encoder.reader(), self.own(batch));
        let mut texts = Vec::with_capacity(pairs.len() + items.len());
        for pair in &batch.pairs[pairs] {
            texts.push(self.read_query(&reader, pair.query)?);
        }
        for row in &batch.items[items] {
            texts.push(self.read_item(&reader, *row)?);
        }
        Ok(texts)
    }

    pub fn read_query(&self, reader: &Reader, query: &str) -> Result<Text> {
        let named = |e: Error| Error::input(format!("the query `{query}` cannot be learned from")).because(e);
        reader.read(query, Some(TextKind::Query)).map_err(named)
    }

    pub fn read_item(&self, reader: &Reader, row: u32) -> Result<Text> {
        read_item(self.catalogue, reader, row)
    }
}

pub fn read_item(catalogue: &Catalogue, reader: &Reader, row: u32) -> Result<Text> {
    let item = catalogue.item(row)?;
    let named = |e: Error| Error::input(format!("the item `{}` cannot be learned from", item.id)).because(e);
    reader.read(&item.passage(), Some(TextKind::Item)).map_err(named)
}

/// A batch whose vectors are there and whose gradients are to come.
pub struct Encoded<'e> {
    share: Share<'e>,
    /// `[b, d]`, of this process, without a graph.
    pub queries: Tensor,
    /// `[n, d]`, of all processes, without a graph.
    pub items: Rows,
}

impl Encoded<'_> {
    pub fn reader(&self) -> Arc<Reader> {
        self.share.reader()
    }

    /// Takes the loss of the vectors, gives every process the gradients of its own, and back-propagates these.
    pub fn learn(
        self,
        parts: &Parts,
        all_queries: bool,
        loss: impl FnOnce(&Vectors) -> Result<Tensor>,
        stepped: &mut Stepped,
    ) -> Result<Tensor> {
        let (mut clock, collective) = (Instant::now(), parts.collective);
        let gathered = if all_queries { Some(gather_rows(collective, &self.queries)?) } else { None };
        let queries = gathered.as_ref().map_or(&self.queries, |rows| &rows.all).detach().set_requires_grad(true);
        let items = self.items.all.detach().set_requires_grad(true);
        let loss = loss(&Vectors { queries: &queries, items: &items, steps: self.share.steps() })?;
        loss.f_backward()?;
        let of_queries = match &gathered {
            Some(rows) => return_rows(collective, &gradient(&queries), &rows.starts)?,
            None => gradient(&queries),
        };
        let of_items = return_rows(collective, &gradient(&items), &self.items.starts)?;
        let gradient = Tensor::cat(&[of_queries, of_items], 0);
        parts.lap(&mut clock, &mut stepped.seconds.loss);
        self.share.backward(&gradient)?;
        parts.lap(&mut clock, &mut stepped.seconds.backward);
        Ok(loss.detach().to_device(Device::Cpu).view([1]))
    }
}

/// Of a leaf; zeros where it had no part in the loss.
fn gradient(leaf: &Tensor) -> Tensor {
    let gradient = leaf.grad();
    if gradient.defined() { gradient } else { leaf.detach().zeros_like() }
}

/// The whole arrow: one update at a learning rate from the draws `from..to`. A loss or gradient that is not finite changes
/// no weight. With `stop`, all processes learn that this one was asked to stop.
pub fn step(
    parts: &Parts,
    (encoder, optimizer): (&Encoder, &mut Optimizer),
    (from, to): (u64, u64),
    rate: f64,
    stop: bool,
) -> Result<Stepped> {
    let mut stepped = Stepped::default();
    optimizer.zero();
    let mut loss = Tensor::zeros([1], (Kind::Float, Device::Cpu));
    for ((at, end), share) in parts.settings.batches((from, to)) {
        loss += parts.accumulate(encoder, ((at, end), share), &mut stepped)?;
    }
    parts.update(optimizer, &loss, (rate, stop), &mut stepped)?;
    Ok(stepped)
}

impl Parts<'_> {
    /// One update with the gradients that the weights hold, summed over all processes.
    pub fn update(
        &self,
        optimizer: &mut Optimizer,
        loss: &Tensor,
        (rate, stop): (f64, bool),
        stepped: &mut Stepped,
    ) -> Result<()> {
        let mut clock = Instant::now();
        let mut sums = Tensor::cat(&[loss.view([1]), Tensor::from_slice(&[f32::from(u8::from(stop))])], 0);
        self.collective.all_reduce(&mut sums)?;
        stepped.loss = sums.double_value(&[0]);
        stepped.stop = sums.double_value(&[1]) > 0.0;
        let mut gradients = optimizer.gradients();
        self.reduce(&mut gradients)?;
        self.lap(&mut clock, &mut stepped.seconds.reduce);
        stepped.grad_norm = optimizer.clip(&mut gradients);
        if stepped.loss.is_finite() && stepped.grad_norm.is_finite() {
            optimizer.step(&gradients, rate)?;
        }
        self.lap(&mut clock, &mut stepped.seconds.optimizer);
        Ok(())
    }
}
