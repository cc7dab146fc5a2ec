//! Encoders that write, as a user makes them: a decoder from nothing learns to write, then by soft tokens or by rationales; the folders
//! serve every other verb, and several processes learn what one does.

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

/// A shop whose items have a kind and a colour, and a decoder that learned to say which.
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
    done(init.arg("--config").arg(config.join("scratch-writer.toml")));
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
    let summary = done(train.arg("--config").arg(config.join("next-token-market.toml")));
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

fn done(command: &mut Command) -> Value {
    let Output { status, stdout, stderr } = command.output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    serde_json::from_slice(&stdout).unwrap_or_default()
}

fn refused(command: &mut Command, words: &[&str]) {
    let output = command.output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    words.iter().for_each(|word| assert!(message.contains(word), "`{message}` does not say `{word}`"));
}

fn steps(out: &Path) -> Vec<Value> {
    let text = fs::read_to_string(out.join("steps.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn losses(out: &Path) -> Vec<f64> {
    steps(out).iter().map(|line| line["loss"].as_f64().unwrap()).collect()
}

/// The lines that `souk embed` answers.
fn embedded(home: &Path, args: &[&str], text: &str) -> Vec<Value> {
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

fn furthest(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

/// A stage with one process and with two: the same losses in `same` steps, and the same gradients, whose scale an optimizer hides.
fn learned(home: &Path, out: &str, sets: &[&str], same: usize) -> Vec<Value> {
    let args = |out: &str| ["train", "--data", "shop", "--out", out, "--json", "--model", "writer"].map(str::to_owned);
    let of = |args: &[String]| souk(home, &args.iter().map(String::as_str).collect::<Vec<_>>(), sets);
    assert_eq!(done(&mut of(&args(out)))["finished"], json!(true));
    let together = format!("{out}-by-two");
    let launch: Vec<String> =
        ["launch", "--nproc", "2", "--"].map(str::to_owned).into_iter().chain(args(&together)).collect();
    done(&mut of(&launch));
    let (one, two) = (losses(&home.join(out)), losses(&home.join(&together)));
    // another order of sums is another last bit, and every update makes more of it
    assert!(furthest(&one[..3], &two[..3]) < 2e-6 * (1.0 + one[0].abs()), "{one:?} beside {two:?}");
    assert!(one.len() == two.len() && one.len() >= same, "{one:?} beside {two:?}");
    assert!(furthest(&one[..same], &two[..same]) < 1e-4, "{one:?} beside {two:?}");
    let norms =
        |out: &str| steps(&home.join(out)).iter().map(|step| step["grad_norm"].as_f64().unwrap()).collect::<Vec<_>>();
    let (one, two) = (norms(out), norms(&together));
    assert!(one.iter().zip(&two).take(3).all(|(one, two)| (one / two - 1.0).abs() < 1e-4), "{one:?} beside {two:?}");
    steps(&home.join(out))
}

#[test]
fn a_decoder_learns_to_refine_and_its_folder_serves_every_verb() {
    let home = writer();
    let sets = [
        "objective.type=icr",
        "objective.temperature=0.1",
        "encoder.refine.steps=3",
        "train.batch=12",
        "train.epochs=4",
        "train.chunk_tokens=64",
        "train.keep_tokens=100",
        "train.optimizer.learning_rate=3e-3",
    ];
    // soft tokens hand on what is a last bit of one to the next: after a dozen steps as steep as these nothing is the same
    let steps = learned(home.path(), "refined", &sets, 10);
    assert!(steps.last().unwrap()["loss"].as_f64().unwrap() < steps[0]["loss"].as_f64().unwrap());
    let plain = embedded(home.path(), &["--model", "refined"], "oak desk\nlamp 7\n");
    let alone = embedded(home.path(), &["--model", "refined"], "lamp 7\n");
    assert!(furthest(&vector(&plain[1]), &vector(&alone[0])) < 1e-5, "alone and in company");
    let again = embedded(home.path(), &["--model", "refined", "--set", "encoder.refine.cached=false"], "oak desk\n");
    assert!(furthest(&vector(&plain[0]), &vector(&again[0])) < 1e-5, "with a cache and without");
    let more = embedded(home.path(), &["--model", "refined", "--set", "encoder.refine.steps=9"], "oak desk\n");
    assert!(furthest(&vector(&plain[0]), &vector(&more[0])) > 1e-4, "more soft tokens make another vector");
    done(&mut souk(home.path(), &["index", "--model", "refined", "--data", "shop", "--out", "index"], &[]));
    let found =
        done(&mut souk(home.path(), &["search", "--model", "refined", "--index", "index", "--json", "lamp 7"], &[]));
    assert_eq!(found["hits"].as_array().unwrap().len(), 10);
    refused(
        &mut souk(home.path(), &["embed", "--model", "refined"], &["encoder.refine.steps=0"]),
        &["encoder.refine.steps", "1 to 256"],
    );
}

#[test]
fn a_decoder_learns_what_to_write_and_says_it() {
    let home = writer();
    let sets = [
        "objective.type=grace",
        "objective.hard=rollout",
        "objective.rollouts=4",
        "train.batch=12",
        "train.max_steps=3",
        "train.checkpoint_steps=1",
        "train.optimizer.learning_rate=1e-3",
    ];
    let forms: [(&str, &[&str]); 6] = [
        ("grpo", &[]),
        ("remax", &["objective.estimator=remax"]),
        ("reinforce", &["objective.estimator=reinforce_pp"]),
        ("dapo", &["objective.estimator=dapo", "objective.inner_epochs=2"]),
        ("alone", &["train.pairs=items", "objective.negatives=0"]),
        ("both", &["objective.sides=both", "objective.inner_epochs=2"]),
    ];
    for (name, more) in forms {
        let steps = learned(home.path(), name, &[&sets[..], more].concat(), 3);
        let last = steps.last().unwrap();
        assert!(last["reward"]["std"].as_f64().unwrap() > 0.0 && last["length"].as_f64().unwrap() > 1.0, "{last}");
    }
    let model = "grpo";
    // killed before its last checkpoint, it goes on with the same draws
    let (run, before) = (home.path().join(model), losses(&home.path().join(model)));
    fs::remove_dir_all(run.join("checkpoints/step-000000003")).unwrap();
    let again = ["train", "--data", "shop", "--out", model, "--json", "--model", "writer", "--resume"];
    done(&mut souk(home.path(), &again, &sets));
    assert_eq!(losses(&run), before);
    let told = embedded(home.path(), &["--model", model, "--explain"], "blue lamp number 7\n");
    assert!(told[0]["rationale"].as_str().unwrap().contains("kind:"), "{}", told[0]);
    let plain = embedded(home.path(), &["--model", model], "blue lamp number 7\n");
    assert!(furthest(&vector(&told[0]["vector"]), &vector(&plain[0])) < 1e-5, "explained or not");
    let silent = ["--model", model, "--set", "encoder.rationale.max_tokens=0"];
    assert!(furthest(&vector(&embedded(home.path(), &silent, "blue lamp number 7\n")[0]), &vector(&plain[0])) > 1e-3);
    let rule = "[encoder.rationale]\nmax_tokens = 30\n[objective]\ntype = \"next_token\"\nheld_out = 0.1\n\
                answer = [\"kind\", \"attributes\"]\n";
    fs::write(home.path().join("writing.toml"), rule).unwrap();
    let evaluate = |model: &str, out: &str| {
        let args = [
            "evaluate",
            "--model",
            model,
            "--data",
            "shop",
            "--depth",
            "101",
            "--language",
            "writing.toml",
            "--json",
            "--out",
            out,
        ];
        done(&mut souk(home.path(), &args, &[]))
    };
    let metrics = evaluate(model, "measured");
    let perplexity = metrics["perplexity"].as_f64().unwrap();
    assert!(perplexity > 1.0 && perplexity < 50.0, "{perplexity}");
    let untaught = evaluate("base", "untaught")["perplexity"].as_f64().unwrap();
    assert!(untaught > 5.0 * perplexity, "{untaught}: of a decoder that never learned to write");
}

/// What is learned from queries is what a shop with queries and items exchanged learns from items.
#[test]
fn sides_of_a_pair_are_told_apart() {
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
        done(&mut souk(home.path(), &args, &sets));
        losses(&home.path().join(out))
    };
    let (queries, mirrored, items) = (learned("shop", "queries"), learned("mirror", "items"), learned("shop", "items"));
    assert_eq!(queries, mirrored);
    assert!(furthest(&queries, &items) > 1e-3, "{queries:?} beside {items:?}");
}

/// Under autocast some of what meets in attention is f32 and some is not, with a graph and without.
#[test]
fn decoders_that_write_learn_in_bf16() {
    let home = writer();
    let learned = |out: &str, sets: &[&str]| {
        let args = ["train", "--data", "shop", "--out", out, "--json", "--model", "writer"];
        done(&mut souk(home.path(), &args, &[sets, &["train.batch=12", "train.max_steps=2"]].concat()));
        losses(&home.path().join(out))
    };
    for sets in [
        ["objective.type=icr", "objective.temperature=0.2", "encoder.refine.steps=3", "train.keep_tokens=0"],
        ["objective.type=grace", "objective.rollouts=4", "objective.inner_epochs=2", "objective.negatives=1"],
    ] {
        let (exact, rough) = (format!("{}-f32", sets[0]), format!("{}-bf16", sets[0]));
        let (exact, rough) =
            (learned(&exact, &sets), learned(&rough, &[&sets[..], &["model.precision=bf16"]].concat()));
        let apart = furthest(&exact, &rough);
        assert!(0.0 < apart && apart < 2e-2 * (1.0 + exact[0].abs()), "{exact:?} beside {rough:?}");
    }
}

/// Completions as a server gives them, by the model of a folder: tokens in, tokens and their log-probabilities out.
fn serve_completions(model: PathBuf) -> String {
    let placement =
        Placement { device: Device::Cpu, precision: Precision::F32, adapter: None, ignore_fields: Vec::new() };
    let encoder = Encoder::open(&model, placement, Overrides::default()).unwrap();
    let door = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", door.local_addr().unwrap());
    thread::spawn(move || {
        for stream in door.incoming() {
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
            let answer = completed(&encoder, &serde_json::from_slice(&body).unwrap()).to_string();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", answer.len());
            stream.write_all((head + &answer).as_bytes()).unwrap();
        }
    });
    url
}

fn completed(encoder: &Encoder, asked: &Value) -> Value {
    let prompts: Vec<Vec<u32>> = serde_json::from_value(asked["prompt"].clone()).unwrap();
    let texts: Vec<Text> = prompts.into_iter().map(|ids| Text { ids, skip: 0 }).collect();
    let how = Sampling {
        seed: asked["seed"].as_u64().unwrap(),
        temperature: asked["temperature"].as_f64().unwrap(),
        max_tokens: asked["max_tokens"].as_u64().unwrap() as usize,
        ..Sampling::default()
    };
    let each = asked["n"].as_u64().unwrap() as usize;
    let written = encoder.generate(&texts.iter().collect::<Vec<_>>(), each, &how).unwrap();
    let choice = |(index, text): (usize, &Continuation)| {
        json!({
            "index": index, "text": encoder.reader().decode(&text.ids).unwrap(), "token_ids": text.ids,
            "finish_reason": if text.ended { "stop" } else { "length" }, "logprobs": {"token_logprobs": text.log_probs},
        })
    };
    json!({"choices": written.iter().enumerate().map(choice).collect::<Vec<_>>()})
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
    done(&mut souk(home.path(), &[&args[..], &["served"]].concat(), &sets));
    for step in steps(&home.path().join("served")) {
        let said = |name: &str| step[name].as_f64().unwrap();
        assert!(step["reward"]["std"].as_f64().unwrap() > 0.0 && said("length") > 3.0 && said("ended") > 0.5, "{step}");
        assert!(said("grad_norm") > 0.0 && said("loss").is_finite(), "{step}");
    }
    let refine =
        ["objective.type=icr", "encoder.refine.steps=2", "train.batch=12", "train.writer.model=writer", &server];
    refused(&mut souk(home.path(), &[&args[..], &["none"]].concat(), &refine), &["train.writer", "grace"]);
    let nobody =
        [&sets[..7], &["train.writer.url=http://127.0.0.1:1/v1", "train.writer.patience_seconds=0.1"]].concat();
    let output = souk(home.path(), &[&args[..], &["none"]].concat(), &nobody).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && message.contains("http://127.0.0.1:1/v1/completions"), "{message}");
}

#[test]
fn what_cannot_write_is_told_so() {
    let home = writer();
    let golden = souk_testing::golden("st_mean_dense");
    let golden = golden.to_str().unwrap();
    let train = |model: &str, out: &str, sets: &[&str]| {
        souk(home.path(), &["train", "--data", "shop", "--out", out, "--model", model], sets)
    };
    for objective in ["icr", "grace", "next_token"] {
        let objective = format!("objective.type={objective}");
        refused(&mut train(golden, "none", &[&objective, "train.batch=12"]), &["use a decoder"]);
    }
    refused(
        &mut train("base", "none", &["objective.type=grace", "train.batch=12"]),
        &["encoder.rationale", "max_tokens"],
    );
    refused(&mut train("writer", "none", &["objective.type=icr", "train.batch=12"]), &["encoder.refine"]);
    let answer = ["objective.type=next_token", "objective.answer=[\"kind\"]", "train.batch=12"];
    refused(&mut train("base", "none", &answer), &["encoder.rationale", "max_tokens"]);
    let export = ["export", "--model", "writer", "--to", "sentence-transformers", "--out", "exported"];
    refused(&mut souk(home.path(), &export, &[]), &["rationale", "serve the folder with Souk"]);
    let plan = ["plan", "--model", "writer", "--data", "shop", "--device", "cpu"];
    refused(&mut souk(home.path(), &plan, &["objective.type=grace"]), &["objective.type", "not planned yet"]);
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
    refused(&mut souk(home.path(), &evaluate, &[]), &["use a decoder"]);
    fs::write(home.path().join("writing.toml"), "[objective]\ntype = \"icr\"\n").unwrap();
    refused(&mut souk(home.path(), &evaluate, &[]), &["writing.toml", "next_token"]);
    refused(
        &mut train("base", "none", &["objective.type=icr", "train.batch=12", "encoder.causal=false"]),
        &["encoder.causal"],
    );
    for (model, words) in [(golden, "use a decoder"), ("base", "encoder.rationale")] {
        refused(&mut souk(home.path(), &["embed", "--model", model, "--explain"], &[]), &[words]);
    }
}

/// Attention in both directions is part of a model's folder, and keeps the model from writing.
#[test]
fn a_decoder_that_reads_in_both_directions_is_a_folder() {
    let home = writer();
    let sets = ["encoder.causal=false", "encoder.rationale.max_tokens=0", "train.batch=12", "train.max_steps=2"];
    done(&mut souk(home.path(), &["train", "--data", "shop", "--out", "both", "--model", "writer", "--json"], &sets));
    let config: Value = serde_json::from_slice(&fs::read(home.path().join("both/config.json")).unwrap()).unwrap();
    assert_eq!(config["is_causal"], json!(false));
    let read = |more: &[&str]| vector(&embedded(home.path(), &[&["--model", "both"], more].concat(), "red desk\n")[0]);
    let (folder, one_way) = (read(&[]), read(&["--set", "encoder.causal=true"]));
    assert!(furthest(&folder, &read(&["--set", "encoder.causal=false"])) == 0.0);
    assert!(furthest(&folder, &one_way) > 1e-3, "{folder:?} beside {one_way:?}");
    let refine = ["train", "--data", "shop", "--out", "none", "--model", "both"];
    refused(&mut souk(home.path(), &refine, &["objective.type=icr", "train.batch=12"]), &["encoder.causal"]);
    done(&mut souk(home.path(), &["export", "--model", "both", "--to", "sentence-transformers", "--out", "out"], &[]));
}

/// A matrix of its own for the next token's scores learns only where a next token has a part in the loss.
#[test]
fn the_scores_of_next_tokens_learn_where_they_count() {
    let home = writer();
    let config = souk_testing::repository().join("configs/scratch-writer.toml");
    let small = [
        "scratch.vocab=400",
        "scratch.architecture.hidden_size=32",
        "scratch.architecture.num_hidden_layers=1",
        "scratch.architecture.tie_word_embeddings=false",
    ];
    let mut init = souk(home.path(), &["init", "--data", "shop", "--out", "untied"], &small);
    done(init.arg("--config").arg(config));
    let head = |model: &str| {
        let file = home.path().join(model).join("model.safetensors");
        souk::backbone::weights::read_tensors(&file).unwrap().remove("lm_head.weight").unwrap()
    };
    for (objective, learns) in [("next_token", true), ("icr", true), ("info_nce", false)] {
        let args = ["train", "--data", "shop", "--out", objective, "--model", "untied"];
        let objective_set = format!("objective.type={objective}");
        let sets =
            [objective_set.as_str(), "train.batch=12", "train.max_steps=2", "train.optimizer.learning_rate=1e-2"];
        done(&mut souk(home.path(), &args, &sets));
        let moved = (head(objective) - head("untied")).abs().max().double_value(&[]);
        assert_eq!(moved > 1e-4, learns, "{objective}: {moved}");
    }
}

/// With pairs of queries, what an item is called is an answer to a query: of a shop that knows titles only.
#[test]
fn a_decoder_learns_to_answer_queries_with_titles() {
    let home = writer();
    let sets = [
        "objective.type=next_token",
        "objective.answer=[\"title\"]",
        "train.pairs=qrels",
        "train.batch=30",
        "train.epochs=40",
        "train.optimizer.learning_rate=1e-2",
    ];
    done(&mut souk(home.path(), &["train", "--data", "shop", "--out", "titles", "--model", "writer", "--json"], &sets));
    let said = |model: &str| {
        let told = embedded(home.path(), &["--model", model, "--explain"], "lamp 7\n");
        told[0]["rationale"].as_str().unwrap().to_owned()
    };
    let (before, after) = (said("writer"), said("titles"));
    assert!(before.starts_with("kind: ") && !before.contains("title: "), "{before}");
    assert!(after.starts_with("title: ") && after.contains(" lamp number"), "{after}");
}
