//! Candidates from the whole catalogue: the items nearest to a batch's queries, found in a bank of vectors, join the batch. Each
//! process encodes and searches its shard of the catalogue; all get the same items. The next bank is built on a thread by a copy of
//! the model as it was half-way to the step at which that bank takes over, so that the bank does not depend on how long it took.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::{self, JoinHandle};

use tch::{Device, Kind, Tensor};

use super::TrainSettings;
use super::batch::Batch;
use super::context::{StageContext, StepContext, read_items, read_queries};
use super::grad_cache::{Chunking, GradCache};
use crate::candidates::{Bank, BankSearch, CandidateSettings, CandidateSource};
use souk_io::catalogue::Catalogue;
use souk_io::error::{Error, Result};
use souk_nn::backbone::lora::Lora;
use souk_nn::collective::gather_rows;
use souk_nn::encoder::Encoder;
use souk_nn::optimizer::Optimizer;

/// Items that are read and encoded at a time for a bank.
const BLOCK: usize = 1024;

pub struct CatalogueCandidates {
    settings: CandidateSettings,
    pub(super) bank: Option<Bank>,
    builder: BankBuilder,
}

impl CatalogueCandidates {
    /// None unless candidates come from the catalogue. `model_copy` is the model that the stage begins with, opened again.
    pub fn open(
        settings: CandidateSettings,
        model_copy: Option<Encoder>,
        train: &TrainSettings,
    ) -> Result<Option<Self>> {
        settings.check()?;
        let Some(copy) = model_copy.filter(|_| settings.source == CandidateSource::Catalogue) else { return Ok(None) };
        let lora = train.lora.as_ref().map(|lora| (lora, train.seed));
        Ok(Some(Self::new(settings, ModelCopy::new(copy, lora)?)))
    }

    pub fn new(settings: CandidateSettings, copy: ModelCopy) -> Self {
        Self { settings, bank: None, builder: BankBuilder { copy: Some(copy), work: None, stop: Arc::default() } }
    }

    /// Builds the first bank; starts the next, or takes it over, where it is due before `step`.
    pub fn refresh(&mut self, cx: &StepContext, step: u64) -> Result<()> {
        let (stage, every) = (&cx.stage, self.settings.refresh_steps);
        let lead = every / 2;
        let spec = BankSpec::new(stage, self.settings.search, every);
        if (step + lead).is_multiple_of(every) && step + lead < cx.schedule.num_steps && step + lead > 0 {
            self.builder.start(cx.weights(), stage.catalogue, spec.clone())?;
        }
        if step.is_multiple_of(every)
            && let Some(bank) = self.builder.finish()?
        {
            self.bank = Some(bank);
        }
        if self.bank.is_none() {
            self.bank = Some(spec.build(stage.catalogue, cx.encoder, &AtomicBool::new(false))?);
        }
        Ok(())
    }

    /// Adds the items nearest to its queries to a batch.
    pub fn join(&self, stage: &StageContext, encoder: &Encoder, batch: &mut Batch) -> Result<()> {
        let Some(bank) = &self.bank else { return Ok(()) };
        let own = stage.own_pairs(batch);
        let queries: Vec<&str> = batch.pairs[own].iter().map(|pair| pair.query).collect();
        let texts = read_queries(&encoder.reader(), &queries)?;
        let _guard = tch::no_grad_guard();
        let (_, queries) = GradCache::encode(encoder, texts, stage.inference_chunking())?;
        let nearest = nearest(stage, bank, &queries, self.settings.num_neighbors)?.all;
        let rows: BTreeSet<u32> = nearest.into_iter().flatten().collect();
        for row in rows {
            batch.add(row);
        }
        Ok(())
    }
}

/// The rows nearest to each query of all processes, nearest first, and which of the queries are this process's.
pub struct CatalogueHits {
    pub all: Vec<Vec<u32>>,
    pub own: Range<usize>,
}

/// Searches the banks of all processes for the queries `[b, d]` of each. All processes call it.
pub fn nearest(stage: &StageContext, bank: &Bank, own: &Tensor, k: usize) -> Result<CatalogueHits> {
    let (collective, k) = (stage.collective, k.min(stage.catalogue.len() as usize));
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
    Ok(CatalogueHits { all: rows.into_iter().map(known).collect(), own: starts[0] as usize..starts[1] as usize })
}

/// Which bank to build.
#[derive(Clone)]
pub struct BankSpec {
    rows: Range<usize>,
    chunking: Chunking,
    search: BankSearch,
}

impl BankSpec {
    /// This process's shard of the catalogue, to answer the queries of so many steps.
    pub fn new(stage: &StageContext, search: BankSearch, steps: u64) -> Self {
        let rows = stage.shard(stage.catalogue.len() as usize);
        let queries = steps.saturating_mul((stage.settings.batch * stage.settings.accumulate) as u64);
        let search = search.cheaper(stage.device, rows.len(), queries);
        Self { rows, chunking: stage.inference_chunking(), search }
    }

    /// Reads and encodes the items; an error once `stop` is set.
    pub fn build(&self, catalogue: &Catalogue, encoder: &Encoder, stop: &AtomicBool) -> Result<Bank> {
        let _guard = tch::no_grad_guard();
        tracing::info!("encoding {} items of the catalogue", self.rows.len());
        let mut blocks = vec![Tensor::zeros([0, encoder.dimensions()], (Kind::Float, encoder.device()))];
        for start in self.rows.clone().step_by(BLOCK) {
            if stop.load(Ordering::Relaxed) {
                return Err(Error::input("building the bank was cancelled"));
            }
            let rows: Vec<u32> = (start..self.rows.end.min(start + BLOCK)).map(|row| row as u32).collect();
            let texts = read_items(catalogue, &encoder.reader(), &rows)?;
            blocks.push(GradCache::encode(encoder, texts, self.chunking)?.1);
        }
        Bank::build(self.rows.start, Tensor::cat(&blocks, 0), self.search, stop)
    }
}

/// A second instance of the trained model, whose weights are copied from it when a bank is due.
pub struct ModelCopy {
    encoder: Encoder,
    weights: Vec<Tensor>,
}

impl ModelCopy {
    pub fn new(mut encoder: Encoder, lora: Option<(&Lora, u64)>) -> Result<Self> {
        let named = encoder.trainable(lora, false)?;
        let weights = named.into_iter().map(|(_, tensor)| tensor.set_requires_grad(false)).collect();
        Ok(Self { encoder, weights })
    }

    fn copy_from(&mut self, optimizer: &Optimizer) {
        let _guard = tch::no_grad_guard();
        self.weights.iter_mut().zip(optimizer.weights()).for_each(|(own, live)| own.copy_(live));
    }
}

/// Builds one bank at a time on a thread.
struct BankBuilder {
    /// None while the thread has it.
    copy: Option<ModelCopy>,
    work: Option<JoinHandle<(ModelCopy, Result<Bank>)>>,
    stop: Arc<AtomicBool>,
}

impl BankBuilder {
    fn start(&mut self, weights: &Optimizer, catalogue: &Arc<Catalogue>, spec: BankSpec) -> Result<()> {
        let Some(mut copy) = self.copy.take() else { return Ok(()) };
        copy.copy_from(weights);
        let (catalogue, stop) = (catalogue.clone(), self.stop.clone());
        let threads = tch::get_num_threads();
        let (started, has_started) = channel();
        let work = move || {
            // leave the other threads to training
            tch::set_num_threads(1);
            let _ = started.send(());
            let bank = spec.build(&catalogue, &copy.encoder, &stop);
            (copy, bank)
        };
        let thread = thread::Builder::new().name("bank".into()).spawn(work);
        self.work = Some(thread.map_err(|e| Error::device("no thread for the next bank").because(e))?);
        // libtorch gives new threads the number that was set last in any thread
        let _ = has_started.recv();
        tch::set_num_threads(threads);
        Ok(())
    }

    /// Waits for the bank that was started, if one was.
    fn finish(&mut self) -> Result<Option<Bank>> {
        let Some(work) = self.work.take() else { return Ok(None) };
        let (copy, bank) =
            work.join().map_err(|_| Error::device("the thread that builds the next bank has panicked"))?;
        self.copy = Some(copy);
        bank.map(Some)
    }
}

impl Drop for BankBuilder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(work) = self.work.take() {
            drop(work.join());
        }
    }
}
