//! A model by its folder, by its address in an object store, or by its hub name. A name is looked up in the hub's local cache
//! first and fetched only where the network allows; offline, the error names the cache.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use hf_hub::api::sync::ApiBuilder;
use hf_hub::{Cache, Repo};
use serde_json::Value;

use super::tokenizer;
use souk_io::error::{Error, Result};
use souk_io::objects;

const WEIGHTS: [&str; 2] = ["model.safetensors", "model.safetensors.index.json"];
/// What sentence-transformers adds, where the repository has it.
const OPTIONAL: [&str; 3] = ["modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"];

/// Written into a snapshot once everything that a model needs was fetched.
const WHOLE: &str = "souk-fetched";

/// Gives a local folder for `name`: a path, `s3://BUCKET/MODEL` and the like, or `owner/model` on the hub.
pub fn resolve(name: &str) -> Result<PathBuf> {
    if objects::is_remote(name) {
        return objects::fetched(name);
    }
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
    let config = cache.repo(Repo::model(name.into())).get("config.json");
    let kept = config.as_deref().and_then(Path::parent);
    match kept {
        Some(folder) if is_whole(folder) => Ok(folder.into()),
        _ => fetch(name, &cache, kept),
    }
}

/// `kept` is what the cache holds already, which may be a part: other programs leave out what they do not need.
fn fetch(name: &str, cache: &Cache, kept: Option<&Path>) -> Result<PathBuf> {
    let failed = |file: &str, cause: Box<dyn std::error::Error + Send + Sync>| {
        let place = match kept {
            Some(folder) => {
                format!("{} holds a part of it; give --model that folder to use it as it is", folder.display())
            }
            None => format!("it is not in the cache {}", cache.path().display()),
        };
        Error::Upstream {
            service: "Hugging Face hub".into(),
            problem: format!(
                "`{name}` is no folder here; cannot fetch {file} from the hub, and {place}. On a machine without the \
                 hub, give --model a folder, or copy the cache from a machine that has it (HF_HOME names its place)"
            ),
            retryable: true,
            source: Some(cause),
        }
    };
    let api =
        ApiBuilder::from_env().with_progress(true).with_retries(2).build().map_err(|e| failed("anything", e.into()))?;
    let repo = api.model(name.into());
    let listed = repo.info().map_err(|e| failed("the list of files", e.into()))?.siblings;
    let listed: Vec<String> = listed.into_iter().map(|sibling| sibling.rfilename).collect();
    let config = repo.get("config.json").map_err(|e| failed("config.json", e.into()))?;
    let folder = config.parent().unwrap_or(Path::new(".")).to_path_buf();
    for file in wanted(&listed) {
        repo.get(&file).map_err(|e| failed(&file, e.into()))?;
    }
    for shard in shards(&folder)? {
        repo.get(&shard).map_err(|e| failed(&shard, e.into()))?;
    }
    let mark = folder.join(WHOLE);
    std::fs::write(&mark, "").map_err(Error::store(&mark, "write it"))?;
    Ok(folder)
}

/// Whether Souk itself fetched everything, or what is there is a whole sentence-transformers folder. Weights alone are
/// not enough: without `modules.json` a model may be pooled in another way than it was trained.
fn is_whole(folder: &Path) -> bool {
    let recipe = ["modules.json", "tokenizer.json", "1_Pooling/config.json"];
    has_weights(folder) && (folder.join(WHOLE).exists() || recipe.iter().all(|file| folder.join(file).exists()))
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
    fn a_snapshot_without_its_recipe_is_not_whole() {
        let dir = tempfile::tempdir().unwrap();
        let touch = |file: &str| std::fs::write(dir.path().join(file), "").unwrap();
        std::fs::create_dir(dir.path().join("1_Pooling")).unwrap();
        for file in ["config.json", "model.safetensors", "tokenizer.json", "1_Pooling/config.json"] {
            touch(file);
            assert!(!is_whole(dir.path()), "with {file}");
        }
        touch("modules.json");
        assert!(is_whole(dir.path()));
    }

    #[test]
    fn all_shards_must_be_there() {
        let dir = tempfile::tempdir().unwrap();
        let index = r#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#;
        std::fs::write(dir.path().join(WEIGHTS[1]), index).unwrap();
        std::fs::write(dir.path().join(WHOLE), "").unwrap();
        std::fs::write(dir.path().join("model-1.safetensors"), "").unwrap();
        assert!(!is_whole(dir.path()));
        std::fs::write(dir.path().join("model-2.safetensors"), "").unwrap();
        assert!(is_whole(dir.path()));
    }

    #[test]
    fn what_is_neither_folder_nor_name_is_refused() {
        let error = resolve("no/such/folder").unwrap_err().to_string();
        assert!(error.contains("no folder here, and no hub name"), "{error}");
    }
}
