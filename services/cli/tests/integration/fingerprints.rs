//! Regression test: trains every objective for a few steps and compares with recorded fingerprints (`steps.jsonl`
//! without times, and the weights). On the processor of the recording the comparison is bit by bit; other processors
//! round differently, so there only losses are compared, to three digits.
//!
//! `REGENERATE=1 cargo test --release -p souk-cli --test integration fingerprints` records them again. Do that only for
//! an intended change of the training result.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const STEPS: &str = "train.max_steps=4";

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Fingerprint {
    losses: Vec<f64>,
    steps: String,
    weights: String,
}

#[derive(Serialize, Deserialize)]
struct Golden {
    processor: String,
    runs: BTreeMap<String, Fingerprint>,
}

/// Runs: name, base model, number of processes, settings.
const RUNS: [(&str, &str, usize, &[&str]); 14] = [
    ("info_nce", "bert", 1, INFO_NCE),
    ("info_nce_two_processes", "bert", 2, INFO_NCE),
    ("info_nce_lora_dropout", "bert", 1, LORA),
    ("r_grpo", "bert", 1, R_GRPO),
    ("r_grpo_two_processes", "bert", 2, R_GRPO),
    ("r_grpo_lookahead", "bert", 1, R_GRPO_LOOKAHEAD),
    ("pairwise", "bert", 1, PAIRWISE),
    ("pairwise_apart", "bert", 1, PAIRWISE_APART),
    ("dpo", "bert", 1, DPO),
    ("icr", "writer", 1, ICR),
    ("icr_hard_negatives", "writer", 1, ICR_HARD),
    ("grace", "writer", 1, GRACE),
    ("grace_dapo_two_processes", "writer", 2, GRACE_DAPO),
    ("next_token", "writer", 1, NEXT_TOKEN),
];

const INFO_NCE: &[&str] = &[
    "objective.type=info_nce",
    "objective.global_negatives=9",
    "objective.symmetric=true",
    "objective.dimensions=[32, 16]",
    "train.accumulate=2",
];
const LORA: &[&str] = &[
    "objective.type=info_nce",
    "train.lora={rank=4, alpha=8.0, dropout=0.1, targets=[\"query\", \"value\"]}",
    "train.dropout=true",
    "train.optimizer.learning_rate=1e-2",
];
const R_GRPO: &[&str] = &[
    "objective.type=r_grpo",
    "objective.group=8",
    "objective.global_negatives=9",
    "objective.inner_epochs=2",
    "objective.beta=0.1",
    "candidates.source=catalogue",
    "candidates.num_neighbors=3",
    "candidates.refresh_steps=2",
    "reward.quality=0.5",
    "reward.exclusivity=0.5",
];
const R_GRPO_LOOKAHEAD: &[&str] = &[
    "objective.type=r_grpo",
    "objective.group=6",
    "objective.support=group",
    "objective.advantage=mean",
    "train.accumulate=2",
    "reward.lookahead=2",
    "train.checkpoint_steps=1",
];
const PAIRWISE: &[&str] = &["objective.type=pairwise", "objective.depth=12", "objective.group=6"];
const PAIRWISE_APART: &[&str] = &[
    "objective.type=pairwise",
    "objective.depth=12",
    "objective.group=6",
    "objective.losses=apart",
    "reward.quality=0.5",
];
const DPO: &[&str] = &["objective.type=dpo", "objective.depth=12", "objective.group=6"];
const ICR: &[&str] =
    &["objective.type=icr", "objective.penalty=pair", "encoder.refine.steps=3", "objective.global_negatives=5"];
const ICR_HARD: &[&str] = &["objective.type=icr", "encoder.refine.steps=3", "objective.judged_split=train"];
const GRACE: &[&str] = &[
    "objective.type=grace",
    "objective.temperature=10.0",
    "objective.rollouts=4",
    "encoder.rationale.max_tokens=40",
    "objective.inner_epochs=2",
    "train.optimizer.learning_rate=1e-4",
];
const GRACE_DAPO: &[&str] = &[
    "objective.type=grace",
    "objective.temperature=10.0",
    "objective.rollouts=4",
    "objective.estimator=dapo",
    "objective.hard=rollout",
    "train.optimizer.learning_rate=1e-4",
    "encoder.rationale.max_tokens=40",
];
const NEXT_TOKEN: &[&str] = &[
    "objective.type=next_token",
    "train.pairs=items",
    "objective.answer=[\"category\"]",
    "encoder.rationale.max_tokens=12",
];

#[test]
fn every_objective_matches_its_fingerprint() {
    let home = shop();
    let mut runs = BTreeMap::new();
    for (name, model, processes, sets) in RUNS {
        run_ok(&mut train(home.path(), name, model, processes, sets));
        runs.insert(name.to_owned(), fingerprint(&home.path().join(name)));
    }
    compare(&Golden { processor: processor(), runs });
}

#[test]
fn packed_products_train_like_those_of_libtorch() {
    let home = shop();
    let lora = ["objective.type=info_nce", "train.lora={rank=4, alpha=8.0, targets=[\"query\", \"value\"]}"];
    for (objective, model, sets) in [("info_nce", "bert", INFO_NCE), ("lora", "bert", &lora), ("icr", "writer", ICR)] {
        let [packed, plain] = ["packed", "libtorch"].map(|products| {
            let out = format!("{objective}-{products}");
            let mut train = train(home.path(), &out, model, 1, sets);
            run_ok(train.env("SOUK_PRODUCTS", products));
            fingerprint(&home.path().join(out)).losses
        });
        assert!(are_near(&packed, &plain, 1e-5), "{objective}: losses {packed:?} and {plain:?}");
    }
    let output = train(home.path(), "unknown", "bert", 1, INFO_NCE).env("SOUK_PRODUCTS", "mkl").output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("SOUK_PRODUCTS: is `mkl`: use packed or libtorch"), "{message}");
    assert_eq!(output.status.code(), Some(2), "{message}");
}

#[test]
fn a_stage_killed_during_lookahead_resumes_to_the_same_bits() {
    let home = shop();
    run_ok(&mut train(home.path(), "whole", "bert", 1, R_GRPO_LOOKAHEAD));
    let mut killed = train(home.path(), "killed", "bert", 1, R_GRPO_LOOKAHEAD).spawn().unwrap();
    let began = Instant::now();
    while !home.path().join("killed/checkpoints").read_dir().is_ok_and(|mut found| found.next().is_some()) {
        assert!(began.elapsed() < Duration::from_secs(120), "no checkpoint appears");
        std::thread::sleep(Duration::from_millis(5));
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    run_ok(train(home.path(), "killed", "bert", 1, R_GRPO_LOOKAHEAD).arg("--resume"));
    assert_eq!(fingerprint(&home.path().join("whole")), fingerprint(&home.path().join("killed")));
}

/// A simulated shop with a small BERT and a small decoder, both with random weights.
fn shop() -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    run_ok(souk(home.path(), 1).args("market --seed 7 --items 300 --queries 120 --events 2000 --out shop".split(' ')));
    for (model, config, sets) in [
        (
            "bert",
            "scratch-bert.toml",
            ["scratch.architecture.hidden_size=32", "scratch.architecture.intermediate_size=64"],
        ),
        ("writer", "scratch-writer.toml", ["scratch.architecture.hidden_size=32", "scratch.architecture.head_dim=8"]),
    ] {
        let config = souk_testing::repository().join("configs").join(config);
        let mut init = souk(home.path(), 1);
        init.args(["init", "--data", "shop", "--out", model, "--config"]).arg(config);
        for set in sets.iter().chain(&["scratch.vocab=600", "scratch.architecture.num_hidden_layers=2"]) {
            init.args(["--set", set]);
        }
        run_ok(&mut init);
    }
    home
}

fn souk(home: &Path, processes: usize) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_souk-engine"));
    command.current_dir(home).env_remove("RUST_LOG").env("OMP_NUM_THREADS", "1").env("HF_HUB_OFFLINE", "1");
    // not measured: another test may be running
    command.env("SOUK_PRODUCTS", "packed");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if processes > 1 {
        command.args(["launch", "--nproc", &processes.to_string(), "--"]);
    }
    command
}

fn train(home: &Path, out: &str, model: &str, processes: usize, sets: &[&str]) -> Command {
    let mut command = souk(home, processes);
    command.args(["train", "--data", "shop", "--out", out, "--json", "--model", model]);
    let defaults = [STEPS, "train.pairs=qrels", "train.batch=12", "train.chunk_tokens=64", "train.keep_tokens=100"];
    for set in defaults.iter().chain(&["train.optimizer.learning_rate=1e-3"]).chain(sets) {
        command.args(["--set", set]);
    }
    command
}

fn run_ok(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn fingerprint(out: &Path) -> Fingerprint {
    let text = fs::read_to_string(out.join("steps.jsonl")).unwrap();
    let mut lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for line in &mut lines {
        line.as_object_mut().unwrap().retain(|name, _| name != "seconds" && name != "texts_per_second");
    }
    let mut files: Vec<PathBuf> = Vec::new();
    let folders = [out.to_path_buf()].into_iter().chain(fs::read_dir(out).unwrap().map(|entry| entry.unwrap().path()));
    for folder in folders.filter(|path| path.is_dir() && !path.ends_with("checkpoints")) {
        let inside = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        files.extend(inside.filter(|path| path.extension().is_some_and(|ending| ending == "safetensors")));
    }
    files.sort();
    assert!(!files.is_empty() && !lines.is_empty(), "{} holds no model", out.display());
    let weights: Vec<u8> = files.iter().flat_map(|file| fs::read(file).unwrap()).collect();
    Fingerprint {
        losses: lines.iter().map(|line| line["loss"].as_f64().unwrap()).collect(),
        steps: hash(json!(lines).to_string().as_bytes()),
        weights: hash(&weights),
    }
}

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().take(12).map(|byte| format!("{byte:02x}")).collect()
}

/// Processor name and its widest vector instructions, which select libtorch's matrix kernels.
fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_once(':').map_or("", |(_, value)| value.trim()).to_owned()
    };
    let flags = field("flags");
    let widest = ["amx_tile", "avx512_bf16", "avx512f", "avx2"].into_iter().find(|flag| flags.contains(flag));
    format!("{}, {}", field("model name"), widest.unwrap_or("no vectors"))
}

fn compare(now: &Golden) {
    let file = souk_testing::golden("fingerprints.json");
    if std::env::var_os("REGENERATE").is_some() {
        fs::write(&file, format!("{:#}\n", json!(now))).unwrap();
        return;
    }
    let before: Golden = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(before.runs.keys().collect::<Vec<_>>(), now.runs.keys().collect::<Vec<_>>());
    for (name, before_run) in &before.runs {
        let run = &now.runs[name];
        if before.processor == now.processor {
            assert_eq!(before_run, run, "{name}");
        }
        let near = are_near(&before_run.losses, &run.losses, 1e-3);
        assert!(near, "{name}: losses {:?} and {:?}", before_run.losses, run.losses);
    }
}

fn are_near(a: &[f64], b: &[f64], tolerance: f64) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= tolerance * (1.0 + a.abs()))
}
