//! Decoder generation and generative embeddings against transformers and direct implementations of the papers' formulas
//! (`tests/golden/generative/`, made by `generative.py`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use souk::backbone::chat::Chat;
use souk::backbone::tokenizer::{Frame, Tokenizer};
use souk::backbone::weights::{Parameters, read_tensors};
use souk::backbone::{Architecture, Backbone, ForwardPass, Precision, Sampling, Tokens};
use souk::encoder::{Encoder, Overrides, Placement, Rationale, Refine, Text};
use souk::objective::{
    GraceSettings, Hard, IcrSettings, PairTargets, Penalty, RationaleVectors, Vectors, WrittenTokens,
};
use tch::{Device, IndexOp, Kind, Tensor};

const MODELS: [&str; 4] = ["qwen2", "qwen3", "llama", "mistral"];
const END: u32 = 2;
const STEPS: usize = 4;

fn golden() -> PathBuf {
    souk_testing::golden("")
}

fn expected(name: &str) -> BTreeMap<String, Tensor> {
    read_tensors(&golden().join(format!("generative/{name}.safetensors"))).unwrap()
}

/// Rows padded with -1, as texts.
fn texts(rows: &Tensor) -> Vec<Text> {
    let rows = Vec::<Vec<i64>>::try_from(rows).unwrap();
    let ids = |row: Vec<i64>| row.into_iter().filter(|id| *id >= 0).map(|id| id as u32).collect();
    rows.into_iter().map(|row| Text::new(ids(row), 0)).collect()
}

fn backbone(name: &str) -> Backbone {
    let dir = golden().join(name);
    let architecture = Architecture::open(&dir.join("config.json"), &[]).unwrap();
    let mut parameters = Parameters::open(&dir, Device::Cpu, Kind::Float).unwrap();
    Backbone::build(&architecture, &mut parameters).unwrap()
}

/// The three texts of the golden folder.
fn prompts(name: &str) -> Vec<Vec<u32>> {
    let expected = read_tensors(&golden().join(name).join("expected.safetensors")).unwrap();
    let rows = Vec::<Vec<i64>>::try_from(&expected["ids"]).unwrap();
    let masks = Vec::<Vec<i64>>::try_from(&expected["mask"]).unwrap();
    let kept = |(row, mask): (Vec<i64>, Vec<i64>)| {
        row.into_iter().zip(mask).filter(|p| p.1 == 1).map(|p| p.0 as u32).collect()
    };
    rows.into_iter().zip(masks).map(kept).collect()
}

fn slices(texts: &[Vec<u32>]) -> Vec<&[u32]> {
    texts.iter().map(Vec::as_slice).collect()
}

/// Encoder of a golden decoder; its folder has no tokenizer, so one is added.
fn encoder(name: &str, refine: Option<Refine>, home: &Path) -> Encoder {
    let dir = home.join(name);
    if !dir.exists() {
        std::fs::create_dir(&dir).unwrap();
        for file in ["config.json", "model.safetensors"] {
            std::fs::copy(golden().join(name).join(file), dir.join(file)).unwrap();
        }
        let words: BTreeMap<String, u32> = (0..80).map(|id| (format!("w{id}"), id)).collect();
        let tokenizer = serde_json::json!({
            "version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"},
            "model": {"type": "WordLevel", "vocab": words, "unk_token": "w0"},
        });
        std::fs::write(dir.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    }
    // texts and rationales are short, and the model has few positions
    let rationale = refine.is_none().then(|| Rationale { max_tokens: Some(8), ..Rationale::default() });
    let overrides = Overrides { refine, rationale, normalize: Some(false), ..Overrides::default() };
    Encoder::open(&dir, placement(), overrides).unwrap()
}

fn placement() -> Placement {
    Placement { device: Device::Cpu, precision: Precision::F32, adapter: None, ignore_fields: vec![] }
}

fn difference(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.size(), b.size());
    (a - b).abs().max().double_value(&[])
}

#[test]
fn the_likeliest_continuation_is_the_one_that_transformers_writes() {
    for name in MODELS {
        let wanted = Vec::<Vec<i64>>::try_from(&expected(name)["greedy"]).unwrap();
        let prompts = prompts(name);
        let mut backbone = backbone(name);
        for frozen in [false, true] {
            if frozen {
                backbone.freeze(Precision::F32).unwrap();
            }
            let written = Sampling::greedy(wanted[0].len()).run(&backbone, &slices(&prompts), 1, &[END]).unwrap();
            for (text, wanted) in written.iter().zip(&wanted) {
                let ids: Vec<i64> = text.ids.iter().map(|id| i64::from(*id)).collect();
                assert_eq!(ids, wanted[..ids.len()], "{name}");
                // transformers pads after the end token
                assert!(text.ended || ids.len() == wanted.len(), "{name}");
            }
        }
    }
}

#[test]
fn what_was_drawn_has_the_probability_of_a_pass_over_the_whole_text() {
    for name in MODELS {
        let (backbone, prompts) = (backbone(name), prompts(name));
        let how = Sampling { max_tokens: 10, temperature: 0.7, top_k: 40, top_p: 0.95, seed: 3, ..Sampling::default() };
        let written = how.run(&backbone, &slices(&prompts), 5, &[END, 7, 9]).unwrap();
        assert!(
            written.iter().any(|text| text.ended) && written.iter().any(|text| !text.ended),
            "{name}: some end, some do not"
        );
        for (at, text) in written.iter().enumerate() {
            let prompt = &prompts[at / 5];
            let whole: Vec<u32> = prompt.iter().chain(&text.ids).copied().collect();
            let states =
                backbone.forward(&Tokens::packed(&[&whole], Device::Cpu).unwrap(), ForwardPass::default()).unwrap();
            let logits = backbone.logits(&states.narrow(0, prompt.len() as i64 - 1, text.ids.len() as i64)).unwrap();
            let ids = Tensor::from_slice(&text.ids.iter().map(|id| i64::from(*id)).collect::<Vec<_>>()).unsqueeze(1);
            let wanted = (logits / 0.7).log_softmax(-1, Kind::Float).gather(1, &ids, false).squeeze_dim(1);
            assert!(difference(&Tensor::from_slice(&text.log_probs), &wanted) < 1e-4, "{name}");
        }
    }
}

#[test]
fn draws_follow_the_seed_and_the_text_and_nothing_else() {
    let (backbone, prompts) = (backbone("qwen3"), prompts("qwen3"));
    let how = Sampling { max_tokens: 6, ..Sampling::default() };
    let together = how.run(&backbone, &slices(&prompts), 2, &[END]).unwrap();
    let alone = how.run(&backbone, &slices(&prompts[..1]), 2, &[END]).unwrap();
    assert_eq!(
        together[..2].iter().map(|text| &text.ids).collect::<Vec<_>>(),
        alone.iter().map(|text| &text.ids).collect::<Vec<_>>()
    );
    assert_ne!(together[0].ids, together[1].ids, "two continuations of one text");
    let other = Sampling { seed: 2, ..how }.run(&backbone, &slices(&prompts), 2, &[END]).unwrap();
    assert_ne!(together, other);
    let greedy = Sampling::greedy(6).run(&backbone, &slices(&prompts), 1, &[END]).unwrap();
    for narrow in [Sampling { top_k: 1, ..how }, Sampling { top_p: 1e-6, ..how }] {
        let narrow = narrow.run(&backbone, &slices(&prompts), 1, &[END]).unwrap();
        assert!(narrow.iter().zip(&greedy).all(|(a, b)| a.ids == b.ids));
    }
}

#[test]
fn the_first_token_is_drawn_as_often_as_its_share() {
    const DRAWS: usize = 4000;
    let (backbone, prompts) = (backbone("llama"), prompts("llama"));
    let states =
        backbone.forward(&Tokens::packed(&[&prompts[2]], Device::Cpu).unwrap(), ForwardPass::default()).unwrap();
    let share = backbone.logits(&states).unwrap().i(-1).softmax(-1, Kind::Float);
    let share = Vec::<f32>::try_from(share).unwrap();
    let nucleus = |top: usize| {
        let mut order: Vec<usize> = (0..share.len()).collect();
        order.sort_by(|a, b| share[*b].total_cmp(&share[*a]));
        order[..top].iter().map(|id| share[*id]).sum::<f32>()
    };
    for (how, among) in [(Sampling::default(), share.len()), (Sampling { top_k: 5, ..Sampling::default() }, 5)] {
        let how = Sampling { max_tokens: 1, ..how };
        let mut counts = vec![0_u32; share.len()];
        for text in how.run(&backbone, &[&prompts[2]], DRAWS, &[END]).unwrap() {
            counts[text.ids[0] as usize] += 1;
        }
        assert!(counts.iter().filter(|count| **count > 0).count() <= among);
        let whole = nucleus(among);
        for (count, share) in counts.iter().zip(&share).filter(|(count, _)| **count > 0) {
            let wanted = DRAWS as f32 * share / whole;
            let spread = 5.0 * (wanted * (1.0 - share / whole)).sqrt() + 3.0;
            assert!((*count as f32 - wanted).abs() < spread, "{count} beside {wanted}");
        }
    }
}

#[test]
fn soft_tokens_are_those_of_the_paper_cached_or_not_alone_or_together() {
    let home = tempfile::tempdir().unwrap();
    for name in MODELS {
        let expected = expected(name);
        let items = texts(&expected["icr/items"]);
        let all: Vec<&Text> = items.iter().collect();
        for cached in [true, false] {
            let encoder = encoder(name, Some(Refine { steps: Some(STEPS), cached: Some(cached) }), home.path());
            let found = encoder.encode_steps(&all, false).unwrap().view([5, STEPS as i64, -1]);
            assert!(difference(&found, &expected["icr/refined"]) < 2e-5, "{name}, cached: {cached}");
        }
        let last = expected["icr/refined"].select(1, STEPS as i64 - 1);
        let encoder = encoder(name, Some(Refine { steps: Some(STEPS), cached: None }), home.path()).freeze().unwrap();
        for (at, text) in all.iter().enumerate() {
            let alone = Tensor::from_slice(&encoder.vectors(&[text]).unwrap()[0]);
            assert!(difference(&alone, &last.get(at as i64)) < 2e-5, "{name}, frozen and alone");
        }
    }
}

#[test]
fn the_loss_of_all_steps_and_its_gradients_are_those_of_the_paper() {
    let home = tempfile::tempdir().unwrap();
    for name in MODELS {
        let expected = expected(name);
        let mut encoder = encoder(name, Some(Refine { steps: Some(STEPS), cached: None }), home.path());
        let named = encoder.trainable(None, true).unwrap();
        let encode = |rows: &str| {
            let texts = texts(&expected[rows]);
            encoder.encode_steps(&texts.iter().collect::<Vec<_>>(), false).unwrap()
        };
        let (queries, items) = (encode("icr/queries"), encode("icr/items"));
        let (own, known) =
            (Tensor::arange(5, (Kind::Int64, Device::Cpu)), Tensor::zeros([5, 5], (Kind::Bool, Device::Cpu)));
        let weight = Tensor::ones([5], (Kind::Float, Device::Cpu));
        let pairs = PairTargets {
            query: &own,
            item: &own,
            known: &known,
            known_queries: None,
            weight: &weight,
            judged: None,
            guide: None,
        };
        let rule = IcrSettings { temperature: 0.1, penalty: Penalty::Pair, ..IcrSettings::default() };
        let vectors = Vectors { queries: &queries, items: &items, steps: STEPS as i64 };
        let losses = rule.step_losses(&vectors, &pairs);
        let means = losses.detach().mean_dim(0, false, Kind::Float);
        let loss = rule.loss(&losses, &weight, &means) / 5.0;
        assert!((loss.double_value(&[]) - expected["icr/loss"].double_value(&[0])).abs() < 1e-4, "{name}");
        loss.backward();
        compare_gradients(name, "icr", &named, &expected);
    }
}

/// The penalty of the batch's mean losses, by the formula, however pairs are spread; a solved pair has hardly any part in it.
#[test]
fn the_penalty_of_a_batch_is_that_of_its_mean_losses() {
    let values = [[2.0_f32, 2.5, 1.0], [0.001, 0.002, 0.004], [1.0, 0.5, 0.7], [3.0, 3.5, 2.0]];
    let losses = || Tensor::from_slice2(&values).set_requires_grad(true);
    let weight = Tensor::from_slice(&[1.0_f32, 1.0, 2.0, 1.0]);
    let mean = |x: &Tensor| (x * (&weight / 5.0).unsqueeze(1)).sum_dim_intlist(0, false, Kind::Float);
    let expected = losses();
    let logs = mean(&expected).log();
    let penalty = (logs.narrow(0, 1, 2) - logs.narrow(0, 0, 2)).relu().mean(Kind::Float);
    let wanted = mean(&expected.mean_dim(1, true, Kind::Float)).sum(Kind::Float) + penalty * 0.5;
    wanted.backward();
    let rule = |penalty| IcrSettings { refinement: 0.5, penalty, ..IcrSettings::default() };
    for shares in [vec![(0, 4)], vec![(0, 1), (1, 3)]] {
        let found = losses();
        let means = mean(&found.detach());
        let part = |(start, num): &(i64, i64)| {
            let own = |x: &Tensor| x.narrow(0, *start, *num);
            rule(Penalty::Batch).loss(&own(&found), &own(&weight), &means) / 5.0
        };
        let loss = shares.iter().map(part).reduce(|a, b| a + b).unwrap();
        assert!((loss.double_value(&[]) - wanted.double_value(&[])).abs() < 1e-6);
        loss.backward();
        assert!(difference(&found.grad(), &expected.grad()) < 1e-6);
    }
    let solved = |penalty| {
        let found = losses();
        rule(penalty).loss(&found, &weight, &mean(&found.detach())).backward();
        found.grad().select(0, 1).abs().max().double_value(&[])
    };
    assert!(solved(Penalty::Batch) < 1.0 && solved(Penalty::Pair) > 50.0);
}

fn compare_gradients(name: &str, of: &str, named: &[(String, Tensor)], expected: &BTreeMap<String, Tensor>) {
    let mut seen = 0;
    for (key, weight) in named {
        let Some(wanted) = expected.get(&format!("{of}/gradient/{key}")) else { continue };
        let size = wanted.abs().max().double_value(&[]).max(1e-3);
        assert!(difference(&weight.grad(), wanted) < 1e-3 * size, "{name}, {of}: {key}");
        seen += 1;
    }
    assert!(seen > 15, "{name}: {seen} gradients were compared");
}

/// Three pairs of the golden file, with three rationales per positive and two negatives per query.
struct Told {
    expected: BTreeMap<String, Tensor>,
    encoder: Encoder,
}

impl Told {
    fn new(name: &str, home: &Path) -> Self {
        Self { expected: expected(name), encoder: encoder(name, None, home) }
    }

    /// Texts with their rationales, and the length of each text alone.
    fn whole(&self, of: &str, each: usize) -> Vec<(Text, usize)> {
        let asked = texts(&self.expected[&format!("grace/text_{of}")]);
        let wrote = texts(&self.expected[&format!("grace/wrote_{of}")]);
        let with = |(at, more): (usize, &Text)| {
            let text = Text { skip: 1, ..asked[at / each].clone() };
            (text.followed_by(&more.ids), text.ids.len())
        };
        wrote.iter().enumerate().map(with).collect()
    }

    fn vectors(&self, of: &str, each: usize, shape: &[i64]) -> Tensor {
        let whole = self.whole(of, each);
        let texts: Vec<&Text> = whole.iter().map(|(text, _)| text).collect();
        let _guard = tch::no_grad_guard();
        self.encoder.encode_written(&texts).unwrap().view(shape)
    }

    /// Rewards of all processes, concatenated.
    fn rewards(&self, rule: &GraceSettings, processes: i64) -> Tensor {
        let (queries, positives) = (self.vectors("q", 1, &[3, -1]), self.vectors("d", 3, &[3, 3, -1]));
        let negatives = self.vectors("n", 1, &[3, 2, -1]);
        let share = 3 / processes;
        let own = |rank: i64| {
            let (first, negatives) = (rank * share, negatives.narrow(0, rank * share, share));
            rule.rewards(&RationaleVectors { queries: &queries, positives: &positives, negatives: &negatives, first })
                .total
        };
        Tensor::cat(&(0..processes).map(own).collect::<Vec<_>>(), 0)
    }
}

fn rule(hard: Hard) -> GraceSettings {
    GraceSettings { rollouts: 3, negatives: 2, hard, temperature: 10.0, ..GraceSettings::default() }
}

#[test]
fn rewards_are_those_of_the_paper_however_pairs_are_spread() {
    let home = tempfile::tempdir().unwrap();
    for name in MODELS {
        let told = Told::new(name, home.path());
        for (hard, wanted) in [(Hard::Paper, "grace/paper"), (Hard::Rollout, "grace/rollout")] {
            for processes in [1, 3] {
                let found = told.rewards(&rule(hard), processes);
                assert!(difference(&found, &told.expected[wanted]) < 1e-5, "{name}: {wanted}");
            }
        }
    }
}

#[test]
fn the_gradient_of_what_was_written_is_that_of_the_paper() {
    let home = tempfile::tempdir().unwrap();
    for name in MODELS {
        let mut told = Told::new(name, home.path());
        let named = told.encoder.trainable(None, true).unwrap();
        let rule = rule(Hard::Paper);
        let reward = &told.expected["grace/paper"];
        let advantages = Vec::<f32>::try_from(rule.advantages(reward, reward).values.view([-1])).unwrap();
        let whole = told.whole("d", 3);
        let texts: Vec<(&[u32], usize)> = whole.iter().map(|(text, prompt)| (text.ids.as_slice(), *prompt)).collect();
        let now = told.encoder.log_probs(&texts, 1.0, false).unwrap();
        let lengths: Vec<i64> = texts.iter().map(|(ids, prompt)| (ids.len() - prompt) as i64).collect();
        let parts = now.split_with_sizes(&lengths[..], 0);
        let sums: Vec<f32> = parts.iter().map(|part| part.sum(Kind::Float).double_value(&[]) as f32).collect();
        let wanted = &told.expected["grace/log_probs"];
        assert!(difference(&Tensor::from_slice(&sums).view([3, 3]), wanted) < 1e-4, "{name}");
        let of_token = advantages.iter().zip(&lengths).flat_map(|(a, num)| vec![*a; *num as usize]);
        let of_token = Tensor::from_slice(&of_token.collect::<Vec<f32>>());
        let tokens = |old| WrittenTokens { old, reference: None, advantage: &of_token };
        let loss = rule.loss(&now, &tokens(None)) / rule.divisor(3.0, 1.0);
        assert!((loss.double_value(&[]) - told.expected["grace/loss"].double_value(&[0])).abs() < 1e-4, "{name}");
        // with an inactive clip, the gradient is the same
        let often = rule.loss(&now, &tokens(Some(&now.detach()))) / 3.0;
        let weights: Vec<&Tensor> = named.iter().map(|(_, weight)| weight).collect();
        let [one, two] = [&loss, &often].map(|loss| Tensor::run_backward(&[loss], &weights, true, false));
        assert!(one.iter().zip(&two).all(|(a, b)| difference(a, b) < 1e-5), "{name}");
        loss.backward();
        compare_gradients(name, "grace", &named, &told.expected);
    }
}

#[test]
fn as_the_paper_writes_it_hard_negatives_teach_nothing() {
    let home = tempfile::tempdir().unwrap();
    let told = Told::new("qwen3", home.path());
    let advantages = |hard, distractors| {
        let rule = GraceSettings { distractors, ..rule(hard) };
        let reward = told.rewards(&rule, 1);
        rule.advantages(&reward, &reward).values
    };
    assert!(difference(&advantages(Hard::Paper, 0.2), &advantages(Hard::Paper, 0.0)) < 1e-7);
    assert!(difference(&advantages(Hard::Rollout, 0.2), &advantages(Hard::Rollout, 0.0)) > 1e-4);
}

#[test]
fn who_does_not_come_to_an_end_gets_less_than_anybody_who_does() {
    let rule = rule(Hard::Paper);
    let total = Tensor::from_slice(&[0.1_f32, 0.2, 0.9, -3.0, -2.0, 5.0, 0.4, 0.5, 0.6]).view([3, 3]);
    let ended = Tensor::from_slice(&[true, true, false, true, true, false, false, false, false]).view([3, 3]);
    let found = Vec::<Vec<f32>>::try_from(rule.penalise_length(&total, &ended)).unwrap();
    assert_eq!(found, [[0.1, 0.2, -1.0], [-3.0, -2.0, -4.0], [-1.0, -1.0, -1.0]]);
}

#[test]
fn a_model_is_spoken_to_as_transformers_does_it() {
    let chats = std::fs::read_to_string(golden().join("generative/chats.json")).unwrap();
    let chats: serde_json::Value = serde_json::from_str(&chats).unwrap();
    let home = tempfile::tempdir().unwrap();
    drop(encoder("qwen3", None, home.path()));
    let dir = home.path().join("qwen3");
    let tokenizer = Tokenizer::open(&dir).unwrap();
    for (name, chat) in chats.as_object().unwrap() {
        std::fs::write(dir.join("tokenizer_config.json"), chat.to_string()).unwrap();
        for (instruction, whole) in chat["whole"].as_object().unwrap() {
            let found = Chat::open(&dir, &tokenizer, instruction).unwrap();
            assert_eq!(format!("{}oak desk{}", found.before, found.after), whole.as_str().unwrap(), "{name}");
            assert!(found.complete && found.ends == [END], "{name}: {:?}", found.ends);
        }
    }
    std::fs::write(dir.join("chat_template.jinja"), "{{ raise_exception('not for you') }}").unwrap();
    let error = Chat::open(&dir, &tokenizer, "").unwrap_err().to_string();
    assert!(error.contains("chat_template.jinja") && error.contains("cannot be rendered"), "{error}");
}

#[test]
fn a_text_too_long_is_cut_and_what_stands_around_it_is_not() {
    let home = tempfile::tempdir().unwrap();
    drop(encoder("qwen3", None, home.path()));
    let tokenizer = Tokenizer::open(&home.path().join("qwen3")).unwrap();
    let (frame, text) = (Frame { before: "w5 w6 ", after: " w7", complete: true }, "w10 w11 w12 w13 w14");
    let between = |max_tokens| tokenizer.encode_framed(frame, text, max_tokens);
    assert_eq!(between(100).unwrap(), (vec![5, 6, 10, 11, 12, 13, 14, 7], 2));
    assert_eq!(between(5).unwrap(), (vec![5, 6, 10, 11, 7], 2));
    assert!(between(3).unwrap_err().to_string().contains("3 tokens"));
}
