//! Checks that a resumed stage has the settings, model and data it began with. Settings that only say where or how fast it runs may
//! differ.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use souk_io::error::{Error, Result};

/// Settings that do not change what is computed.
const PLACE: [&str; 18] = [
    "model.device",
    "model.threads",
    "collective",
    "worker",
    "train.chunk_tokens",
    "train.keep_tokens",
    "train.tensorboard",
    "train.mlflow",
    "train.wandb",
    "train.checkpoint_steps",
    "train.keep_checkpoints",
    "judge.url",
    "judge.key_env",
    "judge.limits",
    "judge.batch_tokens",
    "reward.cache",
    "reward.audit_rate",
    "reward.pause_seconds",
];
/// Settings of earlier versions that are gone, with the value that is what is computed now.
const GONE: [(&str, &str); 1] = [("objective.kl", "exact")];
/// Settings that may change to rescue a stage that diverged.
const ADJUSTABLE: [&str; 3] = ["train.optimizer.learning_rate", "train.optimizer.clip", "train.skip_diverged"];

/// Hashes of a stage's inputs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContentHashes {
    /// The model it began with.
    pub model: String,
    /// Catalogue and pairs.
    pub data: String,
}

/// A stage's resolved configuration and its inputs.
pub struct Resumable<'a> {
    pub config: &'a Value,
    pub hashes: &'a ContentHashes,
}

/// An error that names the first difference.
pub fn check_resumes(before: &Resumable, now: &Resumable) -> Result<()> {
    let [mut old, new] = [before.config, now.config].map(|config| flat(&without_place(config)));
    old.retain(|(name, value)| !GONE.iter().any(|(gone, same)| name == gone && value == same));
    let of = |all: &[(String, Value)], name: &str| {
        all.iter().find(|(other, _)| other == name).map_or("not set".into(), |(_, value)| value.to_string())
    };
    for (name, _) in old.iter().chain(&new) {
        let (was, is) = (of(&old, name), of(&new, name));
        if was == is {
            continue;
        }
        if !ADJUSTABLE.contains(&name.as_str()) {
            let problem = format!(
                "was {was} when the stage began and is {is} now: resume with the old value, or start a new stage"
            );
            return Err(Error::config(name, problem));
        }
        tracing::warn!("{name} was {was} until the last checkpoint, and is {is} from there");
    }
    if before.hashes.model != now.hashes.model {
        let problem = "is not the model that the stage began with: its files have changed; start a new stage";
        return Err(Error::config("model.path", problem));
    }
    if before.hashes.data != now.hashes.data {
        let problem =
            "is not the data that the stage began with: its catalogue or its pairs have changed; start a new stage";
        return Err(Error::config("--data", problem));
    }
    Ok(())
}

/// The settings that must be equal in all processes of a stage.
pub fn without_place(config: &Value) -> Value {
    let mut config = config.clone();
    for name in PLACE {
        let mut at = &mut config;
        let mut names = name.split('.').peekable();
        while let Some(part) = names.next() {
            let Some(table) = at.as_object_mut() else { break };
            if names.peek().is_none() {
                table.remove(part);
                break;
            }
            let Some(below) = table.get_mut(part) else { break };
            at = below;
        }
    }
    config
}

/// Every value by its dotted name.
pub fn flat(value: &Value) -> Vec<(String, Value)> {
    let Some(table) = value.as_object() else { return vec![(String::new(), value.clone())] };
    let named = |(name, below): (&String, &Value)| {
        let name = name.clone();
        flat(below).into_iter().map(move |(rest, value)| {
            let whole = if rest.is_empty() { name.clone() } else { format!("{name}.{rest}") };
            (whole, value)
        })
    };
    table.iter().flat_map(named).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_may_differ_is_left_out_and_the_rest_is_named() {
        let config = json!({"model": {"device": "cpu", "path": "a"}, "train": {"batch": 4, "chunk_tokens": 9}});
        assert_eq!(without_place(&config), json!({"model": {"path": "a"}, "train": {"batch": 4}}));
        let names: Vec<String> = flat(&config).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["model.device", "model.path", "train.batch", "train.chunk_tokens"]);
    }

    #[test]
    fn only_a_mend_may_change_what_is_learned() {
        let config = |rate: f64, batch: u64| json!({"train": {"batch": batch, "optimizer": {"learning_rate": rate}}});
        let hashes = |model: &str, data: &str| ContentHashes { model: model.into(), data: data.into() };
        let (began, of) = (config(1.0, 4), hashes("m", "d"));
        let check = |config: Value, hashes: ContentHashes| {
            let before = Resumable { config: &began, hashes: &of };
            check_resumes(&before, &Resumable { config: &config, hashes: &hashes }).map_err(|error| error.to_string())
        };
        assert_eq!(check(config(0.5, 4), of.clone()), Ok(()));
        let gone = |kl: &str| {
            let before = json!({"objective": {"kl": kl}});
            let before = Resumable { config: &before, hashes: &of };
            check_resumes(&before, &Resumable { config: &json!({"objective": {}}), hashes: &of }).is_ok()
        };
        assert!(gone("exact") && !gone("k3"));
        assert!(check(config(1.0, 5), of.clone()).unwrap_err().starts_with("train.batch: was 4"));
        assert!(check(json!({"train": {}}), of.clone()).unwrap_err().contains("is not set now"));
        assert!(check(config(1.0, 4), hashes("n", "d")).unwrap_err().starts_with("model.path"));
        assert!(check(config(1.0, 4), hashes("m", "e")).unwrap_err().starts_with("--data"));
    }
}
