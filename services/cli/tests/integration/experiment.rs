//! A whole experiment as a user runs it: rows trained and measured, tables made, gone on with, and refused when changed.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

const PLAN: &str = r#"
[experiment]
title = "Small"
seeds = [1, 2]
market = { seed = 3, items = 400, queries = 90 }
depth = 150

[[row]]
id = "bm25"
name = "BM25"
kind = "lexical"

[[row]]
id = "words"
name = "Query rewrite"
kind = "lexical"
rewrites = "rewrites.jsonl"

[[row]]
id = "base"
name = "Untrained"
kind = "init"
config = "base.toml"
set = ["scratch.architecture.num_hidden_layers=1"]

[[row]]
id = "rgrpo"
name = "R-GRPO <only>"
kind = "train"
from = "base"
config = "stage.toml"

[[table]]
title = "Goodrate"
rows = ["bm25", "words", "base", "rgrpo"]
columns = ["goodrate@100", "hitrate@150/general"]
against = "base"

[[figure]]
title = "Levels"
row = "rgrpo"
"#;

const BASE: &str = r#"
[scratch]
vocab = 400
pooling = "mean"
max_tokens = 24
[scratch.architecture]
model_type = "bert"
hidden_size = 16
num_hidden_layers = 2
num_attention_heads = 2
intermediate_size = 32
max_position_embeddings = 32
hidden_act = "gelu"
"#;

const STAGE: &str = r#"
[model]
path = "base"
[train]
batch = 16
max_steps = 3
pairs = "qrels"
[objective]
type = "r_grpo"
group = 4
[reward]
quality = 0.3
exclusivity = 0.3
"#;

fn experiment(home: &Path, more: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_souk-engine"));
    command.current_dir(home).env("HF_HUB_OFFLINE", "1").env_remove("RUST_LOG").env("OMP_NUM_THREADS", "1");
    command.args(["experiment", "--config", "plan.toml", "--out", "out"]).args(more);
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    (status.code(), text(&stdout), text(&stderr))
}

fn begin() -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    let rewrites = "{\"_id\":\"q0\",\"text\":\"nothing that anybody sells\"}\n";
    for (name, text) in [("plan.toml", PLAN), ("base.toml", BASE), ("stage.toml", STAGE), ("rewrites.jsonl", rewrites)]
    {
        fs::write(home.path().join(name), text).unwrap();
    }
    home
}

#[test]
fn every_row_is_made_measured_and_tabulated_once() {
    let home = begin();
    let (code, out, said) = experiment(home.path(), &[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("R-GRPO <only> (seed 2)") && out.contains("### Goodrate"), "{said} {out}");
    let read = |name: &str| fs::read_to_string(home.path().join("out").join(name)).unwrap();
    let results: Value = serde_json::from_str(&read("results.json")).unwrap();
    let rows = results["tables"][0]["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 4);
    let overall = |row: &str, seed: &str| {
        let metrics: Value = serde_json::from_str(&read(&format!("{row}/{seed}/run/metrics.json"))).unwrap();
        metrics["overall"]["goodrate@100"].as_f64().unwrap()
    };
    let mean = |row: &str| (overall(row, "seed-1") + overall(row, "seed-2")) / 2.0;
    let cell = &rows[3]["cells"][0];
    assert!((cell["mean"].as_f64().unwrap() - mean("rgrpo")).abs() < 1e-9);
    let difference = cell["difference"]["difference"].as_f64().unwrap();
    assert!((difference - (mean("rgrpo") - mean("base"))).abs() < 1e-9, "{cell}");
    assert!((rows[0]["cells"][0]["mean"].as_f64().unwrap() - overall("bm25", "all")).abs() < 1e-9);
    assert_ne!(overall("bm25", "all"), overall("words", "all"), "one query was rewritten");
    assert_eq!(results["tables"][0]["num_tests"], 6);
    let page = read("results.html");
    assert!(page.contains("R-GRPO &lt;only&gt;") && page.contains("Levels of what was retrieved"), "{page}");
    assert!(page.contains("Advantage") && !page.contains("<script"), "{page}");

    // a model and a folder that are there already are taken as they are
    let plan = format!(
        "[experiment]\ntitle = \"There\"\nseeds = [1]\ndepth = 150\n[[row]]\nid = \"there\"\nname = \"There\"\nkind = \"model\"\n\
         from = {:?}\n[[table]]\ntitle = \"One\"\nrows = [\"there\"]\ncolumns = [\"goodrate@100\"]\n",
        home.path().join("out/base/seed-2/model")
    );
    fs::write(home.path().join("there.toml"), plan).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_souk-engine"));
    command.current_dir(home.path()).args([
        "experiment",
        "--config",
        "there.toml",
        "--data",
        "out/shop",
        "--out",
        "there",
    ]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metrics: Value =
        serde_json::from_str(&fs::read_to_string(home.path().join("there/there/all/run/metrics.json")).unwrap())
            .unwrap();
    assert_eq!(metrics["overall"]["goodrate@100"].as_f64().unwrap(), overall("base", "seed-2"));

    // again, nothing is left to do
    let before = fs::metadata(home.path().join("out/rgrpo/seed-1/model/config.json")).unwrap().modified().unwrap();
    let (code, again, said) = experiment(home.path(), &[]);
    assert_eq!((code, said.as_str()), (Some(0), ""));
    assert_eq!(again, out);
    let after = fs::metadata(home.path().join("out/rgrpo/seed-1/model/config.json")).unwrap().modified().unwrap();
    assert_eq!(before, after);

    // another stage under the same name is no part of this experiment
    fs::write(home.path().join("stage.toml"), STAGE.replace("batch = 16", "batch = 8")).unwrap();
    let (code, _, said) = experiment(home.path(), &[]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("R-GRPO <only> (seed 1)") && said.contains("another command or configuration"), "{said}");
}

#[test]
fn a_row_that_fails_ends_it_and_says_where_its_output_is() {
    let home = begin();
    fs::write(home.path().join("stage.toml"), STAGE.replace("group = 4", "group = 1")).unwrap();
    let (code, _, said) = experiment(home.path(), &["--jobs", "1"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("train.log") && said.contains("objective.group"), "{said}");
    // mended, it goes on with what is done
    fs::write(home.path().join("stage.toml"), STAGE).unwrap();
    fs::remove_file(home.path().join("out/rgrpo/seed-1/train.command")).unwrap();
    let (code, _, said) = experiment(home.path(), &[]);
    assert_eq!(code, Some(0), "{said}");
    assert!(!said.contains("the shop"), "{said}");
}

#[test]
fn a_plan_that_cannot_be_meant_is_refused() {
    for (from, to, word) in [
        ("rows = [\"bm25\"", "rows = [\"bm26\"", "`bm26`"),
        ("id = \"base\"", "id = \"bm25\"", "two rows have the id"),
        ("kind = \"init\"", "kind = \"guess\"", "guess"),
        ("seeds = [1, 2]", "seeds = []", "experiment.seeds"),
        ("row = \"rgrpo\"\n", "row = \"x\"\n", "row `x`"),
        ("columns = [\"goodrate@100\"", "columns = [\"goodrate@7\"", "the metrics are"),
        ("id = \"words\"", "id = \"a/b\"", "a/b"),
        ("depth = 150", "depht = 150", "depht"),
        ("market = {", "# market = {", "--data DIR"),
        ("kind = \"lexical\"", "kind = \"model\"", "`from` is for a model"),
        ("depth = 150", "depth = 150\njudge = \"base\"", "`experiment.judge`"),
    ] {
        let home = begin();
        fs::write(home.path().join("plan.toml"), PLAN.replacen(from, to, 1)).unwrap();
        let (code, _, said) = experiment(home.path(), &["--dry-run"]);
        assert!(code == Some(2) && said.contains(word), "{to}: {code:?} {said}");
    }
}

#[test]
fn one_judge_measures_all_rows_and_may_have_a_seed_of_its_own() {
    let home = begin();
    let judge = "[[row]]\nid = \"second\"\nname = \"Judge\"\nkind = \"relevance\"\nfrom = \"base\"\nconfig = \"stage.toml\"\n\
                 set = [\"relevance.seed=9\"]\n\n[[table]]";
    let plan = PLAN.replace("depth = 150", "depth = 150\njudge = \"second\"").replacen("[[table]]", judge, 1);
    fs::write(home.path().join("plan.toml"), plan).unwrap();
    let (code, out, said) = experiment(home.path(), &["--dry-run"]);
    assert_eq!(code, Some(0), "{said}");
    let measured: Vec<&str> = out.lines().filter(|line| line.starts_with("souk evaluate")).collect();
    assert_eq!(measured.len(), 2 + 2 + 2);
    let asked = "--set judge.type=model --set judge.path=out/second/seed-1/model";
    assert!(measured.iter().all(|line| line.contains(asked)), "{out}");
    let learned: Vec<&str> = out.lines().filter(|line| line.starts_with("souk relevance train")).collect();
    assert!(learned.iter().all(|line| line.ends_with("--set relevance.seed=9")), "{out}");
}

/// A step is let end, however long it takes, and its checkpoint is kept.
#[test]
fn asked_to_stop_it_lets_a_long_step_end() {
    let home = begin();
    let long = "max_steps = 1000\nepochs = 100000\naccumulate = 600";
    let stage = STAGE.replace("max_steps = 3", long).replace("r_grpo\"\ngroup = 4", "info_nce\"");
    fs::write(home.path().join("stage.toml"), stage).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_souk-engine"));
    command.current_dir(home.path()).env("OMP_NUM_THREADS", "1").stdout(Stdio::piped()).stderr(Stdio::piped());
    let job = command.args(["experiment", "--config", "plan.toml", "--out", "out"]).spawn().unwrap();
    let model = home.path().join("out/rgrpo/seed-1/model");
    let begin = Instant::now();
    while !fs::read_to_string(model.join("steps.jsonl")).is_ok_and(|text| text.contains('\n')) {
        assert!(begin.elapsed() < Duration::from_secs(120));
        thread::sleep(Duration::from_millis(20));
    }
    assert!(Command::new("kill").args(["-TERM", &job.id().to_string()]).status().unwrap().success());
    let output = job.wait_with_output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && message.contains("the same command goes on"), "{message}");
    assert_eq!(fs::read_dir(model.join("checkpoints")).unwrap().count(), 1, "of where it stopped");
}

#[test]
fn the_shipped_experiments_are_whole() {
    let configs = souk_testing::repository().join("configs");
    let mut num = 0;
    let mut given = 0;
    for entry in fs::read_dir(&configs).unwrap() {
        let path = entry.unwrap().path();
        if !path.file_name().unwrap().to_str().unwrap().starts_with("experiment-") {
            continue;
        }
        let home = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_souk-engine"));
        command.args(["experiment", "--dry-run", "--out", "out", "--json", "--config"]).arg(&path);
        if !fs::read_to_string(&path).unwrap().contains("market = {") {
            command.args(["--data", "SHOP"]);
            given += 1;
        }
        let output = command.current_dir(home.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let commands: Vec<String> = serde_json::from_slice(&output.stdout).unwrap();
        assert!(commands.len() > 10, "{commands:?}");
        num += 1;
    }
    assert!(num > given && given > 0, "{num} experiments, {given} of them with data of one's own");
}
