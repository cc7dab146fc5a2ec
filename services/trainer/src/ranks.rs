//! Training of a stage on several processes (ranks). Rank 0 does everything else a trainer does, and writes the next stage to a
//! file in the shared state folder; the other ranks read it and train along. If a rank is lost, all exit. When they are started
//! again, training resumes from the last checkpoint.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use souk::atomic_dir::write_json_atomic;
use souk::beir::DataFolder;
use souk::collective::{Collective, SharedCollective};
use souk::config::{Config, StageSettings};
use souk::dataset::Span;
use souk::train::{Run, Stage};
use souk::{Error, Result};

const ORDER: &str = "order.json";
const POLL: Duration = Duration::from_millis(200);

/// The stage that all ranks train next.
#[derive(Serialize, Deserialize)]
pub struct StageOrder {
    /// Counts up from 1 after each start; `Ranks::open_stage` sets it.
    pub number: u64,
    pub stage: StageSettings,
    /// Model to start from.
    pub model: String,
    pub span: Span,
    /// Data folder and output folder, relative to the state folder.
    pub data: PathBuf,
    pub out: PathBuf,
    /// Number of times the learning rate was halved after a non-finite weight.
    pub halved: i32,
}

/// All ranks, as seen by rank 0.
pub struct Ranks {
    collective: SharedCollective,
    state: PathBuf,
    number: u64,
}

impl Ranks {
    /// Waits for all ranks.
    pub fn open(config: &Config) -> Result<Self> {
        let (collective, state) = (SharedCollective::open(&config.collective)?, config.trainer.state.clone());
        let order = state.join(ORDER);
        if order.exists() {
            // written before the last restart
            fs::remove_file(&order).map_err(Error::store(&order, "remove it"))?;
        }
        collective.barrier()?;
        Ok(Self { collective, state, number: 0 })
    }

    pub fn are_several(&self) -> bool {
        self.collective.size() > 1
    }

    /// Opens a stage on all ranks; the others start to train it at once.
    pub fn open_stage(&mut self, order: StageOrder, config: &Config) -> Result<Run> {
        self.number += 1;
        let order = StageOrder { number: self.number, ..order };
        if self.are_several() {
            write_json_atomic(&self.state.join(ORDER), &order)?;
        }
        order.open(config, &self.collective)
    }
}

impl StageOrder {
    fn open(&self, config: &Config, collective: &SharedCollective) -> Result<Run> {
        let mut stage = config.of_stage(&self.stage, &self.model)?;
        stage.train.skip_diverged = config.trainer.alarms.max_diverged;
        stage.train.optimizer.learning_rate /= 2_f64.powi(self.halved);
        let data = &DataFolder::open(&config.trainer.state.join(&self.data))?;
        let stage = Stage { span: Some(self.span.clone()), ..stage.open_stage(data)? };
        let out = config.trainer.state.join(&self.out);
        Run::open(stage, data, &out, true, Box::new(collective.clone()))
    }
}

/// Loop of every rank but 0: trains what rank 0 orders, until asked to stop.
pub fn follow(config: &Config, stop: &Arc<AtomicBool>) -> Result<()> {
    let collective = SharedCollective::open(&config.collective)?;
    // rank 0 has removed an old order by now
    collective.barrier()?;
    tracing::info!(rank = collective.rank(), size = collective.size(), "following rank 0");
    let (path, mut last) = (config.trainer.state.join(ORDER), 0);
    while !stop.load(Ordering::Relaxed) {
        collective.check()?;
        let text = fs::read(&path).ok();
        let order = text.and_then(|text| serde_json::from_slice::<StageOrder>(&text).ok());
        let Some(order) = order.filter(|order| order.number > last) else {
            sleep(POLL);
            continue;
        };
        last = order.number;
        match order.open(config, &collective).and_then(|run| run.train(stop, |_| ())) {
            Ok(_) => {}
            // rank 0 has the same error and handles it
            Err(error) if is_final(&error) => tracing::warn!(problem = error.with_causes(), "the stage failed"),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// True if a retry would fail in the same way.
pub fn is_final(error: &Error) -> bool {
    match error {
        Error::Config { .. }
        | Error::Input { .. }
        | Error::Data { .. }
        | Error::Weights { .. }
        | Error::Diverged { .. } => true,
        Error::Busy { .. } | Error::Upstream { .. } | Error::Store { .. } | Error::Device { .. } => false,
    }
}
