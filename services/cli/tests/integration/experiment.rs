//! `souk experiment`: trains and evaluates rows, writes tables, resumes, and rejects a changed configuration.

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

fn new_experiment() -> tempfile::TempDir {
    let home = tempfile::tempdir().unwrap();
    let rewrites = "{\"_id\":\"q0\",\"text\":\"nothing that anybody sells\"}\n";
    for (name, text) in [("plan.toml", PLAN), ("base.toml", BASE), ("stage.toml", STAGE), ("rewrites.jsonl", rewrites)]
    {
        fs::write(home.path().join(name), text).unwrap();
    }
    home
}

#[test]
fn trains_evaluates_and_tabulates_every_row_once() {
    let home = new_experiment();
    let (code, out, log) = experiment(home.path(), &[]);
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("R-GRPO <only> (seed 2)") && out.contains("### Goodrate"), "{log} {out}");
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

    // existing model and data folders are used as they are
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

    // a second run has nothing to do
    let before = fs::metadata(home.path().join("out/rgrpo/seed-1/model/config.json")).unwrap().modified().unwrap();
    let (code, again, log) = experiment(home.path(), &[]);
    assert_eq!((code, log.as_str()), (Some(0), ""));
    assert_eq!(again, out);
    let after = fs::metadata(home.path().join("out/rgrpo/seed-1/model/config.json")).unwrap().modified().unwrap();
    assert_eq!(before, after);

    // a changed stage under the same name is an error
    fs::write(home.path().join("stage.toml"), STAGE.replace("batch = 16", "batch = 8")).unwrap();
    let (code, _, log) = experiment(home.path(), &[]);
    assert_eq!(code, Some(2), "{log}");
    assert!(log.contains("R-GRPO <only> (seed 1)") && log.contains("another command or configuration"), "{log}");
}

#[test]
fn a_failed_row_ends_the_experiment_and_names_its_log() {
    let home = new_experiment();
    fs::write(home.path().join("stage.toml"), STAGE.replace("group = 4", "group = 1")).unwrap();
    let (code, _, log) = experiment(home.path(), &["--jobs", "1"]);
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("train.log") && log.contains("objective.group"), "{log}");
    // after a fix, finished commands do not run again
    fs::write(home.path().join("stage.toml"), STAGE).unwrap();
    fs::remove_file(home.path().join("out/rgrpo/seed-1/train.command")).unwrap();
    let (code, _, log) = experiment(home.path(), &[]);
    assert_eq!(code, Some(0), "{log}");
    assert!(!log.contains("simulated shop"), "{log}");
}

#[test]
fn rejects_invalid_plans() {
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
        ("kind = \"lexical\"", "kind = \"model\"", "`from` is required for kind model"),
        ("depth = 150", "depth = 150\njudge = \"base\"", "`experiment.judge`"),
        ("kind = \"lexical\"", "kind = \"lexical\"\nchannel = \"hybrid\"", "`channel` is only for rows"),
        ("kind = \"lexical\"", "kind = \"lexical\"\nfit = { split = \"train\" }", "add `channel = \"hybrid\"`"),
        (
            "kind = \"init\"\nconfig = \"base.toml\"",
            "kind = \"model\"\nfrom = \"a/b\"\nchannel = \"hybrid\"\nfit = { split = \"train\" }",
            "`fit` writes into",
        ),
        ("id = \"words\"", "id = \"words\"\nsplit = \"train\"", "a split or depth of its own"),
        ("kind = \"init\"", "kind = \"init\"\nrerank = { by = \"bm25\", depth = 9 }", "no row of kind relevance"),
    ] {
        let home = new_experiment();
        fs::write(home.path().join("plan.toml"), PLAN.replacen(from, to, 1)).unwrap();
        let (code, _, log) = experiment(home.path(), &["--dry-run"]);
        assert!(code == Some(2) && log.contains(word), "{to}: {code:?} {log}");
    }
}

#[test]
fn one_judge_evaluates_all_rows_and_may_set_its_own_seed() {
    let home = new_experiment();
    let judge = "[[row]]\nid = \"second\"\nname = \"Judge\"\nkind = \"relevance\"\nfrom = \"base\"\nconfig = \"stage.toml\"\n\
                 set = [\"relevance.seed=9\"]\n\n[[table]]";
    let plan = PLAN.replace("depth = 150", "depth = 150\njudge = \"second\"").replacen("[[table]]", judge, 1);
    fs::write(home.path().join("plan.toml"), plan).unwrap();
    let (code, out, log) = experiment(home.path(), &["--dry-run"]);
    assert_eq!(code, Some(0), "{log}");
    let measured: Vec<&str> = out.lines().filter(|line| line.starts_with("souk evaluate")).collect();
    assert_eq!(measured.len(), 2 + 2 + 2);
    let judge = "--set judge.type=model --set judge.path=out/second/seed-1/model";
    assert!(measured.iter().all(|line| line.contains(judge)), "{out}");
    let judges: Vec<&str> = out.lines().filter(|line| line.starts_with("souk relevance train")).collect();
    assert!(judges.iter().all(|line| line.ends_with("--set relevance.seed=9")), "{out}");
}

#[test]
fn a_row_is_measured_with_the_pipeline_that_it_names() {
    let home = new_experiment();
    let rows = "[[row]]\nid = \"judge\"\nname = \"Judge\"\nkind = \"relevance\"\nfrom = \"base\"\nconfig = \"stage.toml\"\n\n\
                [[row]]\nid = \"served\"\nname = \"Served\"\nkind = \"model\"\nfrom = \"base\"\nchannel = \"hybrid\"\n\
                rerank = { by = \"judge\", depth = 20 }\n\n[[table]]";
    fs::write(home.path().join("plan.toml"), PLAN.replacen("[[table]]", rows, 1)).unwrap();
    let (code, out, log) = experiment(home.path(), &["--dry-run"]);
    assert_eq!(code, Some(0), "{log}");
    let served = "--model out/base/seed-2/model --channel hybrid --rerank 20 --reranker out/judge/seed-2/model";
    assert!(out.lines().any(|line| line.starts_with("souk evaluate") && line.contains(served)), "{out}");
}

#[test]
fn a_row_learns_from_what_fitted_hybrid_search_finds_for_training_queries() {
    let home = new_experiment();
    let rows = "[[row]]\nid = \"hybrid\"\nname = \"Hybrid\"\nkind = \"model\"\nfrom = \"base\"\nchannel = \"hybrid\"\n\
                fit = { split = \"train\", held_out = 0.5, as_judge = true }\n\n\
                [[row]]\nid = \"teacher\"\nname = \"Teacher\"\nkind = \"model\"\nfrom = \"base\"\nchannel = \"hybrid\"\n\
                split = \"train\"\ndepth = 120\n\n\
                [[row]]\nid = \"distilled\"\nname = \"Distilled\"\nkind = \"train\"\nfrom = \"base\"\nconfig = \"stage.toml\"\n\
                set = [\"objective={type='distil', run='{teacher.run}/run.trec', group=4}\"]\n\n\
                [[row]]\nid = \"judged\"\nname = \"Judged\"\nkind = \"train\"\nfrom = \"base\"\nconfig = \"stage.toml\"\n\
                set = [\"model.path={hybrid}\"]\n\n[[table]]";
    let plan = PLAN.replacen("[[table]]", rows, 1).replace("\"rgrpo\"]", "\"hybrid\", \"distilled\", \"judged\"]");
    fs::write(home.path().join("plan.toml"), plan.replace("seeds = [1, 2]", "seeds = [1]")).unwrap();
    let (code, out, log) = experiment(home.path(), &["--dry-run", "--device", "cpu", "--precision", "f32"]);
    assert_eq!(code, Some(0), "{log}");
    let line =
        |start: &str| out.lines().find(|line| line.starts_with(start)).unwrap_or_else(|| panic!("{start}: {out}"));
    assert!(
        line("souk fit-fusion --model out/base/seed-1/model").ends_with("train.held_out=0.5 --as-judge --device cpu"),
        "{out}"
    );
    assert!(line("souk train").ends_with("--device cpu --precision f32"), "{out}");
    assert!(!line("souk evaluate --channel lexical").contains("--device"), "{out}");

    // fitted weights are no better here, so they make no judge
    let plan = fs::read_to_string(home.path().join("plan.toml")).unwrap().replace(", as_judge = true", "");
    fs::write(home.path().join("plan.toml"), plan).unwrap();
    let (code, out, log) = experiment(home.path(), &[]);
    assert_eq!(code, Some(0), "{log}");
    assert!(out.contains("| Distilled |") && out.contains("| Hybrid |"), "{out}");
    let place = |line: &str| log.find(line).unwrap_or_else(|| panic!("{line}: {log}"));
    let fitted = place("Hybrid (seed 1), evaluation: done");
    assert!(fitted < place("] Teacher (seed 1), evaluation") && fitted > place("fit of hybrid search: done"), "{log}");
    assert!(place("Teacher (seed 1), evaluation: done") < place("] Distilled (seed 1)\n"), "{log}");
    assert!(place("fit of hybrid search: done") < place("] Judged (seed 1)\n"), "{log}");
    assert!(home.path().join("out/base/seed-1/model/fusion.json").exists());
    let (code, _, log) = experiment(home.path(), &[]);
    assert_eq!((code, log.as_str()), (Some(0), ""), "a second run has nothing to do");
}

/// A stop waits for the current step, however long it takes, and keeps its checkpoint.
#[test]
fn a_stop_waits_for_a_long_step_to_end() {
    let home = new_experiment();
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
    assert!(output.status.code() == Some(1) && message.contains("run the same command again to continue"), "{message}");
    assert_eq!(fs::read_dir(model.join("checkpoints")).unwrap().count(), 1, "one checkpoint, of the last step");
}

#[test]
fn the_shipped_experiments_are_valid() {
    let configs = souk_testing::repository().join("configs");
    let mut num = 0;
    let mut num_given = 0;
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
            num_given += 1;
        }
        let output = command.current_dir(home.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let commands: Vec<String> = serde_json::from_slice(&output.stdout).unwrap();
        assert!(commands.len() > 10, "{commands:?}");
        num += 1;
    }
    assert!(num > num_given && num_given > 0, "{num} experiments, {num_given} of them need --data");
}
