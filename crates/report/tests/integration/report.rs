//! Metrics against ir_measures and tests against scipy (`tests/golden/metrics`; `SOUK_GOLDEN` names another folder of the same
//! layout), and saving and loading of measurements.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use souk_io::beir::DataFolder;
use souk_io::item_text::ItemText;
use souk_lexical::Lexical;
use souk_report::{Engine, EvaluationRun, Measurement, RunComparison, Task, bootstrap, names, paired};
use souk_reward::{Judgements, Question, RewardSource, Verdict};

#[derive(Deserialize)]
struct Expected {
    depth: usize,
    run: BTreeMap<String, Measured>,
    tied: BTreeMap<String, Measured>,
    pairs: Vec<PairComparison>,
}

#[derive(Deserialize)]
struct Measured {
    mean: f64,
    queries: BTreeMap<String, f64>,
}

#[derive(Deserialize)]
struct PairComparison {
    a: Vec<f64>,
    b: Vec<f64>,
    t: f64,
    p_t: f64,
    p_randomised: f64,
    interval: [f64; 2],
    error: f64,
}

fn golden() -> PathBuf {
    let committed = souk_testing::golden("");
    std::env::var_os("SOUK_GOLDEN").map_or(committed, PathBuf::from).join("metrics")
}

fn expected() -> Expected {
    serde_json::from_slice(&fs::read(golden().join("expected.json")).unwrap()).unwrap()
}

struct Fixture {
    task: Task,
    lexical: Lexical,
    judge: Judgements,
}

impl Fixture {
    fn new() -> Self {
        let folder = DataFolder::open(&golden()).unwrap();
        let task = Task::load(&folder, "test", &ItemText::default()).unwrap();
        let lexical = Lexical::build(task.items.iter().map(|item| Ok(item.text.clone()))).unwrap();
        Self { task, lexical, judge: Judgements::gather("qrels", folder.judgements("test").unwrap()).unwrap() }
    }

    fn measured(&self, name: &str, engine: &Engine, out: &Path) -> EvaluationRun {
        let Self { task, lexical, judge } = self;
        fs::create_dir(out).unwrap();
        Measurement { name, task, engine, lexical, judge, depth: expected().depth, perplexity: None }
            .write(out, &|_| {})
            .unwrap()
    }

    fn run(&self, file: &Path, out: &Path) -> EvaluationRun {
        self.measured("random", &Engine::run(&self.task, file).unwrap(), out)
    }
}

#[test]
fn metrics_are_those_of_ir_measures() {
    let (fixture, home, expected) = (Fixture::new(), tempfile::tempdir().unwrap(), expected());
    for (name, expected) in [("run", &expected.run), ("tied", &expected.tied)] {
        let run = fixture.run(&golden().join(format!("{name}.trec")), &home.path().join(name));
        for (metric, Measured { mean, queries }) in expected {
            let found = run.metrics.overall[metric].unwrap();
            assert!((found - mean).abs() < 1e-6, "{name}, {metric}: {found} is not {mean}");
            let at = names(run.metrics.asked.depth).iter().position(|name| name == metric).unwrap();
            assert_eq!(
                queries.len(),
                run.queries.iter().filter(|query| query.values[at].is_some()).count(),
                "{metric}"
            );
            for query in run.queries.iter().filter(|query| query.values[at].is_some()) {
                let (found, expected) = (query.values[at].unwrap(), queries[&query.id]);
                assert!((found - expected).abs() < 1e-6, "{name}, {metric}, {}: {found} is not {expected}", query.id);
            }
        }
    }
    assert!(expected.run.len() == 11 && expected.tied.len() == 8);
}

#[test]
fn a_written_run_is_measured_again_with_the_same_values() {
    let (fixture, home) = (Fixture::new(), tempfile::tempdir().unwrap());
    let first = fixture.run(&golden().join("tied.trec"), &home.path().join("first"));
    let again = fixture.run(&home.path().join("first/run.trec"), &home.path().join("again"));
    assert_eq!(
        first.queries,
        again
            .queries
            .iter()
            .cloned()
            .zip(&first.queries)
            .map(|(mut query, first)| {
                // equal scores are written as different ones
                query.top.iter_mut().zip(&first.top).for_each(|(hit, first)| hit.score = first.score);
                query
            })
            .collect::<Vec<_>>()
    );
    let read = |name: &str| fs::read(home.path().join(name).join("metrics.json")).unwrap();
    assert_eq!(read("first"), read("again"), "to the byte");
    let loaded = EvaluationRun::load(&home.path().join("first")).unwrap();
    assert_eq!(loaded.metrics, first.metrics);
    assert_eq!(loaded.queries, first.queries);
}

#[test]
fn tests_and_intervals_are_those_of_scipy() {
    for PairComparison { a, b, t, p_t, p_randomised, interval, error } in expected().pairs {
        let some = |values: &[f64]| values.iter().copied().map(Some).collect::<Vec<_>>();
        let found = paired(&some(&a), &some(&b), 7).unwrap();
        assert!((found.t.unwrap() - t).abs() < 1e-9 * t.abs().max(1.0), "{:?} is not {t}", found.t);
        assert!((found.p_t - p_t).abs() < 1e-10, "{} is not {p_t}", found.p_t);
        // for few queries, all signs were tried; for more, both sample
        let spread = if a.len() <= 13 { 1e-12 } else { 5.0 * (2.0 * p_randomised * (1.0 - p_randomised) / 5e4).sqrt() };
        assert!((found.p_randomised - p_randomised).abs() <= spread, "{} is not {p_randomised}", found.p_randomised);
        // the means of few queries are discrete
        for (found, expected) in found.interval.iter().zip(interval).filter(|_| a.len() >= 12) {
            assert!((found - expected).abs() < 0.2 * error, "{found} is not {expected}, standard error {error}");
        }
        let differences: Vec<_> = a.iter().zip(&b).map(|(a, b)| Some(b - a)).collect();
        assert_eq!(bootstrap(&[differences], 7), [Some(found.interval)]);
    }
}

#[test]
fn runs_are_compared_query_by_query_and_strangers_are_refused() {
    let (fixture, home) = (Fixture::new(), tempfile::tempdir().unwrap());
    let one = fixture.run(&golden().join("run.trec"), &home.path().join("one"));
    let two = fixture.run(&golden().join("tied.trec"), &home.path().join("two"));
    let found = RunComparison::of(&[(&one, &two), (&one, &one)], true).unwrap();
    assert_eq!(
        found.num_tests,
        found.pairs.iter().flat_map(|pair| &pair.rows).filter(|row| row.paired.is_some()).count()
    );
    for row in &found.pairs[0].rows {
        let (Some(paired), Some(corrected)) = (row.paired, row.corrected) else { continue };
        assert!(
            (paired.difference - (row.other.unwrap() - row.reference.unwrap())).abs() < 1e-9 || paired.num_queries < 40
        );
        assert!(corrected.p_t >= paired.p_t && corrected.p_randomised >= paired.p_randomised);
    }
    assert!(
        found.pairs[1]
            .rows
            .iter()
            .flat_map(|row| row.paired)
            .all(|paired| paired.p_t == 1.0 && paired.difference == 0.0)
    );
    let mut stranger = EvaluationRun::load(&home.path().join("two")).unwrap();
    stranger.metrics.asked.split = "dev".into();
    stranger.metrics.asked.digests.judgements = "others".into();
    let error = RunComparison::of(&[(&one, &stranger)], true).unwrap_err().to_string();
    assert!(error.contains("the split (test and dev), in the judgements") && !error.contains("queries"), "{error}");
}

struct Generous;

impl RewardSource for Generous {
    fn id(&self) -> &str {
        "generous"
    }

    fn judge(&self, asked: &[Question<'_>]) -> souk_io::Result<Vec<Option<Verdict>>> {
        assert!(asked.iter().all(|asked| asked.query.starts_with("query q") && asked.item.starts_with("item i")));
        Ok(vec![Some(Verdict::of(souk_io::domain::Level::L4)); asked.len()])
    }
}

#[test]
fn a_judge_is_asked_about_what_is_unjudged_only_and_changes_the_goodrate_only() {
    let (fixture, home) = (Fixture::new(), tempfile::tempdir().unwrap());
    let file = golden().join("run.trec");
    let plain = fixture.run(&file, &home.path().join("plain"));
    let (Fixture { task, lexical, .. }, engine) = (&fixture, Engine::run(&fixture.task, &file).unwrap());
    let out = home.path().join("judged");
    fs::create_dir(&out).unwrap();
    let depth = expected().depth;
    let judged =
        Measurement { name: "random", task, engine: &engine, lexical, judge: &Generous, depth, perplexity: None };
    let judged = judged.write(&out, &|_| {}).unwrap();
    assert_eq!(judged.metrics.asked.judge, "generous");
    for (before, after) in plain.queries.iter().zip(&judged.queries) {
        let [mut expected, found] = [before.values, after.values];
        // unjudged items count as Good now: the goodrate rises by the unjudged hits
        let num_hits = engine_hits(&engine, task, lexical, &before.id).min(100) as f64;
        expected[1] = Some(before.values[1].unwrap() + num_hits * (1.0 - before.values[6].unwrap() / 100.0));
        assert!((expected[1].unwrap() - found[1].unwrap()).abs() < 1e-9, "{}", before.id);
        expected[1] = found[1];
        assert_eq!(expected, found);
    }
}

fn engine_hits(engine: &Engine, task: &Task, lexical: &Lexical, query: &str) -> usize {
    let at = task.queries.iter().position(|asked| asked.id == query).unwrap();
    engine.hits(task, lexical, at..at + 1, usize::MAX).unwrap()[0].len()
}
