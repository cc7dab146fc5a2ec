//! Training log: `steps.jsonl` in the model's folder, one JSON object per step. Unknown keys are ignored, and so is an
//! incomplete last line, left by a running or killed trainer. If a resumed run repeated steps, the later ones count.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde::{Deserialize, Serialize};

use souk_io::error::{Error, Result};

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
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TrainingLog {
    pub loss: Vec<(f64, f64)>,
    pub learning_rate: Vec<(f64, f64)>,
    pub texts_per_second: Vec<(f64, f64)>,
    /// These and the following curves exist only in stages with rewards.
    pub reward: Vec<(f64, f64)>,
    /// Fractions of L1 to L4 among the candidates.
    pub levels: Vec<(f64, [f64; 4])>,
    pub kl: Vec<(f64, f64)>,
    pub entropy: Vec<(f64, f64)>,
}

impl TrainingLog {
    /// Points of a curve on a screen, which shows no more.
    pub const SHOWN: usize = 1500;

    /// Loads a model folder's log; `None` if it has none.
    pub fn load(model: &Path) -> Result<Option<Self>> {
        let file = model.join(FILE);
        if !file.exists() {
            return Ok(None);
        }
        let mut steps: BTreeMap<u64, Step> = BTreeMap::new();
        let mut input = BufReader::new(File::open(&file).map_err(Error::store(&file, "open it"))?);
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            let _ = input.read_until(b'\n', &mut line).map_err(Error::store(&file, "read it"))?;
            if !line.ends_with(b"\n") {
                break;
            }
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

    /// Thins the curves to at most `most` evenly spaced points, plus the last.
    pub fn thinned(self, most: usize) -> Self {
        Self {
            loss: thin(self.loss, most),
            learning_rate: thin(self.learning_rate, most),
            texts_per_second: thin(self.texts_per_second, most),
            reward: thin(self.reward, most),
            levels: thin(self.levels, most),
            kl: thin(self.kl, most),
            entropy: thin(self.entropy, most),
        }
    }
}

fn thin<T: Copy>(points: Vec<T>, most: usize) -> Vec<T> {
    let (stride, last) = (points.len().div_ceil(most).max(1), points.len().saturating_sub(1));
    let kept = points.iter().enumerate().filter(|(at, _)| at % stride == 0 || *at == last);
    kept.map(|(_, point)| *point).collect()
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

    #[test]
    fn a_line_that_is_being_written_is_passed_over() {
        let home = tempfile::tempdir().unwrap();
        let row = "{\"step\":1,\"loss\":3,\"learning_rate\":1e-5}\n";
        for half in ["{\"step\":2,\"lo", "{\"step\":2}"] {
            fs::write(home.path().join(FILE), row.to_owned() + half).unwrap();
            assert_eq!(TrainingLog::load(home.path()).unwrap().unwrap().loss, [(1.0, 3.0)]);
        }
    }

    #[test]
    fn a_thinned_curve_ends_where_it_ended() {
        let log =
            |num: u32| TrainingLog { kl: (0..num).map(|at| (at.into(), 0.5)).collect(), ..TrainingLog::default() };
        let steps = |num| log(num).thinned(4).kl.iter().map(|(step, _)| *step).collect::<Vec<_>>();
        assert_eq!(steps(10), [0.0, 3.0, 6.0, 9.0]);
        assert_eq!(steps(8), [0.0, 2.0, 4.0, 6.0, 7.0]);
        assert_eq!(steps(4), [0.0, 1.0, 2.0, 3.0]);
        assert!(steps(0).is_empty());
    }
}
