//! The record of a stage in its model's card: what it trained on, and its settings without paths and addresses.

use std::path::Path;

use serde_json::Value;
use toml::Table;

use super::evaluator::Evaluator;
use super::resume_check::without_place;
use crate::model_card::{BestRecord, ModelRecord, StageRecord, TrainedRecord, folder_name};
use souk_ingest::dataset::Pairs;
use souk_nn::encoder::Encoder;

/// Data that a stage trained on.
pub struct StageInputs<'a> {
    /// Name of the data folder.
    pub data: &'a str,
    pub pairs: &'a Pairs,
    pub num_items: u32,
    /// The resolved configuration.
    pub config: &'a Value,
    pub evaluator: Option<&'a Evaluator>,
}

/// The record of the model that `steps` steps have made of the encoder's folder.
pub fn stage_record(encoder: &Encoder, inputs: &StageInputs, steps: u64, loss: Option<f64>) -> ModelRecord {
    let StageInputs { data, pairs, num_items, config, evaluator } = inputs;
    let name = config["model"]["path"].as_str().unwrap_or_default();
    let before = ModelRecord::of_model(encoder.dir(), name);
    let settings = settings(config);
    let model = if before.stages.is_empty() { before.base.clone() } else { shortened(name) };
    before.followed_by(StageRecord::Trained(Box::new(TrainedRecord {
        objective: config["objective"]["type"].as_str().unwrap_or_default().into(),
        model,
        data: (*data).into(),
        num_pairs: pairs.len(),
        pairs: pairs.kind().into(),
        num_items: (*num_items).into(),
        steps,
        loss,
        best: evaluator.and_then(best),
        settings: toml::to_string(&settings).unwrap_or_default(),
    })))
}

fn best(evaluator: &Evaluator) -> Option<BestRecord> {
    let state = evaluator.state.as_ref()?;
    let (split, num_queries) = evaluator.split();
    let (step, value, split) = (state.best_step, state.best, split.to_owned());
    Some(BestRecord { step, metric: evaluator.metric().into(), value, split, num_queries })
}

/// The settings that the result depends on, with the names of folders instead of absolute paths.
fn settings(config: &Value) -> Table {
    let Some(table) = in_toml(&without_place(config)) else { return Table::new() };
    table.as_table().cloned().unwrap_or_default()
}

fn in_toml(value: &Value) -> Option<toml::Value> {
    Some(match value {
        Value::Null => return None,
        Value::Bool(value) => (*value).into(),
        Value::Number(number) => number.as_i64().map_or_else(|| number.as_f64().unwrap_or_default().into(), Into::into),
        Value::String(text) => shortened(text).into(),
        Value::Array(values) => values.iter().filter_map(in_toml).collect::<Vec<_>>().into(),
        Value::Object(fields) => {
            let public = fields.iter().filter(|(name, _)| !["url", "key_env"].contains(&name.as_str()));
            let fields = public.filter_map(|(name, value)| Some((name.clone(), in_toml(value)?)));
            toml::Value::Table(Some(fields.collect::<Table>()).filter(|table| !table.is_empty())?)
        }
    })
}

/// The last part of an absolute path; other texts as they are.
fn shortened(text: &str) -> String {
    let path = Path::new(text);
    if path.is_absolute() { folder_name(path) } else { text.into() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn settings_have_no_paths_addresses_or_devices() {
        let config = json!({
            "model": {"path": "/home/someone/models/minilm", "device": "cpu", "adapter": null}, "encoder": {"pooling": null},
            "train": {"batch": 12, "optimizer": {"learning_rate": 1e-5}, "writer": {"url": "http://10.0.0.1", "model": "m"}},
            "objective": {"type": "info_nce", "dimensions": [16, 8], "judged_split": null},
            "judge": {"type": "souk", "url": "http://10.0.0.2", "key_env": "KEY"},
        });
        let text = toml::to_string(&settings(&config)).unwrap();
        let again: Table = text.parse().unwrap();
        let expected = json!({
            "model": {"path": "minilm"},
            "train": {"batch": 12, "optimizer": {"learning_rate": 1e-5}, "writer": {"model": "m"}},
            "objective": {"type": "info_nce", "dimensions": [16, 8]},
            "judge": {"type": "souk"},
        });
        assert_eq!(serde_json::to_value(again).unwrap(), expected, "{text}");
    }
}
