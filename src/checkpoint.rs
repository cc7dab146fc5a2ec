//! Checkpoints: weights, optimizer state and the stage's position, so that training resumes after a kill with the same results.
//! Each checkpoint is a folder that is written under another name, synced and renamed, with a checksum of its tensors; the last
//! few are kept. All random draws are functions of the seed and the step, so there is no generator state.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tch::Tensor;

use souk_ingest::dataset::Span;
use souk_ingest::log::Position;
use souk_io::atomic_dir::AtomicDir;
use souk_io::error::{Error, Result};
use souk_nn::backbone::weights::{read_tensors, write_tensors};

const FORMAT: u32 = 3;
const STATE: &str = "state.json";
const TENSORS: &str = "tensors.safetensors";
const PREFIX: &str = "step-";

/// Progress of a stage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckpointState {
    /// Version of the format, [`CheckpointState::FORMAT`].
    pub format: u32,
    /// Steps done.
    pub step: u64,
    /// Steps of the whole stage.
    pub steps: u64,
    /// Optimizer steps; a step of the stage may make several.
    pub updates: u64,
    /// Number of draws trained on.
    pub drawn: u64,
    /// The stage's random seed.
    pub seed: u64,
    /// First message of each log lane that is not trained on yet.
    pub low_water: BTreeMap<String, Position>,
    /// Span of the log that the stage's examples come from.
    pub span: Option<Span>,
    /// Resolved configuration.
    pub config: Value,
    /// SHA-256 of `config`.
    pub config_hash: String,
    /// Hash of the stage's initial model.
    pub model_hash: String,
    /// Hash of catalogue and pairs.
    pub data_hash: String,
    /// Reward source, if the stage learns from rewards.
    pub reward_source: Option<String>,
    /// Number of processes that wrote it.
    pub world_size: usize,
    /// SHA-256 of the tensors.
    #[serde(default)]
    pub tensors: String,
    /// Evaluations so far, if the stage evaluates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evaluation: Option<EvaluationState>,
}

/// Evaluations of a stage so far. The best weights are among the tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvaluationState {
    /// Steps before the last evaluation.
    pub last: u64,
    /// Steps before the best one.
    pub best_step: u64,
    /// Value of the metric there.
    pub best: f64,
    /// Evaluations since then.
    pub num_since_best: u64,
}

impl CheckpointState {
    /// Format that this version reads and writes.
    pub const FORMAT: u32 = FORMAT;

    /// Digest of a configuration.
    pub fn hash(config: &Value) -> String {
        hex(&Sha256::digest(config.to_string()))
    }
}

/// Checkpoints of one stage.
pub struct Checkpoints {
    folder: PathBuf,
    keep: usize,
    writing: Option<JoinHandle<Result<()>>>,
}

impl Checkpoints {
    /// Opens the checkpoints in `folder`, and keeps the newest `keep`.
    pub fn new(folder: &Path, keep: usize) -> Self {
        Self { folder: folder.into(), keep: keep.max(1), writing: None }
    }

    /// Writes a checkpoint on a background thread, once the previous one is written. Its error is returned by the next call.
    pub fn save(&mut self, state: CheckpointState, tensors: BTreeMap<String, Tensor>) -> Result<()> {
        self.finish()?;
        let (folder, keep) = (self.folder.clone(), self.keep);
        let step = state.step;
        let write = move || write(&folder, state, &tensors).and_then(|()| remove_old(&folder, step, keep));
        let thread = std::thread::Builder::new().name("souk-checkpoint".into()).spawn(write);
        self.writing = Some(thread.map_err(|e| Error::device("no thread for a checkpoint").because(e))?);
        Ok(())
    }

    /// Waits until all checkpoints are on disk.
    pub fn finish(&mut self) -> Result<()> {
        let Some(thread) = self.writing.take() else { return Ok(()) };
        thread.join().unwrap_or_else(|_| Err(Error::device("the thread that writes checkpoints has panicked")))
    }

    /// Newest complete checkpoint. A damaged one is skipped with a warning; if all are damaged, that is an error.
    pub fn latest(&self) -> Result<Option<(CheckpointState, BTreeMap<String, Tensor>)>> {
        let mut first = None;
        for (_, folder) in list(&self.folder)?.into_iter().rev() {
            match load(&folder) {
                Ok(loaded) => return Ok(Some(loaded)),
                Err(error) => {
                    tracing::warn!("a checkpoint cannot be used: {error}");
                    first.get_or_insert(error);
                }
            }
        }
        first.map_or(Ok(None), Err)
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            tracing::error!("the last checkpoint was not written: {error}");
        }
    }
}

fn write(folder: &Path, mut state: CheckpointState, tensors: &BTreeMap<String, Tensor>) -> Result<()> {
    let place = folder.join(format!("{PREFIX}{:09}", state.step));
    sweep(folder)?;
    if place.exists() {
        // the stage was resumed before this step and reached it again
        fs::remove_dir_all(&place).map_err(Error::store(&place, "remove it"))?;
    }
    let atomic_dir = AtomicDir::new(&place)?;
    let file = atomic_dir.staging.join(TENSORS);
    write_tensors(&file, tensors)?;
    state.tensors = sum(&file)?;
    let path = atomic_dir.staging.join(STATE);
    fs::write(&path, format!("{:#}\n", serde_json::json!(state))).map_err(Error::store(&path, "write it"))?;
    atomic_dir.finish()
}

fn load(folder: &Path) -> Result<(CheckpointState, BTreeMap<String, Tensor>)> {
    let path = folder.join(STATE);
    let text = fs::read(&path).map_err(Error::store(&path, "read it"))?;
    let state: CheckpointState =
        serde_json::from_slice(&text).map_err(|e| Error::data(&path, None, "is no state of a stage").because(e))?;
    if state.format != FORMAT {
        let problem = format!("has format {}, this program reads {FORMAT}", state.format);
        return Err(Error::data(&path, None, problem));
    }
    let file = folder.join(TENSORS);
    if sum(&file)? != state.tensors {
        return Err(Error::data(&file, None, "is damaged: its checksum is not the one that was written"));
    }
    Ok((state, read_tensors(&file)?))
}

/// Steps and folders of the finished checkpoints, oldest first.
fn list(folder: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Error::store(folder, "list the checkpoints")(e)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(Error::store(folder, "list the checkpoints"))?;
        let name = entry.file_name();
        let step = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.parse().ok());
        // an empty folder reserves the name of one that was being written
        found.extend(step.filter(|_| entry.path().join(STATE).exists()).map(|step| (step, entry.path())));
    }
    found.sort_unstable();
    Ok(found)
}

/// Keeps the last ones up to `step`. Later ones must be unreadable, or the stage would have resumed from them.
fn remove_old(folder: &Path, step: u64, keep: usize) -> Result<()> {
    let (good, refused): (Vec<_>, Vec<_>) = list(folder)?.into_iter().partition(|(number, _)| *number <= step);
    for (_, old) in good[..good.len().saturating_sub(keep)].iter().chain(&refused) {
        fs::remove_dir_all(old).map_err(Error::store(old, "remove an old checkpoint"))?;
    }
    Ok(())
}

/// Removes partial checkpoints of killed processes.
fn sweep(folder: &Path) -> Result<()> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(Error::store(folder, "list the checkpoints")(e)),
    };
    for entry in entries {
        let path = entry.map_err(Error::store(folder, "list the checkpoints"))?.path();
        let half = path.extension().is_some_and(|extension| extension == "part");
        if half {
            fs::remove_dir_all(&path).map_err(Error::store(&path, "remove what a killed process left"))?;
        } else {
            // an empty one reserves a name; any other stays
            drop(fs::remove_dir(&path));
        }
    }
    Ok(())
}

fn sum(file: &Path) -> Result<String> {
    let mut opened = fs::File::open(file).map_err(Error::store(file, "open it"))?;
    let (mut hash, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        match opened.read(&mut buffer).map_err(Error::store(file, "read it"))? {
            0 => break,
            length => hash.update(&buffer[..length]),
        }
    }
    Ok(hex(&hash.finalize()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(step: u64) -> CheckpointState {
        CheckpointState {
            format: FORMAT,
            step,
            steps: 9,
            updates: step,
            drawn: step * 4,
            seed: 1,
            low_water: BTreeMap::new(),
            span: None,
            config: Value::Null,
            config_hash: CheckpointState::hash(&Value::Null),
            model_hash: String::new(),
            data_hash: String::new(),
            reward_source: None,
            world_size: 1,
            tensors: String::new(),
            evaluation: None,
        }
    }

    fn tensors(value: f32) -> BTreeMap<String, Tensor> {
        BTreeMap::from([("weight/a".into(), Tensor::from_slice(&[value, 2.0]))])
    }

    #[test]
    fn the_newest_whole_one_is_found_and_old_ones_go() {
        let home = tempfile::tempdir().unwrap();
        let mut checkpoints = Checkpoints::new(&home.path().join("checkpoints"), 2);
        assert!(checkpoints.latest().unwrap().is_none());
        for step in [3, 6, 9] {
            checkpoints.save(state(step), tensors(step as f32)).unwrap();
        }
        checkpoints.finish().unwrap();
        let folder = home.path().join("checkpoints");
        assert_eq!(list(&folder).unwrap().iter().map(|(step, _)| *step).collect::<Vec<_>>(), [6, 9]);
        let (found, held) = checkpoints.latest().unwrap().unwrap();
        assert_eq!((found.step, found.drawn, held["weight/a"].double_value(&[0])), (9, 36, 9.0));

        let newest = folder.join("step-000000009").join(TENSORS);
        let good = fs::read(&newest).unwrap();
        let mut bad = good.clone();
        *bad.last_mut().unwrap() ^= 1;
        for bytes in [&bad[..], &good[..good.len() / 2], &[]] {
            fs::write(&newest, bytes).unwrap();
            assert_eq!(checkpoints.latest().unwrap().unwrap().0.step, 6, "the one before");
        }
        fs::write(folder.join("step-000000006").join(STATE), "{").unwrap();
        assert!(checkpoints.latest().is_err(), "nothing is left to go on from");

        checkpoints.save(state(7), tensors(7.0)).unwrap();
        checkpoints.finish().unwrap();
        assert_eq!(checkpoints.latest().unwrap().unwrap().0.step, 7, "what was just written stays");
        assert_eq!(list(&folder).unwrap().len(), 2, "and what was refused after it goes");
    }

    #[test]
    fn what_a_killed_writer_left_is_no_checkpoint() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("checkpoints");
        fs::create_dir_all(folder.join("step-000000004.part")).unwrap();
        fs::create_dir_all(folder.join("step-000000004")).unwrap();
        fs::create_dir_all(folder.join("step-000000003.part")).unwrap();
        fs::write(folder.join("step-000000003.part").join(TENSORS), "half").unwrap();
        let mut checkpoints = Checkpoints::new(&folder, 1);
        assert!(checkpoints.latest().unwrap().is_none());
        checkpoints.save(state(4), tensors(1.0)).unwrap();
        checkpoints.finish().unwrap();
        let found = checkpoints.latest().unwrap().unwrap().0;
        assert_eq!(found, CheckpointState { tensors: found.tensors.clone(), ..state(4) });
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "what was left is gone");
    }

    #[test]
    fn a_write_that_fails_is_said_with_the_next_call() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("checkpoints"), "a file").unwrap();
        let mut checkpoints = Checkpoints::new(&home.path().join("checkpoints"), 1);
        checkpoints.save(state(1), tensors(1.0)).unwrap();
        assert!(checkpoints.finish().is_err());
    }
}
