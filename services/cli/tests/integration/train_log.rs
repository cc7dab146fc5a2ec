//! Work of a stage beside its steps: TensorBoard's event files, and evaluations that keep the best weights.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::stage::{assert_fails, launch, losses, model, run_ok, shop, stage, weights, worst_difference};

/// Names of TensorBoard's event files in their order.
fn event_files(out: &Path) -> Vec<String> {
    let names = fs::read_dir(out).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.starts_with("events.out.tfevents.")).collect();
    names.sort();
    names
}

/// Bytes of the events in a file, without their frames.
fn events(file: &Path) -> Vec<Vec<u8>> {
    let (bytes, mut at, mut found) = (fs::read(file).unwrap(), 0, Vec::new());
    while at < bytes.len() {
        let length = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
        found.push(bytes[at + 12..at + 12 + length].to_vec());
        at += 16 + length;
    }
    found
}

#[test]
fn event_files_have_every_step_and_a_resumed_stage_begins_one_of_its_own() {
    let home = tempfile::tempdir().unwrap();
    shop(home.path());
    let sets = ["train.tensorboard=true", "train.batch=12", "train.max_steps=6", "train.checkpoint_steps=2"];
    run_ok(&mut stage(home.path(), "run", &sets));
    let out = home.path().join("run");
    let has = |event: &[u8], name: &str| event.windows(name.len()).any(|part| part == name.as_bytes());
    let first = events(&out.join(&event_files(&out)[0]));
    // the version and the start come before the steps
    assert_eq!(first.len(), 2 + 6);
    assert!(has(&first[0], "brain.Event:2") && !has(&first[1], "train/"));
    let names = ["train/loss", "train/learning_rate", "train/grad_norm", "train/seconds/backward"];
    assert!(first[2..].iter().all(|event| names.iter().all(|name| has(event, name)) && !has(event, "train/step")));
    fs::remove_dir_all(out.join("checkpoints/step-000000006")).unwrap();
    run_ok(stage(home.path(), "run", &sets).arg("--resume"));
    let files = event_files(&out);
    assert_eq!(files.len(), 2, "{files:?}");
    let second = events(&out.join(&files[1]));
    assert_eq!(second.len(), 2 + 2, "steps 5 and 6 again");
    // after the time: step 5, session start
    assert_eq!(second[1][9..], [0x10, 5, 0x3a, 2, 8, 1]);
    run_ok(&mut stage(home.path(), "plain", &sets[1..]));
    let plain = home.path().join("plain");
    assert!(event_files(&plain).is_empty() && losses(&plain) == losses(&out));
}

/// `souk train` with evaluations on half of the shop's queries.
fn evaluated(home: &Path, out: &str, more: &[&str]) -> Command {
    let sets = [
        "train.batch=12",
        "train.max_steps=8",
        "train.checkpoint_steps=3",
        "train.optimizer.learning_rate=3e-3",
        "train.evaluate={every=2, split=\"dev\"}",
    ];
    stage(home, out, &[&sets[..], more].concat())
}

/// A shop whose split `dev` has every second judgement.
fn judged_shop(home: &Path) {
    shop(home);
    let text = fs::read_to_string(home.join("data/qrels/train.tsv")).unwrap();
    let half: String = text.lines().step_by(2).map(|line| format!("{line}\n")).collect();
    fs::write(home.join("data/qrels/dev.tsv"), half).unwrap();
}

/// Lines of `evaluations.jsonl` without their times.
fn evaluations(out: &Path) -> Vec<Value> {
    let text = fs::read_to_string(out.join("evaluations.jsonl")).unwrap();
    let line = |line: &str| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        line.as_object_mut().unwrap().remove("seconds");
        line
    };
    text.lines().map(line).collect()
}

#[test]
fn the_model_has_the_weights_of_its_best_evaluation() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    judged_shop(home);
    let summary = run_ok(&mut evaluated(home, "run", &["train.tensorboard=true"]));
    let out = home.join("run");
    let found = evaluations(&out);
    assert_eq!(found.iter().map(|line| &line["step"]).collect::<Vec<_>>(), [0, 2, 4, 6, 8]);
    let ndcg = |line: &Value| line["ndcg@10"].as_f64().unwrap();
    let best = found.iter().rev().find(|line| line["is_best"] == true).unwrap();
    assert!(found.iter().all(|line| ndcg(line) <= ndcg(best)), "{found:?}");
    assert!(ndcg(best) > ndcg(&found[0]) + 1.0, "nothing was learned: {found:?}");
    assert_eq!(summary["best_step"], best["step"]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_souk-engine"));
    command.current_dir(home).env("OMP_NUM_THREADS", "1").env("SOUK_PRODUCTS", "packed");
    command.args(["evaluate", "--model", "run", "--data", "data", "--split", "dev", "--out", "MEASURED", "--json"]);
    let measured = run_ok(&mut command);
    for metric in ["ndcg@10", "ndcg_judged@10", "mrr@10", "hitrate@100"] {
        let [logged, reported] = [&best[metric], &measured["overall"][metric]].map(|value| value.as_f64().unwrap());
        assert!((logged - reported).abs() < 1e-6, "{metric}: {logged} during training, {reported} in the report");
    }
    let events = events(&out.join(&event_files(&out)[0]));
    let has = |event: &&Vec<u8>| event.windows(16).any(|part| part == b"evaluate/ndcg@10");
    assert_eq!(events.iter().filter(has).count(), 5);
    let card = fs::read_to_string(out.join("README.md")).unwrap();
    let words = format!("after step {}, the best of the stage's evaluations: ndcg@10 {:.2}", best["step"], ndcg(best));
    assert!(card.contains(&words), "{card}");

    // evaluations change nothing that is learned, and a resumed stage makes the same ones
    let plain = [&["train.batch=12", "train.max_steps=8"][..], &["train.optimizer.learning_rate=3e-3"]].concat();
    run_ok(&mut stage(home, "plain", &plain));
    assert_eq!(losses(&home.join("plain")), losses(&out));
    run_ok(&mut evaluated(home, "resumed", &[]));
    let resumed = home.join("resumed");
    // from the checkpoint of step 6, and from the beginning
    for lost in ["checkpoints/step-000000008", "checkpoints"] {
        fs::remove_dir_all(resumed.join(lost)).unwrap();
        run_ok(evaluated(home, "resumed", &[]).arg("--resume"));
        assert_eq!(evaluations(&resumed), found, "resumed without {lost}");
        assert!(weights(&resumed) == weights(&out) && losses(&resumed) == losses(&out));
    }
    // finished, and resumed once more
    run_ok(evaluated(home, "resumed", &[]).arg("--resume"));
    assert!(weights(&resumed) == weights(&out) && evaluations(&resumed) == found);

    run_ok(&mut launch(home, 2, &evaluated(home, "two", &[])));
    let near = |one: &Value, two: &Value| (ndcg(one) - ndcg(two)).abs() < 1e-3;
    let two = evaluations(&home.join("two"));
    assert!(found.iter().zip(&two).all(|(one, two)| near(one, two)) && two.len() == 5, "{found:?} {two:?}");
}

#[test]
fn a_stage_that_gets_worse_ends_early_and_gives_the_best_model_back() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    judged_shop(home);
    let bad = ["train.optimizer.learning_rate=0.5", "train.optimizer.warmup=0", "train.evaluate.patience=2"];
    let summary = run_ok(&mut evaluated(home, "run", &bad));
    assert_eq!((&summary["step"], &summary["best_step"], &summary["finished"]), (&json!(4), &json!(0), &json!(true)));
    assert_eq!(evaluations(&home.join("run")).len(), 3);
    assert_eq!(worst_difference(&home.join("run"), &model()), 0.0);
    let again = run_ok(evaluated(home, "run", &bad).arg("--resume"));
    assert_eq!((&again["step"], &again["best_step"]), (&json!(4), &json!(0)));
    assert_eq!(worst_difference(&home.join("run"), &model()), 0.0);
}

#[test]
fn queries_that_are_trained_on_are_not_evaluated() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    judged_shop(home);
    let same = "train.evaluate={split=\"train\"}";
    assert_fails(&mut evaluated(home, "run", &[same]), 2, &["train.evaluate.split", "train.held_out"]);
    let missing = "train.evaluate={split=\"gone\"}";
    assert_fails(&mut evaluated(home, "run", &[missing]), 2, &["train.evaluate.split", "gone.tsv"]);
    assert_fails(&mut evaluated(home, "run", &["train.evaluate.every=0"]), 2, &["train.evaluate.every"]);
    run_ok(&mut evaluated(home, "run", &[same, "train.held_out=0.25", "train.max_steps=1"]));
    assert_eq!(evaluations(&home.join("run")).len(), 2);
}
