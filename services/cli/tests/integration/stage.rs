//! Helpers for tests of training stages: a small shop, the `souk train` command, and its outputs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use souk::backbone::weights::read_tensors;

pub fn model() -> PathBuf {
    souk_testing::golden("st_mean_dense")
}

/// Writes a shop of 60 items and 120 pairs of a query and its item.
pub fn shop(home: &Path) {
    let (mut corpus, mut queries, mut qrels) = (String::new(), String::new(), String::new());
    let kinds = ["desk", "lamp", "chair", "pipe", "jacket", "bottle"];
    for item in 0..60 {
        let title = format!("{} number {item} in {}", kinds[item % 6], ["red", "blue", "oak"][item % 3]);
        corpus += &format!("{}\n", json!({"_id": format!("d{item}"), "title": title}));
        for form in ["", "cheap "] {
            let id = format!("q{item}{}", form.trim());
            queries += &format!("{}\n", json!({"_id": id, "text": format!("{form}{} {item}", kinds[item % 6])}));
            qrels += &format!("{id}\td{item}\t4\n");
        }
    }
    fs::create_dir_all(home.join("data/qrels")).unwrap();
    for (name, text) in [("corpus.jsonl", corpus), ("queries.jsonl", queries), ("qrels/train.tsv", qrels)] {
        fs::write(home.join("data").join(name), text).unwrap();
    }
}

/// `souk train` with output folder `out`.
pub fn stage(home: &Path, out: &str, sets: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_souk-engine"));
    command.current_dir(home).env("HF_HUB_OFFLINE", "1").env_remove("RUST_LOG").env("OMP_NUM_THREADS", "1");
    // not measured: another test may be running
    command.env("SOUK_PRODUCTS", "packed");
    command.args(["train", "--data", "data", "--out", out, "--json", "--model"]).arg(model());
    for set in sets {
        command.args(["--set", set]);
    }
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The same command under `souk launch`, as several processes.
pub fn launch(home: &Path, processes: usize, single: &Command) -> Command {
    let mut command = Command::new(single.get_program());
    command.current_dir(home).env("OMP_NUM_THREADS", "1").env_remove("RUST_LOG").env("SOUK_PRODUCTS", "packed");
    command.args(["launch", "--nproc", &processes.to_string(), "--"]).args(single.get_args());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub fn run_ok(command: &mut Command) -> Value {
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    serde_json::from_slice(&stdout).unwrap()
}

pub fn assert_fails(command: &mut Command, code: i32, words: &[&str]) {
    let output = command.output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{message}");
    words.iter().for_each(|word| assert!(message.contains(word), "`{word}` is missing in `{message}`"));
}

pub fn steps(out: &Path) -> Vec<Value> {
    let text = fs::read_to_string(out.join("steps.jsonl")).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

pub fn losses(out: &Path) -> Vec<f64> {
    steps(out).iter().map(|line| line["loss"].as_f64().unwrap()).collect()
}

pub fn weights(out: &Path) -> Vec<u8> {
    let dense = fs::read(out.join("2_Dense/model.safetensors")).unwrap();
    [fs::read(out.join("model.safetensors")).unwrap(), dense].concat()
}

pub fn worst_difference(a: &Path, b: &Path) -> f64 {
    let mut worst = 0.0_f64;
    for file in ["model.safetensors", "2_Dense/model.safetensors"] {
        let (a, b) = (read_tensors(&a.join(file)).unwrap(), read_tensors(&b.join(file)).unwrap());
        for (name, tensor) in &a {
            worst = worst.max((tensor - &b[name]).abs().max().double_value(&[]));
        }
    }
    worst
}

/// Number of logged steps, from the last complete line.
pub fn num_logged(out: &Path) -> usize {
    let text = fs::read_to_string(out.join("steps.jsonl")).unwrap_or_default();
    let last = text.lines().rev().find_map(|line| serde_json::from_str::<Value>(line).ok());
    last.map_or(0, |line| line["step"].as_u64().unwrap() as usize)
}
