//! Training from rewards: a judge that fails in many ways, kill and resume, one and several processes.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::stage::{assert_fails, launch, losses, num_logged, run_ok, shop, stage, steps, weights, worst_difference};
use souk_testing::fake_judge::{FakeJudge, JudgeReply, ReceivedRequest};

/// Judge's answer: level 4 for the item with the query's number and kind, less for one of them.
fn verdicts(seen: &ReceivedRequest) -> Value {
    let query = seen.body["query"].as_str().unwrap();
    let has = |text: &str, word: &str| text.split(' ').any(|other| other == word);
    let level = |item: &Value| {
        let text = item["text"].as_str().unwrap();
        let number = query.split(' ').any(|word| word.parse::<u32>().is_ok() && has(text, word));
        let kind = query.split(' ').any(|word| word.parse::<u32>().is_err() && has(text, word));
        1 + 2 * u8::from(number) + u8::from(kind)
    };
    let levels: Vec<u8> = seen.body["items"].as_array().unwrap().iter().map(level).collect();
    let scores: Vec<f64> = levels.iter().map(|level| f64::from(level - 1) / 3.0).collect();
    json!({"model": "fake", "scores": scores, "levels": levels})
}

/// `souk train` with eight steps of R-GRPO on the judge at `url`, with every feature of the step enabled.
fn train_r_grpo(home: &Path, out: &str, url: &str, more: &[&str]) -> Command {
    let url = format!("judge.url={url}");
    let sets = [
        "train.batch=12",
        "train.max_steps=8",
        "train.checkpoint_steps=2",
        "train.chunk_tokens=64",
        "train.keep_tokens=100",
        "train.optimizer.learning_rate=1e-3",
        "train.optimizer.epsilon=1e-6",
        "objective.type=r_grpo",
        "objective.group=6",
        "objective.global_negatives=9",
        "objective.inner_epochs=2",
        "judge.type=souk",
        "judge.model=fake",
        "judge.limits={retries=0, timeout_seconds=1, deadline_seconds=3, breaker_failures=3, breaker_seconds=0.2}",
        "reward.max_missing=0",
        "reward.pause_seconds=0.05",
        "reward.cache=false",
        &url,
    ];
    stage(home, out, &[&sets[..], more].concat())
}

fn run_and_read_stderr(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{message}");
    message
}

#[test]
fn judge_failures_do_not_change_the_result() {
    let home = tempfile::tempdir().unwrap();
    shop(home.path());
    let good = FakeJudge::start(|_, seen| JudgeReply::Json(verdicts(seen)));
    run_ok(&mut train_r_grpo(home.path(), "whole", &good.url(), &[]));
    // every second request fails, each time in a different way
    let bad = FakeJudge::start(|number, seen| {
        let right = verdicts(seen);
        let mut wrong = right.clone();
        let num = right["scores"].as_array().unwrap().len();
        match number % 22 {
            1 => JudgeReply::Status(500, "", "out of order".into()),
            3 => JudgeReply::Hang,
            5 => JudgeReply::Status(200, "", "<html>".into()),
            7 => JudgeReply::Status(200, "", right.to_string().replace("1.0", "NaN").replace("0.0", "NaN")),
            9 => {
                wrong["scores"].as_array_mut().unwrap().pop();
                JudgeReply::Json(wrong)
            }
            11 => JudgeReply::Cut(right.to_string()),
            13 => JudgeReply::Close,
            15 => {
                wrong["scores"] = json!(vec![7.5; num]);
                JudgeReply::Json(wrong)
            }
            17 => JudgeReply::Late(Duration::from_secs(60), right),
            19 => JudgeReply::Drip,
            21 => JudgeReply::Status(429, "Retry-After: 0\r\n", String::new()),
            _ => JudgeReply::Json(right),
        }
    });
    let message = run_and_read_stderr(&mut train_r_grpo(home.path(), "disturbed", &bad.url(), &[]));
    assert!(bad.seen().len() > 44, "too few requests for all failures: {}", bad.seen().len());
    assert!(message.contains("training pauses and asks again"), "{message}");
    let [whole, disturbed] = ["whole", "disturbed"].map(|out| home.path().join(out));
    assert_eq!(losses(&whole), losses(&disturbed));
    assert!(weights(&whole) == weights(&disturbed));
    assert!(steps(&disturbed).iter().all(|step| step["missing"] == 0));
}

#[test]
fn training_pauses_while_the_judge_is_down_and_resumes() {
    let home = tempfile::tempdir().unwrap();
    shop(home.path());
    let is_up = Arc::new(AtomicBool::new(false));
    let judge_is_up = is_up.clone();
    let judge = FakeJudge::start(move |number, seen| {
        if number < 20 || judge_is_up.load(Ordering::SeqCst) {
            JudgeReply::Json(verdicts(seen))
        } else {
            JudgeReply::Status(503, "", String::new())
        }
    });
    let good = FakeJudge::start(|_, seen| JudgeReply::Json(verdicts(seen)));
    run_ok(&mut train_r_grpo(home.path(), "whole", &good.url(), &[]));
    let mut command = train_r_grpo(home.path(), "away", &judge.url(), &[]);
    let mut child = command.spawn().unwrap();
    let out = home.path().join("away");
    let begin = Instant::now();
    let mut heard = String::new();
    let stderr = child.stderr.as_mut().unwrap();
    let mut piece = [0_u8; 4096];
    while !heard.contains("training pauses") {
        let num = stderr.read(&mut piece).unwrap();
        assert!(num > 0 && begin.elapsed() < Duration::from_secs(60), "{heard}");
        heard += &String::from_utf8_lossy(&piece[..num]);
    }
    assert!(heard.contains("souk fake at") && heard.contains("503"), "judge and status are missing: {heard}");
    let steps_before = num_logged(&out);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(num_logged(&out), steps_before, "a step without rewards");
    is_up.store(true, Ordering::SeqCst);
    // drain standard error, so that the process does not block on a full pipe
    std::io::copy(child.stderr.as_mut().unwrap(), &mut std::io::sink()).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(weights(&home.path().join("whole")) == weights(&out));
}

#[test]
fn a_paused_stage_can_be_stopped_and_resumed() {
    let home = tempfile::tempdir().unwrap();
    shop(home.path());
    let dead = FakeJudge::start(|number, seen| {
        if number < 40 { JudgeReply::Json(verdicts(seen)) } else { JudgeReply::Status(500, "", String::new()) }
    });
    let good = FakeJudge::start(|_, seen| JudgeReply::Json(verdicts(seen)));
    run_ok(&mut train_r_grpo(home.path(), "whole", &good.url(), &["reward.lookahead=1"]));
    let out = home.path().join("stopped");
    let child = train_r_grpo(home.path(), "stopped", &dead.url(), &["reward.lookahead=1"]).spawn().unwrap();
    let begin = Instant::now();
    while dead.seen().len() < 45 {
        assert!(begin.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("run again with --resume to continue"), "{message}");
    assert!(num_logged(&out) > 0 && num_logged(&out) < 8);
    run_ok(train_r_grpo(home.path(), "stopped", &good.url(), &["reward.lookahead=1"]).arg("--resume"));
    assert_eq!(losses(&home.path().join("whole")), losses(&out));
    assert!(
        weights(&home.path().join("whole")) == weights(&out),
        "prefetched candidates must come from the earlier policy"
    );
}

#[test]
fn killed_and_resumed_gives_the_same_bits_with_and_without_lookahead() {
    let home = tempfile::tempdir().unwrap();
    shop(home.path());
    let judge = FakeJudge::start(|_, seen| JudgeReply::Json(verdicts(seen)));
    let kinds: [(&str, &[&str]); 3] = [
        ("strict", &[]),
        ("ahead", &["reward.lookahead=2"]),
        ("nested", &["reward.lookahead=1", "objective.dimensions=[16, 8]", "candidates.judged_split=train"]),
    ];
    for (name, more) in kinds {
        let more = [more, &["train.accumulate=2", "train.epochs=4", "train.max_steps=12"]].concat();
        run_ok(&mut train_r_grpo(home.path(), name, &judge.url(), &more));
        let killed = format!("{name}-killed");
        let out = home.path().join(&killed);
        for (kill, at) in [3, 8].into_iter().enumerate() {
            let mut command = train_r_grpo(home.path(), &killed, &judge.url(), &more);
            if kill > 0 {
                command.arg("--resume");
            }
            let mut child = command.spawn().unwrap();
            while num_logged(&out) < at {
                assert!(child.try_wait().unwrap().is_none(), "the process has exited early");
                std::thread::sleep(Duration::from_millis(1));
            }
            child.kill().unwrap();
            child.wait().unwrap();
        }
        run_ok(train_r_grpo(home.path(), &killed, &judge.url(), &more).arg("--resume"));
        assert_eq!(losses(&home.path().join(name)), losses(&out));
        assert!(weights(&home.path().join(name)) == weights(&out), "{name}");
        let groups = fs::read_to_string(out.join("groups.jsonl")).unwrap();
        assert_eq!(groups.lines().count(), 12, "one group of each step");
    }
}

#[test]
fn several_processes_make_the_same_updates() {
    let home = tempfile::tempdir().unwrap();
    shop(home.path());
    let judge = FakeJudge::start(|_, seen| JudgeReply::Json(verdicts(seen)));
    let graph = [
        "candidates.source=catalogue",
        "candidates.num_neighbors=4",
        "candidates.refresh_steps=3",
        "candidates.search=hnsw",
    ];
    let kinds: [(&str, &[&str]); 5] = [
        ("batch", &["objective.weights=policy", "reward.lookahead=1"]),
        ("catalogue", &["candidates.source=catalogue", "candidates.num_neighbors=4", "candidates.refresh_steps=3"]),
        ("graph", &graph),
        ("judged", &["candidates.judged_split=train", "objective.dimensions=[16, 8]", "reward.lookahead=1"]),
        ("mined", &["objective={type=\"dpo\", depth=9, group=5}"]),
    ];
    for (name, more) in kinds {
        let more = &[more, &["train.optimizer.learning_rate=5e-4"]].concat();
        run_ok(&mut train_r_grpo(home.path(), name, &judge.url(), more));
        let one = home.path().join(name);
        let of2 = format!("{name}-of2");
        run_ok(&mut launch(home.path(), 2, &train_r_grpo(home.path(), &of2, &judge.url(), more)));
        let two = home.path().join(of2);
        let worst = losses(&one).iter().zip(losses(&two)).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(worst < 1e-5, "{name}: the losses differ by {worst}");
        let worst = worst_difference(&one, &two);
        assert!(worst < 1e-5, "{name}: the weights differ by {worst}");
        let [single, parallel] = [&one, &two].map(|out| steps(out).pop().unwrap());
        assert_eq!(single["asked"], parallel["asked"]);
        for metric in ["kl", "entropy"] {
            let difference = single[metric].as_f64().unwrap() - parallel[metric].as_f64().unwrap();
            assert!(difference.abs() < 1e-4, "{name}: {metric} differs by {difference}");
        }
    }
}

#[test]
fn judged_items_join_the_candidates_of_their_query() {
    let home = tempfile::tempdir().unwrap();
    shop(home.path());
    // items that the model would not retrieve, for half of the queries
    let far = |item: usize| (item + 31) % 60;
    let qrels: String = (0..60).map(|item| format!("q{item}\td{}\t1\n", far(item))).collect();
    fs::write(home.path().join("data/qrels/far.tsv"), qrels).unwrap();
    let judge = FakeJudge::start(|_, seen| JudgeReply::Json(verdicts(seen)));
    run_ok(&mut train_r_grpo(home.path(), "run", &judge.url(), &["candidates.judged_split=far"]));
    let groups = fs::read_to_string(home.path().join("run/groups.jsonl")).unwrap();
    let mut num_judged = 0;
    for line in groups.lines() {
        let group: Value = serde_json::from_str(line).unwrap();
        let (query, candidates) = (group["query"].as_str().unwrap(), group["candidates"].as_array().unwrap());
        assert_eq!(candidates.len(), 6);
        if !query.starts_with("cheap") {
            let item = query.split(' ').next_back().unwrap().parse().unwrap();
            let judged = format!("d{}", far(item));
            assert!(candidates.iter().any(|candidate| candidate["item"] == judged), "{judged} is missing: {line}");
            num_judged += 1;
        }
    }
    assert!(num_judged > 0, "{groups}");
}

#[test]
fn training_raises_rewards_and_logs_them() {
    let home = tempfile::tempdir().unwrap();
    shop(home.path());
    let judge = FakeJudge::start(|_, seen| JudgeReply::Json(verdicts(seen)));
    let more = ["train.max_steps=40", "train.epochs=10", "train.optimizer.learning_rate=3e-3", "objective.beta=0.01"];
    for (name, rule) in [("r_grpo", None), ("pairwise", Some("objective={type=\"pairwise\", depth=20, group=8}"))] {
        let mut all = more.to_vec();
        all.extend(rule);
        if rule.is_some() {
            all.retain(|set| *set != "objective.beta=0.01");
        }
        run_ok(&mut train_r_grpo(home.path(), name, &judge.url(), &all));
        let steps = steps(&home.path().join(name));
        let good = |part: &[Value]| {
            part.iter()
                .map(|step| step["levels"][2].as_f64().unwrap() + step["levels"][3].as_f64().unwrap())
                .sum::<f64>()
        };
        let reward = |step: &Value| step["reward"]["mean"].as_f64().unwrap();
        assert!(steps.iter().all(|step| (0.0..=1.0).contains(&reward(step))
            && step["asked"] == json!(12 * if rule.is_some() { 8 } else { 6 })));
        if rule.is_none() {
            assert!(good(&steps[30..]) > 1.2 * good(&steps[..10]), "{} {}", good(&steps[30..]), good(&steps[..10]));
            assert!(steps[20]["log_ratio_max"].as_f64().unwrap() > 0.0, "the second update of a step has a ratio");
        } else {
            assert!(home.path().join(name).join("mined.jsonl").exists());
        }
    }
    let state = fs::read_to_string(home.path().join("r_grpo/checkpoints/step-000000040/state.json")).unwrap();
    let state: Value = serde_json::from_str(&state).unwrap();
    assert!(state["reward_source"].as_str().unwrap().starts_with("souk fake at"), "{state}");
}

#[test]
fn permanent_errors_stop_the_stage_at_once() {
    let home = tempfile::tempdir().unwrap();
    shop(home.path());
    let unauthorized = FakeJudge::start(|_, _| JudgeReply::Status(401, "", String::new()));
    assert_fails(&mut train_r_grpo(home.path(), "run", &unauthorized.url(), &[]), 2, &["key"]);
    let url = unauthorized.url();
    for (set, word) in [
        ("objective.group=1", "objective.group"),
        ("objective.beta=-1", "objective.beta"),
        ("reward.max_missing=1", "reward.max_missing"),
        ("reward.relevance=-1", "reward.relevance"),
        ("candidates.num_neighbors=0", "candidates.num_neighbors"),
        ("candidates.judged_split=nothing", "candidates.judged_split"),
        ("objective.dimensions=[99]", "objective.dimensions"),
        ("judge.type=guess", "guess"),
        ("judge.limits={retries=-1}", "-1"),
    ] {
        assert_fails(&mut train_r_grpo(home.path(), "new", &url, &[set]), 2, &[word]);
        assert!(!home.path().join("new").exists(), "{set}: a failed run leaves a folder behind");
    }
    let mut without_judge = stage(home.path(), "new", &["objective.type=r_grpo", "train.batch=12"]);
    assert_fails(&mut without_judge, 2, &["no judge is configured", "[judge]"]);
}
