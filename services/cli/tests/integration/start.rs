//! `souk start` on a small shop: from two files to a link to the model that is served.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use souk::cross_encoder::HybridGrading;
use souk_testing::http_client::ask;

/// Longer than any step takes.
const PATIENCE: Duration = Duration::from_secs(180);

fn souk(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_souk-engine"));
    command.args(arguments).env("HF_HUB_OFFLINE", "1").env_remove("RUST_LOG").output().unwrap()
}

fn run_ok(arguments: &[&str]) -> Output {
    let output = souk(arguments);
    assert!(output.status.success(), "souk {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// A catalogue, a log, and a small model with random weights.
fn files(home: &Path) -> [String; 3] {
    let place = |name: &str| home.join(name).display().to_string();
    let (market, model) = (place("market"), place("model"));
    run_ok(&["market", "--seed", "5", "--items", "400", "--queries", "200", "--events", "20000", "--out", &market]);
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs/scratch-bert.toml");
    let sizes = "scratch.architecture={model_type=\"bert\", hidden_size=32, num_hidden_layers=1, num_attention_heads=2, \
                 intermediate_size=64, max_position_embeddings=64}";
    run_ok(&[
        "init",
        "--config",
        config,
        "--set",
        sizes,
        "--set",
        "scratch.vocab=1500",
        "--data",
        &market,
        "--out",
        &model,
    ]);
    [format!("{market}/corpus.jsonl"), format!("{market}/logs.ndjson"), model]
}

/// Removes the stages from a shop's settings, so that `souk start` only measures.
fn without_stages(shop: &str) {
    let file = Path::new(shop).join("shop.toml");
    let text = fs::read_to_string(&file).unwrap();
    let begin = text.find("# learns from clicks").unwrap();
    let end = text.find("# `souk trainer` measures").unwrap();
    fs::write(&file, [&text[..begin], &text[end..]].concat()).unwrap();
}

/// The last stage whose model passed.
fn best_stage(printed: &str) -> Option<&'static str> {
    ["r-grpo", "supervised"].into_iter().find(|stage| printed.contains(&format!("The model of `{stage}` passed")))
}

/// A `souk start` that serves; what it prints goes to files.
struct Running {
    child: Child,
    out: PathBuf,
    log: PathBuf,
}

impl Running {
    fn start(home: &Path, arguments: &[&str]) -> Self {
        let (out, log) = (home.join("out.json"), home.join("start.log"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_souk-engine"));
        command.args(arguments).args(["--listen", "127.0.0.1:0"]).env("HF_HUB_OFFLINE", "1").env_remove("RUST_LOG");
        command.stdout(File::create(&out).unwrap()).stderr(File::create(&log).unwrap());
        Self { child: command.spawn().unwrap(), out, log }
    }

    fn printed(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    fn wait_for(&mut self, text: &str) -> String {
        let begun = Instant::now();
        loop {
            let printed = self.printed();
            if printed.contains(text) {
                return printed;
            }
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none() && begun.elapsed() < PATIENCE, "no `{text}`: {ended:?}: {printed}");
            sleep(Duration::from_millis(50));
        }
    }

    /// Waits until the service has swapped to the model of a stage.
    fn wait_until_served(&mut self, stage: &str) {
        let printed = self.wait_for("answers on http://");
        let address = printed.split("answers on http://").nth(1).unwrap().split('/').next().unwrap().parse().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let begun = Instant::now();
        loop {
            let models = runtime.block_on(ask(address, "GET /models", "", b"")).json();
            if models["served"]["version"].as_str().unwrap().starts_with(stage) {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "{stage}: {models}");
            sleep(Duration::from_millis(100));
        }
    }

    /// Stops it, and returns what it printed as JSON.
    fn stop(mut self) -> Value {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        serde_json::from_slice(&fs::read(&self.out).unwrap()).unwrap()
    }
}

/// A failed test leaves no service behind.
impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn two_files_become_a_measured_and_trained_model() {
    let home = tempfile::tempdir().unwrap();
    let [items, log, model] = files(home.path());
    let shop = home.path().join("my shop").display().to_string();
    // the vectors of random weights are alike, and BM25 would decide alone
    run_ok(&["start", "--items", &items, "--model", &model, "--out", &shop, "--once"]);
    let settings = Path::new(&shop).join("shop.toml");
    let text = fs::read_to_string(&settings).unwrap();
    assert!(text.contains("hybrid = true"), "{text}");
    let text = text.replace("hybrid = true", "hybrid = {dense = 1, lexical = 0.001}");
    // the judge reads items as the shop's models do
    fs::write(&settings, text.replace("[encoder]", "[encoder]\nitem_text = \"{text} {title}\"\nmax_tokens = 48"))
        .unwrap();
    let start = ["--json", "start", "--items", &items, "--log", &log, "--model", &model, "--out", &shop];
    let mut running = Running::start(home.path(), &start);
    let printed = running.wait_for("serving on");
    let steps = ["souk judgements", "souk train", "--as-judge", "--channel", "hybrid", "Measure r-grpo on test", "'"];
    for expected in steps.into_iter().chain(["implicit judgements", "quality of "]) {
        assert!(printed.contains(expected), "{expected}: {printed}");
    }
    let best = best_stage(&printed).unwrap_or_else(|| panic!("training helps a model with random weights: {printed}"));
    running.wait_until_served(best);
    let json = running.stop();
    assert!(json["metrics"]["r-grpo"]["ndcg@10"].as_f64().is_some() && json["problem"].is_null(), "{json}");
    let is_bf16 = souk::config::ModelConfig::default().has_fast_bf16().unwrap();
    assert_eq!(printed.contains(" --precision bf16 "), is_bf16, "{printed}");
    let shop = Path::new(&shop);
    let report = fs::read_to_string(shop.join("measured/report.html")).unwrap();
    assert!(
        ["BM25", "untrained", "supervised", "r-grpo"].iter().all(|name| report.contains(&format!("<bdi>{name}</bdi>")))
    );
    assert!(shop.join("served").join("config.json").exists() && shop.join("data/qrels/test.tsv").exists());
    assert!(printed.contains("--vectors '") && !shop.join("vectors").exists(), "needed until all is measured");
    let trained = shop.join("models/supervised").canonicalize().unwrap();
    let served = shop.join("served").canonicalize().unwrap();
    assert_eq!(served, shop.join("models").join(best).canonicalize().unwrap(), "{printed}");

    // again: nothing is trained or measured twice, and the files are not needed
    let weights = fs::read(trained.join("model.safetensors")).unwrap();
    let again = run_ok(&["start", "--out", &shop.display().to_string(), "--once"]);
    let printed = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(printed.contains("Train: r-grpo: done before"), "{printed}");
    assert!(!printed.contains("Served from now on"), "the trained model stays served: {printed}");
    assert_eq!(fs::read(trained.join("model.safetensors")).unwrap(), weights);

    // an evaluation by an earlier version, which lacks a metric, is made again
    let queries = shop.join("measured/untrained-test/queries.jsonl");
    let now = fs::read_to_string(&queries).unwrap();
    fs::write(&queries, now.replace("\"ndcg_linear@10\"", "\"gone\"")).unwrap();
    // a machine that lost its power leaves unfinished folders, which are made anew
    let measured = shop.join("measured/untrained-test");
    let part = measured.with_extension("souk.part");
    fs::create_dir(&part).unwrap();
    fs::write(part.join("model.safetensors"), "half").unwrap();
    let judge = shop.join("models/untrained/hybrid-judge.json");
    // of an earlier version
    fs::write(&judge, "{\"format\":1}").unwrap();
    // the same folder, spelled in another way
    run_ok(&["start", "--out", &shop.join("../my shop").display().to_string(), "--once"]);
    assert_eq!(fs::read_to_string(&queries).unwrap(), now);
    assert!(HybridGrading::of_model(judge.parent().unwrap()).unwrap().is_some() && !part.exists());
}

/// The searches of the first queries in a log, by the alphabet.
fn first_queries(log: &str, num: usize) -> String {
    let field = |line: &str, name: &str| serde_json::from_str::<Value>(line).unwrap()[name].as_str().map(str::to_owned);
    let queries: BTreeSet<String> = log.lines().filter_map(|line| field(line, "user_query")).collect();
    let kept: BTreeSet<String> = queries.into_iter().take(num).collect();
    let asked = log.lines().filter(|line| field(line, "user_query").is_some_and(|query| kept.contains(&query)));
    let searches: BTreeSet<String> = asked.filter_map(|line| field(line, "query_id")).collect();
    let is_kept = |line: &&str| field(line, "query_id").is_some_and(|search| searches.contains(&search));
    log.split_inclusive('\n').filter(is_kept).collect()
}

#[test]
fn a_short_log_leaves_out_the_stages_that_it_is_too_short_for() {
    let home = tempfile::tempdir().unwrap();
    let [items, log, model] = files(home.path());
    let whole = fs::read_to_string(&log).unwrap();
    let is_chosen = |line: &str| ["click", "add_to_cart", "purchase"].iter().any(|action| line.contains(action));
    let chosen_until = |end: usize| -> String {
        let lines = whole.split_inclusive('\n').enumerate();
        lines.filter(|(at, line)| *at < end || !is_chosen(line)).map(|(_, line)| line).collect()
    };
    let both = &["supervised", "r-grpo"][..];
    // without choices on the newest days there are pairs for training, but no judged queries that a judge could be fitted to
    let early = chosen_until(whole.lines().count() * 2 / 5);
    let logs = [(chosen_until(0), both), (first_queries(&whole, 12), both), (early, &["r-grpo"])];
    for (case, (text, left_out)) in logs.into_iter().enumerate() {
        let shop = home.path().join(format!("shop-{case}")).display().to_string();
        fs::write(&log, text).unwrap();
        let start = ["--json", "start", "--items", &items, "--log", &log, "--model", &model, "--out", &shop, "--once"];
        let done = run_ok(&start);
        let printed = String::from_utf8_lossy(&done.stderr).into_owned();
        let metrics = &serde_json::from_slice::<Value>(&done.stdout).unwrap()["metrics"];
        for stage in ["supervised", "r-grpo"] {
            let is_left_out = printed.contains(&format!("The stage `{stage}` is left out"));
            assert_eq!(is_left_out, left_out.contains(&stage), "{stage}: {printed}");
            assert_eq!(metrics[stage].is_null(), is_left_out, "{stage}: {metrics}");
        }
    }
}

#[test]
fn a_log_of_one_day_ends_no_service() {
    let home = tempfile::tempdir().unwrap();
    let [items, log, model] = files(home.path());
    let text = fs::read_to_string(&log).unwrap();
    fs::write(&log, text.split_inclusive('\n').take(40).collect::<String>()).unwrap();
    let shop = home.path().join("shop").display().to_string();
    let start = ["--json", "start", "--items", &items, "--log", &log, "--model", &model, "--out", &shop];
    assert_eq!(souk(&[&start[..], &["--once"]].concat()).status.code(), Some(1), "a step failed");
    let mut running = Running::start(home.path(), &start);
    let printed = running.wait_for("serving on");
    assert!(printed.contains("at least 3 are needed") && printed.contains("Search goes on"), "{printed}");
    // any model
    running.wait_until_served("");
    let problem = running.stop()["problem"].as_str().unwrap().to_owned();
    assert!(problem.contains("Derive judgements from the log"), "{problem}");
}

#[test]
fn a_catalogue_is_served_before_there_is_a_log_and_a_missing_one_is_named() {
    let home = tempfile::tempdir().unwrap();
    let [items, log, model] = files(home.path());
    let shop = home.path().join("shop").display().to_string();
    let done = run_ok(&["start", "--items", &items, "--model", &model, "--out", &shop, "--once"]);
    assert!(String::from_utf8_lossy(&done.stderr).contains("There is no log"));
    assert!(Path::new(&shop).join("served/config.json").exists());

    // the log comes later, in two files, and no stage learns from it
    without_stages(&shop);
    let text = fs::read_to_string(&log).unwrap();
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let parts = ["a", "b"].map(|folder| home.path().join(folder).join("log.ndjson"));
    for (part, lines) in parts.iter().zip(lines.chunks(lines.len().div_ceil(2))) {
        fs::create_dir(part.parent().unwrap()).unwrap();
        fs::write(part, lines.concat()).unwrap();
    }
    let [first, second] = parts.each_ref().map(|part| part.display().to_string());
    let start = ["--json", "start", "--log", &first, &second, "--out", &shop, "--once"];
    let done = run_ok(&start);
    let printed = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(printed.contains("Fit hybrid search with the model of untrained"), "{printed}");
    let done: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert!(done["metrics"]["untrained"]["ndcg@10"].as_f64().is_some(), "{done}");
    let fitted = Path::new(&shop).join("served/fusion.json");
    let fitted: Value = serde_json::from_slice(&fs::read(fitted).unwrap()).unwrap();
    assert_eq!(fitted["fitted_on"]["split"], "dev", "{fitted}");
    assert!(!Path::new(&model).join("fusion.json").exists(), "the given model is not changed");
    let again = run_ok(&["start", "--out", &shop, "--once"]);
    assert!(!String::from_utf8_lossy(&again.stderr).contains("Fit hybrid search"), "weights are fitted once");
    let merged = fs::read_to_string(Path::new(&shop).join("data/logs.ndjson")).unwrap();
    assert_eq!(merged.lines().count(), lines.len(), "nothing is lost");
    let config = fs::read_to_string(Path::new(&shop).join("shop.toml")).unwrap();
    assert!(config.ends_with("data/logs.ndjson\"]\n"), "the trainer finds the log: {config}");
    let nowhere = home.path().join("nowhere").display().to_string();
    let output = souk(&["start", "--out", &nowhere, "--once"]);
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains("give it with --items"), "{message}");
    assert_eq!(output.status.code(), Some(2), "{message}");
}
