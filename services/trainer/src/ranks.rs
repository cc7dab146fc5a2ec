//! Stages that several processes train as one. The first rank does all that a trainer does, and tells the others in a file of the
//! state folder, which all see, what is trained next; they know nothing else of rounds. All end where the first is lost, and where
//! another is lost once a stage is trained; who started them starts them again, and they go on from the last checkpoint.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use souk::atomic_dir::write_whole;
use souk::beir::DataFolder;
use souk::collective::{Collective, SharedCollective};
use souk::config::Config;
use souk::config::StageSettings;
use souk::dataset::Span;
use souk::train::{Progress, Run, Stage, StageSummary};
use souk::{Error, Result};

use crate::reader::said;
use crate::work::is_final;

const ORDER: &str = "order.json";
const POLL: Duration = Duration::from_millis(200);

/// What all ranks train next.
#[derive(Serialize, Deserialize)]
pub struct Order {
    /// Counted since the ranks met.
    number: u64,
    pub stage: StageSettings,
    /// Where it begins.
    pub model: String,
    pub span: Span,
    /// Within the state folder.
    pub out: PathBuf,
    /// How often the learning rate was halved, because a weight was no number.
    pub halved: i32,
}

/// The ranks as the first one sees them.
pub struct Ranks {
    lent: SharedCollective,
    state: PathBuf,
    number: u64,
}

impl Ranks {
    /// Waits until all are there.
    pub fn open(config: &Config) -> Result<Self> {
        let (lent, state) = (SharedCollective::open(&config.collective)?, config.trainer.state.clone());
        let order = state.join(ORDER);
        if order.exists() {
            // of ranks that are no more
            fs::remove_file(&order).map_err(Error::store(&order, "remove it"))?;
        }
        lent.barrier()?;
        Ok(Self { lent, state, number: 0 })
    }

    /// Whether there are others.
    pub fn are_several(&self) -> bool {
        self.lent.size() > 1
    }

    /// Trains a stage, with all others.
    pub fn train(
        &mut self,
        order: Order,
        (config, data): (&Config, &DataFolder),
        (stop, told): (&AtomicBool, impl FnMut(Progress)),
    ) -> Result<StageSummary> {
        self.number += 1;
        let order = Order { number: self.number, ..order };
        if self.are_several() {
            write_whole(&self.state.join(ORDER), &order)?;
        }
        order.train((config, data), &self.lent, (stop, told))
    }
}

impl Order {
    /// `number` is given when it is told.
    pub fn new(stage: StageSettings, model: &str, span: Span, (out, halved): (&Path, i32)) -> Self {
        Self { number: 0, stage, model: model.into(), span, out: out.into(), halved }
    }

    fn train(
        &self,
        (config, data): (&Config, &DataFolder),
        lent: &SharedCollective,
        (stop, told): (&AtomicBool, impl FnMut(Progress)),
    ) -> Result<StageSummary> {
        let mut stage = config.of_stage(&self.stage, &self.model)?;
        stage.train.skip_diverged = config.trainer.alarms.max_diverged;
        stage.train.optimizer.learning_rate /= 2_f64.powi(self.halved);
        let stage = Stage { span: Some(self.span.clone()), ..stage.open_stage(data)? };
        let out = config.trainer.state.join(&self.out);
        Run::open(stage, data, &out, true, Box::new(lent.clone()))?.train(stop, told)
    }
}

/// What every rank but the first does, until it is asked to stop.
pub fn follow(config: &Config, data: &DataFolder, stop: &Arc<AtomicBool>) -> Result<()> {
    let lent = SharedCollective::open(&config.collective)?;
    // the first has removed what ranks before us were told
    lent.barrier()?;
    tracing::info!(rank = lent.rank(), of = lent.size(), "trains what the first rank says");
    let (path, mut last) = (config.trainer.state.join(ORDER), 0);
    while !stop.load(Ordering::Relaxed) {
        lent.check()?;
        let text = fs::read(&path).ok();
        let order = text.and_then(|text| serde_json::from_slice::<Order>(&text).ok());
        let Some(order) = order.filter(|order| order.number > last) else {
            sleep(POLL);
            continue;
        };
        last = order.number;
        match order.train((config, data), &lent, (stop, |_| ())) {
            Ok(_) => {}
            // the first has met the same, and says what comes of it
            Err(error) if is_final(&error) => tracing::warn!(problem = said(&error), "a stage was not trained"),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
