//! TOML in, built rooms out. Every verb and service reads the same file; `--set a.b=c` changes one value of it.
//! Nothing below imports this room.

mod change;
mod judges;
mod model;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

pub use self::change::Change;
use self::change::overlay;
pub use self::model::ModelConfig;
use crate::candidates::{CandidateSettings, Source};
use crate::objective::{Candidates, Objective};
use crate::rounds::{StageSettings, TrainerSettings};
use crate::train::{Stage, StageRewards, TrainSettings};
use souk_cache::{Cache, open_cache};
use souk_cross_encoder::{CrossEncoder, RelevanceSettings, Training};
use souk_ingest::dataset::IngestSettings;
use souk_ingest::log::file::{FileSettings, FileSource};
use souk_ingest::log::kafka::{KafkaSettings, KafkaSource};
use souk_ingest::log::{LogSource, OnGap, Resume};
use souk_io::address::{Address, masked};
use souk_io::beir::DataFolder;
use souk_io::error::{Error, Result};
use souk_nn::backbone::{Precision, hub};
use souk_nn::collective;
use souk_nn::encoder::{Encoder, Limits, Outline, Overrides, Placement, Reader, Scratch};
use souk_reward::{Judge, RewardSettings};
use souk_serving::index::IndexSettings;
use souk_serving::search::{Models, Parts, SearchSettings};
use souk_store::{Ledger, SqlLedger};

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub model: ModelConfig,
    pub encoder: Overrides,
    pub worker: Limits,
    pub store: StoreConfig,
    /// A model to be made by `souk init`.
    pub scratch: Option<Scratch>,
    pub log: LogConfig,
    pub ingest: IngestSettings,
    pub train: TrainSettings,
    pub objective: Objective,
    pub candidates: CandidateSettings,
    pub reward: RewardSettings,
    /// Who gives verdicts; by default the oracle where the data is a simulated shop.
    pub judge: Option<Judge>,
    pub relevance: RelevanceSettings,
    pub index: IndexSettings,
    pub search: SearchSettings,
    pub trainer: TrainerSettings,
    pub collective: collective::Settings,
    #[serde(skip)]
    origin: Origin,
}

/// What a configuration was read from, to be read again with more on top of it.
#[derive(Clone, Default)]
struct Origin {
    files: Vec<PathBuf>,
    changes: Vec<Change>,
}

impl fmt::Debug for Origin {
    /// Changes may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Origin").field("files", &self.files).finish_non_exhaustive()
    }
}

/// Where the search log is.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// Files in UBI 1.3, one JSON object a line.
    pub paths: Vec<PathBuf>,
    /// Kafka's `host:port,host:port`.
    pub brokers: String,
    pub topics: Vec<String>,
    pub group: Option<String>,
    pub dead_letter_topic: Option<String>,
    /// Any of librdkafka's properties, as `"security.protocol" = "ssl"`.
    pub properties: BTreeMap<String, String>,
    /// Wait for more at the end.
    pub follow: bool,
    pub on_gap: OnGap,
}

/// The group that Souk joins when no other is named.
const GROUP: &str = "souk";

impl LogConfig {
    /// Files or Kafka, whichever is named; both or neither is a mistake.
    pub fn open(&self, resume: Resume) -> Result<Box<dyn LogSource>> {
        match (self.paths.is_empty(), self.brokers.is_empty()) {
            (true, true) => {
                Err(Error::config("log", "no source: give --from FILE, or --kafka HOST:PORT with --topic NAME"))
            }
            (false, false) => Err(Error::config("log", "names both files and Kafka: give one of them")),
            (false, true) => {
                let (paths, follow, on_gap) = (self.paths.clone(), self.follow, self.on_gap);
                Ok(Box::new(FileSource::open(FileSettings { paths, follow, on_gap }, resume)?))
            }
            (true, false) if self.topics.is_empty() => {
                Err(Error::config("log.topics", "names no topic: give --topic NAME"))
            }
            (true, false) => Ok(Box::new(KafkaSource::open(&self.kafka_settings()?, resume)?)),
        }
    }

    /// Of brokers that must be named.
    pub fn kafka_settings(&self) -> Result<KafkaSettings> {
        if self.brokers.is_empty() {
            return Err(Error::config("log.brokers", "names no broker: say HOST:PORT"));
        }
        Ok(KafkaSettings {
            brokers: self.brokers.clone(),
            topics: self.topics.clone(),
            group: self.group.clone().unwrap_or_else(|| GROUP.into()),
            dead_letter_topic: self.dead_letter_topic.clone(),
            follow: self.follow,
            on_gap: self.on_gap,
            properties: self.properties.clone(),
        })
    }
}

/// Where the ledger and the cache are.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoreConfig {
    /// `sqlite:PATH` or `postgres://USER@HOST/DATABASE`; the password may come in PGPASSWORD.
    pub database: Address,
    /// `memory`, or `redis://HOST:PORT/N`.
    pub cache: Address,
    /// What a cache in memory may hold.
    pub cache_bytes: usize,
    /// How long an entry lives in Redis; 0: until Redis needs the room.
    pub cache_seconds: u64,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            database: Address::new("sqlite:souk.db"),
            cache: Address::new("memory"),
            cache_bytes: 256 << 20,
            cache_seconds: 0,
        }
    }
}

impl StoreConfig {
    pub async fn open_ledger(&self) -> Result<Arc<dyn Ledger>> {
        Ok(Arc::new(SqlLedger::open(&self.database).await?))
    }

    /// As services do: a file of our own is made, and brought up to date, by itself.
    pub async fn open_own_ledger(&self) -> Result<Arc<dyn Ledger>> {
        if self.database.scheme() == "sqlite" {
            SqlLedger::migrate(&self.database).await?;
        }
        self.open_ledger().await
    }

    pub fn open_cache(&self) -> Result<Arc<dyn Cache>> {
        let lifetime = (self.cache_seconds > 0).then(|| Duration::from_secs(self.cache_seconds));
        open_cache(&self.cache, self.cache_bytes, lifetime)
    }
}

/// Any TOML file, as what it describes.
pub fn load_toml<T: serde::de::DeserializeOwned>(file: &Path) -> Result<T> {
    let text = std::fs::read_to_string(file).map_err(Error::store(file, "read it"))?;
    let table = text.parse::<Table>().map_err(|e| Error::config(file.display(), "not valid TOML").because(e))?;
    serde_path_to_error::deserialize(Value::Table(table))
        .map_err(|e| Error::config(file.display(), format!("`{}`: {}", e.path(), e.inner().message())))
}

impl Config {
    /// Reads `file`, or starts from the defaults, and applies the changes in turn.
    pub fn load(file: Option<&Path>, changes: &[Change]) -> Result<Self> {
        let files = file.map(Path::to_path_buf).into_iter().collect();
        Self::read(Origin { files, changes: changes.to_vec() })
    }

    /// The same files and changes, as they are now.
    pub fn read_again(&self) -> Result<Self> {
        Self::read(self.origin.clone())
    }

    /// When one of its files last changed; none where there are none.
    pub fn changed_at(&self) -> Option<std::time::SystemTime> {
        let changed = |file: &PathBuf| std::fs::metadata(file).and_then(|data| data.modified()).ok();
        self.origin.files.iter().filter_map(changed).max()
    }

    /// What one stage of a trainer's round is trained with, beginning with `model`: the stage's file and changes on top of
    /// what this was read from.
    pub fn of_stage(&self, stage: &StageSettings, model: &str) -> Result<Self> {
        let mut origin = self.origin.clone();
        if let Some(file) = &stage.config {
            let folder = origin.files.first().and_then(|file| file.parent()).unwrap_or(Path::new(""));
            origin.files.push(folder.join(file));
        }
        for set in &stage.set {
            origin.changes.push(Change::parse(set)?);
        }
        origin.changes.push(Change::text("model.path", "[model] path", model));
        Self::read(origin)
    }

    /// Of several files a later one counts, value by value.
    fn read(origin: Origin) -> Result<Self> {
        let (mut table, changes) = (Table::new(), &origin.changes);
        for file in &origin.files {
            let text = std::fs::read_to_string(file).map_err(Error::store(file, "read the configuration"))?;
            let read = text.parse::<Table>();
            overlay(&mut table, read.map_err(|e| Error::config(file.display(), "not valid TOML").because(e))?);
        }
        for change in changes {
            change.apply(&mut table)?;
        }
        let config: Result<Self> = serde_path_to_error::deserialize(Value::Table(table)).map_err(|e| {
            let path = e.path().to_string();
            let said = changes
                .iter()
                .rev()
                .find(|change| format!("{}.", change.names.join(".")).starts_with(&format!("{path}.")));
            let place = match (said, origin.files.last()) {
                (Some(change), _) => change.said.clone(),
                (None, Some(file)) => file.display().to_string(),
                (None, None) => "configuration".into(),
            };
            Error::config(masked(&place), masked(&format!("`{path}`: {}", e.inner().message())))
        });
        Ok(Self { origin, ..config? })
    }

    /// Opens what `souk train` trains: weights in f32 whatever the precision of the products.
    pub fn open_stage(&self, data: &DataFolder) -> Result<Stage> {
        let bf16 = self.trains_in_bf16()?;
        let plain = Self { model: ModelConfig { precision: Precision::F32, ..self.model.clone() }, ..self.clone() };
        let needs = self.objective.needs();
        let encoder = plain.open_encoder()?;
        let encoder = if needs.steps { encoder.refining()? } else { encoder };
        if needs.rationales || needs.next_tokens {
            encoder.check_writes(needs.rationales)?;
        }
        let mut config = serde_json::json!({
            "model": self.model, "encoder": self.encoder, "train": self.train, "objective": self.objective,
        });
        let mut rewards = None;
        if needs.candidates != Candidates::None {
            config["candidates"] = serde_json::json!(self.candidates);
            config["reward"] = serde_json::json!(self.reward);
            config["judge"] = serde_json::json!(self.judge);
            let reference = needs.reference.then(|| plain.open_encoder()).transpose()?;
            let model_copy = (self.candidates.source == Source::Catalogue).then(|| plain.open_encoder()).transpose()?;
            let (blend, candidates) = (self.open_blend(data)?, self.candidates.clone());
            rewards = Some(StageRewards { blend, candidates, reference, model_copy });
        }
        let (settings, objective) = (self.train.clone(), self.objective.clone());
        Ok(Stage { encoder, settings, objective, bf16, rewards, span: None, config })
    }

    /// Opens what `souk relevance train` trains: a model folder to begin with, weights in f32.
    pub fn open_relevance_training(&self, data: &DataFolder) -> Result<Training> {
        if self.model.precision != Precision::F32 {
            let problem = "a relevance model is trained in f32: leave this out";
            return Err(Error::config("model.precision", problem));
        }
        Training::open(&self.relevance, &self.model_dir()?, self.placement()?, data)
    }

    /// Opens a relevance model, ready to judge.
    pub fn open_relevance(&self) -> Result<CrossEncoder> {
        CrossEncoder::open(&self.model_dir()?, self.placement()?)?.freeze()
    }

    /// Whether products are in bf16 when the model is trained.
    pub fn trains_in_bf16(&self) -> Result<bool> {
        match self.model.precision {
            Precision::F32 => Ok(false),
            Precision::Bf16 => Ok(true),
            Precision::Int8 => {
                let problem = "is int8, in which nothing can be trained: say f32 or bf16";
                Err(Error::config("model.precision", problem))
            }
        }
    }

    /// The sizes of the model: of its folder, or of what [scratch] describes.
    pub fn open_outline(&self) -> Result<Outline> {
        match (&self.model.path, &self.scratch) {
            (None, Some(scratch)) => Outline::of_scratch(scratch, &self.encoder),
            _ => Outline::open(&self.model_dir()?, &self.encoder, &self.model.ignore_fields),
        }
    }

    /// The model's tokenizer alone.
    pub fn open_reader(&self) -> Result<Reader> {
        Reader::open(&self.model_dir()?, &self.encoder, &self.model.ignore_fields)
    }

    fn model_dir(&self) -> Result<PathBuf> {
        hub::resolve(self.model_name()?)
    }

    fn model_name(&self) -> Result<&str> {
        let problem = "no model: give --model DIR, or [model] path in the configuration";
        self.model.path.as_deref().ok_or_else(|| Error::config("model.path", problem))
    }

    /// What a search service is made of; models are opened as [model] says, whatever their path.
    pub fn shop_parts(&self) -> Result<Parts> {
        let config = self.clone();
        let models: Models = Arc::new(move |path| {
            let model = ModelConfig { path: Some(path.into()), ..config.model.clone() };
            Self { model, ..config.clone() }.open_encoder()?.for_search()?.freeze()
        });
        let (settings, index, limits) = (self.search.clone(), self.index.clone(), self.worker);
        Ok(Parts { settings, index, limits, models, cache: self.store.open_cache()? })
    }

    /// Opens the model, ready to be trained or exported.
    pub fn open_encoder(&self) -> Result<Encoder> {
        Encoder::open(&self.model_dir()?, self.placement()?, self.encoder.clone())
    }

    fn placement(&self) -> Result<Placement> {
        Ok(Placement {
            device: self.model.open_device()?,
            precision: self.model.precision,
            adapter: self.model.adapter.clone(),
            ignore_fields: self.model.ignore_fields.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(sets: &[&str]) -> Result<Config> {
        let changes = sets.iter().map(|set| Change::parse(set)).collect::<Result<Vec<_>>>()?;
        Config::load(None, &changes)
    }

    #[test]
    fn overrides_are_typed_and_reach_any_depth() {
        let config = load(&["model.path=models/a b", "encoder.dimensions=128", "model.precision=int8"]).unwrap();
        assert_eq!(config.model.path.as_deref(), Some("models/a b"));
        assert_eq!(config.encoder.dimensions, Some(128));
        assert_eq!(config.model.precision, Precision::Int8);
    }

    #[test]
    fn a_name_with_dots_stands_in_quotes() {
        let config = load(&["log.properties.\"session.timeout.ms\"=\"1500\"", "log.follow=true"]).unwrap();
        assert_eq!(config.log.properties["session.timeout.ms"], "1500");
        assert!(config.log.follow);
    }

    #[test]
    fn an_unknown_name_or_a_wrong_value_is_refused_by_name() {
        for (set, named) in [
            ("model.pth=x", "pth"),
            ("model.precision=f64", "f64"),
            ("model", "name.name=value"),
            ("worker.queue_texts=-1", "--set worker.queue_texts=-1: `worker.queue_texts`"),
            ("model=3", "--set model=3: `model`"),
            ("a..b=3", "name.name=value"),
        ] {
            let error = load(&[set]).unwrap_err().to_string();
            assert!(error.contains(named), "{set}: {error}");
        }
    }

    #[test]
    fn no_error_and_no_written_configuration_shows_a_password() {
        let url = "postgres://souk:secret@db/souk";
        let config = load(&[&format!("store.database={url}"), "store.cache=redis://:secret@cache/0"]).unwrap();
        assert!(!format!("{config:?}").contains("secret"));
        assert!(!toml::to_string(&config.store).unwrap().contains("secret"));
        for set in [format!("store={url}"), format!("store.cache_bytes={url}"), format!("store.database=[\"{url}\"]")] {
            let error = load(&[&set]).unwrap_err().to_string();
            assert!(error.contains("store") && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn a_flag_is_text_whatever_it_looks_like() {
        for name in ["1e5", "mode\u{301}le", "a \"b\"", "true"] {
            let config = Config::load(None, &[Change::text("model.path", "--model", name)]).unwrap();
            assert_eq!(config.model.path.as_deref(), Some(name));
        }
    }

    #[test]
    fn a_stage_is_its_file_and_changes_on_top_of_the_trainers() {
        let home = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(home.path().join(name), text).unwrap();
        write("trainer.toml", "[model]\npath = \"a\"\nprecision = \"bf16\"\n[train]\nbatch = 8\nepochs = 3\n");
        write("sft.toml", "[model]\npath = \"b\"\n[train]\nbatch = 16\n");
        let changes = [Change::parse("train.seed=5").unwrap()];
        let config = Config::load(Some(&home.path().join("trainer.toml")), &changes).unwrap();
        let stage = |config: Option<&str>, set: &str| StageSettings {
            name: "x".into(),
            config: config.map(PathBuf::from),
            set: vec![set.into()],
            pace: None,
        };
        let sft = config.of_stage(&stage(Some("sft.toml"), "train.batch=32"), "served").unwrap();
        assert_eq!((sft.train.batch, sft.train.epochs, sft.train.seed), (32, 3.0, 5));
        assert_eq!((sft.model.path.as_deref(), sft.model.precision), (Some("served"), Precision::Bf16));
        let plain = config.of_stage(&stage(None, "train.epochs=1"), "served").unwrap();
        assert_eq!((plain.train.batch, plain.train.epochs), (8, 1.0));
        let error = config.of_stage(&stage(Some("gone.toml"), "train.epochs=1"), "m").unwrap_err().to_string();
        assert!(error.contains("gone.toml"), "{error}");
    }

    #[test]
    fn more_threads_than_cores_are_refused() {
        let error = load(&["model.threads=100000"]).unwrap().model.open_device().unwrap_err().to_string();
        assert!(error.contains("cores"), "{error}");
    }

    #[test]
    fn an_unknown_device_is_refused() {
        let config = load(&["model.device=tpu"]).unwrap();
        assert!(config.model.open_device().unwrap_err().to_string().contains("`tpu`"));
    }
}
