//! `souk evaluate` and `souk compare` on a small simulated shop, and the report in a real browser (`SOUK_CHROMIUM`;
//! scripts/browser.sh finds one).

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use souk::cross_encoder::{RerankFit, RerankQuality, disable_reranker};
use souk_testing::copy_folder;

fn souk(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_souk-engine"));
    command.args(arguments).env("HF_HUB_OFFLINE", "1").env_remove("RUST_LOG").output().unwrap()
}

fn run_ok(arguments: &[&str]) -> String {
    let output = souk(arguments);
    assert!(output.status.success(), "souk {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn assert_fails(code: i32, expected: &str, arguments: &[&str]) {
    let output = souk(arguments);
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(message.contains(expected) && !message.contains("panicked"), "souk {arguments:?}: {message}");
    assert_eq!(output.status.code(), Some(code), "souk {arguments:?}: {message}");
}

/// A simulated shop, and output folders next to it.
struct TestShop {
    home: tempfile::TempDir,
    data: String,
}

impl TestShop {
    fn new() -> Self {
        Self::with_queries("120")
    }

    fn with_queries(num: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        let data = home.path().join("shop").display().to_string();
        run_ok(&["market", "--seed", "3", "--items", "600", "--queries", num, "--events", "100", "--out", &data]);
        Self { home, data }
    }

    fn place(&self, name: &str) -> String {
        self.home.path().join(name).display().to_string()
    }

    /// The same shop with the first items of its catalogue only.
    fn with_first_items(&self, num: usize) -> Self {
        let home = tempfile::tempdir().unwrap();
        copy_folder(Path::new(&self.data), &home.path().join("shop"));
        let corpus = home.path().join("shop/corpus.jsonl");
        let items: Vec<String> = fs::read_to_string(&corpus).unwrap().lines().take(num).map(str::to_owned).collect();
        fs::write(&corpus, items.join("\n")).unwrap();
        let data = home.path().join("shop").display().to_string();
        Self { home, data }
    }

    fn evaluated(&self, name: &str, rest: &[&str]) -> String {
        let out = self.place(name);
        run_ok(&[&["evaluate", "--data", &self.data, "--out", &out], rest].concat());
        out
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn read(folder: &str, name: &str) -> String {
    fs::read_to_string(Path::new(folder).join(name)).unwrap()
}

#[test]
fn an_evaluation_writes_all_files_and_is_deterministic() {
    let shop = TestShop::new();
    let one = shop.evaluated("one", &["--channel", "lexical"]);
    let metrics = json(&read(&one, "metrics.json"));
    let keys = [
        "hitrate@6000",
        "goodrate@100",
        "hitrate@100",
        "recall@100",
        "ndcg@10",
        "mrr@10",
        "judged@100",
        "quality@100",
        "overlap@100",
        "ndcg_linear@10",
        "ndcg_judged@10",
        "ordered@6000",
        "judged@10",
    ];
    for name in keys {
        let value = metrics["overall"][name].as_f64().unwrap();
        let interval = metrics["intervals"][name].as_array().unwrap();
        assert!((0.0..=100.0).contains(&value), "{name}: {metrics}");
        assert!(interval[0].as_f64().unwrap() <= value && value <= interval[1].as_f64().unwrap(), "{name}: {metrics}");
        assert!(metrics["slices"]["long_tail"][name].is_number(), "{name}: {metrics}");
    }
    assert_eq!(metrics["overall"].as_object().unwrap().len(), keys.len() + 1);
    assert_eq!(
        metrics["overall"]["hitrate_exclusive@6000"].as_f64().unwrap_or(0.0),
        0.0,
        "BM25 adds nothing to itself"
    );
    assert_eq!(
        (&metrics["model"], &metrics["split"], &metrics["judge"]),
        (&"BM25".into(), &"test".into(), &"oracle".into())
    );
    assert_eq!((&metrics["num_queries"], &metrics["overall"]["overlap@100"]), (&60.into(), &100.0.into()));
    assert_eq!(read(&one, "queries.jsonl").lines().count(), 60);
    assert_eq!(read(&one, "qrels.trec").lines().count() + 1, read(&shop.data, "qrels/test.tsv").lines().count());
    let again = shop.evaluated("again", &["--channel", "lexical"]);
    for name in ["metrics.json", "queries.jsonl", "run.trec", "qrels.trec"] {
        assert_eq!(read(&one, name), read(&again, name), "{name}");
    }
    // a TREC run of another engine gives the same metrics
    let file = Path::new(&one).join("run.trec").display().to_string();
    let run = shop.evaluated("run", &["--run", &file, "--name", "BM25"]);
    let as_lexical = read(&run, "metrics.json").replace("\"run file\"", "\"lexical\"");
    assert_eq!(read(&one, "metrics.json"), as_lexical);
    let plain = shop.evaluated("plain", &["--run", &file, "--judge", "qrels", "--depth", "150"]);
    let plain = json(&read(&plain, "metrics.json"));
    assert!(plain["overall"]["hitrate@150"].is_number() && plain["overall"]["hitrate@6000"].is_null());
    assert!(plain["overall"]["goodrate@100"].as_f64() <= metrics["overall"]["goodrate@100"].as_f64());
    assert_fails(
        2,
        "differ in the judge (oracle and qrels), in the depth (6000 and 150)",
        &["compare", &one, &shop.place("plain")],
    );
}

#[test]
fn hybrid_search_is_measured_as_it_is_served() {
    let shop = TestShop::new();
    let model = golden_model();
    let hybrid = shop.evaluated("hybrid", &["--model", &model, "--channel", "hybrid"]);
    let metrics = json(&read(&hybrid, "metrics.json"));
    assert_eq!(metrics["model"], "st_cls + BM25");
    assert_eq!(metrics["pipeline"], "hybrid (weights: dense 1, lexical 1, terms 1)");
    let weighted = ["--model", &model, "--channel", "hybrid", "--set", "search.hybrid={dense=0,lexical=2}"];
    let lexical = shop.evaluated("weighted", &weighted);
    let bm25 = shop.evaluated("bm25", &["--channel", "lexical"]);
    let values = |run: &str| json(&read(run, "metrics.json"))["overall"].clone();
    assert_eq!(values(&lexical), values(&bm25), "a channel without weight changes nothing");
    assert_ne!(values(&hybrid), values(&bm25));
}

#[test]
fn the_catalogue_is_encoded_once_for_a_model_and_its_texts() {
    let shop = TestShop::new();
    let vectors = PathBuf::from(shop.place("vectors"));
    let files = || {
        let entries = fs::read_dir(&vectors).unwrap().map(|entry| entry.unwrap().path());
        entries.collect::<BTreeSet<_>>()
    };
    let model = golden_model();
    let arguments = ["--model", &model, "--vectors", vectors.to_str().unwrap()];
    let hits = |run: &str| read(run, "run.trec");
    let first = hits(&shop.evaluated("first", &arguments));
    let file = files().pop_first().unwrap();
    assert_eq!(hits(&shop.evaluated("second", &arguments)), first);
    assert_eq!(files().len(), 1, "the same file, and no other");
    // vectors that are all alike show that the file is read
    let bytes = fs::read(&file).unwrap();
    fs::write(&file, bytes[..bytes.len() / 600].repeat(600)).unwrap();
    assert_ne!(hits(&shop.evaluated("alike", &arguments)), first);
    let other = souk_testing::golden("st_max").display().to_string();
    shop.evaluated("other-model", &["--model", &other, "--vectors", arguments[3]]);
    assert_eq!(files().len(), 2, "another model has its own");
    shop.with_first_items(500).evaluated("fewer", &arguments);
    assert_eq!(files().len(), 3, "other texts, too");
    fs::write(&file, &bytes[1..]).unwrap();
    let evaluate = ["evaluate", "--data", &shop.data, "--out", &shop.place("broken")];
    let lexical = ["--channel", "lexical", "--vectors", arguments[3]];
    assert_fails(2, "leave out --model, --language and --vectors", &[&evaluate[..], &lexical].concat());
    assert_fails(1, "is not one vector for each of 600 items: delete it", &[&evaluate[..], &arguments].concat());
}

/// A judge scores alike where search has the default weights. The model keeps these.
fn assert_judge_has_own_weights(shop: &TestShop, model: &str) {
    let judged = |name| shop.evaluated(name, &["--model", model, "--reranker", model, "--rerank", "10"]);
    let scores = |run: &str| -> Vec<String> {
        let columns = |line: &str| line.split(' ').take(5).collect::<Vec<_>>().join(" ");
        read(run, "run.trec").lines().map(columns).collect()
    };
    let before = scores(&judged("own-weights"));
    let mut fitted = json(&read(model, "fusion.json"));
    fitted["weights"] = Value::Null;
    fs::write(Path::new(model).join("fusion.json"), fitted.to_string()).expect("the model's folder can be written");
    assert_eq!(scores(&judged("default-weights")), before);
}

fn assert_reranker_is_a_part_of_the_model(shop: &TestShop, model: &str, fit: &[&str], hybrid: &[&str]) {
    let rerank = ["--rerank", "10"];
    let evaluate = ["evaluate", "--data", &shop.data, "--out", &shop.place("none"), "--judge", "qrels"];
    assert_fails(2, "needs --channel hybrid and a model with a reranker", &[&evaluate[..], hybrid, &rerank].concat());
    // an untrained relevance model brings nothing, so it is not installed
    let judge = souk_testing::golden("rel_bert").display().to_string();
    let text = run_ok(&[fit, &["train", "--reranker", &judge, "--depth", "10"]].concat());
    assert!(text.contains("no reranker: it brings nothing"), "{text}");
    assert!(RerankFit::of_model(Path::new(model)).expect("the folder can be read").is_none());
    let quality = RerankQuality { fused: 0.4, reranked: 0.5 };
    RerankFit::new(10, 1.5, 60, quality)
        .install(Path::new(&judge), Path::new(model))
        .expect("the folder can be written");
    let reranked = shop.evaluated("reranked", &[hybrid, &rerank].concat());
    let pipeline = json(&read(&reranked, "metrics.json"))["pipeline"].as_str().expect("it is a text").to_owned();
    assert!(
        pipeline.contains(", first 10 reranked by reranker-") && pipeline.ends_with("with weight 1.5"),
        "{pipeline}"
    );
}

#[test]
fn fitted_weights_are_part_of_the_model_and_measured_as_they_are_served() {
    // with fewer queries the default weights are as good
    let shop = TestShop::with_queries("400");
    let model = shop.place("model");
    copy_folder(Path::new(&golden_model()), Path::new(&model));
    // the judge below reads no details: without them it scores a pair as search does
    let of_text = ["--set", "search.lexical={details=0}"];
    let fit = ["fit-fusion", "--model", &model, "--data", &shop.data, of_text[0], of_text[1], "--split"];
    let text = run_ok(&[&fit[..], &["train"]].concat());
    assert!(text.contains("nDCG@10 on 320 queries: default weights ") && text.contains("trigrams"), "{text}");
    assert!(text.contains(" pairs of words, learned from ") && text.contains("translations.tsv"), "{text}");
    let fitted = json(&read(&model, "fusion.json"));
    assert_eq!((&fitted["fitted_on"]["split"], &fitted["fitted_on"]["queries"]), (&"train".into(), &320.into()));
    let hybrid = ["--model", &model, "--channel", "hybrid", of_text[0], of_text[1]];
    let run = shop.evaluated("fitted", &hybrid);
    let metrics = json(&read(&run, "metrics.json"));
    let pipeline = metrics["pipeline"].as_str().unwrap();
    assert!(pipeline.starts_with("hybrid (fitted weights: dense "), "{pipeline}");
    let equal = shop.evaluated("equal", &[&hybrid[..], &["--set", "search.hybrid={dense=1,lexical=1}"]].concat());
    let ndcg = |run: &str| json(&read(run, "metrics.json"))["overall"]["ndcg@10"].as_f64().unwrap();
    assert!(ndcg(&run) > ndcg(&equal), "{} is not above {}", ndcg(&run), ndcg(&equal));
    assert_reranker_is_a_part_of_the_model(&shop, &model, &fit, &hybrid);
    let text = run_ok(&[&fit[..], &["train", "--as-judge"]].concat());
    assert!(text.contains("judge, calibrated on ") && text.contains("AUC of Good 0."), "{text}");
    disable_reranker(Path::new(&model)).unwrap();
    let text = run_ok(&[&fit[..], &["test", "--as-judge"]].concat());
    assert!(text.contains("hybrid-judge.json") && text.contains(", without translations "), "{text}");
    // where both channels list all items, the same scores pair by pair leave the order as it is
    let small = shop.with_first_items(90);
    let searched = small.evaluated("searched", &hybrid);
    let by_judge = small.evaluated("by-judge", &[&hybrid[..], &["--reranker", &model, "--rerank", "10"]].concat());
    let pipeline = json(&read(&by_judge, "metrics.json"))["pipeline"].as_str().unwrap().to_owned();
    assert!(pipeline.contains("first 10 reranked by hybrid search of model-"), "{pipeline}");
    let hits = |run: &str| -> Vec<String> {
        let columns = |line: &str| line.split(' ').take(4).collect::<Vec<_>>().join(" ");
        read(run, "run.trec").lines().map(columns).collect()
    };
    assert_eq!(hits(&by_judge), hits(&searched));
    let scores: Vec<String> =
        read(&by_judge, "run.trec").lines().take(10).map(|line| line.split(' ').nth(4).unwrap().into()).collect();
    let different: BTreeSet<&String> = scores.iter().collect();
    assert!(different.len() > 5, "an order of ties proves nothing: {scores:?}");
    assert_judge_has_own_weights(&small, &model);
    // too few queries are left if only the held-out ones of the training split count
    let held_out = ["train", "--set", "train.held_out=0.01"];
    let text = run_ok(&[&fit[..], &held_out].concat());
    assert!(text.contains("10 or more queries"), "{text}");
    assert!(json(&read(&model, "fusion.json"))["weights"].is_null());
    assert!(!Path::new(&model).join("translations.tsv").exists(), "translations without a weight");
    assert!(!Path::new(&model).join("hybrid-judge.json").exists(), "a judge of other weights");
    let judge = [&fit[..], &held_out, &["--as-judge"]].concat();
    assert_fails(2, "--as-judge: a judge needs 10 judged queries or more", &judge);
}

#[test]
fn a_cross_encoder_of_the_hub_reranks_and_does_not_judge() {
    let shop = TestShop::new();
    let (model, hub) = (golden_model(), souk_testing::golden("rel_hub").display().to_string());
    let reranked = shop.evaluated("hub", &["--model", &model, "--rerank", "10", "--reranker", &hub]);
    let pipeline = json(&read(&reranked, "metrics.json"))["pipeline"].as_str().unwrap().to_owned();
    assert!(pipeline.contains(", first 10 reranked by rel_hub-"), "{pipeline}");
    let judge = ["--set", "judge.type=model", "--set", &format!("judge.path={hub}")];
    let evaluate = ["evaluate", "--data", &shop.data, "--out", &shop.place("none"), "--model", &model];
    assert_fails(2, "can rerank, but not judge", &[&evaluate[..], &judge].concat());
}

#[test]
fn a_model_is_compared_with_baselines() {
    let shop = TestShop::new();
    let bm25 = shop.evaluated("bm25", &["--channel", "lexical"]);
    let model = golden_model();
    let out = shop.place("model");
    let base = ["evaluate", "--data", &shop.data, "--out", &out, "--model", &model, "--baseline", &bm25];
    let text = run_ok(&base);
    assert!(text.contains("`st_cls` against `BM25`") && text.contains("p corrected for"), "{text}");
    let compared = json(&run_ok(&["compare", &bm25, &out, "--json"]));
    let rows = compared["pairs"][0]["rows"].as_array().unwrap();
    let row =
        |slice: &str, metric: &str| rows.iter().find(|row| row["slice"] == slice && row["metric"] == metric).unwrap();
    let ndcg = row("overall", "ndcg@10");
    let (before, after) = (ndcg["reference"].as_f64().unwrap(), ndcg["other"].as_f64().unwrap());
    assert!(before > after + 10.0, "a random model is far worse than BM25: {ndcg}");
    assert!((ndcg["paired"]["difference"].as_f64().unwrap() - (after - before)).abs() < 1e-9);
    assert!(ndcg["corrected"]["p_randomised"].as_f64().unwrap() < 0.05, "{ndcg}");
    assert!(row("long_tail", "hitrate@100")["num_queries"].as_u64().unwrap() < 60);
    let table = run_ok(&["compare", &bm25, &out]);
    assert_eq!(table.lines().filter(|line| line.starts_with("overall")).count(), 8, "{table}");

    // fewer metrics are fewer tests; the page has the hits of both
    let page = shop.place("changes.html");
    let few = run_ok(&["compare", &bm25, &out, "--metrics", "ordered@6000,mrr@10", "--html", &page]);
    assert_eq!(few.lines().filter(|line| line.starts_with("overall")).count(), 2, "{few}");
    let html = fs::read_to_string(&page).unwrap();
    let title = json(read(&bm25, "queries.jsonl").lines().next().unwrap())["hits"][0]["title"].clone();
    assert!(html.contains("By ordered@6000, ") && html.contains("<h3>Worse</h3>") && html.contains("→"), "{html}");
    assert!(html.contains(title.as_str().unwrap()) && html.contains("<caption>st_cls</caption>"), "{html}");
    assert_fails(
        2,
        "--metrics ndcg: not measured; choose from hitrate@6000,",
        &["compare", &bm25, &out, "--metrics", "ndcg"],
    );
}

#[test]
fn usage_errors_exit_with_2_and_bad_files_with_1() {
    let shop = TestShop::new();
    let out = shop.place("out");
    let base = ["evaluate", "--data", &shop.data, "--out", &out];
    let bm25 = shop.evaluated("bm25", &["--channel", "lexical"]);
    let run = shop.place("bad.trec");
    fs::write(&run, "q0 Q0 i1 1 0.5 t\nq0 Q0 i2 2 high t\n").unwrap();
    for (rest, code, expected) in [
        (&["--channel", "lexical", "--depth", "100"][..], 2, "--depth 100: set it to more than 100"),
        (&["--channel", "lexical", "--model", "x"], 2, "BM25 has no model"),
        (&["--channel", "lexical", "--split", "dev"], 1, "qrels/dev.tsv: cannot open it"),
        (&["--channel", "lexical", "--baseline", "/nowhere"], 1, "/nowhere/metrics.json: cannot read it"),
        (
            &["--channel", "lexical", "--depth", "200", "--baseline", &bm25],
            2,
            "they differ in the depth (6000 and 200)",
        ),
        (&["--run", &run], 1, "bad.trec, line 2: the score `high` is not a finite number"),
        (&[], 2, "no model: give --model DIR"),
    ] {
        assert_fails(code, expected, &[&base[..], rest].concat());
        assert!(!Path::new(&out).exists(), "a failed run leaves a folder behind");
    }
    fs::remove_file(Path::new(&shop.data).join("market.json")).unwrap();
    assert_fails(2, "only those have an oracle", &[&base[..], &["--channel", "lexical", "--judge", "oracle"]].concat());
    assert_fails(2, "required", &["compare", &out]);
}

fn golden_model() -> String {
    souk_testing::golden("st_cls").canonicalize().unwrap().display().to_string()
}

/// Page that loads the report into frames of several widths and records its layout.
const PROBE: &str = r#"<!DOCTYPE html><meta charset="utf-8"><body><script>
const page = PAGE, found = [];
console.log('probe started');
let open = 0;
for (const width of [390, 768, 1280]) {
  const frame = document.createElement('iframe');
  frame.style = `width:${width}px;height:2000px;border:0`;
  open++;
  frame.onload = () => {
    const inside = frame.contentDocument;
    inside.querySelectorAll('details').forEach(details => details.open = true);
    const sizes = name => [...inside.querySelectorAll(name)].map(element => element.getBoundingClientRect());
    const small = name => sizes(name).filter(size => !(size.width > 0 && size.height > 0)).length;
    found.push({
      width, wide: inside.documentElement.scrollWidth, title: inside.title,
      tables: sizes('table').length, drawings: sizes('svg').length, marks: sizes('svg rect, svg polyline').length,
      details: sizes('details').length, emptyTables: small('table'), emptyDrawings: small('svg'),
      outside: [...inside.querySelectorAll('main *')].filter(element => !element.closest('.scroll') && !element.closest('svg')
        && element.getBoundingClientRect().right > width + 0.5).map(element => element.outerHTML.slice(0, 80)),
    });
    if (--open === 0) document.body.textContent = 'FOUND' + JSON.stringify(found) + 'END';
  };
  frame.srcdoc = page;
  document.body.append(frame);
}
</script>"#;

#[test]
fn the_report_renders_in_a_real_browser() {
    let Some(browser) = std::env::var_os("SOUK_CHROMIUM").filter(|path| !path.is_empty()) else {
        skip("the_report_renders_in_a_real_browser", "no browser (SOUK_CHROMIUM)");
        return;
    };
    let shop = TestShop::new();
    let bm25 =
        shop.evaluated("bm25", &["--channel", "lexical", "--name", "BM25 <b>with a name that is long & odd</b>"]);
    let report =
        PathBuf::from(shop.evaluated("model", &["--model", &model_with_training_log(&shop), "--baseline", &bm25]))
            .join("report.html");
    let page = fs::read_to_string(&report).unwrap();
    for reached in ["http://", "https://", "src=", "@import", "url(", "<script", "<link"] {
        assert!(!page.contains(reached), "the report loads external content: {reached}");
    }
    let probe = shop.home.path().join("probe.html");
    // a closing script tag would end the probe's script
    let quoted = serde_json::to_string(&page).unwrap().replace("</", "<\\/");
    fs::write(&probe, PROBE.replace("PAGE", &quoted)).unwrap();
    let (_, log) = chromium(&browser, shop.home.path(), &["--dump-dom", &format!("file://{}", report.display())]);
    assert!(!log.contains("CONSOLE"), "the browser reports errors: {log}");
    let (dom, log) = chromium(&browser, shop.home.path(), &["--dump-dom", &format!("file://{}", probe.display())]);
    assert!(log.contains("probe started"), "console output of pages is missing: {log}");
    let found = dom.split_once("FOUND").and_then(|(_, rest)| rest.split_once("END")).map(|(found, _)| found);
    let found = json(
        &found.unwrap_or_else(|| panic!("{dom} {log}")).replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"),
    );
    for page in found.as_array().unwrap() {
        assert!(page["wide"].as_u64() <= page["width"].as_u64(), "the page is wider than its window: {page}");
        assert_eq!(page["outside"].as_array().unwrap().len(), 0, "{page}");
        assert_eq!((&page["emptyTables"], &page["emptyDrawings"]), (&0.into(), &0.into()), "{page}");
        // tables: a summary, the details and the hits of twenty queries; drawings: four figures of seven groups of two bars, three
        // curves
        assert_eq!((page["tables"].as_u64(), page["details"].as_u64()), (Some(22), Some(20)), "{page}");
        assert_eq!(page["drawings"].as_u64(), Some(4 * 7 * 2 + 3), "{page}");
        assert!(page["marks"].as_u64() > Some(4 * 7 * 2), "{page}");
        assert!(page["title"].as_str().unwrap().starts_with("trained on "), "{page}");
    }
    assert_eq!(found.as_array().unwrap().len(), 3);
}

/// A model folder with a training log.
fn model_with_training_log(shop: &TestShop) -> String {
    let model = shop.home.path().join("trained");
    copy_folder(Path::new(&golden_model()), &model);
    let step = |step: u32| {
        let (loss, rate) = (4.0 / f64::from(step).sqrt(), 1e-5 * f64::from(step.min(500 - step)) / 250.0);
        format!(
            "{{\"step\":{step},\"loss\":{loss},\"learning_rate\":{rate},\"texts_per_second\":{}}}\n",
            800 + step % 7
        )
    };
    fs::write(model.join("steps.jsonl"), (1..=500).map(step).collect::<String>()).unwrap();
    model.display().to_string()
}

/// Runs the browser with a fresh profile; returns its standard output and its log.
fn chromium(browser: &std::ffi::OsStr, home: &Path, arguments: &[&str]) -> (String, String) {
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"])
        .args(["--enable-logging=stderr", "--v=0", "--virtual-time-budget=10000"])
        .arg(format!("--user-data-dir={}", home.join("profile").display()))
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn skip(name: &str, reason: &str) {
    use std::io::Write;
    if let Some(path) = std::env::var_os("SOUK_SKIPPED") {
        let mut file = fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
        writeln!(file, "{name}: {reason}").unwrap();
    }
}
