//! The model card of every trained, averaged and exported model, read by huggingface_hub.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use souk_testing::{copy_folder, repository};

use crate::stage::{model, shop};

fn souk(home: &Path, arguments: &[&str]) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_souk-engine"));
    command.current_dir(home).env_remove("RUST_LOG").env("OMP_NUM_THREADS", "1").env("SOUK_PRODUCTS", "packed");
    let output = command.args(arguments).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "souk {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn train(home: &Path, model: &str, out: &str) {
    let sets = ["--set", "train.batch=12", "--set", "train.max_steps=2"];
    souk(home, &[&["train", "--model", model, "--data", "data", "--out", out], &sets[..]].concat());
}

/// The card's fields by huggingface_hub.
fn read(folder: &Path) -> Value {
    let root = repository();
    let made = Command::new(root.join("scripts/python.sh"))
        .arg("services/search/tests/clients/requirements.txt")
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let python = String::from_utf8(made.stdout).unwrap();
    let script = root.join("services/search/tests/clients/model_card.py");
    let output = Command::new(python.trim()).arg("-B").arg(script).arg(folder.join("README.md")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Judgements of half of the shop's queries as the split `test`.
fn test_split(home: &Path) {
    let text = fs::read_to_string(home.join("data/qrels/train.tsv")).unwrap();
    let half: String = text.lines().step_by(2).map(|line| format!("{line}\n")).collect();
    fs::write(home.join("data/qrels/test.tsv"), half).unwrap();
}

#[test]
fn a_card_tells_every_stage_and_its_metrics() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    shop(home);
    test_split(home);
    copy_folder(&model(), &home.join("base"));
    fs::write(home.join("base/README.md"), "---\nlanguage:\n- en\nlicense: mit\n---\n# Base\n").unwrap();
    let base = home.join("base").display().to_string();
    train(home, &base, "SFT");
    let card = read(&home.join("SFT"));
    assert_eq!(
        (&card["library_name"], &card["pipeline_tag"]),
        (&json!("sentence-transformers"), &json!("sentence-similarity"))
    );
    assert_eq!((&card["language"], &card["base_model"], &card["results"]), (&json!(["en"]), &Value::Null, &json!([])));
    let text = card["text"].as_str().unwrap();
    let trained =
        "### 1. `info_nce`\n\nFrom `base`, on 120 judged pairs of `data`, a catalogue of 60 items, in 2 steps";
    for words in ["# SFT\n", "| base model | base |", trained, "SentenceTransformer(\"MODEL\")", "batch = 12\n"] {
        assert!(text.contains(words), "`{words}` is missing in\n{text}");
    }

    train(home, "SFT", "SECOND");
    souk(home, &["evaluate", "--model", "SECOND", "--data", "data", "--out", "MEASURED"]);
    souk(home, &["export", "--model", "SECOND", "--report", "MEASURED", "--out", "EXPORTED"]);
    let card = read(&home.join("EXPORTED"));
    let measured: Value = serde_json::from_slice(&fs::read(home.join("MEASURED/metrics.json")).unwrap()).unwrap();
    let results = card["results"].as_array().unwrap();
    let ndcg = results.iter().find(|result| result["metric"] == "ndcg@10").unwrap();
    let expected = measured["overall"]["ndcg@10"].as_f64().unwrap() / 100.0;
    assert!((ndcg["value"].as_f64().unwrap() - expected).abs() < 1e-5, "{ndcg} is not {expected}");
    assert_eq!(
        (&ndcg["task"], &ndcg["data"], &ndcg["split"]),
        (&json!("information-retrieval"), &json!("data"), &json!("test"))
    );
    assert_eq!(card["model_name"], "EXPORTED");
    let text = card["text"].as_str().unwrap();
    let low = measured["intervals"]["ndcg@10"][0].as_f64().unwrap();
    for words in [trained, "### 2. `info_nce`\n\nFrom `SFT`, on 120", &format!(" | {low:.2} to ")] {
        assert!(text.contains(words), "`{words}` is missing in\n{text}");
    }

    souk(home, &["average", "EXPORTED=0.7", "base=0.3", "--out", "MEAN"]);
    let card = read(&home.join("MEAN"));
    assert_eq!(card["results"], json!([]), "the mean was not measured");
    assert!(
        card["text"]
            .as_str()
            .unwrap()
            .contains("### 3. Average\n\nMean of the weights, with these shares: `EXPORTED` (0.7)")
    );

    for folder in ["SFT", "SECOND", "EXPORTED", "MEAN"] {
        for file in ["README.md", "model_card.json"] {
            let text = fs::read_to_string(home.join(folder).join(file)).unwrap();
            let place = home.display().to_string();
            assert!(!text.contains(&place), "{folder}/{file} has a path of this machine: {text}");
        }
    }
}
