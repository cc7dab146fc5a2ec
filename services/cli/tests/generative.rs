//! Encoders that write, as a user makes them: a decoder from nothing learns to write, then by soft tokens or by rationales; the folders
//! serve every other verb, and several processes learn what one does.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
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
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
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

/// A stage with one process and with two: the same losses.
fn learned(home: &Path, out: &str, sets: &[&str]) -> Vec<Value> {
    let args = |out: &str| ["train", "--data", "shop", "--out", out, "--json", "--model", "writer"].map(str::to_owned);
    let of = |args: &[String]| souk(home, &args.iter().map(String::as_str).collect::<Vec<_>>(), sets);
    assert_eq!(done(&mut of(&args(out)))["finished"], json!(true));
    let together = format!("{out}-by-two");
    let launch: Vec<String> =
        ["launch", "--nproc", "2", "--"].map(str::to_owned).into_iter().chain(args(&together)).collect();
    done(&mut of(&launch));
    let (one, two) = (losses(&home.join(out)), losses(&home.join(&together)));
    assert!(one.len() == two.len() && furthest(&one, &two) < 1e-4, "{one:?} beside {two:?}");
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
    let steps = learned(home.path(), "refined", &sets);
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
        "objective.sampling.max_tokens=30",
        "train.batch=12",
        "train.most_steps=3",
        "train.optimizer.learning_rate=1e-3",
    ];
    for estimator in ["grpo", "remax", "reinforce_pp", "dapo"] {
        let estimator = [format!("objective.estimator={estimator}")];
        let sets: Vec<&str> = sets.iter().copied().chain(estimator.iter().map(String::as_str)).collect();
        let steps = learned(home.path(), &estimator[0], &sets);
        let last = steps.last().unwrap();
        assert!(last["reward"]["std"].as_f64().unwrap() > 0.0 && last["length"].as_f64().unwrap() > 1.0, "{last}");
    }
    let model = "objective.estimator=grpo";
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

#[test]
fn what_cannot_write_is_told_so() {
    let home = writer();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/st_mean_dense");
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
    refused(
        &mut train("base", "none", &["objective.type=icr", "train.batch=12", "encoder.causal=false"]),
        &["encoder.causal"],
    );
    for (model, words) in [(golden, "use a decoder"), ("base", "encoder.rationale")] {
        refused(&mut souk(home.path(), &["embed", "--model", model, "--explain"], &[]), &[words]);
    }
}
