//! A model by its folder or by its hub name. A name is looked up in the hub's local cache first and fetched only where
//! the network allows; offline, the error names the cache.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use hf_hub::api::sync::ApiBuilder;
use hf_hub::{Cache, Repo};
use serde_json::Value;

use super::tokenizer;
use crate::error::{Error, Result};

const WEIGHTS: [&str; 2] = ["model.safetensors", "model.safetensors.index.json"];
/// What sentence-transformers adds, where the repository has it.
const OPTIONAL: [&str; 3] = ["modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"];

/// Gives a local folder for `name`: a path, or `owner/model` on the hub.
pub fn resolve(name: &str) -> Result<PathBuf> {
    let path = Path::new(name);
    if path.is_dir() {
        return Ok(path.into());
    }
    let parts: Vec<&str> = name.split('/').collect();
    let hub_like = parts.len() == 2 && parts.iter().all(|p| !p.is_empty() && !p.starts_with('.'));
    if !hub_like {
        return Err(Error::config("model", format!("`{name}` is no folder here, and no hub name (owner/model)")));
    }
    let cache = Cache::from_env();
    let kept = cache.repo(Repo::model(name.into()));
    let folder = kept.get("config.json").and_then(|config| config.parent().map(Path::to_path_buf));
    if let Some(folder) = folder.filter(|folder| has_weights(folder)) {
        return Ok(folder);
    }
    fetch(name, &cache)
}

fn fetch(name: &str, cache: &Cache) -> Result<PathBuf> {
    let failed = |file: &str, cause: Box<dyn std::error::Error + Send + Sync>| Error::Upstream {
        service: "Hugging Face hub".into(),
        problem: format!(
            "cannot fetch {file} of `{name}`, and it is not in the cache {}; on a machine without the hub, \
             give --model a folder, or copy the cache from a machine that has it (HF_HOME names its place)",
            cache.path().display()
        ),
        retryable: true,
        source: Some(cause),
    };
    let api =
        ApiBuilder::from_env().with_progress(true).with_retries(2).build().map_err(|e| failed("anything", e.into()))?;
    let repo = api.model(name.into());
    let config = repo.get("config.json").map_err(|e| failed("config.json", e.into()))?;
    let folder = config.parent().unwrap_or(Path::new(".")).to_path_buf();
    let listed: Vec<String> = repo
        .info()
        .map_err(|e| failed("the list of files", e.into()))?
        .siblings
        .into_iter()
        .map(|s| s.rfilename)
        .collect();
    for file in wanted(&listed) {
        repo.get(&file).map_err(|e| failed(&file, e.into()))?;
    }
    for shard in shards(&folder)? {
        repo.get(&shard).map_err(|e| failed(&shard, e.into()))?;
    }
    Ok(folder)
}

/// Whether an earlier fetch got all of the weights.
fn has_weights(folder: &Path) -> bool {
    let whole = |shards: BTreeSet<String>| !shards.is_empty() && shards.iter().all(|shard| folder.join(shard).exists());
    folder.join(WEIGHTS[0]).exists() || shards(folder).is_ok_and(whole)
}

/// The files that an index of shards names; none without an index.
fn shards(folder: &Path) -> Result<BTreeSet<String>> {
    let index = folder.join(WEIGHTS[1]);
    let Ok(text) = std::fs::read(&index) else { return Ok(BTreeSet::new()) };
    let parsed: Value =
        serde_json::from_slice(&text).map_err(|e| Error::weights(&index, "not an index of shards").because(e))?;
    let files = parsed["weight_map"].as_object().into_iter().flat_map(|map| map.values());
    Ok(files.filter_map(Value::as_str).map(String::from).collect())
}

/// What of a repository's files a model needs: never other frameworks' weights.
fn wanted(listed: &[String]) -> Vec<String> {
    let module = |file: &str| {
        let mut parts = file.split('/');
        let numbered = parts.next().is_some_and(|dir| dir.starts_with(|c: char| c.is_ascii_digit()));
        numbered && parts.next().is_some_and(|f| f == "config.json" || f == WEIGHTS[0])
    };
    let single = listed.iter().any(|file| file == WEIGHTS[0]);
    let weights = if single { WEIGHTS[0] } else { WEIGHTS[1] };
    listed
        .iter()
        .filter(|f| {
            *f == weights || tokenizer::FILES.contains(&f.as_str()) || OPTIONAL.contains(&f.as_str()) || module(f)
        })
        .cloned()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_model_needs_is_fetched() {
        let listed = [
            "config.json",
            "model.safetensors",
            "pytorch_model.bin",
            "onnx/model.onnx",
            "tokenizer.json",
            "1_Pooling/config.json",
            "2_Dense/model.safetensors",
            "2_Dense/pytorch_model.bin",
            "modules.json",
        ];
        let listed: Vec<String> = listed.iter().map(ToString::to_string).collect();
        let expected = [
            "model.safetensors",
            "tokenizer.json",
            "1_Pooling/config.json",
            "2_Dense/model.safetensors",
            "modules.json",
        ];
        assert_eq!(wanted(&listed), expected);
    }

    #[test]
    fn what_is_neither_folder_nor_name_is_refused() {
        let error = resolve("no/such/folder").unwrap_err().to_string();
        assert!(error.contains("no folder here, and no hub name"), "{error}");
    }
}
