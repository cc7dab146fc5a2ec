//! Generative encoders: next-token training of a decoder from scratch, then ICR (soft tokens) or GRACE (rationales).
//! Other commands load the folders, and several processes give the same result as one.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;

use serde_json::{Value, json};
use souk::backbone::{Continuation, Precision, Sampling};
use souk::encoder::{Encoder, Overrides, Placement, Text};
use tch::Device;
use tempfile::TempDir;

const KINDS: [&str; 6] = ["desk", "lamp", "chair", "pipe", "jacket", "bottle"];
const COLOURS: [&str; 3] = ["red", "blue", "oak"];

/// A shop whose items have a kind and a colour, and a decoder trained to generate both.
fn writer() -> TempDir {
    let home = tempfile::tempdir().unwrap();
    let (mut corpus, mut queries, mut qrels) =
        (String::new(), String::new(), String::from("query-id\tcorpus-id\tscore\n"));
    for item in 0..60 {
        let (kind, colour) = (KINDS[item % 6], COLOURS[item / 6 % 3]);
        let title = format!("{colour} {kind} number {item}");
        let fields = json!({"_id": format!("d{item}"), "title": title, "text": "as sold", "kind": kind, "attributes": {"colour": colour}});
        corpus += &format!("{fields}\n");
        queries += &format!("{}\n", json!({"_id": format!("q{item}"), "text": format!("{kind} {item}")}));
        qrels += &format!("q{item}\td{item}\t4\n");
    }
    fs::create_dir_all(home.path().join("shop/qrels")).unwrap();
    for (name, text) in [
        ("corpus.jsonl", &corpus),
        ("queries.jsonl", &queries),
        ("qrels/train.tsv", &qrels),
        ("qrels/test.tsv", &qrels),
    ] {
        fs::write(home.path().join("shop").join(name), text).unwrap();
    }
    let config = souk_testing::repository().join("configs");
    let small =
        ["scratch.vocab=400", "scratch.architecture.hidden_size=32", "scratch.architecture.num_hidden_layers=2"];
    let mut init = souk(home.path(), &["init", "--data", "shop", "--out", "base"], &small);
    run_ok(init.arg("--config").arg(config.join("scratch-writer.toml")));
    let sets = [
        "model.path=base",
        "objective.answer=[\"kind\", \"attributes\"]",
        "objective.held_out=0.1",
        "train.batch=30",
        "train.epochs=60",
        "train.optimizer.learning_rate=1e-2",
        "encoder.rationale.max_tokens=30",
    ];
    let mut train = souk(home.path(), &["train", "--data", "shop", "--out", "writer", "--json"], &sets);
    let summary = run_ok(train.arg("--config").arg(config.join("next-token-market.toml")));
    assert_eq!(summary["finished"], json!(true));
    let losses = losses(&home.path().join("writer"));
    assert!(losses.last().unwrap() < &(losses[0] / 2.0), "{losses:?}");
    home
}

fn souk(home: &Path, args: &[&str], sets: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_souk-engine"));
    command.current_dir(home).env_remove("RUST_LOG").env("OMP_NUM_THREADS", "1").args(args);
    for set in sets {
        command.args(["--set", set]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run_ok(command: &mut Command) -> Value {
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    serde_json::from_slice(&stdout).unwrap_or_default()
}

fn assert_fails(command: &mut Command, words: &[&str]) {
    let output = command.output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    words.iter().for_each(|word| assert!(message.contains(word), "`{word}` is missing in `{message}`"));
}

fn steps(out: &Path) -> Vec<Value> {
    let text = fs::read_to_string(out.join("steps.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn losses(out: &Path) -> Vec<f64> {
    steps(out).iter().map(|line| line["loss"].as_f64().unwrap()).collect()
}

/// Output lines of `souk embed`.
fn embed(home: &Path, args: &[&str], text: &str) -> Vec<Value> {
    let mut command = souk(home, &[&["embed"], args].concat(), &[]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn vector(line: &Value) -> Vec<f64> {
    line.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

fn max_diff(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

/// Trains with one and with two processes. Compares the losses of the first `num_equal` steps, and gradient norms,
/// whose scale the optimizer would hide.
fn train_with_one_and_two(home: &Path, out: &str, sets: &[&str], num_equal: usize) -> Vec<Value> {
    let args = |out: &str| ["train", "--data", "shop", "--out", out, "--json", "--model", "writer"].map(str::to_owned);
    let of = |args: &[String]| souk(home, &args.iter().map(String::as_str).collect::<Vec<_>>(), sets);
    assert_eq!(run_ok(&mut of(&args(out)))["finished"], json!(true));
    let parallel = format!("{out}-by-two");
    let launch = ["launch", "--nproc", "2", "--"].map(str::to_owned);
    run_ok(&mut of(&launch.into_iter().chain(args(&parallel)).collect::<Vec<_>>()));
    let (one, two) = (losses(&home.join(out)), losses(&home.join(&parallel)));
    // another order of summation changes the last bit, and every update amplifies it
    assert!(max_diff(&one[..3], &two[..3]) < 2e-6 * (1.0 + one[0].abs()), "{one:?} and {two:?}");
    assert!(one.len() == two.len() && one.len() >= num_equal, "{one:?} and {two:?}");
    assert!(max_diff(&one[..num_equal], &two[..num_equal]) < 1e-4, "{one:?} and {two:?}");
    let norms =
        |out: &str| steps(&home.join(out)).iter().map(|step| step["grad_norm"].as_f64().unwrap()).collect::<Vec<_>>();
    let (one, two) = (norms(out), norms(&parallel));
    assert!(one.iter().zip(&two).take(3).all(|(one, two)| (one / two - 1.0).abs() < 1e-4), "{one:?} and {two:?}");
    steps(&home.join(out))
}

#[test]
fn icr_trains_and_other_commands_load_the_folder() {
    let home = writer();
    let sets = [
        "objective.type=icr",
        "objective.temperature=0.1",
        "encoder.refine.steps=3",
        "train.batch=12",
        "train.epochs=4",
        "train.chunk_tokens=64",
        "train.keep_tokens=100",
        "train.optimizer.learning_rate=1e-3",
    ];
    // the penalty of the mean has a kink where two steps' losses are equal, so that a rounding difference can change a gradient
    train_with_one_and_two(home.path(), "mean", &sets, 3);
    // soft tokens amplify rounding differences with each update, more at higher learning rates
    let sets = [&sets[..], &["objective.penalty=pair"]].concat();
    let steps = train_with_one_and_two(home.path(), "refined", &sets, 10);
    assert!(steps.last().unwrap()["loss"].as_f64().unwrap() < steps[0]["loss"].as_f64().unwrap());
    let plain = embed(home.path(), &["--model", "refined"], "oak desk\nlamp 7\n");
    let alone = embed(home.path(), &["--model", "refined"], "lamp 7\n");
    assert!(max_diff(&vector(&plain[1]), &vector(&alone[0])) < 1e-5, "batch size changes the vector");
    let again = embed(home.path(), &["--model", "refined", "--set", "encoder.refine.cached=false"], "oak desk\n");
    assert!(max_diff(&vector(&plain[0]), &vector(&again[0])) < 1e-5, "the KV cache changes the vector");
    let more = embed(home.path(), &["--model", "refined", "--set", "encoder.refine.steps=9"], "oak desk\n");
    assert!(max_diff(&vector(&plain[0]), &vector(&more[0])) > 1e-4, "more soft tokens must change the vector");
    run_ok(&mut souk(home.path(), &["index", "--model", "refined", "--data", "shop", "--out", "index"], &[]));
    let found =
        run_ok(&mut souk(home.path(), &["search", "--model", "refined", "--index", "index", "--json", "lamp 7"], &[]));
    assert_eq!(found["hits"].as_array().unwrap().len(), 10);
    assert_fails(
        &mut souk(home.path(), &["embed", "--model", "refined"], &["encoder.refine.steps=0"]),
        &["encoder.refine.steps", "1 to 256"],
    );
}

#[test]
fn grace_trains_resumes_and_explains() {
    let home = writer();
    let sets = [
        "objective.type=grace",
        "objective.hard=rollout",
        "objective.rollouts=4",
        // losses near 1, whose rounding is known
        "objective.temperature=10.0",
        "train.batch=12",
        "train.max_steps=3",
        "train.checkpoint_steps=1",
        "train.optimizer.learning_rate=1e-3",
    ];
    let forms: [(&str, &[&str]); 7] = [
        ("grpo", &[]),
        ("remax", &["objective.estimator=remax"]),
        ("reinforce", &["objective.estimator=reinforce_pp"]),
        ("dapo", &["objective.estimator=dapo", "objective.inner_epochs=2"]),
        ("alone", &["train.pairs=items", "objective.negatives=0"]),
        ("both", &["objective.sides=both", "objective.inner_epochs=2"]),
        ("held", &["objective.updates=4", "objective.beta=0.1"]),
    ];
    for (name, more) in forms {
        let steps = train_with_one_and_two(home.path(), name, &[&sets[..], more].concat(), 3);
        let last = steps.last().unwrap();
        assert!(last["reward"]["std"].as_f64().unwrap() > 0.0 && last["length"].as_f64().unwrap() > 1.0, "{last}");
        assert_eq!(name == "held", last["kl"].as_f64().is_some_and(|kl| kl > 0.0), "{last}");
    }
    let model = "grpo";
    // resumed from an earlier checkpoint, it draws the same samples
    let (run, before) = (home.path().join(model), losses(&home.path().join(model)));
    fs::remove_dir_all(run.join("checkpoints/step-000000003")).unwrap();
    let again = ["train", "--data", "shop", "--out", model, "--json", "--model", "writer", "--resume"];
    run_ok(&mut souk(home.path(), &again, &sets));
    assert_eq!(losses(&run), before);
    let explained = embed(home.path(), &["--model", model, "--explain"], "blue lamp number 7\n");
    assert!(explained[0]["rationale"].as_str().unwrap().contains("kind:"), "{}", explained[0]);
    let plain = embed(home.path(), &["--model", model], "blue lamp number 7\n");
    assert!(max_diff(&vector(&explained[0]["vector"]), &vector(&plain[0])) < 1e-5, "--explain changes the vector");
    let silent = ["--model", model, "--set", "encoder.rationale.max_tokens=0"];
    assert!(max_diff(&vector(&embed(home.path(), &silent, "blue lamp number 7\n")[0]), &vector(&plain[0])) > 1e-3);
    writes_better_than_untrained(home.path(), model);
}

fn writes_better_than_untrained(home: &Path, model: &str) {
    let rule = "[encoder.rationale]\nmax_tokens = 30\n[objective]\ntype = \"next_token\"\nheld_out = 0.1\n\
                answer = [\"kind\", \"attributes\"]\n";
    fs::write(home.join("writing.toml"), rule).unwrap();
    let evaluate = |model: &str, out: &str| {
        let line =
            format!("evaluate --model {model} --data shop --depth 101 --language writing.toml --json --out {out}");
        run_ok(&mut souk(home, &line.split(' ').collect::<Vec<_>>(), &[]))
    };
    let metrics = evaluate(model, "measured");
    let perplexity = metrics["perplexity"].as_f64().unwrap();
    assert!(perplexity > 1.0 && perplexity < 50.0, "{perplexity}");
    let untrained = evaluate("base", "untrained")["perplexity"].as_f64().unwrap();
    assert!(untrained > 5.0 * perplexity, "perplexity of the untrained decoder: {untrained}");
}

/// Training on queries equals training on items of a mirrored shop, where queries and items are exchanged.
#[test]
fn query_side_and_item_side_are_separate() {
    let home = writer();
    let read = |name: &str| fs::read_to_string(home.path().join("shop").join(name)).unwrap();
    let texts = |name: &str, text: fn(&Value) -> String| -> Vec<String> {
        read(name).lines().map(|line| text(&serde_json::from_str(line).unwrap())).collect()
    };
    let items = texts("corpus.jsonl", |item| format!("{} as sold", item["title"].as_str().unwrap()));
    let queries = texts("queries.jsonl", |query| query["text"].as_str().unwrap().into());
    let lines = |kind: &str, field: &str, texts: &[String]| -> String {
        let line = |(at, text)| format!("{}\n", json!({"_id": format!("{kind}{at}"), field: text}));
        texts.iter().enumerate().map(line).collect()
    };
    fs::create_dir_all(home.path().join("mirror/qrels")).unwrap();
    for (name, text) in [
        ("corpus.jsonl", lines("d", "title", &queries)),
        ("queries.jsonl", lines("q", "text", &items)),
        ("qrels/train.tsv", read("qrels/train.tsv")),
    ] {
        fs::write(home.path().join("mirror").join(name), text).unwrap();
    }
    let learned = |shop: &str, sides: &str| {
        let out = format!("{shop}-{sides}");
        let sides = format!("objective.sides={sides}");
        let sets = ["objective.type=grace", "objective.negatives=0", "train.batch=12", "train.max_steps=2", &sides];
        let args = ["train", "--data", shop, "--out", &out, "--model", "writer", "--json"];
        run_ok(&mut souk(home.path(), &args, &sets));
        losses(&home.path().join(out))
    };
    let (queries, mirrored, items) = (learned("shop", "queries"), learned("mirror", "items"), learned("shop", "items"));
    assert_eq!(queries, mirrored);
    assert!(max_diff(&queries, &items) > 1e-3, "{queries:?} and {items:?}");
}

/// Under autocast, attention mixes f32 and bf16 tensors, with and without gradients.
#[test]
fn generative_objectives_train_in_bf16() {
    let home = writer();
    let learned = |out: &str, sets: &[&str]| {
        let args = ["train", "--data", "shop", "--out", out, "--json", "--model", "writer"];
        run_ok(&mut souk(home.path(), &args, &[sets, &["train.batch=12", "train.max_steps=2"]].concat()));
        losses(&home.path().join(out))
    };
    for sets in [
        ["objective.type=icr", "objective.temperature=0.2", "encoder.refine.steps=3", "train.keep_tokens=0"],
        ["objective.type=grace", "objective.rollouts=4", "objective.inner_epochs=2", "objective.temperature=10.0"],
    ] {
        let (f32_run, bf16_run) = (format!("{}-f32", sets[0]), format!("{}-bf16", sets[0]));
        let (exact, rough) =
            (learned(&f32_run, &sets), learned(&bf16_run, &[&sets[..], &["model.precision=bf16"]].concat()));
        let difference = max_diff(&exact, &rough);
        assert!(0.0 < difference && difference < 2e-2 * (1.0 + exact[0].abs()), "{exact:?} and {rough:?}");
    }
}

/// Completions server with the model of a folder: tokens in, tokens and their log-probabilities out.
fn serve_completions(model: PathBuf) -> String {
    let placement =
        Placement { device: Device::Cpu, precision: Precision::F32, adapter: None, ignore_fields: Vec::new() };
    let encoder = Encoder::open(&model, placement, Overrides::default()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut input = BufReader::new(stream.try_clone().unwrap());
            let mut length = 0;
            loop {
                let mut line = String::new();
                input.read_line(&mut line).unwrap();
                if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                if line.trim().is_empty() {
                    break;
                }
            }
            let mut body = vec![0; length];
            input.read_exact(&mut body).unwrap();
            let answer = complete(&encoder, &serde_json::from_slice(&body).unwrap()).to_string();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", answer.len());
            stream.write_all((head + &answer).as_bytes()).unwrap();
        }
    });
    url
}

fn complete(encoder: &Encoder, request: &Value) -> Value {
    let prompts: Vec<Vec<u32>> = serde_json::from_value(request["prompt"].clone()).unwrap();
    let texts: Vec<Text> = prompts.into_iter().map(|ids| Text::new(ids, 0)).collect();
    let sampling = Sampling {
        seed: request["seed"].as_u64().unwrap(),
        temperature: request["temperature"].as_f64().unwrap(),
        max_tokens: request["max_tokens"].as_u64().unwrap() as usize,
        ..Sampling::default()
    };
    let num_each = request["n"].as_u64().unwrap() as usize;
    let generated = encoder.generate(&texts.iter().collect::<Vec<_>>(), num_each, &sampling).unwrap();
    let choice = |(index, text): (usize, &Continuation)| {
        json!({
            "index": index, "text": encoder.reader().decode(&text.ids).unwrap(), "token_ids": text.ids,
            "finish_reason": if text.ended { "stop" } else { "length" }, "logprobs": {"token_logprobs": text.log_probs},
        })
    };
    json!({"choices": generated.iter().enumerate().map(choice).collect::<Vec<_>>()})
}

#[test]
fn rationales_may_come_from_a_server() {
    let home = writer();
    let url = serve_completions(home.path().join("writer"));
    let server = format!("train.writer.url={url}");
    let sets = [
        "objective.type=grace",
        "objective.estimator=remax",
        "objective.rollouts=4",
        "train.batch=12",
        "train.max_steps=3",
        "train.optimizer.learning_rate=1e-3",
        "train.writer.model=writer",
        &server,
    ];
    let args = ["train", "--data", "shop", "--model", "writer", "--json", "--out"];
    run_ok(&mut souk(home.path(), &[&args[..], &["served"]].concat(), &sets));
    for step in steps(&home.path().join("served")) {
        let number = |name: &str| step[name].as_f64().unwrap();
        assert!(
            step["reward"]["std"].as_f64().unwrap() > 0.0 && number("length") > 3.0 && number("ended") > 0.5,
            "{step}"
        );
        assert!(number("grad_norm") > 0.0 && number("loss").is_finite(), "{step}");
    }
    let refine =
        ["objective.type=icr", "encoder.refine.steps=2", "train.batch=12", "train.writer.model=writer", &server];
    assert_fails(&mut souk(home.path(), &[&args[..], &["none"]].concat(), &refine), &["train.writer", "grace"]);
    let unreachable =
        [&sets[..7], &["train.writer.url=http://127.0.0.1:1/v1", "train.writer.patience_seconds=0.1"]].concat();
    let output = souk(home.path(), &[&args[..], &["none"]].concat(), &unreachable).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && message.contains("http://127.0.0.1:1/v1/completions"), "{message}");
}

#[test]
fn rejects_models_that_cannot_generate_and_too_many_updates() {
    let home = writer();
    let golden = souk_testing::golden("st_mean_dense");
    let golden = golden.to_str().unwrap();
    let train = |model: &str, out: &str, sets: &[&str]| {
        souk(home.path(), &["train", "--data", "shop", "--out", out, "--model", model], sets)
    };
    for objective in ["icr", "grace", "next_token"] {
        let objective = format!("objective.type={objective}");
        assert_fails(&mut train(golden, "none", &[&objective, "train.batch=12"]), &["use a decoder"]);
    }
    assert_fails(
        &mut train("base", "none", &["objective.type=grace", "train.batch=12"]),
        &["encoder.rationale", "max_tokens"],
    );
    assert_fails(&mut train("writer", "none", &["objective.type=icr", "train.batch=12"]), &["encoder.refine"]);
    let answer = ["objective.type=next_token", "objective.answer=[\"kind\"]", "train.batch=12"];
    assert_fails(&mut train("base", "none", &answer), &["encoder.rationale", "max_tokens"]);
    let too_many = ["objective.type=grace", "train.batch=12", "objective.updates=13"];
    assert_fails(&mut train("writer", "none", &too_many), &["objective.updates", "only 12 pairs"]);
    let export = ["export", "--model", "writer", "--to", "sentence-transformers", "--out", "exported"];
    assert_fails(&mut souk(home.path(), &export, &[]), &["rationale", "serve the folder with Souk"]);
    let plan = ["plan", "--model", "writer", "--data", "shop", "--device", "cpu"];
    assert_fails(&mut souk(home.path(), &plan, &["objective.type=grace"]), &["objective.type", "not planned yet"]);
    let evaluate = [
        "evaluate",
        "--model",
        golden,
        "--data",
        "shop",
        "--depth",
        "101",
        "--out",
        "none",
        "--language",
        "writing.toml",
    ];
    fs::write(home.path().join("writing.toml"), "[objective]\ntype = \"next_token\"\n").unwrap();
    assert_fails(&mut souk(home.path(), &evaluate, &[]), &["use a decoder"]);
    fs::write(home.path().join("writing.toml"), "[objective]\ntype = \"icr\"\n").unwrap();
    assert_fails(&mut souk(home.path(), &evaluate, &[]), &["writing.toml", "next_token"]);
    assert_fails(
        &mut train("base", "none", &["objective.type=icr", "train.batch=12", "encoder.causal=false"]),
        &["encoder.causal"],
    );
    for (model, words) in [(golden, "use a decoder"), ("base", "encoder.rationale")] {
        assert_fails(&mut souk(home.path(), &["embed", "--model", model, "--explain"], &[]), &[words]);
    }
}

/// Bidirectional attention is saved in the model folder; such a model cannot generate.
#[test]
fn a_bidirectional_decoder_is_saved_and_loaded() {
    let home = writer();
    let sets = ["encoder.causal=false", "encoder.rationale.max_tokens=0", "train.batch=12", "train.max_steps=2"];
    run_ok(&mut souk(home.path(), &["train", "--data", "shop", "--out", "both", "--model", "writer", "--json"], &sets));
    let config: Value = serde_json::from_slice(&fs::read(home.path().join("both/config.json")).unwrap()).unwrap();
    assert_eq!(config["is_causal"], json!(false));
    let read = |more: &[&str]| vector(&embed(home.path(), &[&["--model", "both"], more].concat(), "red desk\n")[0]);
    let (folder, causal) = (read(&[]), read(&["--set", "encoder.causal=true"]));
    assert!(max_diff(&folder, &read(&["--set", "encoder.causal=false"])) == 0.0);
    assert!(max_diff(&folder, &causal) > 1e-3, "{folder:?} and {causal:?}");
    let refine = ["train", "--data", "shop", "--out", "none", "--model", "both"];
    assert_fails(&mut souk(home.path(), &refine, &["objective.type=icr", "train.batch=12"]), &["encoder.causal"]);
    run_ok(&mut souk(
        home.path(),
        &["export", "--model", "both", "--to", "sentence-transformers", "--out", "out"],
        &[],
    ));
}

/// An untied LM head gets gradients only from objectives with a next-token loss.
#[test]
fn an_untied_lm_head_trains_only_with_a_next_token_loss() {
    let home = writer();
    let config = souk_testing::repository().join("configs/scratch-writer.toml");
    let small = [
        "scratch.vocab=400",
        "scratch.architecture.hidden_size=32",
        "scratch.architecture.num_hidden_layers=1",
        "scratch.architecture.tie_word_embeddings=false",
    ];
    let mut init = souk(home.path(), &["init", "--data", "shop", "--out", "untied"], &small);
    run_ok(init.arg("--config").arg(config));
    let head = |model: &str| {
        let file = home.path().join(model).join("model.safetensors");
        souk::backbone::weights::read_tensors(&file).unwrap().remove("lm_head.weight").unwrap()
    };
    for (objective, is_trained) in [("next_token", true), ("icr", true), ("info_nce", false)] {
        let args = ["train", "--data", "shop", "--out", objective, "--model", "untied"];
        let objective_set = format!("objective.type={objective}");
        let sets =
            [objective_set.as_str(), "train.batch=12", "train.max_steps=2", "train.optimizer.learning_rate=1e-2"];
        run_ok(&mut souk(home.path(), &args, &sets));
        let change = (head(objective) - head("untied")).abs().max().double_value(&[]);
        assert_eq!(change > 1e-4, is_trained, "{objective}: {change}");
    }
}

/// next_token on query-item pairs trains the decoder to answer queries with item titles.
#[test]
fn next_token_on_pairs_generates_titles() {
    let home = writer();
    let sets = [
        "objective.type=next_token",
        "objective.answer=[\"title\"]",
        "train.pairs=qrels",
        "train.batch=30",
        "train.epochs=40",
        "train.optimizer.learning_rate=1e-2",
    ];
    run_ok(&mut souk(
        home.path(),
        &["train", "--data", "shop", "--out", "titles", "--model", "writer", "--json"],
        &sets,
    ));
    let rationale = |model: &str| {
        let lines = embed(home.path(), &["--model", model, "--explain"], "lamp 7\n");
        lines[0]["rationale"].as_str().unwrap().to_owned()
    };
    let (before, after) = (rationale("writer"), rationale("titles"));
    assert!(before.starts_with("kind: ") && !before.contains("title: "), "{before}");
    assert!(after.starts_with("title: ") && after.contains(" lamp number"), "{after}");
}
