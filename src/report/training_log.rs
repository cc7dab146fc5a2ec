//! What training wrote down of its steps: `steps.jsonl`, one JSON object for each, in the model's folder. Unknown keys
//! are passed over. Where a resumed training took steps again, the later ones count.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use crate::beir::lines;
use crate::error::{Error, Result};

const FILE: &str = "steps.jsonl";

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
struct Mean {
    mean: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
struct Step {
    step: u64,
    loss: f64,
    learning_rate: f64,
    texts_per_second: Option<f64>,
    reward: Option<Mean>,
    levels: Option<[f64; 4]>,
    kl: Option<f64>,
    entropy: Option<f64>,
}

/// Curves over steps: (step, value).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainingLog {
    pub loss: Vec<(f64, f64)>,
    pub learning_rate: Vec<(f64, f64)>,
    pub texts_per_second: Vec<(f64, f64)>,
    /// Of stages that learn from rewards, as all that follows.
    pub reward: Vec<(f64, f64)>,
    /// Shares of L1 to L4 among the candidates.
    pub levels: Vec<(f64, [f64; 4])>,
    pub kl: Vec<(f64, f64)>,
    pub entropy: Vec<(f64, f64)>,
}

impl TrainingLog {
    /// Of a model's folder; `None` where it has no log.
    pub fn load(model: &Path) -> Result<Option<Self>> {
        let file = model.join(FILE);
        if !file.exists() {
            return Ok(None);
        }
        let mut steps: BTreeMap<u64, Step> = BTreeMap::new();
        for line in lines(&file)? {
            let (number, line) = line?;
            let step: Step = serde_json::from_slice(&line).map_err(|e| {
                let problem = "not a step: expected {\"step\", \"loss\", \"learning_rate\", ...}";
                Error::data(&file, Some(number), problem).because(e)
            })?;
            steps.split_off(&step.step);
            steps.insert(step.step, step);
        }
        let curve = |value: fn(&Step) -> Option<f64>| -> Vec<(f64, f64)> {
            steps.values().filter_map(|step| Some((step.step as f64, value(step)?))).collect()
        };
        Ok(Some(Self {
            loss: curve(|step| Some(step.loss)),
            learning_rate: curve(|step| Some(step.learning_rate)),
            texts_per_second: curve(|step| step.texts_per_second),
            reward: curve(|step| step.reward.map(|reward| reward.mean)),
            levels: steps.values().filter_map(|step| Some((step.step as f64, step.levels?))).collect(),
            kl: curve(|step| step.kl),
            entropy: curve(|step| step.entropy),
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn steps_taken_again_replace_those_before() {
        let home = tempfile::tempdir().unwrap();
        assert_eq!(TrainingLog::load(home.path()).unwrap(), None);
        let row =
            |step: u64, loss: f64| format!("{{\"step\":{step},\"loss\":{loss},\"learning_rate\":1e-5,\"masked\":3}}\n");
        let text = [row(1, 3.0), row(2, 2.0), row(3, 1.0), row(2, 2.5)].concat();
        fs::write(home.path().join(FILE), text).unwrap();
        let log = TrainingLog::load(home.path()).unwrap().unwrap();
        assert_eq!(log.loss, [(1.0, 3.0), (2.0, 2.5)]);
        assert!(log.texts_per_second.is_empty());
        fs::write(home.path().join(FILE), row(1, 3.0) + "{\"step\":2}\n").unwrap();
        let error = TrainingLog::load(home.path()).unwrap_err().to_string();
        assert!(error.contains("steps.jsonl, line 2: not a step"), "{error}");
    }
}
