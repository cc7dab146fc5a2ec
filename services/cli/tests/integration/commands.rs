//! Commands run as processes: results on standard output, error messages and exit codes.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use souk::backbone::lora::Lora;
use souk::backbone::weights::{Parameters, read_tensors, write_tensors};
use souk::backbone::{Architecture, Backbone};
use tch::{Device, Kind};

fn root() -> PathBuf {
    souk_testing::repository()
}

fn model(name: &str) -> String {
    root().join("tests/golden").join(name).display().to_string()
}

fn souk(arguments: &[&str], input: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_souk-engine"));
    command.args(arguments).env("HF_HUB_OFFLINE", "1").env_remove("RUST_LOG");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // a program that rejects its arguments does not read its input
    drop(child.stdin.take().unwrap().write_all(input));
    child.wait_with_output().unwrap()
}

fn run_ok(arguments: &[&str], input: &[u8]) -> String {
    let output = souk(arguments, input);
    assert!(output.status.success(), "souk {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Checks the exit code, and that the message contains all of `words`.
fn assert_fails(code: i32, words: &[&str], arguments: &[&str], input: &[u8]) {
    let output = souk(arguments, input);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "souk {arguments:?}: {message}");
    for word in words {
        assert!(message.contains(word), "souk {arguments:?}: `{word}` is missing in `{message}`");
    }
    assert!(!message.contains("panicked"), "{message}");
}

fn vectors(json_lines: &str) -> Vec<Vec<f32>> {
    json_lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn help_lists_the_commands_and_each_has_its_own_help() {
    let help = run_ok(&["--help"], b"");
    assert_eq!(run_ok(&[], b""), help, "without a command, souk prints its help");
    let groups = ["Data:", "Models:", "Vectors and search:", "Measuring:", "Services:", "Options:"];
    let places: Vec<_> = groups.iter().map(|group| help.find(&format!("\n{group}\n"))).collect();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{help}");
    let commands = "compare db embed evaluate export import index ingest init launch market search train";
    for command in commands.split(' ') {
        assert!(help.contains(command), "{help}");
        let own = run_ok(&[command, "--help"], b"");
        assert!(own.contains("Usage: souk") && own.contains("--config"), "{own}");
    }
}

#[test]
fn the_version_names_crate_libtorch_and_device() {
    let version = run_ok(&["--version"], b"");
    assert!(version.contains(env!("CARGO_PKG_VERSION")) && version.contains("libtorch 2.11.0"), "{version}");
    let json: serde_json::Value = serde_json::from_str(&run_ok(&["--version", "--json"], b"")).unwrap();
    assert!(json["device"] == "cpu" || json["device"].as_str().unwrap().starts_with("cuda:"), "{json}");
}

#[test]
fn usage_errors_exit_with_2_and_failures_with_1() {
    let home = tempfile::tempdir().unwrap();
    let out = home.path().join("out").display().to_string();
    assert_fails(2, &["no model: give --model DIR"], &["embed"], b"x\n");
    assert_fails(2, &["neither a local folder"], &["embed", "--model", "/nowhere/at/all"], b"x\n");
    assert_fails(2, &["`f64`"], &["embed", "--model", &model("st_cls"), "--precision", "f64"], b"x\n");
    assert_fails(2, &["`bag`"], &["embed", "--model", &model("st_cls"), "--kind", "bag"], b"x\n");
    assert_fails(
        2,
        &["is 999", "vectors have 32"],
        &["embed", "--model", &model("st_cls"), "--dimensions", "999"],
        b"x\n",
    );
    assert_fails(
        1,
        &["corpus.jsonl", "cannot open"],
        &["index", "--model", &model("st_cls"), "--data", "/nowhere", "--out", &out],
        b"",
    );
    assert_fails(1, &["line 2", "not valid UTF-8"], &["embed", "--model", &model("st_cls")], b"fine\n\xff\xfe\n");
}

#[test]
fn embed_gives_one_vector_per_line() {
    let input = "oak desk\n\n日本\n a\0b \nno newline at the end";
    let lines = run_ok(&["embed", "--model", &model("st_mean_dense")], input.as_bytes());
    let found = vectors(&lines);
    assert_eq!((found.len(), found[0].len()), (5, 16));
    let again = run_ok(&["embed", "--model", &model("st_mean_dense")], b"oak desk\r\n");
    assert!(
        vectors(&again)[0].iter().zip(&found[0]).all(|(a, b)| (a - b).abs() < 1e-6),
        "batch size changes the vector"
    );
    let query = run_ok(&["embed", "--model", &model("st_mean_dense"), "--kind", "query"], b"oak desk\n");
    assert_ne!(vectors(&query)[0], found[0], "this model has a prompt for queries");
    assert!(run_ok(&["embed", "--model", &model("st_mean_dense")], b"").is_empty());
}

#[test]
fn embed_prints_stats() {
    let output = souk(&["embed", "--model", &model("st_cls"), "--stats", "--with-text"], b"oak desk\npine shelf\n");
    let line: serde_json::Value = serde_json::from_slice(output.stdout.split(|b| *b == b'\n').next().unwrap()).unwrap();
    assert_eq!(line["text"], "oak desk");
    let stats: serde_json::Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(stats["texts"], 2);
    assert!(stats["texts_per_second"].as_f64().unwrap() > 0.0);
}

#[test]
fn an_index_rejects_queries_of_another_model() {
    let dir = tempfile::tempdir().unwrap();
    let index = dir.path().join("index").display().to_string();
    let data = root().join("docs/demo").display().to_string();
    let one = model("st_mean_dense");
    let built = run_ok(&["index", "--model", &one, "--data", &data, "--out", &index, "--json"], b"");
    let manifest: serde_json::Value = serde_json::from_str(&built).unwrap();
    assert_eq!((manifest["num_items"].as_u64(), manifest["dimensions"].as_i64()), (Some(112), Some(16)));
    let search = |model: &str, rest: &[&str]| {
        let arguments = ["search", "--model", model, "--index", &index, "oak desk", "-k", "4"];
        souk(&[&arguments, rest].concat(), b"")
    };
    let hits: serde_json::Value = serde_json::from_slice(&search(&one, &["--json"]).stdout).unwrap();
    let scores: Vec<f64> = hits["hits"].as_array().unwrap().iter().map(|hit| hit["score"].as_f64().unwrap()).collect();
    assert!(scores.len() == 4 && scores.is_sorted_by(|a, b| a >= b), "{hits}");
    let graph = dir.path().join("graph").display().to_string();
    let settings = ["--set", "index.type=hnsw", "--json"];
    let built = run_ok(&[&["index", "--model", &one, "--data", &data, "--out", &graph], &settings[..]].concat(), b"");
    assert!(built.contains("\"type\":\"hnsw\"") && built.contains("links-1.u32"), "{built}");
    let approximate =
        run_ok(&["search", "--model", &one, "--index", &graph, "oak desk", "-k", "4", "--ef", "5", "--json"], b"");
    // a small ef may miss a hit that is hardly nearer than the next one
    let approximate: serde_json::Value = serde_json::from_str(&approximate).unwrap();
    assert_eq!((&approximate["hits"][0], approximate["hits"].as_array().unwrap().len()), (&hits["hits"][0], 4));
    let other = search(&model("st_v6"), &[]);
    let message = String::from_utf8_lossy(&other.stderr).to_string();
    assert!(!other.status.success() && message.contains("built by model"), "{message}");
    let shorter = search(&one, &["--set", "encoder.dimensions=8"]);
    assert!(!shorter.status.success(), "other dimensions count as another model");
    assert_fails(2, &["is not empty"], &["index", "--model", &one, "--data", &data, "--out", &index], b"");
}

#[test]
fn index_reads_catalogue_variants_and_rejects_bad_ones() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().display().to_string();
    let index = |corpus: &str, out: &str| {
        fs::write(dir.path().join("corpus.jsonl"), corpus).unwrap();
        let out = dir.path().join(out).display().to_string();
        souk(&["index", "--model", &model("st_cls"), "--data", &data, "--out", &out], b"")
    };
    let fine = index("\u{feff}{\"_id\": \"1\", \"title\": null}\r\n\r\n{\"_id\": \"2\", \"text\": \"a\"}", "fine");
    assert!(String::from_utf8_lossy(&fine.stdout).contains("indexed 2 items"), "{fine:?}");
    let twice = index("{\"_id\": \"1\"}\n{\"_id\": \"1\"}\n", "twice");
    assert!(String::from_utf8_lossy(&twice.stderr).contains("two items have the id `1`"), "{twice:?}");
    let empty = index("\n", "empty");
    assert!(String::from_utf8_lossy(&empty.stderr).contains("no item to index"), "{empty:?}");
    fs::remove_file(dir.path().join("corpus.jsonl")).unwrap();
    fs::create_dir(dir.path().join("corpus.jsonl")).unwrap();
    let out = dir.path().join("folder").display().to_string();
    assert_fails(
        2,
        &["corpus.jsonl", "has no files"],
        &["index", "--model", &model("st_cls"), "--data", &data, "--out", &out],
        b"",
    );
}

#[test]
fn embed_prints_all_lines_before_a_bad_one() {
    let mut input = b"oak desk\n".repeat(700);
    input.extend(b"\xff\n");
    let output = souk(&["embed", "--model", &model("st_cls")], &input);
    assert_eq!(output.stdout.iter().filter(|b| **b == b'\n').count(), 700);
    assert!(String::from_utf8_lossy(&output.stderr).contains("line 701"));
}

#[test]
fn a_closed_pipe_is_no_failure() {
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("titles.txt");
    fs::write(&input, "oak desk\n".repeat(5000)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_souk-engine"));
    command.args(["embed", "--model", &model("st_cls")]).stdin(fs::File::open(&input).unwrap());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert_eq!(vectors(&first)[0].len(), 32);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn a_missing_certificate_is_reported_before_a_model_is_loaded() {
    let missing =
        |section: &str| format!(r#"{section}.tls={{certificate="/nowhere/chain.pem", key="/nowhere/key.pem"}}"#);
    let (judge, trainer) = (missing("relevance.serve"), missing("trainer"));
    assert_fails(2, &["/nowhere/chain.pem"], &["relevance", "serve", "--model", "nowhere", "--set", &judge], b"");
    let home = tempfile::tempdir().unwrap();
    let place = |name: &str| home.path().join(name).display().to_string();
    let stage = "[[trainer.stage]]\nname = \"sft\"\nconfig = \"sft.toml\"\n";
    let config = format!("[trainer]\nstate = {:?}\n[trainer.gate]\nsource = \"log\"\n{stage}", place("state"));
    for (name, text) in [
        ("trainer.toml", config.as_str()),
        ("sft.toml", ""),
        ("log.ndjson", ""),
        ("corpus.jsonl", "{\"_id\": \"1\", \"title\": \"desk\"}\n"),
    ] {
        fs::write(place(name), text).unwrap();
    }
    let (config, log, data) = (place("trainer.toml"), place("log.ndjson"), place(""));
    let arguments = ["trainer", "--config", &config, "--from", &log, "--data", &data, "--set", &trainer];
    assert_fails(2, &["/nowhere/chain.pem"], &arguments, b"");
}

#[test]
fn a_bad_catalogue_line_is_reported_with_its_number() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("corpus.jsonl"), "{\"_id\": \"1\", \"title\": \"a\"}\nnot json\n").unwrap();
    let data = dir.path().display().to_string();
    let out = dir.path().join("index").display().to_string();
    assert_fails(
        1,
        &["corpus.jsonl, line 2", "not an item"],
        &["index", "--model", &model("st_cls"), "--data", &data, "--out", &out],
        b"",
    );
}

#[test]
fn an_exported_model_gives_the_same_vectors() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("model").display().to_string();
    run_ok(&["export", "--model", &model("st_last"), "--to", "sentence-transformers", "--out", &out], b"");
    let (before, after) = (
        run_ok(&["embed", "--model", &model("st_last")], b"oak desk\n"),
        run_ok(&["embed", "--model", &out], b"oak desk\n"),
    );
    assert_eq!(before, after);
    assert_fails(2, &["is not empty"], &["export", "--model", &model("st_last"), "--out", &out], b"");
}

#[test]
fn an_average_is_the_weighted_mean_of_all_weights() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let base = model("st_last");
    run_ok(&["export", "--model", &base, "--out", &path("moved")], b"");
    let file = Path::new(&path("moved")).join("model.safetensors");
    let before = read_tensors(&file).unwrap();
    let moved = before.iter().map(|(name, tensor)| (name.clone(), tensor + tensor.rand_like())).collect();
    write_tensors(&file, &moved).unwrap();

    run_ok(&["average", &base, &format!("{}=3", path("moved")), "--out", &path("mean")], b"");
    let mean = read_tensors(&Path::new(&path("mean")).join("model.safetensors")).unwrap();
    assert_eq!(mean.len(), before.len());
    for (name, tensor) in &mean {
        let expected = &before[name] * 0.25 + &moved[name] * 0.75;
        assert!((tensor - expected).abs().max().double_value(&[]) < 1e-6, "{name}");
    }
    assert_ne!(
        run_ok(&["embed", "--model", &path("mean")], b"oak desk\n"),
        run_ok(&["embed", "--model", &base], b"oak desk\n")
    );

    let fails = |words: &[&str], models: [&str; 2]| {
        assert_fails(2, words, &["average", models[0], models[1], "--out", &path("none")], b"");
        assert!(!Path::new(&path("none")).exists());
    };
    fails(&["different tokenizers"], [&base, &model("st_cls")]);
    fails(&["greater than 0"], [&base, &format!("{base}=0")]);
    fails(&["`half`", "DIR=SHARE"], [&base, &format!("{base}=half")]);
    assert_fails(2, &["DIR=SHARE"], &["average", &base, "--out", &path("none")], b"");
}

/// Writes a LoRA adapter without zero weights for a golden model.
fn write_adapter(base: &str, out: &Path) {
    let dir = Path::new(base);
    let architecture = Architecture::open(&dir.join("config.json"), &[]).unwrap();
    let mut parameters = Parameters::open(dir, Device::Cpu, Kind::Float).unwrap();
    let mut backbone = Backbone::build(&architecture, &mut parameters).unwrap();
    let targets = vec!["q_proj".to_string(), "down_proj".to_string()];
    let lora = Lora { rank: 2, alpha: 4.0, dropout: 0.0, targets, rank_stabilized: true };
    lora.attach(&mut backbone, 7).unwrap();
    lora.save(out, &mut backbone, base).unwrap();
    let file = out.join("adapter_model.safetensors");
    let tensors = read_tensors(&file).unwrap();
    let filled = tensors.into_iter().map(|(name, tensor)| (name, tensor + 0.1)).collect();
    write_tensors(&file, &filled).unwrap();
}

#[test]
fn an_adapter_changes_vectors_and_is_merged_on_export() {
    let dir = tempfile::tempdir().unwrap();
    let (base, lora) = (model("st_last"), dir.path().join("lora"));
    write_adapter(&base, &lora);
    let set = format!("model.adapter={}", lora.display());
    let plain = vectors(&run_ok(&["embed", "--model", &base], b"oak desk\n"));
    let adapted = vectors(&run_ok(&["embed", "--model", &base, "--set", &set], b"oak desk\n"));
    assert!(adapted[0].iter().zip(&plain[0]).any(|(a, b)| (a - b).abs() > 1e-3), "the adapter does nothing");
    let out = dir.path().join("merged").display().to_string();
    run_ok(&["export", "--model", &base, "--set", &set, "--out", &out], b"");
    let merged = vectors(&run_ok(&["embed", "--model", &out], b"oak desk\n"));
    assert!(merged[0].iter().zip(&adapted[0]).all(|(a, b)| (a - b).abs() < 1e-5));
    assert_fails(
        1,
        &["adapter_model.safetensors", "lora_B", "is missing"],
        &["embed", "--model", &base, "--set", &set],
        {
            let file = lora.join("adapter_model.safetensors");
            let halves = read_tensors(&file).unwrap().into_iter().filter(|(name, _)| name.contains("lora_A")).collect();
            write_tensors(&file, &halves).unwrap();
            b"oak desk\n"
        },
    );
}

#[test]
fn init_is_deterministic_for_a_seed() {
    let dir = tempfile::tempdir().unwrap();
    let data = root().join("docs/demo").display().to_string();
    for config in ["scratch-bert", "scratch-decoder"] {
        let file = root().join(format!("configs/{config}.toml")).display().to_string();
        let folders = ["a", "b", "c"].map(|name| dir.path().join(format!("{config}-{name}")).display().to_string());
        for (folder, seed) in folders.iter().zip(["scratch.seed=1", "scratch.seed=1", "scratch.seed=2"]) {
            let small = ["--set", "scratch.vocab=600", "--set", seed];
            run_ok(&[&["init", "--config", &file, "--data", &data, "--out", folder], &small[..]].concat(), b"");
        }
        let [a, b, c] = folders.map(|folder| run_ok(&["embed", "--model", &folder], b"oak desk\nsteam mop\n"));
        assert_eq!(a, b);
        assert_ne!(a, c);
        assert_eq!(vectors(&a)[0].len(), 128);
    }
    let file = root().join("configs/scratch-bert.toml").display().to_string();
    let out = dir.path().join("penultimate").display().to_string();
    let changes = ["--set", "scratch.vocab=600", "--set", "scratch.pooling=penultimate_mean"];
    run_ok(&[&["init", "--config", &file, "--data", &data, "--out", &out], &changes[..]].concat(), b"");
    let penultimate = run_ok(&["embed", "--model", &out], b"oak desk\n");
    let mean = run_ok(&["embed", "--model", &out, "--set", "encoder.pooling=mean"], b"oak desk\n");
    assert_ne!(penultimate, mean);
    let export = dir.path().join("export").display().to_string();
    assert_fails(2, &["penultimate_mean"], &["export", "--model", &out, "--out", &export], b"");
    assert!(!Path::new(&export).exists(), "a failed export leaves a folder behind");
    assert_fails(2, &["[scratch]", "configs/scratch-bert.toml"], &["init", "--data", &data, "--out", &export], b"");
}

#[test]
fn concurrent_migrations_run_each_migration_once() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("shop.db");
    let database = format!("sqlite:{}", file.display());
    let migrate = || {
        let json = run_ok(&["db", "migrate", "--database", &database, "--json"], b"");
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        json["applied"].as_array().unwrap().len()
    };
    let applied: usize = std::thread::scope(|scope| {
        let running: Vec<_> = (0..4).map(|_| scope.spawn(migrate)).collect();
        running.into_iter().map(|one| one.join().unwrap()).sum()
    });
    assert_eq!(applied, fs::read_dir(root().join("migrations")).unwrap().count());
    assert!(run_ok(&["db", "migrate", "--set", &format!("store.database={database}")], b"").contains("up to date"));
    assert!(run_ok(&["db"], b"").contains("migrate"), "without an action, db prints its help");
    assert_fails(
        2,
        &["is not a database address"],
        &["db", "migrate", "--database", "mysql://shop:secret@db/shop"],
        b"",
    );
    fs::write(&file, "no database, but long enough to be looked at as one").unwrap();
    assert_fails(1, &["shop.db", "not a valid SQLite"], &["db", "migrate", "--database", &database], b"");
    let unreachable = "postgres://shop:secret@127.0.0.1:1/shop";
    let output = souk(&["db", "migrate", "--database", unreachable], b"");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && message.contains("cannot be reached"), "{message}");
    assert!(message.contains("shop:***@127.0.0.1:1") && !message.contains("secret"), "{message}");
}

#[test]
fn market_writes_all_files_or_fails() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("shop").display().to_string();
    let small = ["market", "--items", "800", "--queries", "100", "--events", "500", "--out", &out];
    let json: serde_json::Value = serde_json::from_str(&run_ok(&[&small[..], &["--json"]].concat(), b"")).unwrap();
    assert_eq!((&json["counts"]["items"], &json["counts"]["queries"]), (&800.into(), &100.into()));
    for name in ["corpus.jsonl", "queries.jsonl", "qrels/train.tsv", "qrels/test.tsv", "slices.tsv", "logs.ndjson"] {
        assert!(Path::new(&out).join(name).is_file(), "{name}");
    }
    assert_fails(2, &["is not empty"], &small, b"");
    let many = dir.path().join("many").display().to_string();
    assert_fails(2, &["reduce the queries"], &["market", "--items", "3", "--queries", "900", "--out", &many], b"");
}
