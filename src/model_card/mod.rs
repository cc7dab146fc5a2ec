//! The model card of a model folder: `README.md` as the Hugging Face hub shows it, and `model_card.json`, the record that it is made of.
//! Each stage adds itself to the record of the model that it begins with. Never contains an absolute path or an address.

mod front_matter;
mod page;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use souk_io::atomic_dir::{write_atomic, write_json_atomic};
use souk_io::beir::DataFolder;
use souk_io::domain::TextKind;
use souk_io::error::Result;
use souk_nn::backbone::hub;
use souk_nn::encoder::Encoder;
use souk_report::{DETAILS, Metrics, SHOWN, names};

const RECORD: &str = "model_card.json";
const PAGE: &str = "README.md";

/// History and measurements of a model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelRecord {
    /// The model that the first stage began with: a name of the hub, or the name of a folder.
    pub base: String,
    /// Whether `base` is a name of the hub.
    pub is_base_on_hub: bool,
    /// Codes of its languages, as far as its own card names them.
    pub languages: Vec<String>,
    /// Steps from the base model to this one.
    pub stages: Vec<StageRecord>,
    /// Measurement of `souk evaluate` or the trainer.
    pub measurements: Vec<MeasurementRecord>,
    /// The gate's verdict.
    pub gate: Option<GateRecord>,
}

/// A step from one model to the next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum StageRecord {
    /// `souk train`, or a stage of the trainer.
    Trained(Box<TrainedRecord>),
    /// `souk average`: names of the models, and their shares.
    Averaged {
        /// In their order.
        models: Vec<(String, f64)>,
    },
}

/// A stage of training.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrainedRecord {
    /// Type of the objective.
    pub objective: String,
    /// Name of the model that the stage began with.
    pub model: String,
    /// Name of the data folder.
    pub data: String,
    /// Number of training pairs, and what they are.
    pub num_pairs: u64,
    /// Such as "judged pairs".
    pub pairs: String,
    /// Number of items in the catalogue.
    pub num_items: u64,
    /// Steps made.
    pub steps: u64,
    /// Loss of the last step, unless a resumed stage had already made it.
    pub loss: Option<f64>,
    /// The evaluation whose weights the model has, if the stage evaluated.
    pub best: Option<BestRecord>,
    /// The stage's configuration as TOML.
    pub settings: String,
}

/// The best evaluation during a stage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BestRecord {
    /// Steps before it.
    pub step: u64,
    /// Name of the metric, and its value in percent.
    pub metric: String,
    /// In percent.
    pub value: f64,
    /// Split that was evaluated.
    pub split: String,
    /// Number of its queries.
    pub num_queries: usize,
}

/// Metrics of the model on a split.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MeasurementRecord {
    /// Name of the data folder.
    pub data: String,
    /// Name of the split.
    pub split: String,
    /// Channels that answered.
    pub pipeline: String,
    /// Number of queries.
    pub num_queries: usize,
    /// In percent.
    pub metrics: BTreeMap<String, MetricRecord>,
}

/// A metric's mean over the queries, in percent, with its 95 % interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MetricRecord {
    /// Mean.
    pub value: f64,
    /// Bounds of the interval, if there is one.
    pub interval: Option<[f64; 2]>,
}

/// The gate's verdict on the model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GateRecord {
    /// Name of the version that it was compared with.
    pub compared_with: String,
    /// Whether it may be served.
    pub passed: bool,
    /// Reasons against it.
    pub reasons: Vec<String>,
}

/// The encoder's part of the card.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct EncoderRecord {
    dimensions: i64,
    max_tokens: Option<usize>,
    similarity: String,
    item_text: String,
    query_prompt: String,
    item_prompt: String,
    /// Whether sentence-transformers computes the same vectors.
    loads_in_sentence_transformers: bool,
}

/// Content of `model_card.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct Card {
    name: String,
    encoder: EncoderRecord,
    #[serde(flatten)]
    record: ModelRecord,
}

impl ModelRecord {
    /// The record of a model folder; `name` is what the configuration calls it. A folder without a record is a base model.
    pub fn of_model(folder: &Path, name: &str) -> Self {
        if let Some(card) = Card::load(folder) {
            return card.record;
        }
        // `souk start` makes folders of links to the base model's files
        let config = folder.join("config.json").canonicalize();
        let files = config.as_deref().ok().and_then(Path::parent).unwrap_or(folder);
        let on_hub = hub::hub_name(name, files);
        Self {
            base: on_hub.clone().unwrap_or_else(|| folder_name(files)),
            is_base_on_hub: on_hub.is_some(),
            languages: fs::read_to_string(folder.join(PAGE))
                .map(|text| front_matter::languages(&text))
                .unwrap_or_default(),
            ..Self::default()
        }
    }

    /// The record of the model that a further stage makes of this one. Measurements are those of the old weights.
    pub fn followed_by(mut self, stage: StageRecord) -> Self {
        self.stages.push(stage);
        self.measurements.clear();
        self.gate = None;
        self
    }

    /// Writes the card of the model in `folder`, under the name `name`.
    pub fn write(self, folder: &Path, name: &str, encoder: &Encoder) -> Result<()> {
        Card { name: name.into(), encoder: EncoderRecord::of(encoder), record: self }.save(folder)
    }
}

/// Adds measurements and the gate's verdict to the card of a model folder, if it has one.
pub fn add_measurements(folder: &Path, measurements: Vec<MeasurementRecord>, gate: Option<GateRecord>) -> Result<()> {
    let Some(mut card) = Card::load(folder) else { return Ok(()) };
    (card.record.measurements, card.record.gate) = (measurements, gate);
    card.save(folder)
}

impl Card {
    /// None without a record. One that cannot be read is no reason to fail: the folder is treated as that of another program.
    fn load(folder: &Path) -> Option<Self> {
        let file = folder.join(RECORD);
        let text = fs::read(&file).ok()?;
        let read = serde_json::from_slice(&text);
        read.inspect_err(|error| tracing::warn!("{}: not a record of this version: {error}", file.display())).ok()
    }

    fn save(&self, folder: &Path) -> Result<()> {
        write_json_atomic(&folder.join(RECORD), self)?;
        write_atomic(&folder.join(PAGE), page::page(self).as_bytes())
    }
}

impl EncoderRecord {
    fn of(encoder: &Encoder) -> Self {
        let prompts = encoder.prompts();
        Self {
            dimensions: encoder.dimensions(),
            max_tokens: encoder.reader().max_tokens(),
            similarity: encoder.similarity().into(),
            item_text: encoder.item_text().to_string(),
            query_prompt: prompts.of(Some(TextKind::Query)).into(),
            item_prompt: prompts.of(Some(TextKind::Item)).into(),
            loads_in_sentence_transformers: encoder.check_foreign().is_ok(),
        }
    }
}

impl MeasurementRecord {
    /// The metrics of an evaluation.
    pub fn of(metrics: &Metrics) -> Self {
        let names = names(metrics.asked.depth);
        let record = |at: &usize| {
            let name = &names[*at];
            let interval = metrics.intervals.get(name).copied();
            Some((name.clone(), MetricRecord { value: (*metrics.overall.get(name)?)?, interval }))
        };
        Self {
            data: folder_name(Path::new(&metrics.asked.data)),
            split: metrics.asked.split.clone(),
            pipeline: metrics.pipeline.clone(),
            num_queries: metrics.num_queries,
            metrics: SHOWN.iter().chain(&DETAILS).filter_map(record).collect(),
        }
    }
}

/// Name of a data folder.
pub fn data_name(data: &DataFolder) -> String {
    folder_name(data.path())
}

/// The last part of a path; of a relative path without one, such as `.`, that of the folder it leads to.
pub fn folder_name(path: &Path) -> String {
    let whole = path.canonicalize();
    let name = path.file_name().or_else(|| whole.as_ref().ok()?.file_name());
    name.map_or_else(
        || "model".into(),
        |name| name.to_string_lossy().chars().filter(|letter| !letter.is_control()).collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_is_added_to_those_before_and_measurements_are_dropped() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("minilm");
        fs::create_dir(&folder).unwrap();
        let base = ModelRecord::of_model(&folder, "minilm");
        assert_eq!((base.base.as_str(), base.is_base_on_hub), ("minilm", false));
        let average = |name: &str| StageRecord::Averaged { models: vec![(name.into(), 1.0)] };
        let card = Card { name: "one".into(), record: base.followed_by(average("a")), ..Card::default() };
        card.save(&folder).unwrap();
        let measured = vec![MeasurementRecord { split: "test".into(), ..MeasurementRecord::default() }];
        add_measurements(&folder, measured, Some(GateRecord { passed: true, ..GateRecord::default() })).unwrap();
        let record = ModelRecord::of_model(&folder, "another");
        assert_eq!((record.base.as_str(), record.measurements.len(), record.gate.is_some()), ("minilm", 1, true));
        assert!(fs::read_to_string(folder.join(PAGE)).unwrap().contains("passed"));
        let next = record.followed_by(average("b"));
        assert_eq!((next.stages.len(), next.measurements.len(), next.gate), (2, 0, None));
    }

    #[test]
    fn a_damaged_record_is_that_of_a_base_model() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join(RECORD), "{").unwrap();
        fs::write(home.path().join(PAGE), "---\nlanguage: en\n---\n").unwrap();
        let record = ModelRecord::of_model(home.path(), "owner/model");
        assert_eq!((record.base.as_str(), record.is_base_on_hub), ("owner/model", true));
        assert_eq!(record.languages, ["en"]);
        add_measurements(home.path(), Vec::new(), None).unwrap();
        assert_eq!(fs::read_to_string(home.path().join(RECORD)).unwrap(), "{");
    }
}
