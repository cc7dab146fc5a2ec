//! Building blocks of an algorithm's step: draw a batch, encode it, back-propagate a loss, update the weights; with counters and timers.
//! Every process draws the same batch; each encodes its own shard of the texts, and gradients are summed over all processes.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tch::{Device, Kind, Tensor};

use super::batch::{Batch, Negatives, shard_range};
use super::grad_cache::{Chunking, GradCache};
use super::metrics::{PhaseSeconds, StepMetrics};
use super::settings::{MicroBatch, TrainSettings};
use crate::objective::{Needs, Vectors};
use souk_ingest::dataset::Pairs;
use souk_io::catalogue::Catalogue;
use souk_io::cores::on_all_cores;
use souk_io::domain::TextKind;
use souk_io::error::{Error, Result};
use souk_io::shuffle::{Draw, Order, Permutation};
use souk_nn::collective::{Collective, Rows, gather_rows, return_rows};
use souk_nn::encoder::{Encoder, Reader, Text};
use souk_nn::optimizer::Optimizer;

/// Elements of the flat buffers that gradients are summed in.
const REDUCE_ELEMENTS: usize = 1 << 24;

/// The parts of a stage that stay the same from step to step.
#[derive(Clone, Copy)]
pub struct StageContext<'a> {
    /// The `[train]` section.
    pub settings: &'a TrainSettings,
    /// Inputs that the objective needs.
    pub needs: Needs,
    /// Training pairs.
    pub pairs: &'a Pairs,
    /// All items.
    pub catalogue: &'a Arc<Catalogue>,
    /// The processes that train together.
    pub collective: &'a dyn Collective,
    /// Whether products are in bf16.
    pub bf16: bool,
    /// The model's device.
    pub device: Device,
}

/// The number of this step, of how many, and its learning rate.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepSchedule {
    /// Steps before this one.
    pub step: u64,
    /// Steps of the whole stage.
    pub num_steps: u64,
    /// Learning rate of this step.
    pub learning_rate: f64,
}

/// Outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// An update was made.
    Done,
    /// A process was asked to stop before the step had anything to learn from.
    Stopped,
}

/// One training step.
pub struct StepContext<'a> {
    /// Data and settings.
    pub stage: StageContext<'a>,
    /// The model being trained.
    pub encoder: &'a Encoder,
    /// Number and learning rate of the step.
    pub schedule: StepSchedule,
    /// Set when this process is asked to stop.
    pub stop: &'a AtomicBool,
    /// Metrics of the step; algorithms count their pairs here.
    pub metrics: StepMetrics,
    optimizer: &'a mut Optimizer,
    /// `[1]`: this process's part of the loss since the last `zero_grad`.
    loss: Tensor,
    clock: Instant,
}

/// A batch that was encoded and not yet back-propagated.
pub struct EncodedBatch<'e> {
    cache: GradCache<'e>,
    /// `[b, d]`: the queries of this process, without a graph.
    pub queries: Tensor,
    /// `[n, d]`: the items of all processes, without a graph.
    pub items: Rows,
}

impl<'a> StageContext<'a> {
    /// The order in which pairs are drawn.
    pub fn order(&self) -> Order {
        Order { seed: self.settings.seed, block: self.settings.shuffle_block }
    }

    /// The draws of a step.
    pub fn draws(&self, step: u64) -> Range<u64> {
        let per_step = (self.settings.batch * self.settings.accumulate) as u64;
        let (all, _) = self.settings.length(self.pairs.len());
        step * per_step..all.min((step + 1) * per_step)
    }

    /// The micro-batches of a step.
    pub fn micro_batches(&self, step: u64) -> impl Iterator<Item = MicroBatch> + use<> {
        self.settings.micro_batches(self.draws(step))
    }

    /// Draws a batch, the same in every process.
    pub fn draw_batch(&self, draws: Range<u64>) -> Batch<'a> {
        let num = (draws.end - draws.start) as usize;
        let rows: Vec<u64> = Draw::new(self.pairs.len(), self.order(), draws.start).take(num).collect();
        let negatives = self.needs.global_negatives as u64;
        // every batch gets as many, however few pairs it has
        let first = draws.start / self.settings.batch as u64 * negatives;
        let negatives = Negatives { seed: self.settings.seed, draws: first..first + negatives };
        Batch::gather(self.pairs, &rows, draws, self.catalogue, &negatives)
    }

    /// This process's shard of the pairs of a batch.
    pub fn own_pairs(&self, batch: &Batch) -> Range<usize> {
        self.shard(batch.pairs.len())
    }

    /// This process's shard of the items of a batch.
    pub fn own_items(&self, batch: &Batch) -> Range<usize> {
        self.shard(batch.items.len())
    }

    /// This process's shard of `num` things.
    pub fn shard(&self, num: usize) -> Range<usize> {
        shard_range(num, self.collective.rank(), self.collective.size())
    }

    /// `wanted` of `num` places, different ones for each draw.
    pub fn sample(&self, num: usize, wanted: usize, draw: u64) -> impl Iterator<Item = usize> + use<> {
        let order = Permutation::new(num as u64, self.settings.seed ^ draw.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        (0..num.min(wanted) as u64).map(move |at| order.at(at) as usize)
    }

    /// Chunking for vectors that are not trained on.
    pub fn inference_chunking(&self) -> Chunking {
        Chunking { keep_tokens: 0, dropout: false, ..Chunking::new(self.settings, self.bf16, 0) }
    }

    /// The texts of this process: the queries of its pairs, then its items.
    fn read(&self, reader: &Reader, batch: &Batch) -> Result<Vec<Text>> {
        let queries: Vec<&str> = self.own_pairs(batch).map(|pair| batch.query(pair)).collect();
        let mut texts = read_queries(reader, &queries)?;
        texts.extend(read_items(self.catalogue, reader, &batch.items[self.own_items(batch)])?);
        Ok(texts)
    }
}

pub fn read_query(reader: &Reader, query: &str) -> Result<Text> {
    let named = |e: Error| Error::input(format!("the query `{query}` cannot be trained on")).because(e);
    reader.read(query, Some(TextKind::Query)).map_err(named)
}

pub fn read_queries(reader: &Reader, queries: &[&str]) -> Result<Vec<Text>> {
    on_all_cores(queries.len(), |at| read_query(reader, queries[at])).into_iter().collect()
}

pub fn read_items(catalogue: &Catalogue, reader: &Reader, rows: &[u32]) -> Result<Vec<Text>> {
    on_all_cores(rows.len(), |at| read_item(catalogue, reader, rows[at])).into_iter().collect()
}

pub fn read_item(catalogue: &Catalogue, reader: &Reader, row: u32) -> Result<Text> {
    let item = catalogue.item(row)?;
    let named = |e: Error| Error::input(format!("the item `{}` cannot be trained on", item.id)).because(e);
    reader.read(&catalogue.text_of(&item), Some(TextKind::Item)).map_err(named)
}

impl<'a> StepContext<'a> {
    /// Starts a step.
    pub fn new(
        stage: StageContext<'a>,
        encoder: &'a Encoder,
        optimizer: &'a mut Optimizer,
        schedule: StepSchedule,
        stop: &'a AtomicBool,
    ) -> Self {
        let (metrics, loss, clock) = (StepMetrics::default(), zero(), Instant::now());
        Self { stage, encoder, schedule, stop, metrics, optimizer, loss, clock }
    }

    /// The micro-batches of this step.
    pub fn micro_batches(&self) -> impl Iterator<Item = MicroBatch> + use<> {
        self.stage.micro_batches(self.schedule.step)
    }

    /// Draws a batch, the same in every process.
    pub fn draw_batch(&mut self, draws: Range<u64>) -> Batch<'a> {
        let batch = self.stage.draw_batch(draws);
        self.lap(|seconds| &mut seconds.data);
        batch
    }

    /// Encodes this process's texts and gathers the items of all processes. Keeps the graphs of the first `train.keep_tokens`.
    pub fn encode(&mut self, batch: &Batch) -> Result<EncodedBatch<'a>> {
        self.encode_keeping(batch, self.stage.settings.keep_tokens)
    }

    /// The same, keeping the graphs of the first `keep_tokens` tokens.
    pub fn encode_keeping(&mut self, batch: &Batch, keep_tokens: usize) -> Result<EncodedBatch<'a>> {
        let (stage, encoder) = (self.stage, self.encoder);
        let texts = stage.read(&encoder.reader(), batch)?;
        self.metrics.texts += texts.len();
        self.metrics.tokens += texts.iter().map(|text| text.ids.len()).sum::<usize>();
        self.lap(|seconds| &mut seconds.data);
        let seed = stage.settings.seed ^ (batch.draws.start << 20) ^ ((stage.collective.rank() as u64) << 10);
        let chunking = Chunking::new(stage.settings, stage.bf16, seed);
        let chunking = Chunking { keep_tokens, steps: stage.needs.steps, ..chunking };
        let (cache, vectors) = GradCache::encode(encoder, texts, chunking)?;
        let [num_queries, num_items] = [stage.own_pairs(batch), stage.own_items(batch)].map(|own| own.len() as i64);
        let queries = vectors.narrow(0, 0, num_queries);
        let items = vectors.narrow(0, num_queries, num_items);
        self.lap(|seconds| &mut seconds.forward);
        let items = gather_rows(stage.collective, &items)?;
        self.lap(|seconds| &mut seconds.loss);
        Ok(EncodedBatch { cache, queries, items })
    }

    /// Takes the loss of the vectors and back-propagates it: first to the vectors, whose gradients return to the process that
    /// encoded them, then through the encoder.
    pub fn backward(&mut self, encoded: EncodedBatch, loss: impl FnOnce(&Vectors) -> Result<Tensor>) -> Result<()> {
        let collective = self.stage.collective;
        let gathered = self.stage.needs.all_queries.then(|| gather_rows(collective, &encoded.queries)).transpose()?;
        let queries = gathered.as_ref().map_or(&encoded.queries, |rows| &rows.all).detach().set_requires_grad(true);
        let items = encoded.items.all.detach().set_requires_grad(true);
        let loss = loss(&Vectors { queries: &queries, items: &items, steps: encoded.cache.steps() })?;
        loss.f_backward()?;
        let of_queries = match &gathered {
            Some(rows) => return_rows(collective, &gradient(&queries), &rows.starts)?,
            None => gradient(&queries),
        };
        let of_items = return_rows(collective, &gradient(&items), &encoded.items.starts)?;
        let gradient = Tensor::cat(&[of_queries, of_items], 0);
        self.lap(|seconds| &mut seconds.loss);
        encoded.cache.backward(&gradient)?;
        self.add_loss(&loss);
        self.lap(|seconds| &mut seconds.backward);
        Ok(())
    }

    /// Counts a loss whose gradients are in the weights already.
    pub fn add_loss(&mut self, loss: &Tensor) {
        self.loss += loss.detach().to_kind(Kind::Float).to_device(Device::Cpu).view([1]);
    }

    /// Begins an update.
    pub fn zero_grad(&mut self) {
        self.optimizer.zero();
        self.loss = zero();
    }

    /// Sums loss and gradients over all processes, clips and updates. A loss or gradient that is not finite changes no weight;
    /// false in that case. Every process learns whether one was asked to stop.
    pub fn optimizer_step(&mut self) -> Result<bool> {
        let collective = self.stage.collective;
        let stop = f32::from(u8::from(self.stop.load(Ordering::Relaxed)));
        let mut sums = Tensor::cat(&[self.loss.view([1]), Tensor::from_slice(&[stop])], 0);
        collective.all_reduce(&mut sums)?;
        self.metrics.loss = sums.double_value(&[0]);
        self.metrics.stop = sums.double_value(&[1]) > 0.0;
        let mut gradients = self.optimizer.gradients();
        sum_over_processes(collective, &mut gradients)?;
        self.lap(|seconds| &mut seconds.reduce);
        self.metrics.grad_norm = self.optimizer.clip(&mut gradients);
        if self.metrics.is_finite() {
            self.optimizer.step(&gradients, self.schedule.learning_rate)?;
        }
        self.lap(|seconds| &mut seconds.optimizer);
        Ok(self.metrics.is_finite())
    }

    /// The weights as they are now.
    pub fn weights(&self) -> &Optimizer {
        self.optimizer
    }

    /// Adds the time since the last lap to a phase.
    pub fn lap(&mut self, phase: impl FnOnce(&mut PhaseSeconds) -> &mut f64) {
        if let Device::Cuda(index) = self.stage.device {
            // calls return before a GPU has finished
            tch::Cuda::synchronize(index as i64);
        }
        *phase(&mut self.metrics.seconds) += self.clock.elapsed().as_secs_f64();
        self.clock = Instant::now();
    }
}

fn zero() -> Tensor {
    Tensor::zeros([1], (Kind::Float, Device::Cpu))
}

/// The gradient of a leaf; zeros if the loss did not depend on it.
fn gradient(leaf: &Tensor) -> Tensor {
    let gradient = leaf.grad();
    if gradient.defined() { gradient } else { leaf.detach().zeros_like() }
}

/// All-reduces gradients in flat buffers of bounded size.
fn sum_over_processes(collective: &dyn Collective, gradients: &mut [Tensor]) -> Result<()> {
    if collective.size() == 1 {
        return Ok(());
    }
    let mut rest = gradients;
    while !rest.is_empty() {
        let mut filled = 0;
        let mut fits = |gradient: &Tensor| {
            filled += gradient.numel();
            filled <= REDUCE_ELEMENTS
        };
        let count = rest.iter().map_while(|gradient| fits(gradient).then_some(())).count().max(1);
        let (piece, later) = rest.split_at_mut(count);
        let sizes: Vec<i64> = piece.iter().map(|gradient| gradient.numel() as i64).collect();
        let mut flat = Tensor::cat(&piece.iter().map(|gradient| gradient.reshape([-1])).collect::<Vec<_>>(), 0);
        collective.all_reduce(&mut flat)?;
        for (gradient, sum) in piece.iter_mut().zip(flat.split_with_sizes(&sizes[..], 0)) {
            *gradient = sum.view_as(gradient).contiguous();
        }
        rest = later;
    }
    Ok(())
}
