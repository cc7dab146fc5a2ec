//! Settings of the trainer. The defaults suit a shop with some ten thousand clicks a day.

use std::collections::BTreeSet;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use souk_io::error::{Error, Result};
use souk_io::tls::Tls;
use souk_report::GateSettings;

/// The `[trainer]` section.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TrainerSettings {
    /// Address and port of /status, /training, /rounds, /metrics, /healthz and /readyz.
    pub listen: String,
    /// File with one key per line, as `[[NAME=]ROLE+ROLE[@RATE]:]KEY`; `/status`, `/training` and `/rounds` then need one with the role
    /// `search`. It is read again when it changes. The variable SOUK_TRAINER_KEYS adds keys too.
    pub key_file: Option<PathBuf>,
    /// Whether others may reach `listen` although there are no keys.
    pub allow_no_keys: bool,
    /// Address of `/metrics`, if it is another one than `listen`, where it needs no key.
    pub metrics_listen: Option<String>,
    /// Certificate and key; without them the service speaks plain HTTP.
    pub tls: Option<Tls>,
    /// State folder: rounds and their models. Locked by one process.
    pub state: PathBuf,
    /// Data folder: the catalogue, and the judgements that candidates are evaluated on. Examples from the log are written to it.
    pub data: Option<PathBuf>,
    /// When a stage runs, unless it has a pace of its own.
    #[schemars(extend("x-reloaded" = true))]
    pub pace: Pace,
    /// The stages of a round, in order.
    #[schemars(extend("x-reloaded" = true))]
    pub stage: Vec<StageSettings>,
    /// When a candidate is better than the served model.
    #[schemars(extend("x-reloaded" = true))]
    pub gate: GateSettings,
    /// Models kept on disk beside those that are served, offered, or a target of rollback.
    #[schemars(extend("x-reloaded" = true))]
    pub keep: usize,
    /// Retention of examples in days, by the log's own time; 0 keeps all.
    #[schemars(extend("x-reloaded" = true))]
    pub keep_days: f64,
    /// Object store for models that passed the gate, for services on other machines, such as `s3://BUCKET/models`. By default
    /// services read them from `state`.
    pub publish: Option<String>,
    /// Seconds to wait for a candidate that passed its gate to be served, before the next round begins.
    #[schemars(extend("x-reloaded" = true))]
    pub adopt_seconds: u64,
    /// Thresholds of alarms.
    pub alarms: Alarms,
}

/// When a stage runs: once there are enough new examples, or after some time if there are a few.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Pace {
    /// New examples after which the stage runs.
    pub examples: u64,
    /// Seconds after which it runs with fewer; 0: never.
    pub seconds: u64,
    /// With fewer new examples than this, `seconds` does not count.
    pub min_examples: u64,
    /// Replayed older examples, as a multiple of the new ones, against forgetting.
    pub look_back: f64,
}

/// One stage of a round: a configuration as `souk train` takes it, on top of the trainer's own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct StageSettings {
    /// Name of the stage: letters, digits, - and _.
    pub name: String,
    /// A file, relative to the trainer's own file; it overrides the trainer's settings.
    pub config: Option<PathBuf>,
    /// Overrides, as for `--set`.
    pub set: Vec<String>,
    /// When this stage runs; by default `trainer.pace`.
    pub pace: Option<Pace>,
}

/// Thresholds of alarms. 0 turns an alarm off.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Alarms {
    /// Seconds without a message from the log.
    pub source_seconds: u64,
    /// Seconds since the last training step: the judge is down, or a device hangs.
    pub step_seconds: u64,
    /// Free bytes required on the disk of the state folder; with fewer, no round begins and the log is not read.
    pub free_bytes: u64,
    /// Population stability index of queries or items from round to round. 0.1 is a small change, 0.25 a large one.
    pub max_drift: f64,
    /// Batches of a stage that may be skipped because their loss is not finite, and returns to the last checkpoint because a weight
    /// is not finite.
    pub max_diverged: u64,
}

impl TrainerSettings {
    /// The settings after the file was changed to `read` while the trainer runs. Those that are marked `x-reloaded` apply to the next round,
    /// the others after a restart.
    pub fn reloaded(&self, read: &Self) -> Self {
        Self {
            stage: read.stage.clone(),
            pace: read.pace.clone(),
            gate: read.gate.clone(),
            keep: read.keep,
            keep_days: read.keep_days,
            adopt_seconds: read.adopt_seconds,
            ..self.clone()
        }
    }
}

impl Default for TrainerSettings {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8070".into(),
            key_file: None,
            allow_no_keys: false,
            metrics_listen: None,
            tls: None,
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
    /// Rejects settings that make no sense.
    pub fn check(&self) -> Result<()> {
        if self.stage.is_empty() {
            let problem = "has no stage: add [[trainer.stage]] name = \"sft\", config = \"sft-market.toml\"";
            return Err(Error::config("trainer.stage", problem));
        }
        let mut seen = BTreeSet::new();
        for StageSettings { name, .. } in &self.stage {
            let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
            if name.is_empty() || !name.chars().all(is_plain) {
                let problem = format!("`{name}` is not a valid stage name: use letters, digits, - and _");
                return Err(Error::config("trainer.stage.name", problem));
            }
            if !seen.insert(name) {
                return Err(Error::config("trainer.stage.name", format!("two stages are named `{name}`: rename one")));
            }
        }
        for pace in self.stage.iter().map(|stage| self.pace_of(stage)) {
            if pace.examples == 0 || pace.min_examples == 0 {
                let problem = "examples and min_examples must be 1 or more";
                return Err(Error::config("trainer.pace", problem));
            }
            if !pace.look_back.is_finite() || pace.look_back < 0.0 {
                return Err(Error::config("trainer.pace.look_back", "must be 0 or more"));
            }
        }
        if self.keep_days.is_nan() || self.keep_days < 0.0 {
            return Err(Error::config("trainer.keep_days", "must be 0 or more"));
        }
        self.gate.check()
    }

    /// The pace of a stage: its own or the trainer's.
    pub fn pace_of<'a>(&'a self, stage: &'a StageSettings) -> &'a Pace {
        stage.pace.as_ref().unwrap_or(&self.pace)
    }
}
