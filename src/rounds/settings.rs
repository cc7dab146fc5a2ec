//! What can be set of the trainer. The defaults suit a shop with some ten thousand clicks a day.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use souk_io::error::{Error, Result};
use souk_report::GateSettings;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainerSettings {
    /// Address and port of /status, /metrics, /healthz and /readyz.
    pub listen: String,
    /// A file with one key a line; /status then needs one. The variable SOUK_TRAINER_KEYS does the same.
    pub key_file: Option<PathBuf>,
    /// The trainer's own folder: its rounds, and what they left. One process at a time has it.
    pub state: PathBuf,
    /// A data folder: the catalogue, the judgements that a candidate is measured by; examples of the log go into it.
    pub data: Option<PathBuf>,
    /// When a stage takes its turn, where it does not say so itself.
    pub pace: Pace,
    /// What a round consists of, in this order.
    pub stage: Vec<StageSettings>,
    pub gate: GateSettings,
    /// Models that stay on disk beside those that are served, wait to be, or could be gone back to.
    pub keep: usize,
    /// Examples that are older, by the log's own time, are forgotten; 0: none are.
    pub keep_days: f64,
    /// Where models that passed are put for services on other machines, such as `s3://BUCKET/models`; by default they are read
    /// from `state`.
    pub publish: Option<String>,
    /// Seconds that a candidate which passed its gate is waited for until it is served, before the next round begins.
    pub adopt_seconds: u64,
    pub alarms: Alarms,
}

/// When a stage takes its turn: once there are enough new examples, or after some time if there are a few.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Pace {
    pub examples: u64,
    pub seconds: u64,
    /// After `seconds`, fewer than these are not worth a turn.
    pub min_examples: u64,
    /// Older examples that are learned from once more, as a multiple of the new ones, so that they are not forgotten.
    pub look_back: f64,
}

/// One stage of a round: a configuration as `souk train` takes it, on top of the trainer's own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StageSettings {
    pub name: String,
    /// A file, found from the folder of the trainer's own; what it does not say is as the trainer's file has it.
    pub config: Option<PathBuf>,
    /// Single changes, as `--set` takes them.
    pub set: Vec<String>,
    pub pace: Option<Pace>,
}

/// When somebody is told that something is wrong. 0 turns an alarm off.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Alarms {
    /// Seconds without a message from the log.
    pub source_seconds: u64,
    /// Seconds since the last step of a stage that trains: a judge that is away, or a device that hangs.
    pub step_seconds: u64,
    /// Bytes that must be free where the state lies; with fewer no round begins and nothing more is read.
    pub free_bytes: u64,
    /// How far the mix of queries or items may move from round to round: a population stability index. 0.1 is little, 0.25 much.
    pub max_drift: f64,
    /// Batches of a stage that may be skipped because their loss was no number; and returns to the last checkpoint because
    /// a weight was none.
    pub max_diverged: u64,
}

impl Default for TrainerSettings {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8090".into(),
            key_file: None,
            state: "souk-trainer".into(),
            data: None,
            pace: Pace::default(),
            stage: Vec::new(),
            gate: GateSettings::default(),
            keep: 2,
            keep_days: 90.0,
            publish: None,
            adopt_seconds: 3600,
            alarms: Alarms::default(),
        }
    }
}

impl Default for Pace {
    fn default() -> Self {
        Self { examples: 20_000, seconds: 24 * 3600, min_examples: 1000, look_back: 1.0 }
    }
}

impl Default for Alarms {
    fn default() -> Self {
        Self { source_seconds: 900, step_seconds: 900, free_bytes: 2 << 30, max_drift: 0.25, max_diverged: 3 }
    }
}

impl TrainerSettings {
    pub fn check(&self) -> Result<()> {
        if self.stage.is_empty() {
            let problem = "names no stage: say [[trainer.stage]] name = \"sft\", config = \"sft-market.toml\"";
            return Err(Error::config("trainer.stage", problem));
        }
        let mut seen = BTreeSet::new();
        for StageSettings { name, .. } in &self.stage {
            let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
            if name.is_empty() || !name.chars().all(is_plain) {
                let problem = format!("`{name}` is no name of a stage: say letters, digits, - and _");
                return Err(Error::config("trainer.stage.name", problem));
            }
            if !seen.insert(name) {
                return Err(Error::config("trainer.stage.name", format!("two stages are called `{name}`")));
            }
        }
        for pace in self.stage.iter().map(|stage| self.pace_of(stage)) {
            if pace.examples == 0 || pace.min_examples == 0 {
                let problem = "examples and min_examples: say 1 or more, for a stage learns from examples";
                return Err(Error::config("trainer.pace", problem));
            }
            if !pace.look_back.is_finite() || pace.look_back < 0.0 {
                return Err(Error::config("trainer.pace.look_back", "say 0 or more"));
            }
        }
        if self.keep_days.is_nan() || self.keep_days < 0.0 {
            return Err(Error::config("trainer.keep_days", "say 0 or more"));
        }
        self.gate.check()
    }

    pub fn pace_of<'a>(&'a self, stage: &'a StageSettings) -> &'a Pace {
        stage.pace.as_ref().unwrap_or(&self.pace)
    }
}
