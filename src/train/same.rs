//! Whether a stage that goes on is the stage that began: same settings, model and data. What only says where it runs may
//! differ.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Result};

/// What may differ between a stage and its continuation: where and how fast it runs, not what it computes.
const PLACE: [&str; 15] = [
    "model.device",
    "model.threads",
    "collective",
    "worker",
    "train.chunk_tokens",
    "train.keep_tokens",
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
/// What may be changed to save a stage that went wrong.
const MENDABLE: [&str; 3] = ["train.optimizer.learning_rate", "train.optimizer.clip", "train.skip_diverged"];

/// What a stage is of, by content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hashes {
    /// The model that the stage began with.
    pub model: String,
    /// Catalogue and pairs.
    pub data: String,
}

/// Refuses to go on with something else.
pub fn check_same((config, hashes): (&Value, &Hashes), now: (&Value, &Hashes)) -> Result<()> {
    let [before, after] = [config, now.0].map(|config| flat(&without_place(config)));
    let of = |all: &[(String, Value)], name: &str| {
        all.iter().find(|(other, _)| other == name).map_or("not set".into(), |(_, value)| value.to_string())
    };
    for (name, _) in before.iter().chain(&after) {
        let (was, is) = (of(&before, name), of(&after, name));
        if was == is {
            continue;
        }
        if !MENDABLE.contains(&name.as_str()) {
            let problem = format!("was {was} when the stage began, and is {is} now: a stage goes on as it began");
            return Err(Error::config(name, problem));
        }
        tracing::warn!("{name} was {was} until the last checkpoint, and is {is} from there");
    }
    if hashes.model != now.1.model {
        let problem = "is not the model that the stage began with: its files have changed; begin a new stage";
        return Err(Error::config("model.path", problem));
    }
    if hashes.data != now.1.data {
        let problem = "is not what the stage began with: its catalogue or its pairs have changed; begin a new stage";
        return Err(Error::config("--data", problem));
    }
    Ok(())
}

/// The settings that all processes of a stage share.
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

/// Every value under its whole name.
fn flat(value: &Value) -> Vec<(String, Value)> {
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
        let hashes = |model: &str, data: &str| Hashes { model: model.into(), data: data.into() };
        let (began, of) = (config(1.0, 4), hashes("m", "d"));
        let check = |config: Value, hashes: Hashes| {
            check_same((&began, &of), (&config, &hashes)).map_err(|error| error.to_string())
        };
        assert_eq!(check(config(0.5, 4), of.clone()), Ok(()));
        assert!(check(config(1.0, 5), of.clone()).unwrap_err().starts_with("train.batch: was 4"));
        assert!(check(json!({"train": {}}), of.clone()).unwrap_err().contains("is not set now"));
        assert!(check(config(1.0, 4), hashes("n", "d")).unwrap_err().starts_with("model.path"));
        assert!(check(config(1.0, 4), hashes("m", "e")).unwrap_err().starts_with("--data"));
    }
}
