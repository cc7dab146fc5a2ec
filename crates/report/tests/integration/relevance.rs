//! The relevance model against transformers (`tests/golden/rel_*`): single and batched, frozen and not. Also trains a small one
//! on a simulated shop and uses it as a judge.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use souk_cross_encoder::{
    CrossEncoder, CrossEncoderJudge, CrossEncoderManifest, EncoderShape, Loss, PairScorer, PairText, Reading,
    RelevanceSettings, RerankQuality, TrainProgress, Training,
};
use souk_io::beir::DataFolder;
use souk_io::item_text::ItemText;
use souk_io::splitmix::SplitMix64;
use souk_lexical::Lexical;
use souk_market::{self, MarketSpec};
use souk_nn::backbone::Precision;
use souk_nn::backbone::weights::read_tensors;
use souk_nn::encoder::{Placement, Pooling, Scratch};
use souk_nn::optimizer::OptimizerSettings;
use souk_report::{Engine, EngineHit, Reranking, Task, fit_reranker, relevance_page};
use souk_reward::{Question, RewardSource, Verdict};
use tch::{Device, Kind, Tensor};

const EXACT: f64 = 2e-5;

fn golden(name: &str) -> PathBuf {
    let committed = souk_testing::golden("");
    std::env::var_os("SOUK_GOLDEN").map_or(committed, PathBuf::from).join(name)
}

fn placement() -> Placement {
    Placement { device: Device::Cpu, precision: Precision::F32, adapter: None, ignore_fields: Vec::new() }
}

fn texts(dir: &Path) -> Vec<(String, String)> {
    serde_json::from_slice(&std::fs::read(dir.join("pairs.json")).unwrap()).unwrap()
}

#[test]
fn pairs_and_logits_are_those_of_transformers() {
    for name in ["rel_bert", "rel_last", "rel_hub", "rel_xlm_roberta"] {
        let dir = golden(name);
        let expected = read_tensors(&dir.join("expected.safetensors")).unwrap();
        let numbers = |name: &str| Vec::<i64>::try_from(&expected[name]).unwrap();
        let (ids, starts) = (numbers("ids"), numbers("starts"));
        let model = CrossEncoder::open(&dir, placement()).unwrap();
        let reader = model.reader();
        let pairs: Vec<PairText> = texts(&dir).iter().map(|(query, item)| reader.read(query, item).unwrap()).collect();
        for (at, pair) in pairs.iter().enumerate() {
            let theirs = &ids[starts[at] as usize..starts[at + 1] as usize];
            let ours: Vec<i64> = pair.ids.iter().map(|id| i64::from(*id)).collect();
            assert_eq!(ours, theirs, "{name}, pair {at}");
        }
        assert!(pairs.iter().any(|pair| pair.cut) && pairs.iter().any(|pair| !pair.cut));
        let logits = &expected["logits"];
        let check = |what: &str, found: Vec<Vec<f32>>, logits: &Tensor| {
            let found = Tensor::from_slice2(&found);
            let apart = (found - logits).abs().max().double_value(&[]);
            assert!(apart <= EXACT, "{name}, {what}: {apart:.2e}");
        };
        let all: Vec<&PairText> = pairs.iter().collect();
        check("in one batch", model.outputs_of(&all).unwrap(), logits);
        let alone = |model: &CrossEncoder| -> Vec<Vec<f32>> {
            all.iter().flat_map(|pair| model.outputs_of(&[pair]).unwrap()).collect()
        };
        check("alone", alone(&model), logits);
        let frozen = model.freeze().unwrap();
        check("frozen, in one batch", frozen.outputs_of(&all).unwrap(), logits);
        check("frozen, alone", alone(&frozen), logits);
    }
}

#[test]
fn a_verdict_is_a_function_of_the_pair() {
    let dir = golden("rel_bert");
    let texts = texts(&dir);
    let asked: Vec<Question> =
        texts.iter().map(|(query, item)| Question { query_id: "", query, item_id: "", item }).collect();
    let whole = CrossEncoderJudge::open(&dir, placement(), 4096).unwrap();
    let small = CrossEncoderJudge::open(&dir, placement(), 1).unwrap();
    assert!(whole.id().starts_with("rel_bert-"), "{}", whole.id());
    assert_eq!(whole.id(), small.id());
    assert!(whole.judge(&[]).unwrap().is_empty());
    let (batched, alone) = (whole.judge(&asked).unwrap(), small.judge(&asked).unwrap());
    assert_eq!(batched.len(), asked.len());
    for (a, b) in batched.iter().zip(&alone) {
        let (a, b) = (a.unwrap(), b.unwrap());
        assert!((a.score - b.score).abs() <= 1e-5 && (0.0..=1.0).contains(&a.score), "{a:?} {b:?}");
    }
    let mut turned = asked.clone();
    turned.reverse();
    let turned = whole.judge(&turned).unwrap();
    assert!(turned.iter().rev().zip(&batched).all(|(a, b)| (a.unwrap().score - b.unwrap().score).abs() <= 1e-5));
}

#[test]
fn what_is_no_relevance_model_is_refused_with_what_to_do() {
    let error = CrossEncoder::open(&golden("bert"), placement()).err().unwrap().to_string();
    assert!(error.contains("relevance.json") && error.contains("souk relevance train"), "{error}");
}

#[test]
fn a_cross_encoder_of_the_hub_reranks_and_is_a_base_but_no_judge() {
    for dir in [golden("rel_hub"), golden("rel_xlm_roberta")] {
        check_cross_encoder_of_the_hub(&dir);
    }
    let home = tempfile::tempdir().unwrap();
    let copied = |name: &str, files: &[&str]| {
        let folder = home.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        for file in files {
            std::fs::copy(golden(name).join(file), folder.join(file)).unwrap();
        }
        CrossEncoder::open(&folder, placement()).err().unwrap().to_string()
    };
    let files = ["config.json", "model.safetensors", "tokenizer.json"];
    assert!(copied("rel_bert", &files).contains("relevance.json"), "four outputs of an unknown kind");
}

fn check_cross_encoder_of_the_hub(dir: &Path) {
    let logits = read_tensors(&dir.join("expected.safetensors")).unwrap().remove("logits").unwrap();
    let pairs = texts(dir);
    let apart = |found: &[f32]| (Tensor::from_slice(found) - logits.view([-1])).abs().max().double_value(&[]);
    // it was trained on no template of ours, so any is as good
    let brand: ItemText = "{title} {brand}".parse().unwrap();
    let scorer = PairScorer::open(dir, placement(), &brand).unwrap();
    let outputs: Vec<f32> =
        pairs.iter().flat_map(|(query, item)| scorer.outputs(query, &[item.as_str()]).unwrap()).collect();
    assert!(apart(&outputs) <= EXACT, "{:.2e}", apart(&outputs));
    let model = CrossEncoder::open(dir, placement()).unwrap();
    assert!(model.check_calibrated(dir).unwrap_err().to_string().contains("souk relevance train --model"));
    let question = Question { query_id: "", query: &pairs[1].0, item_id: "", item: &pairs[1].1 };
    let verdict = CrossEncoderJudge::new(model, 64).judge(&[question]).unwrap()[0].unwrap();
    assert!((verdict.score - 1.0 / (1.0 + (-outputs[1]).exp())).abs() < 1e-6, "{verdict:?} {}", outputs[1]);

    // training begins with all of its weights, the output layer included
    let base = CrossEncoder::begin(dir, placement(), &EncoderShape::default()).unwrap();
    let read: Vec<PairText> = pairs.iter().map(|(query, item)| base.reader().read(query, item).unwrap()).collect();
    let outputs = base.outputs_of(&read.iter().collect::<Vec<_>>()).unwrap().concat();
    assert!(apart(&outputs) <= EXACT, "{:.2e}", apart(&outputs));
    // but not with one for other outputs
    let four = EncoderShape { loss: Loss::FourWay, ..EncoderShape::default() };
    assert_eq!(CrossEncoder::begin(dir, placement(), &four).unwrap().outputs_of(&[&read[0]]).unwrap()[0].len(), 4);
}

/// A shop and a base model, a BERT.
fn shop(home: &Path) -> (DataFolder, PathBuf) {
    let plan = MarketSpec { seed: 5, items: 600, queries: 240, events: 0 };
    souk_market::write(&plan, &home.join("shop"), &|_, _| {}).unwrap();
    let data = DataFolder::open(&home.join("shop")).unwrap();
    let base = home.join("base");
    write_base(&data, "bert", &base);
    (data, base)
}

/// Writes a small base model of a kind.
fn write_base(data: &DataFolder, model_type: &str, out: &Path) {
    let scratch = Scratch {
        seed: 1,
        vocab: 1500,
        pooling: Pooling::Mean,
        max_tokens: 64,
        query_prompt: String::new(),
        item_prompt: String::new(),
        architecture: serde_json::json!({
            "model_type": model_type, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
            "intermediate_size": 64, "max_position_embeddings": 66,
        }),
    };
    let passages = data.items().unwrap().map(|item| ItemText::default().render(&item.unwrap().1));
    scratch.write(passages.collect::<Vec<_>>().into_iter(), &ItemText::default(), out).unwrap();
}

/// Settings that teach a small judge the shop of `shop`.
fn small_settings() -> RelevanceSettings {
    RelevanceSettings {
        held_out: 0.3,
        pooling: Some(Reading::Sides),
        batch_tokens: 1024,
        optimizer: OptimizerSettings { learning_rate: 3e-3, ..OptimizerSettings::default() },
        ..RelevanceSettings::default()
    }
}

#[test]
fn a_small_judge_learns_a_shop_and_survives_its_folder() {
    // more threads add in another order, which a model this small shows
    tch::set_num_threads(1);
    let home = tempfile::tempdir().unwrap();
    let (data, base) = shop(home.path());
    let settings = RelevanceSettings { epochs: 3.0, block_pairs: 512, ..small_settings() };
    let out = home.path().join("judge");
    std::fs::create_dir(&out).unwrap();
    let train = |settings: &RelevanceSettings, out: &Path| {
        let training = Training::open(settings, &base, placement(), &data, ItemText::default()).unwrap();
        let mut losses = Vec::new();
        let measured = training
            .run(out, &AtomicBool::new(false), |progress| {
                if let TrainProgress::Learning { loss, .. } = progress {
                    losses.push(loss);
                }
            })
            .unwrap();
        (measured, losses)
    };
    let (measured, losses) = train(&settings, &out);
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    assert!(mean(&losses[losses.len() - 10..]) < mean(&losses[..10]) - 0.1, "{losses:?}");
    let auc = measured.judged.agreement.auc_good.unwrap();
    assert!(auc > 0.62, "the AUC of Good on queries never seen is {auc}");
    assert!(measured.calibration.nll_after <= measured.calibration.nll_before);
    assert!(measured.all.after.ece.unwrap() < 0.2);
    assert!(relevance_page("judge", &measured).contains("Reliability of P(Good)"));

    let manifest = CrossEncoderManifest::open(&out).unwrap();
    assert_eq!(manifest.trained_on.unwrap().held_out, 0.3);
    let judge = CrossEncoderJudge::open(&out, placement(), 4096).unwrap();
    let item = data.items().unwrap().next().unwrap().unwrap().1;
    let passage = ItemText::default().render(&item);
    let asked = Question { query_id: "q0", query: "oak desk", item_id: &item.id, item: &passage };
    assert!((0.0..=1.0).contains(&judge.judge(&[asked]).unwrap()[0].unwrap().score));

    int8_levels_are_those_of_f32(&out, &data);
    reranking_a_poor_order_pays(&out, &data);

    // the same seed gives the same model, to the bit
    let short = RelevanceSettings { max_pairs: 500, ..settings };
    let ids = ["first", "second"].map(|place| {
        let out = home.path().join(place).join("judge");
        std::fs::create_dir_all(&out).unwrap();
        train(&short, &out);
        CrossEncoderJudge::open(&out, placement(), 4096).unwrap().id().to_owned()
    });
    assert_eq!(ids[0], ids[1]);
    assert_ne!(&ids[0], judge.id());
}

/// Each kind of model reads pairs, trains, and comes back from its folder under the class of transformers that has its head.
#[test]
fn a_judge_learns_from_every_kind_of_base() {
    let home = tempfile::tempdir().unwrap();
    let (data, _) = shop(home.path());
    for (model_type, class, pooling) in [
        ("roberta", "Roberta", None),
        ("xlm-roberta", "XLMRoberta", Some(Reading::Sides)),
        ("mpnet", "MPNet", None),
        ("modernbert", "ModernBert", None),
        ("gemma3_text", "Gemma3Text", None),
    ] {
        let [base, out] = ["base", "judge"].map(|kind| home.path().join(model_type).join(kind));
        std::fs::create_dir_all(&out).unwrap();
        write_base(&data, model_type, &base);
        let settings = RelevanceSettings { pooling, max_pairs: 300, block_pairs: 300, ..small_settings() };
        let training = Training::open(&settings, &base, placement(), &data, ItemText::default()).unwrap();
        training.run(&out, &AtomicBool::new(false), |_| ()).unwrap();
        let config: serde_json::Value =
            serde_json::from_slice(&std::fs::read(out.join("config.json")).unwrap()).unwrap();
        assert_eq!(config["architectures"][0], format!("{class}ForSequenceClassification").as_str());
        let judge = CrossEncoderJudge::open(&out, placement(), 4096).unwrap();
        let asked = ["oak desk", "lamp"].map(|item| Question { query_id: "", query: "desk", item_id: "", item });
        let verdicts = judge.judge(&asked).unwrap();
        assert!(verdicts.iter().all(|verdict| (0.0..=1.0).contains(&verdict.unwrap().score)), "{model_type}");
    }
}

/// Judges items in both precisions. Pairs near a threshold are judged in f32 in any case.
fn int8_levels_are_those_of_f32(judge: &Path, data: &DataFolder) {
    let int8 = Placement { precision: Precision::Int8, ..placement() };
    let [exact, rough] = [placement(), int8].map(|placement| CrossEncoderJudge::open(judge, placement, 4096).unwrap());
    let passages: Vec<String> =
        data.items().unwrap().map(|item| ItemText::default().render(&item.unwrap().1)).collect();
    let queries: Vec<String> = data.queries().unwrap().map(|query| query.unwrap().text).collect();
    let asked: Vec<Question> = (0..2000)
        .map(|i| (&queries[i * 7 % queries.len()], &passages[i % passages.len()]))
        .map(|(query, item)| Question { query_id: "", query, item_id: "", item })
        .collect();
    let [exact, rough] = [exact, rough].map(|judge| judge.judge(&asked).unwrap());
    let pairs = || exact.iter().flatten().zip(rough.iter().flatten());
    let differ = pairs().filter(|(a, b)| a.level != b.level).count();
    assert!(differ * 100 <= asked.len(), "{differ} of {} levels differ", asked.len());
    let apart = |(a, b): (&Verdict, &Verdict)| (a.score - b.score).abs();
    assert!(pairs().any(|pair| apart(pair) > 1e-4), "int8 was not used");
    assert!(pairs().filter(|pair| apart(*pair) < 1e-6).count() > 10, "no score was near a threshold");
}

/// Vectors are random but for a small share of their queries' in relevant items: their order is better than none, and worse than a judge's.
fn reranking_a_poor_order_pays(judge: &Path, data: &DataFolder) {
    let task = Task::load(data, "train", &ItemText::default()).unwrap();
    let mut random = SplitMix64::new(1);
    let mut vectors =
        |num: usize| -> Vec<f32> { (0..8 * num).map(|_| random.below(2000) as f32 / 1000.0 - 1.0).collect() };
    let (mut items, queries) = (vectors(task.items.len()), vectors(task.queries.len()));
    for (query, vector) in task.queries.iter().zip(queries.chunks(8)) {
        for (row, _) in query.levels.iter().filter(|(_, level)| level.is_good()) {
            let item = &mut items[*row as usize * 8..][..8];
            item.iter_mut().zip(vector).for_each(|(item, query)| *item += 0.5 * query);
        }
    }
    let lexical = Lexical::build(task.items.iter().map(|item| Ok(item.text.clone()))).unwrap();
    let engine = Engine::dense(&task, &items, &queries).unwrap();
    let scorer = PairScorer::open(judge, placement(), &ItemText::default()).unwrap();
    let fit = fit_reranker(&task, (&engine, &lexical), (&scorer, 40), |_| true, |_| {}).unwrap().unwrap();
    let RerankQuality { fused, reranked } = fit.quality;
    assert!(reranked > 1.2 * fused && fit.weight > 0.0 && fit.queries == task.queries.len(), "{fit:?}");
    assert!(
        fit_reranker(&task, (&engine, &lexical), (&scorer, 40), |query| query.id == "q1", |_| {}).unwrap().is_none()
    );

    let before = engine.hits(&task, &lexical, 0..1, 60).unwrap().remove(0);
    let texts: Vec<&str> = before[..40].iter().map(|hit| task.item(hit.row).text.as_str()).collect();
    let outputs = scorer.outputs(&task.queries[0].text, &texts).unwrap();
    let engine = engine.reranked(Reranking::Version { scorer: Box::new(scorer), weight: fit.weight }, 40);
    assert!(engine.pipeline().starts_with("dense, first 40 reranked by judge-"), "{}", engine.pipeline());
    let after = engine.hits(&task, &lexical, 0..1, 60).unwrap().remove(0);
    for (hit, output) in before.iter().zip(outputs) {
        let reranked = after[..40].iter().find(|other| other.row == hit.row).unwrap();
        assert!((reranked.score - (hit.score + fit.weight * output)).abs() < 1e-3 * hit.score.abs(), "{reranked:?}");
    }
    assert!(after.is_sorted_by(|a, b| a.score >= b.score));
    let rows = |hits: &[EngineHit]| hits.iter().map(|hit| hit.row).collect::<Vec<_>>();
    assert_eq!(rows(&after[40..]), rows(&before[40..]));
    // fewer hits than are reranked are the first of them
    assert_eq!(rows(&engine.hits(&task, &lexical, 0..1, 10).unwrap()[0]), rows(&after[..10]));
}

#[test]
fn a_judge_learns_whole_lists() {
    tch::set_num_threads(1);
    let home = tempfile::tempdir().unwrap();
    let (data, base) = shop(home.path());
    let settings = RelevanceSettings { list_weight: 1.0, lexical_negatives: 4, epochs: 2.0, ..small_settings() };
    let out = home.path().join("judge");
    std::fs::create_dir(&out).unwrap();
    let training = Training::open(&settings, &base, placement(), &data, ItemText::default()).unwrap();
    let pairs = training.pairs().learn.len() as u64;
    let (mut last, mut losses) = (None, Vec::new());
    let measured = training.run(&out, &AtomicBool::new(false), |progress| {
        if let TrainProgress::Learning { pairs, of, loss, .. } = progress {
            last = Some((pairs, of));
            losses.push(loss);
        }
    });
    let measured = measured.unwrap();
    assert_eq!((last, measured.draws), (Some((2 * pairs, 2 * pairs)), 2 * pairs));
    let auc = measured.judged.agreement.auc_good.unwrap();
    assert!(
        auc > 0.55,
        "the AUC of Good on queries never seen is {auc}: its last digits depend on the order of threads"
    );
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    // the second epoch against the first
    let (first, second) = losses.split_at(losses.len() / 2);
    assert!(mean(second) < mean(first) - 0.05, "{} {}", mean(first), mean(second));
    let bad = |settings: RelevanceSettings| settings.check().unwrap_err().to_string();
    assert!(bad(RelevanceSettings { list_weight: -1.0, ..settings.clone() }).contains("use 0 or more"));
    assert!(bad(RelevanceSettings { loss: Loss::FourWay, ..settings }).contains("relevance.loss"));
}

#[test]
fn a_weaker_judge_has_fewer_layers_and_other_losses_train() {
    let home = tempfile::tempdir().unwrap();
    let (data, base) = shop(home.path());
    let settings = RelevanceSettings {
        loss: Loss::FourWay,
        pooling: Some(Reading::Mean),
        num_layers: Some(1),
        max_pairs: 200,
        held_out: 0.05,
        dropout: true,
        ..RelevanceSettings::default()
    };
    let out = home.path().join("weak");
    std::fs::create_dir(&out).unwrap();
    let training = Training::open(&settings, &base, placement(), &data, ItemText::default()).unwrap();
    training.run(&out, &AtomicBool::new(false), |_| {}).unwrap();
    let model = CrossEncoder::open(&out, placement()).unwrap();
    assert_eq!(model.architecture().num_layers(), 1);
    let names = read_tensors(&out.join("model.safetensors")).unwrap();
    assert!(!names.keys().any(|name| name.contains("layer.1.")) && names.contains_key("judge.weight"), "{names:?}");
    assert!(names.values().all(|tensor| tensor.kind() == Kind::Float));
    let three = RelevanceSettings { num_layers: Some(3), ..settings.clone() };
    let error = Training::open(&three, &base, placement(), &data, ItemText::default()).err().unwrap().to_string();
    assert!(error.contains("relevance.num_layers") && error.contains("has 2"), "{error}");

    let stopped = home.path().join("stopped");
    std::fs::create_dir(&stopped).unwrap();
    let training = Training::open(&settings, &base, placement(), &data, ItemText::default()).unwrap();
    assert!(training.run(&stopped, &AtomicBool::new(true), |_| {}).is_err());
    assert_eq!(std::fs::read_dir(&stopped).unwrap().count(), 0, "what was stopped leaves nothing");
}
