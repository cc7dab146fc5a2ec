//! The step against sentence-transformers' losses and gradients (`tests/golden/supervised`), in one piece and in chunks,
//! alone and over several processes' shares.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tch::{Device, Kind, Tensor};

use super::algorithms;
use super::catalogue_candidates::{BankSpec, CatalogueCandidates, ModelCopy};
use super::context::{StageContext, StepContext, StepSchedule};
use super::metrics::StepMetrics;
use super::{FrozenEncoders, TrainSettings};
use crate::candidates::{BankSearch, CandidateSettings, CandidateSource};
use crate::objective::{InfoNceSettings, Objective};
use souk_ingest::dataset::{PairSource, Pairs, TrainingSplit};
use souk_io::beir::DataFolder;
use souk_io::catalogue::Catalogue;
use souk_nn::backbone::Precision;
use souk_nn::backbone::weights::read_tensors;
use souk_nn::collective::Solo;
use souk_nn::encoder::{Encoder, Overrides, Placement};
use souk_nn::optimizer::{Optimizer, OptimizerSettings};

fn golden() -> PathBuf {
    let committed = souk_testing::golden("");
    std::env::var_os("SOUK_GOLDEN").map_or(committed, PathBuf::from)
}

fn open(model: &str) -> Encoder {
    let placement =
        Placement { device: Device::Cpu, precision: Precision::F32, adapter: None, ignore_fields: Vec::new() };
    Encoder::open(&golden().join(model), placement, Overrides::default()).unwrap()
}

type Weights = Vec<(String, Tensor)>;

/// The golden pairs as a data folder.
struct TestShop {
    _home: tempfile::TempDir,
    data: DataFolder,
    objective: InfoNceSettings,
    catalogue: Arc<Catalogue>,
    pairs: Pairs,
}

impl TestShop {
    fn new(objective: InfoNceSettings) -> Self {
        let text = fs::read(golden().join("supervised/pairs.json")).unwrap();
        let texts: Vec<(String, String)> = serde_json::from_slice(&text).unwrap();
        let home = tempfile::tempdir().unwrap();
        let (mut corpus, mut queries, mut qrels) = (String::new(), String::new(), String::new());
        for (i, (query, item)) in texts.iter().enumerate() {
            corpus += &format!("{}\n", serde_json::json!({"_id": format!("d{i}"), "text": item}));
            queries += &format!("{}\n", serde_json::json!({"_id": format!("q{i}"), "text": query}));
            qrels += &format!("q{i}\td{i}\t4\n");
        }
        fs::create_dir(home.path().join("qrels")).unwrap();
        for (name, text) in [("corpus.jsonl", corpus), ("queries.jsonl", queries), ("qrels/train.tsv", qrels)] {
            fs::write(home.path().join(name), text).unwrap();
        }
        let data = DataFolder::open(home.path()).unwrap();
        let catalogue = Arc::new(Catalogue::open(&data).unwrap());
        let pairs = Pairs::open(&data, &catalogue, PairSource::Qrels, TrainingSplit::whole("train"), None).unwrap();
        Self { _home: home, data, objective, catalogue, pairs }
    }

    fn context<'a>(&'a self, settings: &'a TrainSettings, objective: &Objective) -> StageContext<'a> {
        let (pairs, catalogue, needs) = (&self.pairs, &self.catalogue, objective.needs());
        StageContext { settings, needs, pairs, catalogue, collective: &Solo, bf16: false, device: Device::Cpu }
    }

    /// One step of an encoder with these weights.
    fn step(&self, encoder: &Encoder, weights: Weights, settings: &TrainSettings, step: u64) -> StepMetrics {
        let objective = &Objective::InfoNce(self.objective.clone());
        let optimizer = &mut Optimizer::new(&settings.optimizer, weights).unwrap();
        let mut algorithm =
            algorithms::build(objective, settings, None, FrozenEncoders::default(), &self.data).unwrap();
        let schedule = StepSchedule { step, num_steps: 2, learning_rate: 1e-9 };
        let stop = AtomicBool::new(false);
        let context = self.context(settings, objective);
        let mut cx = StepContext::new(context, encoder, optimizer, schedule, &stop);
        algorithm.step(&mut cx).unwrap();
        cx.metrics
    }

    /// Loss and gradients of all pairs as one step.
    fn run(&self, model: &str, settings: TrainSettings) -> (f64, BTreeMap<String, Tensor>) {
        let mut encoder = open(model);
        let named = encoder.trainable(None, false).unwrap();
        let weights = named.iter().map(|(name, tensor)| (name.clone(), tensor.shallow_clone())).collect();
        let metrics = self.step(&encoder, weights, &settings, 0);
        assert_eq!(metrics.texts, 14 * metrics.pairs / 7);
        let gradients = named.into_iter().filter(|(_, tensor)| tensor.grad().defined());
        (metrics.loss, gradients.map(|(name, tensor)| (name, tensor.grad())).collect())
    }
}

/// Everything at once; a few tokens at a time with every graph kept; and with none kept.
fn chunkings() -> [TrainSettings; 4] {
    // clip = 0: sentence-transformers does not clip
    let optimizer = OptimizerSettings { clip: 0.0, ..OptimizerSettings::default() };
    let of = |chunk_tokens, keep_tokens| TrainSettings {
        chunk_tokens,
        keep_tokens,
        optimizer: optimizer.clone(),
        ..TrainSettings::default()
    };
    [of(4096, 4096), of(12, 4096), of(12, 30), of(1, 0)]
}

fn assert_equal(found: &BTreeMap<String, Tensor>, expected: &BTreeMap<String, Tensor>, kind: &str) {
    let prefix = format!("{kind}/");
    let mut compared = 0;
    for (name, expected) in expected.iter().filter_map(|(name, t)| Some((name.strip_prefix(&prefix)?, t))) {
        let own = [name.to_owned(), format!("model.{name}"), format!("bert.{name}")];
        let found = own.iter().find_map(|name| found.get(name)).unwrap_or_else(|| panic!("no gradient of {name}"));
        let worst = (found - expected).abs().max().double_value(&[]);
        assert!(worst < 1e-5, "{kind}, {name}: {worst}");
        compared += 1;
    }
    assert!(compared > 20, "only {compared} weights of {kind}");
    assert_eq!(found.len(), compared, "a weight has a gradient that it should not have");
}

#[test]
fn losses_and_gradients_are_those_of_sentence_transformers() {
    for (model, dimensions) in [("st_mean_dense", [16, 8]), ("st_last", [32, 8]), ("st_cls", [32, 4])] {
        let expected = read_tensors(&golden().join(format!("supervised/{model}.safetensors"))).unwrap();
        let plain = InfoNceSettings::default();
        let symmetric = InfoNceSettings { symmetric: true, ..InfoNceSettings::default() };
        let nested = InfoNceSettings { dimensions: dimensions.to_vec(), ..InfoNceSettings::default() };
        for (kind, objective) in [("plain", plain), ("symmetric", symmetric), ("nested", nested)] {
            for settings in chunkings() {
                let (loss, gradients) = TestShop::new(objective.clone()).run(model, settings);
                let wanted = expected[&format!("loss/{kind}")].double_value(&[0]);
                assert!((loss - wanted).abs() < 1e-5, "{model}, {kind}: {loss}, not {wanted}");
                assert_equal(&gradients, &expected, kind);
            }
        }
        let cached = expected["loss/cached"].double_value(&[0]);
        assert!((cached - expected["loss/plain"].double_value(&[0])).abs() < 1e-5);
    }
}

#[test]
fn dropout_of_a_chunk_is_the_same_when_it_runs_again() {
    let shop = TestShop::new(InfoNceSettings::default());
    let run = |keep_tokens, seed| {
        let settings = TrainSettings { dropout: true, chunk_tokens: 20, keep_tokens, seed, ..TrainSettings::default() };
        shop.run("st_cls", settings)
    };
    let ((loss, kept), (again, cached), (other, _)) = (run(4096, 1), run(0, 1), run(0, 2));
    assert_eq!(loss, again);
    assert!(kept.iter().all(|(name, gradient)| (gradient - &cached[name]).abs().max().double_value(&[]) < 1e-5));
    assert_ne!(loss, other);
    assert_ne!(loss, shop.run("st_cls", TrainSettings::default()).0, "dropout does something");
}

#[test]
fn accumulated_batches_make_the_mean_over_their_pairs() {
    let shop = TestShop::new(InfoNceSettings::default());
    let loss = |accumulate, step| {
        let mut encoder = open("st_cls");
        let weights = encoder.trainable(None, false).unwrap();
        shop.step(&encoder, weights, &TrainSettings { batch: 4, accumulate, ..TrainSettings::default() }, step).loss
    };
    // a whole batch, and the three pairs that are left
    let (first, last) = (loss(1, 0), loss(1, 1));
    assert!((loss(2, 0) - (4.0 * first + 3.0 * last) / 7.0).abs() < 1e-6);
    assert!((first - last).abs() > 1e-3);
}

/// Runs the test of that name again in a process with two threads: one cannot show what is taken from it, and what torch
/// is told here would hold for the other tests. True in that process.
fn with_two_threads(name: &str) -> bool {
    if std::env::var("OMP_NUM_THREADS").as_deref() == Ok("2") {
        return true;
    }
    let again = std::env::current_exe().unwrap();
    let name = format!("train::tests::{name}");
    let done = Command::new(again).args(["--exact", &name]).env("OMP_NUM_THREADS", "2").output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stdout));
    false
}

#[test]
fn a_bank_takes_over_at_its_step_and_is_that_of_the_model_half_way_to_it() {
    if !with_two_threads("a_bank_takes_over_at_its_step_and_is_that_of_the_model_half_way_to_it") {
        return;
    }
    let shop = TestShop::new(InfoNceSettings::default());
    let settings = TrainSettings::default();
    let context = shop.context(&settings, &Objective::InfoNce(InfoNceSettings::default()));
    let mut encoder = open("st_cls");
    let mut optimizer = Optimizer::new(&settings.optimizer, encoder.trainable(None, false).unwrap()).unwrap();
    let settings =
        CandidateSettings { source: CandidateSource::Catalogue, refresh_steps: 4, ..CandidateSettings::default() };
    let mut candidates = CatalogueCandidates::new(settings, ModelCopy::new(open("st_cls"), None).unwrap());
    let queries = Tensor::randn([5, encoder.dimensions()], (Kind::Float, Device::Cpu));
    let (mut by_step, mut of_weights) = (Vec::new(), Vec::new());
    // threads that start now, such as a judge's
    let threads = || std::thread::spawn(tch::get_num_threads);
    let before = threads().join().unwrap();
    let never = AtomicBool::new(false);
    for step in 0..6 {
        let now = BankSpec::new(&context, BankSearch::Exact, 1).build(&shop.catalogue, &encoder, &never).unwrap();
        of_weights.push(now.nearest(&queries, 3).unwrap().scores);
        let schedule = StepSchedule { step, num_steps: 6, learning_rate: 0.0 };
        let cx = StepContext::new(context, &encoder, &mut optimizer, schedule, &never);
        candidates.refresh(&cx, step).unwrap();
        assert_eq!(threads().join().unwrap(), before, "building a bank takes no threads from others");
        by_step.push(candidates.bank.as_ref().unwrap().nearest(&queries, 3).unwrap().scores);
        let _guard = tch::no_grad_guard();
        optimizer.weights().for_each(|weights| drop(weights.shallow_clone().g_mul_scalar_(0.9)));
    }
    let differs = |step: usize, of: usize| (&by_step[step] - &of_weights[of]).abs().max().double_value(&[]);
    for (step, of) in [(0, 0), (3, 0), (4, 2), (5, 2)] {
        assert!(differs(step, of) < 1e-5, "step {step} searches another bank than that of step {of}");
        assert!(differs(step, of + 1) > 1e-4, "weights of other steps make other banks");
    }
}
