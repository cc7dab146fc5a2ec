//! Bad input: every case is an error that names file and field, or defined behaviour; none panics.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use souk_io::error::Error;
use souk_nn::backbone::lora::Lora;
use souk_nn::backbone::weights::{Parameters, read_tensors, write_tensors};
use souk_nn::backbone::{Architecture, Backbone, Precision};
use souk_nn::encoder::{Encoder, Overrides, Placement};
use souk_testing::copy_folder;
use tch::{Device, Kind};

fn golden(name: &str) -> PathBuf {
    souk_testing::golden("").join(name)
}

fn open(dir: &Path) -> Result<Encoder, Error> {
    let placement =
        Placement { device: Device::Cpu, precision: Precision::F32, adapter: None, ignore_fields: Vec::new() };
    Encoder::open(dir, placement, Overrides::default())
}

/// Copy of a valid folder with one change.
fn changed(change: impl FnOnce(&Path)) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    copy_folder(&golden("st_mean_dense"), dir.path());
    change(dir.path());
    dir
}

fn edit(path: &Path, from: &str, to: &str) {
    let text = fs::read_to_string(path).unwrap();
    assert!(text.contains(from), "{} has no {from}", path.display());
    fs::write(path, text.replacen(from, to, 1)).unwrap();
}

/// Opens the folder after `change` and checks that the error contains all of `words`.
fn assert_error(words: &[&str], change: impl FnOnce(&Path)) {
    let dir = changed(change);
    let error = open(dir.path()).err().unwrap_or_else(|| panic!("accepted, but expected an error with {words:?}"));
    let message = error.to_string();
    for word in words {
        assert!(message.contains(word), "`{message}` does not contain `{word}`");
    }
}

#[test]
fn the_unchanged_folder_opens() {
    open(changed(|_| {}).path()).unwrap();
}

#[test]
fn missing_files_are_named() {
    for file in
        ["config.json", "model.safetensors", "tokenizer.json", "1_Pooling/config.json", "2_Dense/model.safetensors"]
    {
        assert_error(&[file], |dir| fs::remove_file(dir.join(file)).unwrap());
    }
}

#[test]
fn truncated_weights_are_errors() {
    let size = fs::metadata(golden("st_mean_dense/model.safetensors")).unwrap().len();
    for keep in [0, 5, 8, 200, size - 1] {
        assert_error(&["model.safetensors"], |dir| {
            let file = fs::OpenOptions::new().write(true).open(dir.join("model.safetensors")).unwrap();
            file.set_len(keep).unwrap();
        });
    }
}

#[test]
fn a_tensor_of_the_wrong_shape_is_named_with_both_shapes() {
    assert_error(
        &["model.safetensors", "`encoder.layer.0.intermediate.dense.weight`", "but config.json needs"],
        |dir| {
            let config = dir.join("config.json");
            let mut json: serde_json::Value = serde_json::from_slice(&fs::read(&config).unwrap()).unwrap();
            json["intermediate_size"] = 12345.into();
            fs::write(config, json.to_string()).unwrap();
        },
    );
}

#[test]
fn an_unknown_architecture_and_unsupported_fields_are_named() {
    let config = |dir: &Path, from: &str, to: &str| edit(&dir.join("config.json"), from, to);
    assert_error(&["config.json", "`model_type`", "`t5`", "nearest, bert"], |dir| config(dir, "\"bert\"", "\"t5\""));
    assert_error(&["config.json", "`max_position_embeddings`", "positions start after"], |dir| {
        config(dir, "\"pad_token_id\": 0", "\"pad_token_id\": 64");
        config(dir, "\"bert\"", "\"xlm-roberta\"");
    });
    assert_error(&["`hidden_act`", "`mish`"], |dir| config(dir, "\"gelu\"", "\"mish\""));
    assert_error(&["`quantization_config`", "ignore_fields"], |dir| {
        config(dir, "\"model_type\"", "\"quantization_config\": {\"bits\": 4}, \"model_type\"");
    });
    assert_error(&["config.json", "not valid JSON"], |dir| config(dir, "{", "{{"));
    assert_error(&["`position_embedding_type`", "alibi"], |dir| {
        config(dir, "\"model_type\"", "\"position_embedding_type\": \"alibi\", \"model_type\"");
    });
}

#[test]
fn of_a_tokenizer_with_more_ids_than_embeddings_only_texts_with_those_ids_are_errors() {
    let read_json = |path: PathBuf| -> serde_json::Value { serde_json::from_slice(&fs::read(path).unwrap()).unwrap() };
    let rows = read_json(golden("st_mean_dense/config.json"))["vocab_size"].as_u64().unwrap();
    let dir = changed(|dir| {
        let mut json = read_json(dir.join("tokenizer.json"));
        let extra = serde_json::json!({
            "id": rows, "content": "<|extra|>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        });
        json["added_tokens"].as_array_mut().unwrap().push(extra);
        fs::write(dir.join("tokenizer.json"), json.to_string()).unwrap();
    });
    let (with, without) = (open(dir.path()).unwrap(), open(&golden("st_mean_dense")).unwrap());
    let read = |encoder: &Encoder, text: &str| encoder.reader().read(text, None);
    assert_eq!(read(&with, "oak desk").unwrap(), read(&without, "oak desk").unwrap());
    let error = read(&with, "oak <|extra|> desk").unwrap_err().to_string();
    let expected = format!("`<|extra|>` with id {rows}, but the model has embeddings for {rows} ids only");
    assert!(error.contains(&expected), "{error}");
}

#[test]
fn rejects_a_file_that_is_no_tokenizer() {
    assert_error(&["tokenizer.json", "not a tokenizer"], |dir| fs::write(dir.join("tokenizer.json"), "{}").unwrap());
}

#[test]
fn unsupported_modules_are_named() {
    let order = |dir: &Path| {
        let path = dir.join("modules.json");
        let mut modules: Vec<serde_json::Value> = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        modules.swap(2, 3);
        fs::write(path, serde_json::to_string(&modules).unwrap()).unwrap();
    };
    assert_error(&["modules.json", "Transformer, Pooling, any Dense, then optional Normalize"], order);
    let cut = |dir: &Path| {
        let path = dir.join("modules.json");
        let modules: Vec<serde_json::Value> = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        fs::write(path, serde_json::to_string(&modules[..1]).unwrap()).unwrap();
    };
    assert_error(&["modules.json", "Transformer, Pooling"], cut);
    assert_error(&["modules.json", "my_code.Pooling"], |dir| {
        edit(&dir.join("modules.json"), "sentence_transformers.models.Pooling", "my_code.Pooling");
    });
    assert_error(&["sentence_bert_config.json", "`query_expansion`"], |dir| {
        edit(&dir.join("sentence_bert_config.json"), "{", "{\"query_expansion\": 5, ");
    });
    assert_error(&["modules.json", "LSTM"], |dir| edit(&dir.join("modules.json"), "models.Dense", "models.LSTM"));
    assert_error(&["modules.json", "is outside the folder"], |dir| {
        edit(&dir.join("modules.json"), "\"2_Dense\"", "\"../2_Dense\"")
    });
    assert_error(&["1_Pooling", "weightedmean"], |dir| {
        let path = dir.join("1_Pooling/config.json");
        edit(&path, "\"pooling_mode_mean_tokens\": true", "\"pooling_mode_mean_tokens\": false");
        edit(&path, "\"pooling_mode_weightedmean_tokens\": false", "\"pooling_mode_weightedmean_tokens\": true");
    });
}

#[test]
fn pytorch_weights_name_the_conversion() {
    assert_error(&["model.safetensors", "pytorch_model.bin", "save_pretrained"], |dir| {
        fs::rename(dir.join("model.safetensors"), dir.join("pytorch_model.bin")).unwrap();
    });
}

#[test]
fn vectors_that_are_not_finite_are_an_error() {
    let dir = changed(|dir| {
        let file = dir.join("model.safetensors");
        let mut tensors = read_tensors(&file).unwrap();
        let broken = tensors["embeddings.LayerNorm.weight"].full_like(f64::NAN);
        tensors.insert("embeddings.LayerNorm.weight".into(), broken);
        write_tensors(&file, &tensors).unwrap();
    });
    for encoder in [open(dir.path()).unwrap(), open(dir.path()).unwrap().freeze().unwrap()] {
        let text = encoder.reader().read("oak desk", None).unwrap();
        assert!(encoder.vectors(&[&text]).unwrap_err().to_string().contains("not finite"));
    }
}

#[test]
fn rejects_adapters_that_change_the_base_model() {
    let architecture = Architecture::open(&golden("llama/config.json"), &[]).unwrap();
    let mut parameters = Parameters::open(&golden("llama"), Device::Cpu, Kind::Float).unwrap();
    let mut backbone = Backbone::build(&architecture, &mut parameters).unwrap();
    for (field, value) in
        [("init_lora_weights", "\"pissa\""), ("use_dora", "true"), ("bias", "\"all\""), ("future", "1")]
    {
        let dir = tempfile::tempdir().unwrap();
        copy_folder(&golden("lora"), dir.path());
        let path = dir.path().join("adapter_config.json");
        let mut json: serde_json::Map<_, _> = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        json.insert(field.into(), serde_json::from_str(value).unwrap());
        fs::write(&path, serde_json::to_string(&json).unwrap()).unwrap();
        let error = Lora::load(dir.path(), &mut backbone, &[]).unwrap_err().to_string();
        assert!(error.contains(&format!("`{field}`")), "{error}");
    }
}

#[test]
fn any_text_has_a_vector() {
    let encoder = open(&golden("st_mean_dense")).unwrap().freeze().unwrap();
    let long = "desk ".repeat(20_000);
    for text in ["", " ", "\0", "a\0b", "\u{feff}", "日本語 ☕", long.as_str(), "\r\n\t"] {
        let read = encoder.reader().read(text, None).unwrap();
        assert!(read.ids.len() <= 32, "100,000 characters are truncated to the model's length");
        let vector = encoder.vectors(&[&read]).unwrap().remove(0);
        let norm: f32 = vector.iter().map(|x| x * x).sum();
        assert!((norm - 1.0).abs() < 1e-4, "{text:.20?}: {norm}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// A config.json with changed bytes, or any value in any field, is read or an error.
    #[test]
    fn no_config_json_panics(at in any::<prop::sample::Index>(), byte in any::<u8>(), name in model()) {
        let mut bytes = fs::read(golden(name).join("config.json")).unwrap();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(json) = serde_json::from_slice(&bytes) {
            build(name, json);
        }
    }

    #[test]
    fn no_value_in_a_field_panics(at in any::<prop::sample::Index>(), value in values(), name in model()) {
        let bytes = fs::read(golden(name).join("config.json")).unwrap();
        let mut json: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(&bytes).unwrap();
        let field = json.keys().nth(at.index(json.len())).unwrap().clone();
        json.insert(field, value);
        build(name, json.into());
    }

    /// A safetensors file with a changed or truncated header is read or an error.
    #[test]
    fn no_safetensors_header_panics(at in 0..600_usize, byte in any::<u8>(), keep in any::<prop::sample::Index>(), cut in any::<bool>()) {
        let mut bytes = fs::read(golden("lora/adapter_model.safetensors")).unwrap();
        bytes[at] = byte;
        if cut {
            bytes.truncate(keep.index(bytes.len()));
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        fs::write(&path, bytes).unwrap();
        if let Err(error) = read_tensors(&path) {
            assert!(error.to_string().contains("model.safetensors"), "{error}");
        }
    }

    /// Arbitrary bytes as a safetensors file.
    #[test]
    fn no_bytes_panic_as_safetensors(header in "\\PC{0,200}", length in any::<u64>(), honest in any::<bool>()) {
        let length = if honest { header.len() as u64 } else { length };
        let bytes: Vec<u8> = length.to_le_bytes().into_iter().chain(header.bytes()).collect();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        fs::write(&path, bytes).unwrap();
        drop(read_tensors(&path));
    }
}

/// Builds the model that `json` describes from the folder's weights; the result may be an error.
fn build(name: &str, json: serde_json::Value) {
    if let Ok(architecture) = Architecture::read(json, "config.json", Some(&[])) {
        let mut parameters = Parameters::open(&golden(name), Device::Cpu, Kind::Float).unwrap();
        drop(Backbone::build(&architecture, &mut parameters));
    }
}

fn model() -> impl Strategy<Value = &'static str> {
    prop::sample::select(
        &["bert", "xlm_roberta", "mpnet", "modernbert", "gemma3", "qwen2_window", "llama3", "mistral"][..],
    )
}

fn values() -> impl Strategy<Value = serde_json::Value> {
    prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        prop_oneof![Just(0_i64), Just(-1), Just(1), Just(3), Just(i64::MAX - 1), 1..1_i64 << 33].prop_map(Into::into),
        any::<f64>().prop_map(Into::into),
        "\\PC{0,12}".prop_map(Into::into),
        Just(serde_json::json!([])),
        Just(serde_json::json!({"rope_type": "llama3", "factor": 0.0})),
    ]
}
