//! `souk relevance`: trains a model, serves it over HTTP, and stops on a signal.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use souk::market::{self, MarketSpec};

fn souk(home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_souk-engine"));
    command.current_dir(home).env("HF_HUB_OFFLINE", "1").env("OMP_NUM_THREADS", "1").env("RUST_LOG", "warn");
    command.env("SOUK_RELEVANCE_KEYS", "open-sesame").args(arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn base() -> PathBuf {
    souk_testing::golden("st_mean_dense")
}

fn train(home: &Path, sets: &[&str]) -> Output {
    let mut command = souk(home, &["relevance", "train", "--data", "shop", "--out", "judge", "--json", "--model"]);
    command.arg(base());
    for set in ["relevance.max_pairs=300", "relevance.held_out=0.4"].iter().chain(sets) {
        command.args(["--set", set]);
    }
    command.output().unwrap()
}

/// Starts the service; returns it with its address.
fn serve(home: &Path, model: [&str; 2]) -> (Child, String) {
    let mut child =
        souk(home, &["relevance", "serve", "--json", "--listen", "127.0.0.1:0", model[0], model[1]]).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let said: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"));
    (child, said["address"].as_str().unwrap().to_owned())
}

fn score(address: &str, body: &Value) -> Value {
    let mut stream = TcpStream::connect(address).unwrap();
    let body = body.to_string();
    let head = "POST /score HTTP/1.1\r\nHost: souk\r\nConnection: close\r\nAuthorization: Bearer open-sesame\r\n";
    write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
}

fn end(mut child: Child) {
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), Signal::SIGTERM).unwrap();
    assert!(child.wait().unwrap().success(), "SIGTERM stops with exit code 0");
}

#[test]
fn a_relevance_model_is_trained_served_and_stopped() {
    let home = tempfile::tempdir().unwrap();
    let plan = MarketSpec { seed: 5, items: 400, queries: 60, events: 0 };
    market::write(&plan, &home.path().join("shop"), &|_, _| {}).unwrap();

    let Output { status, stderr, .. } = train(home.path(), &["relevance.optimizer.learning_rate=1e9"]);
    assert_eq!(status.code(), Some(2), "{}", String::from_utf8_lossy(&stderr));
    assert!(String::from_utf8_lossy(&stderr).contains("relevance.optimizer.learning_rate"));
    assert!(!home.path().join("judge").exists(), "a failed training leaves a folder behind");

    let Output { status, stdout, stderr } = train(home.path(), &[]);
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    let measured: Value = serde_json::from_slice(&stdout).unwrap();
    assert!(measured["judged"]["pairs"].as_u64().unwrap() > 0 && measured["draws"] == 300, "{measured}");
    for file in ["config.json", "model.safetensors", "tokenizer.json", "relevance.json", "relevance-metrics.json"] {
        assert!(home.path().join("judge").join(file).exists(), "{file}");
    }
    let report = fs::read_to_string(home.path().join("judge/report.html")).unwrap();
    assert!(report.contains("Reliability of P(Good)") && report.ends_with("</html>\n"));

    let (child, address) = serve(home.path(), ["--model", "judge"]);
    let items = json!([{"id": "i0", "text": "oak desk"}, {"id": "i1", "text": "red lamp"}]);
    let found = score(&address, &json!({"query": "desk", "items": items}));
    assert!(found["model"].as_str().unwrap().starts_with("judge-"), "{found}");
    assert!((1..=4).contains(&found["levels"][1].as_i64().unwrap()), "{found}");
    end(child);

    let (child, address) = serve(home.path(), ["--oracle", "shop"]);
    let found = score(&address, &json!({"query": "any", "query_id": "q0", "items": items}));
    assert_eq!(found["model"], "oracle");
    assert!((1..=4).contains(&found["levels"][0].as_i64().unwrap()), "{found}");
    end(child);
}

#[test]
fn rejects_models_that_cannot_be_served() {
    let home = tempfile::tempdir().unwrap();
    let base = base();
    for (arguments, words) in [
        (vec!["relevance", "serve", "--model", base.to_str().unwrap()], "souk relevance train"),
        (vec!["relevance", "serve"], "--model DIR"),
        (
            vec!["relevance", "serve", "--model", "x", "--set", "relevance.serve.max_items=0"],
            "relevance.serve.max_items",
        ),
        (vec!["relevance"], "Usage"),
    ] {
        let Output { status, stderr, .. } = souk(home.path(), &arguments).output().unwrap();
        let said = String::from_utf8_lossy(&stderr);
        assert!(status.code() == Some(2) && said.contains(words), "{arguments:?}: {said}");
    }
}

#[test]
fn a_relevance_model_judges_the_text_it_was_trained_on() {
    let home = tempfile::tempdir().unwrap();
    let plan = MarketSpec { seed: 5, items: 400, queries: 60, events: 0 };
    market::write(&plan, &home.path().join("shop"), &|_, _| {}).unwrap();
    let template = "encoder.item_text={title} {brand}";
    let Output { status, stderr, .. } = train(home.path(), &[template]);
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    let manifest = fs::read(home.path().join("judge/relevance.json")).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&manifest).unwrap()["item_text"], "{title} {brand}");
    let evaluate = |out: &str, set: &str| {
        let judge = ["--set", "judge.type=model", "--set", "judge.path=judge", "--set", set];
        let mut command = souk(home.path(), &["evaluate", "--channel", "lexical", "--data", "shop", "--out", out]);
        command.args(judge).output().unwrap()
    };
    let Output { status, stderr, .. } = evaluate("other", "encoder.item_text={title} {text}");
    let message = String::from_utf8_lossy(&stderr);
    assert_eq!(status.code(), Some(2), "{message}");
    assert!(message.contains("`{title} {brand}`") && message.contains("encoder.item_text"), "{message}");
    let Output { status, stderr, .. } = evaluate("same", template);
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));

    // and it can order the first hits again
    let rerank = |out: &str, depth: &str| {
        let mut command = souk(home.path(), &["evaluate", "--channel", "lexical", "--data", "shop", "--out", out]);
        command.args(["--rerank", depth, "--reranker", "judge", "--set", template]).output().unwrap()
    };
    let Output { status, stderr, .. } = rerank("reranked", "20");
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    let metrics = |out: &str| -> Value {
        serde_json::from_slice(&fs::read(home.path().join(out).join("metrics.json")).unwrap()).unwrap()
    };
    let (plain, reranked) = (metrics("same"), metrics("reranked"));
    let pipeline = reranked["pipeline"].as_str().unwrap();
    assert!(pipeline.starts_with("lexical, first 20 reranked by judge-"), "{pipeline}");
    assert_eq!(plain["overall"]["hitrate@100"], reranked["overall"]["hitrate@100"], "the same first 100 hits");
    assert_ne!(plain["overall"]["ndcg@10"], reranked["overall"]["ndcg@10"]);
    let Output { status, .. } = rerank("none", "0");
    assert_eq!(status.code(), Some(2));
}
