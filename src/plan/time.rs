//! Time of a step by phase. A pass takes its matrix products at the assumed fraction of peak plus all other bytes at the
//! assumed fraction of the bandwidth. On a GPU it takes at least as long as the host needs to launch the operations. No overlap
//! is assumed, as in `train`.

use serde::Serialize;

use super::device::Device;
use super::exchange::{Exchange, Ring};
use super::load::{Chunk, Load};
use super::model::{ModelCost, PassCost};
use super::{Flops, Job};
use crate::train::PhaseSeconds;

/// Elements of one piece of the gradient all-reduce.
const PIECE: f64 = (1 << 24) as f64;
/// Memory accesses per score, forward and backward; and per element of a vector that is normalised.
const SCORE_BYTES: f64 = 80.0;
const UNIT_BYTES: f64 = 64.0;

/// Host time per step, in seconds. Fitted on one machine, like the row `cpu`.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Host {
    /// Drawing one pair; every process draws all of them.
    pub draw: f64,
    /// Reading one text.
    pub text: f64,
    /// Tokenizing one token.
    pub token: f64,
    /// One element of the mask of known items.
    pub mask: f64,
}

impl Default for Host {
    fn default() -> Self {
        Self { draw: 4e-6, text: 6e-6, token: 0.8e-6, mask: 1e-9 }
    }
}

/// Seconds of a step by cause.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Causes {
    /// Matrix products.
    pub products: f64,
    /// Memory-bound operations, without matrix products.
    pub memory_traffic: f64,
    /// Waiting for the host to launch operations.
    pub starts: f64,
    /// Communication between processes.
    pub exchange: f64,
    /// The objective's own products and memory traffic.
    pub loss: f64,
    /// Drawing, reading and tokenizing.
    pub host: f64,
}

impl Causes {
    /// All causes with their seconds.
    pub fn all(&self) -> [(&'static str, f64); 6] {
        [
            ("products", self.products),
            ("memory traffic", self.memory_traffic),
            ("starts of operations", self.starts),
            ("exchange", self.exchange),
            ("loss", self.loss),
            ("host", self.host),
        ]
    }

    /// Most expensive phase, and its fraction of the time.
    pub fn largest(&self) -> (&'static str, f64) {
        let sum: f64 = self.all().iter().map(|(_, seconds)| seconds).sum();
        let largest = self.all().into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
        largest.map_or(("nothing", 0.0), |(name, seconds)| (name, seconds / sum))
    }
}

/// The objective's work in one process and batch.
pub struct LossCost {
    flops: f64,
    traffic: f64,
    /// Number of scores; the host builds a mask with one element each.
    scores: f64,
    pub score_bytes: f64,
    pub vector_bytes: f64,
    symmetric: bool,
}

impl LossCost {
    pub fn of(job: &Job, load: &Load) -> Self {
        let whole = job.outline.dimensions;
        let prefixes: Vec<f64> = match job.objective.prefixes() {
            [] => vec![whole as f64],
            prefixes => prefixes.iter().map(|prefix| *prefix as f64).collect(),
        };
        let all = prefixes.iter().sum::<f64>();
        let [own, pairs, items] = [load.queries, job.settings.batch as u64, job.num_items()].map(|count| count as f64);
        let symmetric = job.objective.needs().all_queries;
        let queries = if symmetric { pairs } else { own };
        let scores = own * (items + if symmetric { pairs } else { 0.0 });
        let wide = if symmetric { pairs } else { 0.0 } + items;
        let others = if job.devices > 1 { wide } else { 0.0 };
        let d = whole as f64;
        Self {
            flops: 6.0 * scores * all,
            traffic: SCORE_BYTES * scores * prefixes.len() as f64 + UNIT_BYTES * (queries + items) * all,
            scores,
            // logits of each prefix and the mask; three more while one prefix runs backward
            score_bytes: scores * (4.0 * prefixes.len() as f64 + 13.0),
            // gathered, gradient, one prefix's gradient, returned gradients; and each prefix normalised
            vector_bytes: 4.0 * d * (3.0 * others + 2.0 * (queries + items)) + 4.0 * all * (queries + items),
            symmetric,
        }
    }
}

/// A device with its host.
pub struct Machine<'a> {
    pub device: &'a Device,
    pub host: &'a Host,
}

/// One step of one process.
pub struct StepCost {
    pub seconds: PhaseSeconds,
    pub flops: Flops,
    pub exchanges: Vec<Exchange>,
    pub causes: Causes,
}

impl StepCost {
    pub fn of(job: &Job, model: &ModelCost, load: &Load, loss: &LossCost, machine: &Machine) -> Self {
        let Machine { device, host } = *machine;
        let clock = Clock { device, bf16: job.bf16, crowding: device.crowding(job.devices) };
        let batches = job.settings.accumulate as f64;
        let mut causes = Causes::default();
        let mut flops = Flops::default();
        let mut seconds = PhaseSeconds::default();
        let (_, again) = load.split();
        let mut pass = |chunks: &[Chunk], of: &dyn Fn(&Chunk) -> PassCost, flops: &mut f64| {
            let works: Vec<PassCost> = chunks.iter().map(of).collect();
            *flops = batches * total(works.iter().map(|work| work.flops));
            total(works.iter().map(|work| batches * clock.pass(work, batches, &mut causes)))
        };
        seconds.forward = pass(&load.chunks, &|chunk| model.forward(chunk), &mut flops.forward);
        seconds.backward = pass(again, &|chunk| model.forward(chunk), &mut flops.again)
            + pass(&load.chunks, &|chunk| model.backward(chunk), &mut flops.backward);

        flops.loss = batches * loss.flops;
        let own_loss =
            loss.flops / (device.f32 * device.mfu) + loss.traffic / (device.bandwidth * device.bandwidth_share);
        causes.loss = batches * clock.crowding * (own_loss + (host.mask + device.score) * loss.scores);
        let ring = Ring { device, devices: job.devices };
        let (exchanges, sum) = exchanges(job, model, loss, load, &ring);
        let exchanged = total(exchanges.iter().map(|exchange| exchange.seconds));
        seconds.loss = causes.loss + exchanged - sum;
        causes.exchange = exchanged;

        let texts = (load.queries + load.items) as f64;
        let data = host.draw * job.settings.batch as f64 + host.text * texts + host.token * load.tokens;
        seconds.data = batches * data * if device.apart { 1.0 } else { clock.crowding };
        causes.host = seconds.data;

        let flat = if job.devices > 1 { 8.0 * model.trained } else { 0.0 };
        seconds.reduce = sum + clock.move_bytes(flat, &mut causes);
        // the norm reads, clipping reads and writes; AdamW reads four and writes three; zeros for the next step
        seconds.optimizer = clock.move_bytes((4.0 + 8.0 + 28.0 + 4.0) * model.trained, &mut causes);
        Self { seconds, flops, exchanges, causes }
    }

    pub fn total(&self) -> f64 {
        total(self.seconds.by_phase().into_iter().map(|(_, seconds)| seconds))
    }
}

/// Sum that is 0 for no values, where `Iterator::sum` gives -0.
fn total(numbers: impl Iterator<Item = f64>) -> f64 {
    numbers.fold(0.0, |sum, number| sum + number)
}

/// All communication of a step, and the seconds of the gradient all-reduce.
fn exchanges(job: &Job, model: &ModelCost, loss: &LossCost, load: &Load, ring: &Ring) -> (Vec<Exchange>, f64) {
    if job.devices == 1 {
        return (Vec::new(), 0.0);
    }
    let (batches, row) = (job.settings.accumulate as f64, 4.0 * job.outline.dimensions as f64);
    let kinds = if loss.symmetric { 2.0 } else { 1.0 };
    let rows = |items: u64, queries: u64| row * (items + if loss.symmetric { queries } else { 0 }) as f64;
    let (own, all) = (rows(load.items, load.queries), rows(job.num_items(), job.settings.batch as u64));
    let sums = [
        ring.reduce("whether to stop, and the loss", 8.0, 1.0),
        ring.reduce("sum of gradients", 4.0 * model.trained, (model.trained / PIECE).ceil()),
    ];
    let seconds = sums.iter().map(|exchange| exchange.seconds).sum();
    let mut exchanges = vec![
        ring.gather("shapes", 24.0, batches * kinds),
        ring.gather("gathering vectors", own / kinds, batches * kinds),
        ring.scatter("returning their gradients", all / kinds, batches * kinds),
    ];
    exchanges.extend(sums);
    (exchanges, seconds)
}

struct Clock<'a> {
    device: &'a Device,
    bf16: bool,
    crowding: f64,
}

impl Clock<'_> {
    /// Adds the seconds of one pass, `times` times, to the causes.
    fn pass(&self, work: &PassCost, times: f64, causes: &mut Causes) -> f64 {
        let device = self.device;
        let products = self.crowding * work.flops / (device.peak(self.bf16) * device.mfu);
        let traffic = self.crowding * work.bytes / (device.bandwidth * device.bandwidth_share);
        let starts = self.crowding * work.starts * device.launch;
        let waited = if device.apart { (starts - products - traffic).max(0.0) } else { starts };
        causes.products += times * products;
        causes.memory_traffic += times * traffic;
        causes.starts += times * waited;
        products + traffic + waited
    }

    fn move_bytes(&self, bytes: f64, causes: &mut Causes) -> f64 {
        let seconds = self.crowding * bytes / (self.device.bandwidth * self.device.bandwidth_share);
        causes.memory_traffic += seconds;
        seconds
    }
}
