//! `souk train`: kill and resume, one and several processes, and error messages.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use souk::backbone::weights::read_tensors;
use souk_testing::copy_folder;

use crate::stage::{
    assert_fails, launch, losses, model, num_logged, run_ok, shop, stage, steps, weights, worst_difference,
};

/// Number of steps of the default stage.
const STEPS: usize = 20;

/// `souk train` with output folder `out`: small batches, all parts of the objective, a checkpoint every second step.
fn train(home: &Path, out: &str, more: &[&str]) -> Command {
    let sets = [
        "train.batch=12",
        "train.epochs=2",
        "train.checkpoint_steps=2",
        "train.chunk_tokens=64",
        "train.keep_tokens=100",
        "train.optimizer.learning_rate=3e-3",
        // the gradient of a key bias is rounding noise, which AdamW would scale up to full steps
        "train.optimizer.epsilon=1e-6",
        "objective.type=info_nce",
        "objective.global_negatives=9",
        "objective.symmetric=true",
        "objective.dimensions=[16, 8]",
    ];
    stage(home, out, &[&sets[..], more].concat())
}

fn train_with_ranks(home: &Path, out: &str, processes: usize, more: &[&str]) -> Command {
    launch(home, processes, &train(home, out, more))
}

#[test]
fn a_stage_lowers_the_loss_and_writes_a_model_folder() {
    let home = tempfile::tempdir().unwrap();
    shop(home.path());
    let summary = run_ok(&mut train(home.path(), "run", &[]));
    assert_eq!((&summary["steps"], &summary["finished"]), (&json!(STEPS), &json!(true)));
    let losses = losses(&home.path().join("run"));
    assert_eq!(losses.len(), STEPS);
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    assert!(mean(&losses[15..]) < 0.7 * mean(&losses[..3]), "{losses:?}");
    let last = steps(&home.path().join("run")).pop().unwrap();
    assert!(last["texts_per_second"].as_f64().unwrap() > 0.0 && last["seconds"]["backward"].as_f64().unwrap() > 0.0);
    assert!(home.path().join("run/stage.json").exists());
    let checkpoints = fs::read_dir(home.path().join("run/checkpoints")).unwrap().count();
    assert_eq!(checkpoints, 2, "the last two are kept");
    assert!(worst_difference(&home.path().join("run"), &model()) > 1e-3, "the weights have changed");
    // other commands can load the folder
    let mut embed = Command::new(env!("CARGO_BIN_EXE_souk-engine"));
    embed.current_dir(home.path()).args(["index", "--model", "run", "--data", "data", "--out", "index"]);
    assert!(embed.output().unwrap().status.success());
    // a second stage does not overwrite it
    assert_fails(&mut train(home.path(), "run", &[]), 2, &["is not empty", "--resume"]);
}

/// A stage that an earlier version began is resumed: `tests/golden/formats/stage` has its folder. To write it anew, remove it and set
/// `REGENERATE=1`.
#[test]
fn a_stage_of_an_earlier_version_resumes() {
    let (home, kept) = (tempfile::tempdir().unwrap(), souk_testing::golden("formats/stage"));
    shop(home.path());
    // no path of a machine is stored
    copy_folder(&model(), &home.path().join("model"));
    let train = |out: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_souk-engine"));
        command.current_dir(home.path()).env("OMP_NUM_THREADS", "1").env("SOUK_PRODUCTS", "packed");
        command.args(["train", "--json", "--data", "data", "--model", "model", "--out", out]);
        for set in ["train.batch=12", "train.max_steps=4", "train.checkpoint_steps=2"] {
            command.args(["--set", set]);
        }
        command
    };
    run_ok(&mut train("whole"));
    if std::env::var_os("REGENERATE").is_some() && !kept.exists() {
        let stage = home.path().join("whole");
        fs::create_dir_all(&kept).unwrap();
        for file in ["stage.json", "steps.jsonl"] {
            fs::copy(stage.join(file), kept.join(file)).unwrap();
        }
        let checkpoint = "checkpoints/step-000000002";
        copy_folder(&stage.join(checkpoint), &kept.join(checkpoint));
    }
    copy_folder(&kept, &home.path().join("resumed"));
    run_ok(train("resumed").arg("--resume"));
    let [whole, resumed] = ["whole", "resumed"].map(|out| home.path().join(out));
    assert_eq!(losses(&resumed).len(), 4);
    let near = losses(&whole).iter().zip(losses(&resumed)).all(|(a, b)| (a - b).abs() < 1e-3);
    assert!(near && worst_difference(&whole, &resumed) < 1e-3, "{:?} {:?}", losses(&whole), losses(&resumed));
}

/// A run for every training query: its item first, then the five items after it.
fn write_run(home: &Path) {
    let mut run = String::new();
    for (item, form) in (0..60).flat_map(|item| [(item, ""), (item, "cheap")]) {
        for rank in 0..6 {
            run += &format!("q{item}{form} Q0 d{} {} {} made\n", (item + rank) % 60, rank + 1, 5.0 - rank as f64);
        }
    }
    fs::write(home.join("run.trec"), run).unwrap();
}

#[test]
fn distillation_learns_the_ranking_of_a_run() {
    let home = tempfile::tempdir().unwrap();
    shop(home.path());
    write_run(home.path());
    let distil = |out: &str, more: &[&str]| {
        let objective = "objective={type=\"distil\", run=\"run.trec\", depth=6, group=4, dimensions=[16, 8]}";
        train(home.path(), out, &[&["train.epochs=4"], more, &[objective]].concat())
    };
    run_ok(&mut distil("one", &[]));
    let found = losses(&home.path().join("one"));
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    assert!(mean(&found[35..]) < 0.8 * mean(&found[..3]), "{found:?}");

    run_ok(&mut launch(home.path(), 2, &distil("two", &[])));
    let difference = worst_difference(&home.path().join("one"), &home.path().join("two"));
    assert!(difference < 1e-4, "two processes make other updates: {difference}");
    run_ok(&mut distil("stopped", &["train.max_steps=40"]));
    fs::remove_dir_all(home.path().join("stopped/checkpoints/step-000000040")).unwrap();
    run_ok(distil("stopped", &["train.max_steps=40"]).arg("--resume"));
    assert_eq!(weights(&home.path().join("stopped")), weights(&home.path().join("one")), "resumed");

    let text = fs::read_to_string(home.path().join("run.trec")).unwrap();
    fs::write(home.path().join("run.trec"), text.replace("q7 Q0 d9", "q7x Q0 d9").replace("q7 Q0 d10", "q7x Q0 d10"))
        .unwrap();
    run_ok(&mut distil("enough", &["train.max_steps=1"]));
    let less = text.lines().filter(|line| !line.starts_with("q7 ")).collect::<Vec<_>>().join("\n");
    fs::write(home.path().join("run.trec"), less).unwrap();
    assert_fails(&mut distil("missing", &[]), 1, &["0 hits of the training query `lamp 7`", "souk evaluate"]);
    fs::write(home.path().join("run.trec"), "q7 Q0 nothing 1 0.5 made\n").unwrap();
    assert_fails(&mut distil("unknown", &[]), 1, &["line 1", "no item `nothing`"]);
    let unset = ["objective={type=\"distil\"}"];
    assert_fails(&mut train(home.path(), "unset", &unset), 2, &["objective.run", "TREC run"]);
}

#[test]
fn judged_items_join_the_batch_and_are_learned_in_order() {
    let home = tempfile::tempdir().unwrap();
    shop(home.path());
    let mut qrels = String::new();
    for item in 0..60 {
        for (other, level) in [(item, 4), ((item + 6) % 60, 2), ((item + 12) % 60, 1)] {
            qrels += &format!("q{item}\td{other}\t{level}\n");
        }
    }
    fs::write(home.path().join("data/qrels/judged.tsv"), qrels).unwrap();
    let judged = [
        "objective.judged_split=judged",
        "objective.judged=2",
        "objective.list_weight=1",
        "objective.mask_margin=0.1",
        "objective.mistyped=0.3",
    ];
    // words that are long enough for a typing error
    let queries = home.path().join("data/queries.jsonl");
    let text = fs::read_to_string(&queries).unwrap().replace("lamp", "lantern");
    assert!(text.contains("lantern"), "{text}");
    fs::write(&queries, text).unwrap();
    for (out, more) in [("plain", &[][..]), ("mistyped", &["objective.mistyped=1"]), ("one", &judged)] {
        run_ok(&mut train(home.path(), out, more));
    }
    assert_ne!(losses(&home.path().join("mistyped")), losses(&home.path().join("plain")), "no query had an error");
    run_ok(&mut train_with_ranks(home.path(), "two", 2, &judged));
    let [plain, one, two] = ["plain", "one", "two"].map(|out| home.path().join(out));
    let texts = |out: &Path| steps(out).iter().map(|step| step["texts"].as_u64().unwrap()).sum::<u64>();
    assert!(texts(&one) > texts(&plain), "{} {}", texts(&one), texts(&plain));
    let found = losses(&one);
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    assert!(mean(&found[15..]) < 0.8 * mean(&found[..3]), "{found:?}");
    let difference = worst_difference(&one, &two);
    assert!(difference < 1e-4, "two processes make other updates: {difference}");
    assert_fails(&mut train(home.path(), "unset", &["objective.list_weight=1"]), 2, &["objective.judged_split"]);
    assert_fails(
        &mut train(home.path(), "unset", &["objective.judged_split=no"]),
        2,
        &["objective.judged_split", "no.tsv"],
    );
    // the item of level 4 is the pair's own, so that the others are what joins
    let some = |out: &str, more: &[&str]| {
        run_ok(&mut train(
            home.path(),
            out,
            &[&["objective.judged_split=judged", "objective.judged=3"], more].concat(),
        ));
        losses(&home.path().join(out))
    };
    let (all, rejected) = (some("all", &[]), some("rejected", &["objective.judged_levels=rejected"]));
    assert!(all.iter().zip(&rejected).all(|(a, b)| (a - b).abs() < 1e-3), "{all:?} {rejected:?}");
    assert!(texts(&home.path().join("rejected")) > texts(&plain));
    let none = ["objective.judged_split=train", "objective.judged_levels=rejected"];
    assert_fails(&mut train(home.path(), "unset", &none), 2, &["no judgements of level 1 or 2"]);
    // batches in which no query has a judged item
    fs::write(home.path().join("data/qrels/one.tsv"), "q7\td7\t4\nq7\td13\t1\n").unwrap();
    let one_query = ["objective.judged_split=one", "objective.list_weight=1"];
    run_ok(&mut train(home.path(), "one-query", &one_query));
    assert!(losses(&home.path().join("one-query")).iter().all(|loss| loss.is_finite()));
}

#[test]
fn a_catalogue_alone_is_learned_by_excerpts() {
    let home = tempfile::tempdir().unwrap();
    shop(home.path());
    fs::remove_file(home.path().join("data/queries.jsonl")).unwrap();
    fs::remove_dir_all(home.path().join("data/qrels")).unwrap();
    let excerpts = ["train.pairs=excerpts", "train.epochs=10", "objective.mistyped=0.1"];
    fs::write(home.path().join("run.trec"), "q0 Q0 d0 1 0.5 made\n").unwrap();
    let other = ["train.pairs=excerpts", "objective={type=\"distil\", run=\"run.trec\"}"];
    assert_fails(&mut train(home.path(), "other", &other), 2, &["train.pairs", "info_nce"]);
    run_ok(&mut train(home.path(), "one", &excerpts));
    let found = losses(&home.path().join("one"));
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    assert!(mean(&found[40..]) < 0.8 * mean(&found[..10]), "{found:?}");
    run_ok(&mut train(home.path(), "items", &["train.pairs=items", "train.max_steps=1"]));
    assert!(losses(&home.path().join("items"))[0] < found[0], "an item's own text finds it best");
    run_ok(&mut train_with_ranks(home.path(), "two", 2, &excerpts));
    let difference = worst_difference(&home.path().join("one"), &home.path().join("two"));
    assert!(difference < 1e-4, "two processes make other updates: {difference}");
}

#[test]
fn a_guide_leaves_out_what_it_finds_better() {
    let home = tempfile::tempdir().unwrap();
    shop(home.path());
    let guide = format!("objective.guide={}", model().display());
    let margin = ["objective.dimensions=[]", "objective.mask_margin=0"];
    let guided = [&margin[..], &[&guide]].concat();
    run_ok(&mut train(home.path(), "plain", &margin[..1]));
    run_ok(&mut train(home.path(), "own", &margin));
    run_ok(&mut train(home.path(), "guided", &guided));
    run_ok(&mut train_with_ranks(home.path(), "two", 2, &guided));
    let [plain, own, guided] = ["plain", "own", "guided"].map(|out| losses(&home.path().join(out)));
    assert!((plain[0] - own[0]).abs() > 1e-3, "nothing was left out");
    // the guide is the model that the stage begins with
    assert!((own[0] - guided[0]).abs() < 1e-4, "{} {}", own[0], guided[0]);
    assert!(own.iter().zip(&guided).any(|(own, guided)| (own - guided).abs() > 1e-3), "the guide has learned, too");
    let difference = worst_difference(&home.path().join("guided"), &home.path().join("two"));
    assert!(difference < 1e-4, "two processes make other updates: {difference}");
    // the place is the same, the model is not
    let other = home.path().join("other");
    fs::create_dir(&other).unwrap();
    for file in fs::read_dir(model()).unwrap().map(|entry| entry.unwrap().path()) {
        std::os::unix::fs::symlink(&file, other.join(file.file_name().unwrap())).unwrap();
    }
    let guide = format!("objective.guide={}", other.display());
    let guided = [&margin[..], &[&guide, "train.max_steps=4"]].concat();
    run_ok(&mut train(home.path(), "resumed", &guided));
    fs::remove_file(other.join("model.safetensors")).unwrap();
    fs::copy(home.path().join("two/model.safetensors"), other.join("model.safetensors")).unwrap();
    let mut resumed = train(home.path(), "resumed", &guided);
    assert_fails(resumed.arg("--resume"), 2, &["guide", "when the stage began"]);
    assert_fails(&mut train(home.path(), "unset", &[&guide]), 2, &["objective.guide", "objective.mask_margin"]);
    let missing = ["objective.mask_margin=0", "objective.guide=./no-model"];
    assert_fails(&mut train(home.path(), "missing", &missing), 2, &["objective.guide", "no-model"]);
}

#[test]
fn killed_at_random_and_resumed_gives_the_same_bits() {
    let home = tempfile::tempdir().unwrap();
    shop(home.path());
    // enough steps for ten kills with a few steps between them
    let long = ["train.epochs=8"];
    run_ok(&mut train(home.path(), "whole", &long));
    let (whole, out) = (home.path().join("whole"), home.path().join("killed"));
    let num_steps = steps(&whole).len();
    let mut seed = 20_261_u64;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for kill in 0..10 {
        let mut command = train(home.path(), "killed", &long);
        if kill > 0 {
            command.arg("--resume");
        }
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let before = num_logged(&out);
        // every fourth kill comes before the first step, the others during or between later steps
        if kill % 4 != 3 {
            while num_logged(&out) <= before + random(3) as usize {
                assert!(child.try_wait().unwrap().is_none(), "the process has exited early");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        std::thread::sleep(Duration::from_millis(random(30)));
        assert!(child.try_wait().unwrap().is_none() && num_logged(&out) < num_steps, "kill {kill} came too late");
        child.kill().unwrap();
        child.wait().unwrap();
    }
    run_ok(train(home.path(), "killed", &long).arg("--resume"));
    assert_eq!(losses(&whole), losses(&out), "each step is logged once");
    assert!(weights(&whole) == weights(&out));
}

#[test]
fn one_two_and_four_processes_make_the_same_updates() {
    const SAME_WEIGHTS: f64 = 3e-6;
    let home = tempfile::tempdir().unwrap();
    shop(home.path());
    // with a smaller epsilon, noise moves key biases by 1e-5 on processors without AVX-512, and other weights by less than 1e-6
    let real = ["train.optimizer.learning_rate=5e-4", "train.max_steps=20", "train.optimizer.epsilon=1e-5"];
    run_ok(&mut train(home.path(), "one", &real));
    let one = home.path().join("one");
    for processes in [2, 4] {
        let out = format!("of{processes}");
        run_ok(&mut train_with_ranks(home.path(), &out, processes, &real));
        let out = home.path().join(out);
        let (alone, together) = (losses(&one), losses(&out));
        assert_eq!(together.len(), STEPS);
        let worst = alone.iter().zip(&together).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(worst < 1e-5, "{processes} processes: the losses differ by {worst}");
        let worst = worst_difference(&one, &out);
        assert!(worst < SAME_WEIGHTS, "{processes} processes: the weights differ by {worst}");
    }
    // a stage of four processes resumes with one
    run_ok(&mut train_with_ranks(home.path(), "four", 4, &real));
    let last = home.path().join("four/checkpoints/step-000000020");
    fs::remove_dir_all(last).unwrap();
    run_ok(train(home.path(), "four", &real).arg("--resume"));
    assert!(worst_difference(&one, &home.path().join("four")) < SAME_WEIGHTS);
}

#[test]
fn a_killed_rank_stops_the_job_and_is_named() {
    let home = tempfile::tempdir().unwrap();
    shop(home.path());
    let long = ["train.epochs=100000", "collective.timeout_seconds=20"];
    let mut job = train_with_ranks(home.path(), "lost", 3, &long).spawn().unwrap();
    let begin = Instant::now();
    while steps(&home.path().join("lost")).is_empty() {
        assert!(begin.elapsed() < Duration::from_secs(60) && job.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(50));
    }
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", job.id())).unwrap();
    let victim = children.split_whitespace().nth(1).unwrap();
    assert!(Command::new("kill").args(["-KILL", victim]).status().unwrap().success());
    let lost = Instant::now();
    let output = job.wait_with_output().unwrap();
    assert!(lost.elapsed() < Duration::from_secs(35), "the job took longer than the timeout");
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("rank 1"), "{message}");
}

#[test]
fn a_loss_that_is_not_finite_stops_before_the_update() {
    let home = tempfile::tempdir().unwrap();
    shop(home.path());
    // the first update makes the weights diverge; the next step detects it
    let wild = ["train.optimizer.learning_rate=1e38", "train.optimizer.warmup=0"];
    assert_fails(&mut train(home.path(), "run", &wild), 1, &["diverged-", "learning_rate"]);
    let steps = steps(&home.path().join("run")).len();
    let text = fs::read(home.path().join(format!("run/diverged-{}.json", steps + 1))).unwrap();
    let batch: Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(batch["pairs"].as_array().unwrap().len(), 12);
    assert!(batch["pairs"][0]["item"].as_str().unwrap().starts_with('d'));
    assert!(!home.path().join("run/config.json").exists(), "a diverged stage writes a model");
}

#[test]
fn skips_a_limited_number_of_diverged_batches() {
    let home = tempfile::tempdir().unwrap();
    shop(home.path());
    // no checkpoint in between, which would detect the diverged weights
    let of = |rate| [rate, "train.optimizer.warmup=0", "train.skip_diverged=2", "train.checkpoint_steps=1000"];
    let wild = of("train.optimizer.learning_rate=1e38");
    assert_fails(&mut train(home.path(), "run", &wild), 1, &["diverged-", "learning_rate"]);
    let steps = steps(&home.path().join("run")).len();
    let file = |number: usize| home.path().join(format!("run/diverged-{number}.json"));
    assert!((1..=3).all(|more| file(steps + more).exists()) && !file(steps + 4).exists());
    // resumes with a sane learning rate
    let fixed = of("train.optimizer.learning_rate=1e-4");
    run_ok(train(home.path(), "run", &fixed).arg("--resume"));
}

#[test]
fn resume_rejects_changed_settings() {
    let home = tempfile::tempdir().unwrap();
    shop(home.path());
    run_ok(&mut train(home.path(), "run", &[]));
    assert_fails(
        train(home.path(), "run", &["train.batch=13"]).arg("--resume"),
        2,
        &["train.batch: was 12", "is 13 now"],
    );
    run_ok(train(home.path(), "run", &["train.keep_tokens=0"]).arg("--resume"));
    // the learning rate may change, to recover from divergence
    run_ok(train(home.path(), "run", &["train.optimizer.learning_rate=1e-4"]).arg("--resume"));
    let lock = fs::File::open(home.path().join("run/stage.json")).unwrap();
    lock.lock().unwrap();
    assert_fails(train(home.path(), "run", &[]).arg("--resume"), 2, &["another process is training in it"]);
    drop(lock);
    fs::write(home.path().join("data/qrels/train.tsv"), "q1\td1\t4\n").unwrap();
    assert_fails(train(home.path(), "run", &[]).arg("--resume"), 2, &["--data", "start a new stage"]);
    for (set, word) in [
        ("objective.temperature=0", "objective.temperature"),
        ("objective.dimensions=[64]", "objective.dimensions"),
        ("objective.kind=1", "kind"),
        ("train.batch=0", "train.batch"),
        ("train.pairs=logs", "train.pairs"),
        ("model.precision=int8", "model.precision"),
        ("train.lora.rank=4", "lora"),
        ("encoder.dimensions=8", "dimensions"),
        ("train.batch=121", "but there are only"),
        ("train.lora={rank=0, alpha=1.0, targets=[\"query\"]}", "train.lora.rank"),
        ("train.lora={rank=1, alpha=1.0, targets=[\"query\"], dropout=0.1}", "train.dropout"),
        ("train.lora={rank=1, alpha=1.0, targets=[\"query\", \"q_proj\"]}", "`q_proj`"),
    ] {
        assert_fails(&mut train(home.path(), "new", &[set]), 2, &[word]);
        assert!(!home.path().join("new").exists(), "{set}: a failed run leaves a folder behind");
    }
}

#[test]
fn lora_trains_and_saves_only_the_adapter() {
    let home = tempfile::tempdir().unwrap();
    shop(home.path());
    let lora = ["train.lora={rank=4, alpha=8.0, targets=[\"query\", \"value\"]}", "model.precision=bf16"];
    let summary = run_ok(&mut train(home.path(), "run", &lora));
    // two layers, two 32x32 maps each, with A and B of rank 4
    assert_eq!(summary["num_parameters"], 2 * 2 * 2 * 4 * 32);
    let adapter = read_tensors(&home.path().join("run/adapter/adapter_model.safetensors")).unwrap();
    assert_eq!(adapter.len(), 8);
    let (before, after) = (model().join("model.safetensors"), home.path().join("run/model.safetensors"));
    let (before, after) = (read_tensors(&before).unwrap(), read_tensors(&after).unwrap());
    let changed = |name: &str| before[name] != after[name];
    assert!(changed("encoder.layer.0.attention.self.query.weight"));
    assert!(!changed("encoder.layer.0.attention.self.key.weight") && !changed("embeddings.word_embeddings.weight"));
    let losses = losses(&home.path().join("run"));
    assert!(losses[STEPS - 1] < losses[0], "{losses:?}");
}

#[test]
fn resume_rejects_other_folders_and_base_models() {
    let home = tempfile::tempdir().unwrap();
    shop(home.path());
    let foreign = home.path().join("foreign");
    fs::create_dir_all(foreign.join("model")).unwrap();
    fs::write(foreign.join("model/precious"), "kept").unwrap();
    assert_fails(train(home.path(), "foreign", &[]).arg("--resume"), 2, &["is not empty", "no stage in it to resume"]);
    assert!(foreign.join("model/precious").exists());

    let base = home.path().join("base");
    let copied = Command::new("cp").arg("-r").args([model(), base.clone()]).status().unwrap();
    assert!(copied.success());
    let from = |resume: bool| {
        let alone = train(home.path(), "run", &["train.max_steps=4"]);
        let mut command = Command::new(alone.get_program());
        command.current_dir(home.path()).env("OMP_NUM_THREADS", "1").stdout(Stdio::piped()).stderr(Stdio::piped());
        command.args(alone.get_args().map(|part| if part == model() { base.as_os_str() } else { part }));
        if resume {
            command.arg("--resume");
        }
        command
    };
    run_ok(&mut from(false));
    let tokenizer = base.join("config_sentence_transformers.json");
    let text = fs::read_to_string(&tokenizer).unwrap_or_else(|_| "{}".into());
    fs::write(&tokenizer, text + "\n").unwrap();
    assert_fails(&mut from(true), 2, &["model.path", "not the model that the stage began with"]);
}

#[test]
fn a_stop_writes_a_checkpoint_and_exits_with_1() {
    let home = tempfile::tempdir().unwrap();
    shop(home.path());
    let long = ["train.epochs=100000", "train.checkpoint_steps=1000000"];
    for processes in [1, 2] {
        let out = home.path().join(format!("of{processes}"));
        let name = out.file_name().unwrap().to_str().unwrap();
        let job = match processes {
            1 => train(home.path(), name, &long).spawn().unwrap(),
            _ => train_with_ranks(home.path(), name, processes, &long).spawn().unwrap(),
        };
        let begin = Instant::now();
        while num_logged(&out) < 3 {
            assert!(begin.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(Command::new("kill").args(["-TERM", &job.id().to_string()]).status().unwrap().success());
        let output = job.wait_with_output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.contains("run again with --resume to continue"), "{message}");
        assert_eq!(fs::read_dir(out.join("checkpoints")).unwrap().count(), 1, "one checkpoint, of the last step");
    }
}
