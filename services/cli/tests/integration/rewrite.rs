//! `souk rewrite` with a chat model on a real socket: refusals, an outage that it goes on after, and BM25 on the result.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::{Value, json};
use souk_testing::fake_judge::{FakeJudge, JudgeReply, ReceivedRequest};

use crate::stage::shop;

fn souk(home: &Path, args: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_souk-engine"));
    command.current_dir(home).env("HF_HUB_OFFLINE", "1").env("SHOP_KEY", "open-sesame").args(args);
    let Output { status, stdout, stderr } = command.output().unwrap();
    (status.code(), format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr)))
}

fn rewrite(home: &Path, url: &str, more: &[&str]) -> (Option<i32>, String) {
    let args =
        ["rewrite", "--data", "data", "--split", "train", "--out", "rewrites.jsonl", "--url", url, "--name", "m"];
    souk(home, &[&args[..], more].concat())
}

/// The query between the delimiters of the prompt.
fn query(seen: &ReceivedRequest) -> String {
    let messages = seen.body["messages"].as_array().unwrap();
    let user = messages.last().unwrap()["content"].as_str().unwrap();
    let data = user.split("<data>\n").nth(1).unwrap().split("\n</data>").next().unwrap();
    serde_json::from_str::<Value>(data).unwrap()["query"].as_str().unwrap().to_owned()
}

fn answer(content: &str, reason: &str) -> Value {
    json!({"choices": [{"message": {"content": content}, "finish_reason": reason}]})
}

fn said(content: &str, reason: &str) -> JudgeReply {
    JudgeReply::Json(answer(content, reason))
}

fn written(home: &Path) -> BTreeMap<String, String> {
    let text = fs::read_to_string(home.join("rewrites.jsonl")).unwrap();
    let pair = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        (line["_id"].as_str().unwrap().to_owned(), line["text"].as_str().unwrap().to_owned())
    };
    text.lines().map(pair).collect()
}

#[test]
fn a_chat_model_rewrites_every_query_that_it_does_not_refuse() {
    let home = tempfile::tempdir().unwrap();
    shop(home.path());
    let server = FakeJudge::start(|number, seen| match query(seen).as_str() {
        // long enough for the others to ask
        query if number < 3 => JudgeReply::Late(Duration::from_millis(500), answer(query, "stop")),
        "cheap pipe 9" => said("<think>a pipe, number 9", "length"),
        query => said(&format!("<think>cheap is no word of a title</think>\n\n\"{} number\"\nBye", query), "stop"),
    });
    let (code, text) = rewrite(home.path(), &server.url(), &["--key-env", "SHOP_KEY", "--concurrency", "3"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("rewrote 119 of 120") && text.contains("1 keep their words"), "{text}");
    assert!(text.contains("raise --max-tokens"), "{text}");
    let rewrites = written(home.path());
    assert_eq!((rewrites.len(), rewrites.get("q9cheap")), (119, None));
    assert_eq!(rewrites["q7"], "lamp 7 number");
    let seen = server.seen();
    assert!(seen.iter().all(|seen| seen.headers.contains("bearer open-sesame") && seen.body["model"] == "m"));
    assert!(server.max_at_once() > 1, "one request at a time");
    assert!(!home.path().read_dir().unwrap().any(|file| file.unwrap().path().extension().is_some_and(|e| e == "part")));

    let (code, text) = rewrite(home.path(), &server.url(), &[]);
    assert!(code == Some(2) && text.contains("name a new file"), "{text}");
    fs::rename(home.path().join("rewrites.jsonl"), home.path().join("first.jsonl")).unwrap();
    let (code, text) = rewrite(home.path(), &server.url(), &["--keep-query"]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(written(home.path())["q7"], "lamp 7 lamp 7 number");
    let measured = ["evaluate", "--channel", "lexical", "--data", "data", "--split", "train", "--rewrites"];
    let (code, text) = souk(home.path(), &[&measured[..], &["first.jsonl", "--depth", "150", "--out", "run"]].concat());
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn an_outage_costs_no_rewrite_that_was_paid_for() {
    let home = tempfile::tempdir().unwrap();
    shop(home.path());
    let server = FakeJudge::start(|number, seen| match number {
        50..53 => JudgeReply::Status(400, "", json!({"error": {"code": "model_not_found"}}).to_string()),
        _ => said(&query(seen), "stop"),
    });
    let (code, text) = rewrite(home.path(), &server.url(), &["--concurrency", "1"]);
    assert!(code == Some(2) && text.contains("run the same command again") && text.contains("settings"), "{text}");
    assert!(!home.path().join("rewrites.jsonl").exists());
    for _ in 0..3 {
        assert!(!home.path().join("rewrites.jsonl").exists(), "the model was away for three requests");
        rewrite(home.path(), &server.url(), &["--concurrency", "1"]);
    }
    assert_eq!((written(home.path()).len(), server.seen().len()), (120, 120 + 3));
}

const PLAN: &str = r#"
[experiment]
title = "Rewriting"
seeds = [1, 2]
market = { seed = 3, items = 400, queries = 90 }
depth = 150

[[row]]
id = "decoder"
name = "Decoder"
kind = "init"
config = "decoder.toml"
measure = false

[[row]]
id = "writer"
name = "Writer"
kind = "train"
from = "decoder"
config = "writer.toml"
measure = false

[[row]]
id = "bm25"
name = "BM25"
kind = "lexical"

[[row]]
id = "written"
name = "Rewritten by a decoder"
kind = "lexical"
rewriter = ["--model", "{writer}", "--keep-query"]

[[table]]
title = "Goodrate"
rows = ["bm25", "written"]
columns = ["goodrate@100"]
against = "bm25"
"#;

const DECODER: &str = r#"
[scratch]
vocab = 400
pooling = "mean"
max_tokens = 32
[scratch.architecture]
model_type = "llama"
hidden_size = 16
num_hidden_layers = 1
num_attention_heads = 2
intermediate_size = 32
max_position_embeddings = 64
tie_word_embeddings = true
"#;

const WRITER: &str = r#"
[encoder.rationale]
max_tokens = 6
[train]
pairs = "items"
batch = 32
max_steps = 24
[train.optimizer]
learning_rate = 1e-2
[objective]
type = "next_token"
answer = ["title"]
"#;

#[test]
fn an_experiment_lets_the_decoder_of_each_seed_rewrite() {
    let home = tempfile::tempdir().unwrap();
    for (name, text) in [("plan.toml", PLAN), ("decoder.toml", DECODER), ("writer.toml", WRITER)] {
        fs::write(home.path().join(name), text).unwrap();
    }
    let (code, text) = souk(home.path(), &["experiment", "--config", "plan.toml", "--out", "out"]);
    assert_eq!(code, Some(0), "{text}");
    let of = |seed: &str| fs::read_to_string(home.path().join(format!("out/written/{seed}/rewrites.jsonl"))).unwrap();
    assert!(!of("seed-1").is_empty() && of("seed-1") != of("seed-2"), "{text}");
    let query = |line: &str| serde_json::from_str::<Value>(line).unwrap()["_id"].as_str().unwrap().to_owned();
    let queries = fs::read_to_string(home.path().join("out/shop/queries.jsonl")).unwrap();
    let id = query(of("seed-1").lines().next().unwrap());
    let asked = queries.lines().find(|line| query(line) == id).unwrap();
    let asked: Value = serde_json::from_str(asked).unwrap();
    let line: Value = serde_json::from_str(of("seed-1").lines().next().unwrap()).unwrap();
    assert!(line["text"].as_str().unwrap().starts_with(asked["text"].as_str().unwrap()), "{line} {asked}");
    assert!(text.contains("| Rewritten by a decoder |"), "{text}");
    let (code, text) = souk(home.path(), &["experiment", "--config", "plan.toml", "--out", "out"]);
    assert!(code == Some(0) && !text.contains("rewriting of queries"), "a second run has nothing to do: {text}");
}

#[test]
fn a_model_that_writes_nothing_is_named() {
    let home = tempfile::tempdir().unwrap();
    shop(home.path());
    let model = crate::stage::model();
    let args = ["rewrite", "--data", "data", "--split", "train", "--out", "rewrites.jsonl", "--model"];
    let (code, text) = souk(home.path(), &[&args[..], &[model.to_str().unwrap()]].concat());
    assert!(code == Some(2) && text.contains("use a decoder"), "{text}");
    let (code, text) = souk(home.path(), &args[..args.len() - 1]);
    assert!(code == Some(2) && text.contains("--url URL --name MODEL"), "{text}");
    let (code, text) = rewrite(home.path(), "http://127.0.0.1:1/v1", &["--timeout-seconds", "1"]);
    assert!(code == Some(1) && text.matches("waiting for the model").count() == 1, "{code:?} {text}");
    assert!(!home.path().join("rewrites.jsonl").exists());
}
