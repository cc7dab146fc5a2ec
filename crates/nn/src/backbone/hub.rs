//! Resolves a model by folder, object store address or Hugging Face hub name. A hub name is looked up in the local cache
//! first, then downloaded; offline, the error names the cache.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use hf_hub::api::sync::ApiBuilder;
use hf_hub::{Cache, Repo};
use serde_json::Value;

use super::tokenizer;
use souk_io::error::{Error, Result};
use souk_io::objects;

const WEIGHTS: [&str; 2] = ["model.safetensors", "model.safetensors.index.json"];
/// Optional files of sentence-transformers.
const OPTIONAL: [&str; 3] = ["modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"];

/// Marker file in a snapshot, written after all files of a model were downloaded.
const COMPLETE: &str = "souk-fetched";

/// Returns a local folder for `name`: a path, an object store address such as `s3://BUCKET/MODEL`, or a hub name
/// `owner/model`.
pub fn resolve(name: &str) -> Result<PathBuf> {
    if objects::is_remote(name) {
        return objects::fetch_folder(name);
    }
    let path = Path::new(name);
    if path.is_dir() {
        return Ok(path.into());
    }
    if !is_hub_name(name) {
        return Err(Error::config("model", format!("`{name}` is neither a local folder nor a hub name (owner/model)")));
    }
    let cache = Cache::from_env();
    let config = cache.repo(Repo::model(name.into())).get("config.json");
    let cached = config.as_deref().and_then(Path::parent);
    match cached {
        Some(folder) if is_complete(folder) => Ok(folder.into()),
        _ => fetch(name, &cache, cached),
    }
}

fn is_hub_name(name: &str) -> bool {
    let parts: Vec<&str> = name.split('/').collect();
    parts.len() == 2 && parts.iter().all(|part| !part.is_empty() && !part.starts_with('.'))
}

/// The name on the hub of a model that the configuration calls `name` and whose files lie in `folder`: `name` itself, or that of the
/// repository in the hub's cache (`models--owner--model`).
pub fn hub_name(name: &str, folder: &Path) -> Option<String> {
    if is_hub_name(name) && !Path::new(name).is_dir() {
        return Some(name.into());
    }
    let mut parts = folder.components().filter_map(|part| part.as_os_str().to_str());
    let repository = parts.find_map(|part| part.strip_prefix("models--"))?.replacen("--", "/", 1);
    is_hub_name(&repository).then_some(repository)
}

/// Downloads a model. `cached` is the snapshot in the cache, which may be incomplete: other programs skip files they do not
/// need.
fn fetch(name: &str, cache: &Cache, cached: Option<&Path>) -> Result<PathBuf> {
    let failed = |file: &str, cause: Box<dyn std::error::Error + Send + Sync>| {
        let state = match cached {
            Some(folder) => {
                format!("the cache is incomplete; to use it as it is, pass --model {}", folder.display())
            }
            None => format!("it is not in the cache {}", cache.path().display()),
        };
        Error::Upstream {
            service: "Hugging Face hub".into(),
            problem: format!(
                "`{name}` is not a local folder; cannot download {file} from the hub, and {state}. Offline, pass --model a \
                 folder, or copy the cache from another machine (its path is HF_HOME)"
            ),
            retryable: true,
            source: Some(cause),
        }
    };
    let api = ApiBuilder::from_env()
        .with_progress(true)
        .with_retries(2)
        .build()
        .map_err(|e| failed("the model", e.into()))?;
    let repo = api.model(name.into());
    let listed = repo.info().map_err(|e| failed("the list of files", e.into()))?.siblings;
    let listed: Vec<String> = listed.into_iter().map(|sibling| sibling.rfilename).collect();
    let config = repo.get("config.json").map_err(|e| failed("config.json", e.into()))?;
    let folder = config.parent().unwrap_or(Path::new(".")).to_path_buf();
    for file in required_files(&listed) {
        repo.get(&file).map_err(|e| failed(&file, e.into()))?;
    }
    for shard in shards(&folder)? {
        repo.get(&shard).map_err(|e| failed(&shard, e.into()))?;
    }
    let marker = folder.join(COMPLETE);
    std::fs::write(&marker, "").map_err(Error::store(&marker, "write it"))?;
    Ok(folder)
}

/// Whether Souk downloaded all files, or the snapshot is a complete sentence-transformers folder. Weights alone are not
/// enough: without `modules.json` the pooling may differ from training.
fn is_complete(folder: &Path) -> bool {
    let recipe = ["modules.json", "tokenizer.json", "1_Pooling/config.json"];
    has_weights(folder) && (folder.join(COMPLETE).exists() || recipe.iter().all(|file| folder.join(file).exists()))
}

/// Whether all weight files exist.
fn has_weights(folder: &Path) -> bool {
    let all = |shards: BTreeSet<String>| !shards.is_empty() && shards.iter().all(|shard| folder.join(shard).exists());
    folder.join(WEIGHTS[0]).exists() || shards(folder).is_ok_and(all)
}

/// Files named by the shard index; empty without an index.
fn shards(folder: &Path) -> Result<BTreeSet<String>> {
    let index = folder.join(WEIGHTS[1]);
    let Ok(text) = std::fs::read(&index) else { return Ok(BTreeSet::new()) };
    let parsed: Value =
        serde_json::from_slice(&text).map_err(|e| Error::weights(&index, "not an index of shards").because(e))?;
    let files = parsed["weight_map"].as_object().into_iter().flat_map(|map| map.values());
    Ok(files.filter_map(Value::as_str).map(String::from).collect())
}

/// Files of a repository that a model needs; never other frameworks' weights.
fn required_files(listed: &[String]) -> Vec<String> {
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
    fn selects_only_required_files() {
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
        assert_eq!(required_files(&listed), expected);
    }

    #[test]
    fn a_name_on_the_hub_is_found_in_the_path_of_the_cache() {
        let home = tempfile::tempdir().unwrap();
        let found = |name: &str, folder: &str| hub_name(name, Path::new(folder));
        assert_eq!(found("owner/model", "x").as_deref(), Some("owner/model"));
        let cached = "hub/models--intfloat--e5-small--v2/snapshots/0a1b";
        assert_eq!(found(cached, cached).as_deref(), Some("intfloat/e5-small--v2"));
        let local = home.path().display().to_string();
        assert_eq!((found(&local, &local), found("./model", "model")), (None, None));
    }

    #[test]
    fn a_snapshot_without_modules_json_is_incomplete() {
        let dir = tempfile::tempdir().unwrap();
        let touch = |file: &str| std::fs::write(dir.path().join(file), "").unwrap();
        std::fs::create_dir(dir.path().join("1_Pooling")).unwrap();
        for file in ["config.json", "model.safetensors", "tokenizer.json", "1_Pooling/config.json"] {
            touch(file);
            assert!(!is_complete(dir.path()), "with {file}");
        }
        touch("modules.json");
        assert!(is_complete(dir.path()));
    }

    #[test]
    fn a_snapshot_without_a_shard_is_incomplete() {
        let dir = tempfile::tempdir().unwrap();
        let index = r#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#;
        std::fs::write(dir.path().join(WEIGHTS[1]), index).unwrap();
        std::fs::write(dir.path().join(COMPLETE), "").unwrap();
        std::fs::write(dir.path().join("model-1.safetensors"), "").unwrap();
        assert!(!is_complete(dir.path()));
        std::fs::write(dir.path().join("model-2.safetensors"), "").unwrap();
        assert!(is_complete(dir.path()));
    }

    #[test]
    fn rejects_a_name_that_is_neither_folder_nor_hub_name() {
        let error = resolve("no/such/folder").unwrap_err().to_string();
        assert!(error.contains("neither a local folder nor a hub name"), "{error}");
    }
}
