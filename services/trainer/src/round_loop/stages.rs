//! Training of a round's stages, one after the other. A stage whose model is complete is not trained again, so a killed round resumes
//! with the stage it was in.

use std::os::unix::fs::symlink;
use std::path::Path;

use souk::beir::DataFolder;
use souk::config::Config;
use souk::train::Progress;
use souk::{Error, Result};

use super::RoundLoop;
use crate::ranks::{StageOrder, is_final};
use crate::rounds::{Round, StageSpan};

/// Symbolic link to the folder of the current stage.
pub const TRAINING: &str = "training";
/// Written last: a folder with this file is a complete model.
const MODEL_CONFIG: &str = "config.json";

/// Outcome of a round's stages.
pub enum StagesOutcome {
    Model(String),
    /// A retry would fail in the same way.
    Failed(String),
    Stopped,
}

/// Where a stage finds the shop, and where its model goes.
#[derive(Clone, Copy)]
struct StagePlace<'a> {
    data: &'a DataFolder,
    out: &'a Path,
}

impl RoundLoop {
    /// Trains all stages, each from the model of the one before.
    pub(super) fn train_stages(&mut self, round: &Round, data: &DataFolder) -> Result<StagesOutcome> {
        let mut model = round.model.clone();
        for (at, span) in round.stages.iter().enumerate() {
            let out = self.stage_folder(round, at, &span.stage);
            if !out.join(MODEL_CONFIG).exists() {
                let place = StagePlace { data, out: &out };
                match self.train_stage(round, span, &model, place) {
                    Ok(true) => {}
                    Ok(false) => return Ok(StagesOutcome::Stopped),
                    Err(error) if is_final(&error) => {
                        return Ok(StagesOutcome::Failed(format!(
                            "the stage `{}`: {}",
                            span.stage,
                            error.with_causes()
                        )));
                    }
                    Err(error) => return Err(error),
                }
            }
            model = out.canonicalize().map_err(Error::store(&out, "find the model"))?.display().to_string();
        }
        Ok(StagesOutcome::Model(model))
    }

    /// Trains one stage; false if asked to stop before its end. After a non-finite weight it resumes from the last checkpoint
    /// with half the learning rate.
    fn train_stage(&mut self, round: &Round, span: &StageSpan, model: &str, place: StagePlace<'_>) -> Result<bool> {
        let settings = &self.config.trainer;
        let known = settings.stage.iter().find(|stage| stage.name == span.stage).cloned();
        let missing = || {
            Error::config(
                "trainer.stage",
                format!("has no stage `{}`, which an unfinished round needs: restore it", span.stage),
            )
        };
        let (stage, max_diverged) = (known.ok_or_else(missing)?, settings.alarms.max_diverged);
        self.link(place.out)?;
        let within = |path: &Path| path.strip_prefix(&settings.state).unwrap_or(path).to_path_buf();
        let (data, out) = (within(place.data.path()), within(place.out));
        for halved in 0.. {
            self.status.begin_stage(round.number, &span.stage);
            let status = self.status.clone();
            let report = |progress: Progress| {
                if let Progress::Step(step) = progress {
                    status.end_step(step);
                }
            };
            let order = StageOrder {
                number: 0,
                stage: stage.clone(),
                model: model.into(),
                span: span.span.clone(),
                data: data.clone(),
                out: out.clone(),
                halved,
            };
            let run = self.ranks.open_stage(order, &self.config);
            match run.and_then(|run| run.train(&self.signals.stop, report)) {
                Ok(summary) => return Ok(summary.finished),
                Err(error @ Error::Diverged { .. }) if (halved as u64) < max_diverged => {
                    tracing::error!(%error, "resuming the stage from its last checkpoint with half the learning rate");
                }
                // other ranks are lost, or will be: all restart
                Err(error) if self.ranks.are_several() && !is_final(&error) => {
                    self.signals.fail(&error);
                    return Err(error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// Points the console's link at a stage's folder.
    fn link(&self, out: &Path) -> Result<()> {
        let (link, aside) = (self.config.trainer.state.join(TRAINING), self.config.trainer.state.join(".training"));
        drop(std::fs::remove_file(&aside));
        let target = out.strip_prefix(&self.config.trainer.state).unwrap_or(out);
        symlink(target, &aside).map_err(Error::store(&aside, "link to the stage"))?;
        std::fs::rename(&aside, &link).map_err(Error::store(&link, "link to the stage"))
    }
}

/// Checks the settings of all stages.
pub fn check_stages(config: &Config) -> Result<()> {
    config.trainer.check()?;
    for stage in &config.trainer.stage {
        let stage = config.of_stage(stage, config.model.path.as_deref().unwrap_or_default())?;
        stage.train.check()?;
        stage.candidates.check()?;
    }
    Ok(())
}
