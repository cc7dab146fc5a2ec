//! The template of an item's text: a model keeps the one it was trained with, and BM25 and judges read the same text.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use souk::config::{Change, Config};
use souk::item_text::ItemText;

use crate::stage::{assert_fails, losses, model, run_ok, shop, stage};

const TEMPLATE: &str = "encoder.item_text={title} by:{brand}";
const SCRATCH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs/scratch-bert.toml");

/// A shop whose items have brands.
fn shop_of_brands(home: &Path) {
    shop(home);
    let file = home.join("data/corpus.jsonl");
    let mut items: Vec<Value> =
        fs::read_to_string(&file).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (at, item) in items.iter_mut().enumerate() {
        item["brand"] = json!(["zenith", "acme"][at % 2]);
    }
    fs::write(file, items.iter().map(|item| format!("{item}\n")).collect::<String>()).unwrap();
}

fn settings(path: &Path) -> PathBuf {
    path.join("config_sentence_transformers.json")
}

/// Fingerprint and template of a model, opened with a setting or without one.
fn opened(path: &Path, set: Option<&str>) -> (String, ItemText) {
    let mut changes = vec![Change::text("model.path", "test", &path.display().to_string())];
    changes.extend(set.map(|set| Change::parse(set).unwrap()));
    let encoder = Config::load(None, &changes).unwrap().open_encoder().unwrap();
    (encoder.fingerprint().unwrap(), encoder.item_text().clone())
}

fn souk(home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_souk-engine"));
    command.current_dir(home).env("HF_HUB_OFFLINE", "1").env("OMP_NUM_THREADS", "1").env_remove("RUST_LOG");
    command.args(arguments).arg("--json");
    command
}

#[test]
fn a_model_keeps_the_template_it_was_trained_with() {
    let home = tempfile::tempdir().unwrap();
    shop_of_brands(home.path());
    let short = ["train.batch=16", "train.max_steps=2"];
    for (out, sets) in [("plain", &[][..]), ("same", &["encoder.item_text={title} {text}"]), ("brands", &[TEMPLATE])] {
        run_ok(&mut stage(home.path(), out, &[&short[..], sets].concat()));
    }
    let [plain, same, brands] = ["plain", "same", "brands"].map(|out| home.path().join(out));
    assert_eq!(losses(&plain), losses(&same));
    assert_ne!(losses(&plain)[0], losses(&brands)[0], "the model reads the brands");
    assert!(!fs::read_to_string(settings(&plain)).unwrap().contains("item_text"));
    let kept: Value = serde_json::from_slice(&fs::read(settings(&brands)).unwrap()).unwrap();
    assert_eq!(kept["item_text"], "{title} by:{brand}");

    let (fingerprint, item_text) = opened(&brands, None);
    assert_eq!(item_text.to_string(), "{title} by:{brand}");
    assert_eq!(opened(&brands, Some(TEMPLATE)), (fingerprint.clone(), item_text), "the setting says the same");
    let (other, item_text) = opened(&brands, Some("encoder.item_text={title} {text}"));
    assert!(other != fingerprint && item_text.is_default(), "the setting overrides the folder");
    let base = opened(&model(), None);
    assert_eq!(opened(&model(), Some("encoder.item_text={title}  {text}")), base);
    assert_ne!(opened(&model(), Some(TEMPLATE)).0, base.0);

    let wrong = ["encoder.item_text={title} {brand"];
    assert_fails(&mut stage(home.path(), "wrong", &wrong), 2, &["encoder.item_text", "close it"]);
}

#[test]
fn evaluation_reads_the_text_of_the_model_or_of_the_configuration() {
    let home = tempfile::tempdir().unwrap();
    shop_of_brands(home.path());
    // the first query asks for a word that only brands have
    let queries = home.path().join("data/queries.jsonl");
    let text = fs::read_to_string(&queries).unwrap().replacen("desk 0", "zenith", 1);
    fs::write(queries, text).unwrap();
    let hits = |arguments: &[&str], set: &str| {
        let out = format!("measured{}{}-{}", arguments[0], arguments.len(), set.len());
        let mut command = souk(home.path(), &["evaluate", "--data", "data", "--split", "train", "--out", &out]);
        run_ok(command.args(arguments).args(["--set", set]));
        fs::read_to_string(home.path().join(out).join("run.trec")).unwrap()
    };
    let of_first = |run: &str| run.lines().filter(|line| line.starts_with("q0 ")).count();
    let plain = "encoder.item_text={title}";
    let of_text = ["--channel", "lexical", "--set", "search.lexical={details=0}"];
    assert_eq!(of_first(&hits(&of_text, plain)), 0);
    assert_eq!(of_first(&hits(&of_text, TEMPLATE)), 30);
    assert_eq!(of_first(&hits(&["--channel", "lexical"], plain)), 30, "brands are details");
    let model = model().display().to_string();
    let dense = [plain, TEMPLATE].map(|set| hits(&["--model", &model], set));
    assert_ne!(dense[0], dense[1]);
}

#[test]
fn a_misspelt_field_stops_commands_that_read_a_data_folder() {
    let home = tempfile::tempdir().unwrap();
    shop_of_brands(home.path());
    let model = model().display().to_string();
    for command in [
        &["train", "--model", &model, "--data", "data", "--out", "new"][..],
        &["relevance", "train", "--model", &model, "--data", "data", "--out", "new"],
        &["evaluate", "--channel", "lexical", "--data", "data", "--split", "train", "--out", "new"],
        &["fit-fusion", "--model", &model, "--data", "data", "--split", "train"],
        &["index", "--model", &model, "--data", "data", "--out", "new"],
        &["init", "--config", SCRATCH, "--data", "data", "--out", "new"],
        &["plan", "--model", &model, "--data", "data"],
    ] {
        let mut misspelt = souk(home.path(), command);
        misspelt.args(["--set", "encoder.item_text={title} {brnad}"]);
        assert_fails(&mut misspelt, 2, &["encoder.item_text", "`brnad`", "`brand`"]);
        assert!(!home.path().join("new").exists(), "{command:?}");
    }
}

#[test]
fn the_trainer_does_not_start_with_a_misspelt_field() {
    let home = tempfile::tempdir().unwrap();
    shop_of_brands(home.path());
    let stage = "[[trainer.stage]]\nname = \"sft\"\nconfig = \"sft.toml\"\n";
    let config = format!("[trainer]\nstate = \"state\"\n[trainer.gate]\nsource = \"log\"\n{stage}");
    for (name, text) in [("trainer.toml", config.as_str()), ("sft.toml", ""), ("log.ndjson", "")] {
        fs::write(home.path().join(name), text).unwrap();
    }
    let mut trainer =
        souk(home.path(), &["trainer", "--config", "trainer.toml", "--from", "log.ndjson", "--data", "data"]);
    trainer.args(["--set", "encoder.item_text={title} {brnad}"]);
    assert_fails(&mut trainer, 2, &["encoder.item_text", "`brnad` (did you mean `brand`?)"]);
    assert!(!home.path().join("state").exists());
}
