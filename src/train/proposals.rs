//! Items of the whole catalogue that join a batch: those nearest to its queries in a bank of vectors. Each process encodes and
//! searches its part of the catalogue; all get the same items. The next bank is made on a thread, by a twin of the model
//! as it was half-way to the step at which that bank takes over, so that it is the same bank however long it took.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};

use tch::{Device, Kind, Tensor};

use super::batch::{Batch, share};
use super::correct::Turn;
use super::share::{Chunking, Share};
use super::step::{Parts, read_item};
use crate::backbone::lora::Lora;
use crate::candidates::{Bank, CandidateSettings, Search};
use crate::collective::gather_rows;
use crate::dataset::Catalogue;
use crate::encoder::Encoder;
use crate::error::{Error, Result};
use crate::optimizer::Optimizer;

/// Items that are read and encoded at a time for a bank.
const BLOCK: usize = 1024;

pub struct Proposals {
    settings: CandidateSettings,
    pub(super) bank: Option<Bank>,
    maker: Maker,
}

impl Proposals {
    /// `twin` is the model that the stage begins with, once more.
    pub fn new(settings: CandidateSettings, twin: Twin) -> Self {
        Self { settings, bank: None, maker: Maker { twin: Some(twin), work: None, stop: Arc::default() } }
    }

    /// Sees to it that there is a bank, and begins or takes over the next where the step is one for that.
    pub fn refresh(
        &mut self,
        parts: &Parts,
        (encoder, optimizer): (&Encoder, &Optimizer),
        step: u64,
        turn: Turn,
    ) -> Result<()> {
        let every = self.settings.refresh_steps;
        let lead = every / 2;
        let plan = Plan::of(parts, self.settings.search, every);
        if (step + lead).is_multiple_of(every) && step + lead < turn.steps && step + lead > 0 {
            self.maker.begin(optimizer, (parts.catalogue, plan.clone()))?;
        }
        if step.is_multiple_of(every)
            && let Some(bank) = self.maker.finish()?
        {
            self.bank = Some(bank);
        }
        if self.bank.is_none() {
            self.bank = Some(plan.bank(parts.catalogue, encoder, &AtomicBool::new(false))?);
        }
        Ok(())
    }

    /// Adds to a batch what is nearest to its queries.
    pub fn join(&self, parts: &Parts, encoder: &Encoder, batch: &mut Batch) -> Result<()> {
        let Some(bank) = &self.bank else { return Ok(()) };
        let own = parts.own(batch).0;
        let mut texts = Vec::with_capacity(own.len());
        for pair in &batch.pairs[own] {
            texts.push(parts.read_query(&encoder.reader(), pair.query)?);
        }
        let _guard = tch::no_grad_guard();
        let (_, queries) = Share::encode(encoder, texts, parts.plain_chunking())?;
        let nearest = nearest(parts, bank, &queries, self.settings.reach)?.all;
        let rows: BTreeSet<u32> = nearest.into_iter().flatten().collect();
        for row in rows {
            batch.add(row);
        }
        Ok(())
    }
}

/// The rows nearest to each query of all processes, nearest first, and which of the queries are this process's.
pub struct Found {
    pub all: Vec<Vec<u32>>,
    pub own: Range<usize>,
}

/// Searches the banks of all processes for the queries `[b, d]` of each. All processes call it.
pub fn nearest(parts: &Parts, bank: &Bank, own: &Tensor, k: usize) -> Result<Found> {
    let (collective, k) = (parts.collective, k.min(parts.catalogue.len() as usize));
    let queries = gather_rows(collective, own)?;
    let part = bank.nearest(&queries.all, k)?;
    // [ranks x b, k] as [b, ranks x k]
    let shape = [collective.size() as i64, queries.all.size()[0], k as i64];
    let beside = |x: &Tensor| -> Result<Tensor> {
        let all = gather_rows(collective, x)?.all;
        Ok(all.view(shape).transpose(0, 1).reshape([shape[1], shape[0] * shape[2]]))
    };
    let (_, places) = beside(&part.scores)?.topk(k as i64, 1, true, true);
    let rows = Vec::<Vec<i64>>::try_from(beside(&part.rows)?.gather(1, &places, false).to_device(Device::Cpu))?;
    let known = |rows: Vec<i64>| rows.into_iter().filter_map(|row| u32::try_from(row).ok()).collect();
    let starts = &queries.starts[collective.rank()..];
    Ok(Found { all: rows.into_iter().map(known).collect(), own: starts[0] as usize..starts[1] as usize })
}

/// What a bank is made of.
#[derive(Clone)]
pub struct Plan {
    rows: Range<usize>,
    chunking: Chunking,
    search: Search,
}

impl Plan {
    /// This process's part of the catalogue, to answer the queries of so many steps.
    pub fn of(parts: &Parts, search: Search, steps: u64) -> Self {
        let rows = share(parts.catalogue.len() as usize, parts.collective.rank(), parts.collective.size());
        let queries = steps.saturating_mul((parts.settings.batch * parts.settings.accumulate) as u64);
        let search = search.cheaper(parts.device, rows.len(), queries);
        Self { rows, chunking: parts.plain_chunking(), search }
    }

    /// Reads and encodes the items; gives up where it is told to `stop`.
    pub fn bank(&self, catalogue: &Catalogue, encoder: &Encoder, stop: &AtomicBool) -> Result<Bank> {
        let _guard = tch::no_grad_guard();
        tracing::info!("encodes {} items, to find candidates among them", self.rows.len());
        let mut blocks = vec![Tensor::zeros([0, encoder.dimensions()], (Kind::Float, encoder.device()))];
        for start in self.rows.clone().step_by(BLOCK) {
            if stop.load(Ordering::Relaxed) {
                return Err(Error::input("the bank is wanted no more"));
            }
            let mut texts = Vec::with_capacity(BLOCK);
            for row in start..self.rows.end.min(start + BLOCK) {
                texts.push(read_item(catalogue, &encoder.reader(), row as u32)?);
            }
            blocks.push(Share::encode(encoder, texts, self.chunking)?.1);
        }
        Bank::build(self.rows.start, Tensor::cat(&blocks, 0), self.search, stop)
    }
}

/// A model like the one that is trained, with weights of its own that can be set to what that one's are.
pub struct Twin {
    encoder: Encoder,
    weights: Vec<Tensor>,
}

impl Twin {
    pub fn new(mut encoder: Encoder, lora: Option<(&Lora, u64)>) -> Result<Self> {
        let named = encoder.trainable(lora, false)?;
        let weights = named.into_iter().map(|(_, tensor)| tensor.set_requires_grad(false)).collect();
        Ok(Self { encoder, weights })
    }

    fn follow(&mut self, optimizer: &Optimizer) {
        let _guard = tch::no_grad_guard();
        self.weights.iter_mut().zip(optimizer.weights()).for_each(|(own, live)| own.copy_(live));
    }
}

/// Makes one bank at a time, beside the stage.
struct Maker {
    /// Gone while it is at work.
    twin: Option<Twin>,
    work: Option<JoinHandle<(Twin, Result<Bank>)>>,
    stop: Arc<AtomicBool>,
}

impl Maker {
    fn begin(&mut self, optimizer: &Optimizer, (catalogue, plan): (&Arc<Catalogue>, Plan)) -> Result<()> {
        let Some(mut twin) = self.twin.take() else { return Ok(()) };
        twin.follow(optimizer);
        let (catalogue, stop) = (catalogue.clone(), self.stop.clone());
        let threads = tch::get_num_threads();
        let (said, hears) = channel();
        let work = move || {
            // the stage needs the others
            tch::set_num_threads(1);
            // nobody waits for it where this thread could not begin
            let _ = said.send(());
            let bank = plan.bank(&catalogue, &twin.encoder, &stop);
            (twin, bank)
        };
        let thread = thread::Builder::new().name("bank".into()).spawn(work);
        self.work = Some(thread.map_err(|e| Error::device("no thread for the next bank").because(e))?);
        // torch gives threads to come what was set last, wherever it was
        let _ = hears.recv();
        tch::set_num_threads(threads);
        Ok(())
    }

    /// Waits for the bank that was begun, if one was.
    fn finish(&mut self) -> Result<Option<Bank>> {
        let Some(work) = self.work.take() else { return Ok(None) };
        let (twin, bank) = work.join().map_err(|_| Error::device("making the next bank failed"))?;
        self.twin = Some(twin);
        bank.map(Some)
    }
}

impl Drop for Maker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(work) = self.work.take() {
            // its result is wanted no more
            drop(work.join());
        }
    }
}

impl Parts<'_> {
    /// For vectors that nothing is learned from.
    pub fn plain_chunking(&self) -> Chunking {
        Chunking { keep_tokens: 0, dropout: false, ..Chunking::of(self.settings, self.bf16, 0) }
    }
}
