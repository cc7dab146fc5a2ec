//! The configuration: TOML in, opened models, data and services out. Every command and service reads the same file; `--set a.b=c`
//! overrides one value of it.

mod catalogue;
mod change;
pub mod explain;
mod judges;
mod log;
mod model;
mod renamed;
mod shared_ledger;
mod store;
#[cfg(test)]
mod tests;
mod trainer;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

pub use self::catalogue::CatalogueConfig;
pub use self::change::Change;
use self::change::overlay;
pub use self::log::LogConfig;
pub use self::model::ModelConfig;
pub use self::shared_ledger::{LedgerStream, SharedLedger};
pub use self::store::StoreConfig;
pub use self::trainer::{Alarms, Pace, StageSettings, TrainerSettings};
use crate::candidates::{CandidateSettings, CandidateSource};
use crate::objective::{Candidates, Objective};
use crate::train::{FrozenEncoders, Stage, StageRewards, TrainSettings};
use souk_cross_encoder::{CrossEncoder, RelevanceSettings, Training};
use souk_ingest::dataset::IngestSettings;
use souk_ingest::judgements::JudgementSettings;
use souk_io::address::masked;
use souk_io::beir::DataFolder;
use souk_io::catalogue_stream::CatalogueStream;
use souk_io::error::{Error, Result};
use souk_io::item_text::ItemText;
use souk_nn::backbone::{Precision, hub};
use souk_nn::collective;
use souk_nn::encoder::{Encoder, Limits, Outline, Overrides, Placement, Reader, Scratch};
use souk_reward::{Judge, RewardSettings};
use souk_serving::index::IndexSettings;
use souk_serving::search::{ModelLoader, SearchSettings, ServiceDeps, VersionModels};

/// Every section of a configuration file.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// `[model]`: which model, on which device, in which precision.
    pub model: ModelConfig,
    /// `[encoder]`: overrides of the model folder: pooling, dimensions, text of an item.
    pub encoder: Overrides,
    /// `[worker]`: batch and queue sizes of the model's thread.
    pub worker: Limits,
    /// `[store]`: database and cache.
    pub store: StoreConfig,
    /// `[catalogue]`: the stream of catalogue changes.
    pub catalogue: CatalogueConfig,
    /// A model made from scratch by `souk init`.
    pub scratch: Option<Scratch>,
    /// `[log]`: the search log.
    pub log: LogConfig,
    /// `[ingest]`: how events are joined to queries.
    pub ingest: IngestSettings,
    /// `[judgements]`: how `souk judgements` grades a log.
    pub judgements: JudgementSettings,
    /// `[train]`: the training loop.
    pub train: TrainSettings,
    /// `[objective]`: the training objective.
    pub objective: Objective,
    /// `[candidates]`: where Retrieval-GRPO finds its candidates.
    pub candidates: CandidateSettings,
    /// `[reward]`: weights of the reward, and patience with the judge.
    pub reward: RewardSettings,
    /// The relevance judge; by default the oracle of a simulated shop.
    pub judge: Option<Judge>,
    /// `[relevance]`: training and serving the cross-encoder.
    pub relevance: RelevanceSettings,
    /// `[index]`: the kind of index and its parameters.
    pub index: IndexSettings,
    /// `[search]`: the search service.
    pub search: SearchSettings,
    /// `[trainer]`: the trainer daemon.
    pub trainer: TrainerSettings,
    /// `[collective]`: backend and timeouts of several processes.
    pub collective: collective::CollectiveSettings,
    #[serde(skip)]
    origin: Origin,
}

/// The files and overrides of a configuration, so that it can be read again with more of them.
#[derive(Clone, Default)]
struct Origin {
    files: Vec<PathBuf>,
    changes: Vec<Change>,
}

impl Origin {
    /// Source of a setting: an override, or the last file.
    fn place_of(&self, path: &str) -> String {
        let path = format!("{path}.");
        let sets = |change: &&Change| {
            let name = format!("{}.", change.names.join("."));
            name.starts_with(&path) || path.starts_with(&name)
        };
        match (self.changes.iter().rev().find(sets), self.files.last()) {
            (Some(change), _) => change.said.clone(),
            (None, Some(file)) => file.display().to_string(),
            (None, None) => "configuration".into(),
        }
    }
}

impl fmt::Debug for Origin {
    /// Leaves out overrides, which may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Origin").field("files", &self.files).finish_non_exhaustive()
    }
}

/// Reads a TOML file.
pub fn load_toml<T: serde::de::DeserializeOwned>(file: &Path) -> Result<T> {
    let text = std::fs::read_to_string(file).map_err(Error::store(file, "read it"))?;
    let table = text.parse::<Table>().map_err(|e| Error::config(file.display(), "not valid TOML").because(e))?;
    serde_path_to_error::deserialize(Value::Table(table))
        .map_err(|e| Error::config(file.display(), format!("`{}`: {}", e.path(), e.inner().message())))
}

impl Config {
    /// Reads `file`, or starts from the defaults, and applies the overrides in order.
    pub fn load(file: Option<&Path>, changes: &[Change]) -> Result<Self> {
        let files = file.map(Path::to_path_buf).into_iter().collect();
        Self::read(Origin { files, changes: changes.to_vec() })
    }

    /// Reads the same files and overrides again.
    pub fn read_again(&self) -> Result<Self> {
        Self::read(self.origin.clone())
    }

    /// When one of its files last changed; none without files.
    pub fn changed_at(&self) -> Option<std::time::SystemTime> {
        let changed = |file: &PathBuf| std::fs::metadata(file).and_then(|data| data.modified()).ok();
        self.origin.files.iter().filter_map(changed).max()
    }

    /// The configuration of one stage of a trainer's round, which starts from `model`: the stage's file and overrides on top of
    /// this one's.
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

    /// Later files override earlier ones, value by value.
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
        if let Some([old, new]) = renamed::find(&table) {
            let problem = format!("`{old}` is now `{new}`: rename it");
            return Err(Error::config(masked(&origin.place_of(&old)), problem));
        }
        let config: Result<Self> = serde_path_to_error::deserialize(Value::Table(table)).map_err(|e| {
            let path = e.path().to_string();
            let problem = masked(&format!("`{path}`: {}", e.inner().message()));
            Error::config(masked(&origin.place_of(&path)), problem)
        });
        Ok(Self { origin, ..config? })
    }

    /// Opens the stage of `souk train`. Weights are in f32, whatever the precision of products.
    pub fn open_stage(&self, data: &DataFolder) -> Result<Stage> {
        let bf16 = self.trains_in_bf16()?;
        let plain = Self { model: ModelConfig { precision: Precision::F32, ..self.model.clone() }, ..self.clone() };
        let needs = self.objective.needs();
        let encoder = plain.open_encoder()?;
        let encoder = if needs.steps { encoder.with_refine()? } else { encoder };
        if needs.rationales || needs.next_tokens {
            encoder.check_generates(needs.rationales)?;
        }
        let mut config = serde_json::json!({
            "model": self.model, "encoder": self.encoder, "train": self.train, "objective": self.objective,
        });
        let mut rewards = None;
        if needs.candidates != Candidates::None {
            config["candidates"] = serde_json::json!(self.candidates);
            config["reward"] = serde_json::json!(self.reward);
            config["judge"] = serde_json::json!(self.judge);
            let model_copy =
                (self.candidates.source == CandidateSource::Catalogue).then(|| plain.open_encoder()).transpose()?;
            let (blend, candidates) = (self.open_blend(data, encoder.item_text())?, self.candidates.clone());
            rewards = Some(StageRewards { blend, candidates, model_copy });
        }
        let guide = self.objective.guide().map(|guide| plain.open_guide(guide)).transpose()?;
        if let Some(guide) = &guide {
            // a resumed stage needs the same one
            config["guide"] = guide.fingerprint()?.into();
        }
        let reference = needs.reference.then(|| plain.open_encoder()).transpose()?;
        let frozen = FrozenEncoders { guide, reference };
        let (settings, objective) = (self.train.clone(), self.objective.clone());
        Ok(Stage { encoder, settings, objective, bf16, rewards, frozen, span: None, config })
    }

    /// Opens the encoder that a supervised stage is guided by, with the settings of its own folder.
    fn open_guide(&self, name: &str) -> Result<Encoder> {
        let named = |e: Error| Error::config("objective.guide", format!("`{name}` cannot be opened")).because(e);
        let dir = hub::resolve(name).map_err(named)?;
        Encoder::open(&dir, Placement { adapter: None, ..self.placement()? }, Overrides::default()).map_err(named)
    }

    /// Opens the training of `souk relevance train`: a model folder to start from, weights in f32.
    pub fn open_relevance_training(&self, data: &DataFolder) -> Result<Training> {
        if self.model.precision != Precision::F32 {
            let problem = "a relevance model is trained in f32: remove this setting";
            return Err(Error::config("model.precision", problem));
        }
        Training::open(&self.relevance, &self.model_dir()?, self.placement()?, data, self.item_text())
    }

    /// Opens a relevance model for inference.
    pub fn open_relevance(&self) -> Result<CrossEncoder> {
        CrossEncoder::open(&self.model_dir()?, self.placement()?)?.freeze()
    }

    /// Whether training computes products in bf16.
    pub fn trains_in_bf16(&self) -> Result<bool> {
        match self.model.precision {
            Precision::F32 => Ok(false),
            Precision::Bf16 => Ok(true),
            Precision::Int8 => {
                let problem = "is int8, which cannot be trained: set it to f32 or bf16";
                Err(Error::config("model.precision", problem))
            }
        }
    }

    /// The sizes of the model, from its folder or from `[scratch]`.
    pub fn open_outline(&self) -> Result<Outline> {
        match (&self.model.path, &self.scratch) {
            (None, Some(scratch)) => Outline::of_scratch(scratch, &self.encoder),
            _ => Outline::open(&self.model_dir()?, &self.encoder, &self.model.ignore_fields),
        }
    }

    /// Template of the items' texts where no model is opened that may name another.
    pub fn item_text(&self) -> ItemText {
        self.encoder.item_text.clone().unwrap_or_default()
    }

    /// Opens a data folder. Fails if its items lack a field that `encoder.item_text` names: it would be left out in silence.
    pub fn open_data(&self, dir: &Path) -> Result<DataFolder> {
        let data = DataFolder::open(dir)?;
        self.item_text().check(&data)?;
        Ok(data)
    }

    /// Opens the model's tokenizer alone.
    pub fn open_reader(&self) -> Result<Reader> {
        Reader::open(&self.model_dir()?, &self.encoder, &self.model.ignore_fields)
    }

    /// Folder of the model, which may have to be downloaded.
    pub fn model_dir(&self) -> Result<PathBuf> {
        hub::resolve(self.model_name()?)
    }

    fn model_name(&self) -> Result<&str> {
        let problem = "no model: give --model DIR, or set path in [model]";
        self.model.path.as_deref().ok_or_else(|| Error::config("model.path", problem))
    }

    /// The dependencies of a search service. Models at any path are opened with the settings of `[model]`.
    pub fn service_deps(&self, stream: Arc<dyn CatalogueStream>) -> Result<ServiceDeps> {
        let config = self.clone();
        let load_model: ModelLoader = Arc::new(move |path| {
            let model = ModelConfig { path: Some(path.into()), ..config.model.clone() };
            let config = Self { model, ..config.clone() };
            let encoder = config.open_encoder()?.for_search()?.freeze()?;
            let reranker = config.open_version_reranker(encoder.dir(), encoder.item_text())?;
            Ok(VersionModels { encoder, reranker })
        });
        let (settings, index, limits) = (self.search.clone(), self.index.clone(), self.worker);
        Ok(ServiceDeps { settings, index, limits, load_model, cache: self.store.open_cache()?, stream })
    }

    /// The stream of catalogue changes that all processes of the shop follow. Does not connect yet.
    pub fn open_catalogue_stream(&self, ledger: Arc<SharedLedger>) -> Result<Arc<dyn CatalogueStream>> {
        self.catalogue.open_stream(ledger, &self.log)
    }

    /// Opens the model for training or export.
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
