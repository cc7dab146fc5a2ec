//! The trainer as an operator runs it, with a small shop and a small model: rounds, gates, kills, and unreachable servers.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use souk::address::Address;
use souk::beir::DataFolder;
use souk::catalogue::Catalogue;
use souk::catalogue_stream::Mutation;
use souk::dataset::{Examples, Span};
use souk::store::{Ledger, NewGeneration, SqlLedger, Version, VersionState};

use souk_testing::small_shop::{ITEMS, messages, model, shop};

const PATIENCE: Duration = Duration::from_secs(60);

/// Adds a query and a click per number to the log.
fn search(home: &Path, numbers: std::ops::Range<usize>) {
    let lines: String = messages(numbers).map(|(_, line)| line + "\n").collect();
    let log = File::options().create(true).append(true).open(home.join("log.ndjson"));
    log.unwrap().write_all(lines.as_bytes()).unwrap();
}

/// Settings of all trainers in these tests.
fn sets(home: &Path) -> Vec<String> {
    let stage = r#"{name="sft", set=["objective.type=info_nce", "objective.temperature=0.1", "train.batch=24", "train.epochs=6",
        "train.optimizer.learning_rate=2e-3", "train.checkpoint_steps=5"]}"#;
    vec![
        format!("model.path={}", model().display()),
        "model.device=cpu".into(),
        format!("log.paths=[\"{}\"]", home.join("log.ndjson").display()),
        format!("store.database=sqlite:{}", home.join("souk.db").display()),
        format!("trainer.data={}", home.join("data").display()),
        format!("trainer.state={}", home.join("state").display()),
        "trainer.listen=127.0.0.1:0".into(),
        format!("trainer.stage=[{}]", stage.replace('\n', "")),
        "trainer.pace={examples=240, seconds=0, look_back=0.5}".into(),
        "trainer.gate={watched=[\"ndcg@10\"], depth=101}".into(),
        "trainer.alarms.free_bytes=0".into(),
        "ingest={commit_seconds=1, commit_messages=1}".into(),
    ]
}

struct Trainer {
    child: Child,
    address: String,
}

impl Trainer {
    fn command(home: &Path, more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_souk-trainer"));
        command.env("OMP_NUM_THREADS", "1").env_remove("RUST_LOG");
        command.args(sets(home).iter().map(String::as_str).chain(more.iter().copied()).flat_map(|set| ["--set", set]));
        command
    }

    fn start(home: &Path, more: &[&str]) -> Self {
        Self::spawned(&mut Self::command(home, more))
    }

    fn spawned(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.split("http://").nth(1).and_then(|rest| rest.split('/').next()).map(str::to_owned);
        Self { child, address: address.unwrap_or_else(|| panic!("{line}")) }
    }

    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: souk\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split_once("\r\n\r\n").unwrap().1.to_owned()
    }

    fn status(&self) -> Value {
        serde_json::from_str(&self.get("/status")).unwrap()
    }

    /// Waits until the log contains a text.
    fn until(&self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            let status = self.status();
            if is(&status) {
                return status;
            }
            assert!(began.elapsed() < PATIENCE, "{what}: {status:#}");
            sleep(Duration::from_millis(50));
        }
    }

    fn until_ended(&self, round: u64) -> Value {
        self.until("the round has not ended", |status| status["last_round"]["round"] == round)["last_round"].clone()
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Stops the trainer with a signal.
    fn stop(mut self) {
        self.signal(Signal::SIGTERM);
        let asked = Instant::now();
        assert!(self.child.wait().unwrap().success());
        assert!(asked.elapsed() < Duration::from_secs(30));
    }

    fn kill(mut self) {
        self.signal(Signal::SIGKILL);
        self.child.wait().unwrap();
    }
}

impl Drop for Trainer {
    fn drop(&mut self) {
        drop(self.child.kill());
    }
}

/// The ledger that a search service would share.
fn ledger<T>(home: &Path, ask: impl AsyncFnOnce(Arc<dyn Ledger>) -> T) -> T {
    let address = Address::new(format!("sqlite:{}", home.join("souk.db").display()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { ask(Arc::new(SqlLedger::open(&address).await.unwrap())).await })
}

fn versions(home: &Path) -> Vec<Version> {
    ledger(home, async |ledger| ledger.page_versions(None, 100).await.unwrap())
}

/// Promotes the offer, like a search service.
fn serve(home: &Path, version: &str) {
    ledger(home, async |ledger| {
        let (generation, path, manifest) = (format!("{version}-index"), "index".into(), json!({}));
        let new = NewGeneration { generation: generation.clone(), version: version.into(), path, manifest };
        ledger.add_generation(&new).await.unwrap();
        ledger.promote(version, &generation).await.unwrap();
    });
}

#[test]
fn rounds_follow_the_log_and_start_from_the_served_model() {
    let home = shop();
    search(home.path(), 0..240);
    let trainer = Trainer::start(home.path(), &[]);
    let first = trainer.until_ended(1);
    assert_eq!(first["passed"], true, "{first:#}");
    let name = first["version"].as_str().unwrap().to_owned();
    let [offered] = versions(home.path()).try_into().unwrap();
    assert_eq!((offered.version.as_str(), offered.is_offered()), (name.as_str(), true));
    assert_eq!(offered.metrics["examples"], 240);
    let report = ledger(home.path(), async |ledger| ledger.page_reports(&name, None, 9).await.unwrap());
    assert!(report[0].metrics["overall"]["ndcg@10"].as_f64().unwrap() > 0.0);
    let state = home.path().join("state");
    assert!(state.join("training/steps.jsonl").exists(), "the console finds the curves");
    assert!(state.join("rounds/000001/report-test.html").exists());
    // no later round needs these; they are removed after the round has ended
    trainer.until("checkpoints stay", |_| !state.join("rounds/000001/1-sft/checkpoints").exists());
    // a search service has added an item and deleted one
    ledger(home.path(), async |ledger| {
        let changes = [r#"{"_id":"new","title":"canoe"}"#, r#"{"_id":"d7","_deleted":true}"#]
            .map(|line| Mutation::parse(line.as_bytes(), "test".as_ref(), 1).unwrap());
        ledger.append_changes(&changes).await.unwrap();
    });
    // the trainer waits for its offer to be promoted
    search(home.path(), 240..480);
    trainer.until("it does not wait", |status| status["doing"] == "offering");
    serve(home.path(), &name);
    let second = trainer.until_ended(2);
    let round: Value = serde_json::from_slice(&fs::read(state.join("rounds/000002/round.json")).unwrap()).unwrap();
    assert_eq!((&round["parent"], &round["lessons"][0]["fresh"]), (&json!(name), &json!(240)), "{second:#}");
    assert_eq!(trainer.status()["served"], json!(name));
    let items = |round: &str| {
        let shop = DataFolder::open(&state.join("rounds").join(round).join("shop")).unwrap();
        let ids: Vec<String> = shop.items().unwrap().map(|item| item.unwrap().1.id).collect();
        (ids.len(), ids.contains(&"new".to_owned()), ids.contains(&"d7".to_owned()))
    };
    assert_eq!((items("000001"), items("000002")), ((ITEMS, false, true), (ITEMS, true, false)));
    let metrics = trainer.get("/metrics");
    for metric in [
        "souk_trainer_rounds_total{outcome=\"passed\"}",
        "souk_loss ",
        "souk_events_total{state=\"example\"} 480",
        "souk_events_total{state=\"dead\"} 0",
    ] {
        assert!(metrics.contains(metric), "{metric}: {metrics}");
    }
    assert_eq!(trainer.get("/healthz"), "ok\n");
    assert!(trainer.get("/readyz").contains("\"ready\":true"));
    trainer.stop();
}

/// One loss per step of the first round.
fn losses(home: &Path) -> Vec<f64> {
    let text = fs::read_to_string(home.join("state/rounds/000001/1-sft/steps.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["loss"].as_f64().unwrap()).collect()
}

#[test]
fn ranks_train_together_and_restart_together() {
    let (alone, shared) = (shop(), shop());
    for home in [&alone, &shared] {
        search(home.path(), 0..240);
    }
    let trainer = Trainer::start(alone.path(), &[]);
    trainer.until_ended(1);
    trainer.stop();
    let start = || {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
        let rank = |rank: &str| {
            let mut command = Trainer::command(shared.path(), &["collective.timeout_seconds=30"]);
            command.envs([("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", "2"), ("MASTER_PORT", &port)]);
            command.env("MASTER_ADDR", "127.0.0.1");
            command
        };
        let other = rank("1").stdout(Stdio::null()).spawn().unwrap();
        (Trainer::spawned(&mut rank("0")), other)
    };
    let (mut first, mut other) = start();
    first.until("it does not train", |status| status["step"].as_u64() > Some(2));
    other.kill().unwrap();
    other.wait().unwrap();
    // exit code 1 tells a supervisor to restart the job
    assert_eq!(first.child.wait().unwrap().code(), Some(1));
    let (first, mut other) = start();
    assert_eq!(first.until_ended(1)["passed"], true);
    // the same ranks do another round
    serve(shared.path(), first.status()["last_round"]["version"].as_str().unwrap());
    search(shared.path(), 240..480);
    first.until_ended(2);
    // while both wait for a stage, losing the first rank ends the other
    first.kill();
    assert_eq!(other.wait().unwrap().code(), Some(1));
    let (first, mut other) = start();
    kill(Pid::from_raw(other.id() as i32), Signal::SIGTERM).unwrap();
    assert!(other.wait().unwrap().success(), "a rank without a stage ends when it is told");
    first.stop();
    let (alone, shared) = (losses(alone.path()), losses(shared.path()));
    assert_eq!(alone.len(), shared.len());
    assert!(alone.iter().zip(&shared).all(|(a, b)| (a - b).abs() < 1e-3), "{alone:?} {shared:?}");
}

/// Reads one request of an object store without keys.
fn ask(server: &str, request: &str) -> String {
    let host = server.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    write!(stream, "{request} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{request}: {answer}");
    answer
}

#[test]
fn passed_models_are_uploaded() {
    let Some(server) = std::env::var("S3_URL").ok().filter(|url| url.starts_with("http://")) else {
        let path = std::env::var("SOUK_SKIPPED").unwrap_or_else(|_| "/dev/stderr".into());
        let mut file = File::options().create(true).append(true).open(path).unwrap();
        writeln!(file, "models in an object store: no S3_URL").unwrap();
        return;
    };
    let home = shop();
    search(home.path(), 0..240);
    let bucket = format!("rounds-{}", std::process::id());
    ask(&server, &format!("PUT /{bucket}"));
    let publish = format!("trainer.publish=s3://{bucket}/models");
    let gate = "trainer.gate={watched=[\"ndcg@10\"], gain=\"none\", depth=101}";
    let mut command = Trainer::command(home.path(), &[&publish, "trainer.keep=0", gate]);
    command.env("AWS_ENDPOINT_URL", &server).env("AWS_ALLOW_HTTP", "true").env("AWS_REGION", "us-east-1");
    command.env("AWS_ACCESS_KEY_ID", "souk").env("AWS_SECRET_ACCESS_KEY", "souk");
    let trainer = Trainer::spawned(command.env("SOUK_CACHE", home.path().join("cache")));
    let first = trainer.until_ended(1);
    let name = first["version"].as_str().unwrap().to_owned();
    let listed = ask(&server, &format!("GET /{bucket}?list-type=2"));
    assert_eq!(versions(home.path())[0].path, format!("s3://{bucket}/models/{name}"));
    assert!(listed.contains(&format!("models/{name}/config.json")) && !listed.contains("checkpoints"), "{listed}");
    // the next round starts from the promoted model
    serve(home.path(), &name);
    search(home.path(), 240..480);
    trainer.until_ended(2);
    let fetched = fs::read_dir(home.path().join("cache/fetched")).unwrap().map(|entry| entry.unwrap().path());
    assert!(fetched.into_iter().any(|folder| folder.join("model.safetensors").exists()));
    // published models that are no longer live are deleted there, too
    for (round, from) in [(3, 480), (4, 720), (5, 960)] {
        let next = trainer.status()["last_round"]["version"].as_str().unwrap().to_owned();
        serve(home.path(), &next);
        search(home.path(), from..from + 240);
        trainer.until_ended(round);
    }
    let began = Instant::now();
    while ask(&server, &format!("GET /{bucket}?list-type=2")).contains(&format!("models/{name}/")) {
        assert!(began.elapsed() < PATIENCE, "{name} is still there");
        sleep(Duration::from_millis(50));
    }
    trainer.stop();
}

#[test]
fn killed_at_any_moment_it_makes_the_same_model() {
    let (calm, wild) = (shop(), shop());
    for home in [&calm, &wild] {
        search(home.path(), 0..240);
    }
    let trainer = Trainer::start(calm.path(), &[]);
    trainer.until_ended(1);
    trainer.stop();
    let mut kills = 0;
    loop {
        let trainer = Trainer::start(wild.path(), &[]);
        // a different random moment each time
        let most = Duration::from_millis(80 + 97 * kills % 1700);
        let began = Instant::now();
        while began.elapsed() < most && trainer.status()["last_round"].is_null() {
            sleep(Duration::from_millis(5));
        }
        let ended = !trainer.status()["last_round"].is_null();
        trainer.kill();
        kills += 1;
        if ended {
            break;
        }
        assert!(kills < 200, "it comes to no end");
    }
    let found = [&calm, &wild].map(|home| {
        let [version] = versions(home.path()).try_into().unwrap();
        (version.fingerprint, version.state, version.metrics)
    });
    assert!(kills > 2, "it was faster than it could be killed");
    assert_eq!(found[0], found[1], "after {kills} kills");
    println!("{kills} kills");
}

#[test]
fn without_raters_the_newest_days_of_the_log_decide() {
    let home = shop();
    let data = home.path().join("data");
    fs::remove_dir_all(data.join("qrels")).unwrap();
    // a search each second, and 300 s are held out
    search(home.path(), 0..1000);
    let gate = "trainer.gate={source=\"log\", days=0.003472222, watched=[\"ndcg@10\"], depth=101}";
    let trainer = Trainer::start(home.path(), &[gate, "ingest={commit_seconds=1, commit_log_hours=0.01}"]);
    let first = trainer.until_ended(1);
    assert_eq!(first["passed"], true, "{first:#}");
    // the times of the examples that a round learned from, and the time from which on it was measured
    let round = |number: u64| -> (Vec<i64>, i64) {
        let folder = home.path().join(format!("state/rounds/{number:06}"));
        let read = |file: &str| -> Value { serde_json::from_slice(&fs::read(folder.join(file)).unwrap()).unwrap() };
        let judged = read("newest-days/judgements.json");
        let (split, written) = judged["written"].as_object().unwrap().iter().next().unwrap();
        assert_eq!(written["queries"], 60, "every item was searched for in them");
        assert_eq!(read("gate.json").as_object().unwrap().keys().collect::<Vec<_>>(), [split], "there are no raters");
        assert!(folder.join(format!("report-{split}.html")).exists());
        let round = read("round.json");
        let span: Span = serde_json::from_value(round["lessons"][0]["span"].clone()).unwrap();
        let catalogue = Catalogue::open(&DataFolder::open(&data).unwrap()).unwrap();
        let examples = Examples::open(&data.join("examples"), &catalogue, Some(&span)).unwrap();
        let times: Vec<i64> = (0..examples.len()).map(|row| examples.row(row).time).collect();
        (times, round["held_out_from"].as_i64().unwrap())
    };
    let (learned, held_out_from) = round(1);
    assert!(learned.len() > 300 && learned.iter().all(|time| *time < held_out_from), "{held_out_from}: {learned:?}");
    let name = first["version"].as_str().unwrap();
    let reports = ledger(home.path(), async |ledger| ledger.page_reports(name, None, 9).await.unwrap());
    assert!(reports[0].split.starts_with("log-2023-11-14T22"), "{}", reports[0].split);
    // the next round learns from them, and is measured on newer ones
    serve(home.path(), name);
    search(home.path(), 1000..1600);
    trainer.until_ended(2);
    let (next, later) = round(2);
    assert!(next.iter().any(|time| *time >= held_out_from) && next.iter().all(|time| *time < later), "{later}");
    trainer.stop();
}

#[test]
fn failed_candidates_are_rejected_with_reasons() {
    let home = shop();
    search(home.path(), 0..240);
    let gate = "trainer.gate={watched=[\"ndcg@10\"], depth=101, floors={\"mrr@10\"=101.0}}";
    let trainer = Trainer::start(home.path(), &[gate]);
    let ended = trainer.until_ended(1);
    assert_eq!(ended["passed"], false);
    assert!(ended["reasons"][0].as_str().unwrap().contains("mrr@10 is"), "{ended:#}");
    let [version] = versions(home.path()).try_into().unwrap();
    assert_eq!(version.state, VersionState::Rejected);
    assert_eq!(version.metrics["gate"]["reasons"], ended["reasons"]);
    assert_eq!(
        ledger(home.path(), async |ledger| ledger.page_reports(&version.version, None, 9).await.unwrap()).len(),
        1
    );
    // the next round waits for new examples
    sleep(Duration::from_secs(2));
    assert_eq!(trainer.status()["stages"][0]["fresh"], 0);
    trainer.stop();
}

#[test]
fn a_missing_log_raises_an_alarm_and_is_retried() {
    let home = shop();
    let trainer = Trainer::start(home.path(), &[]);
    let status = trainer.until("no alarm", |status| !status["alarms"]["log"].is_null());
    assert!(status["alarms"]["log"]["problem"].as_str().unwrap().contains("log.ndjson"), "{status:#}");
    search(home.path(), 0..240);
    trainer.until_ended(1);
    assert!(trainer.status()["alarms"]["log"].is_null());
    trainer.stop();
    let trainer = Trainer::start(home.path(), &["trainer.alarms.free_bytes=1000000000000000"]);
    trainer.until("no alarm", |status| !status["alarms"]["disk"].is_null());
    search(home.path(), 240..600);
    sleep(Duration::from_secs(2));
    assert_eq!(trainer.status()["last_round"]["round"], 1, "nothing begins on a full disk");
    trainer.stop();
}

/// A limit on file size simulates a full disk: small files can be written, checkpoints cannot.
#[test]
fn an_unwritable_checkpoint_is_retried() {
    let home = shop();
    search(home.path(), 0..240);
    let whole = Trainer::command(home.path(), &[]);
    let mut bounded = Command::new("sh");
    bounded.args(["-c", "trap '' XFSZ; ulimit -S -f 400; exec \"$0\" \"$@\""]);
    bounded.arg(whole.get_program()).args(whole.get_args()).env("OMP_NUM_THREADS", "1").env_remove("RUST_LOG");
    let trainer = Trainer::spawned(&mut bounded);
    let status = trainer.until("nothing is said of it", |status| status["alarms"]["round"].is_object());
    let problem = status["alarms"]["round"]["problem"].as_str().unwrap();
    assert!(problem.contains("cannot write the weights: File too large"), "{problem}");
    let process = trainer.child.id().to_string();
    let freed = Command::new("prlimit").args(["--fsize=unlimited:unlimited", "--pid", &process]).status();
    assert!(freed.unwrap().success());
    let ended = trainer.until_ended(1);
    assert!(ended["version"].is_string() && ended["passed"] == true, "{ended:#}");
    trainer.stop();
}

#[test]
fn the_pace_can_change_while_it_waits() {
    let home = shop();
    search(home.path(), 0..240);
    let file = home.path().join("trainer.toml");
    fs::write(&file, "[trainer.pace]\nexamples = 1000\n").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_souk-trainer"));
    let sets: Vec<String> = sets(home.path()).into_iter().filter(|set| !set.starts_with("trainer.pace")).collect();
    command.env("OMP_NUM_THREADS", "1").env_remove("RUST_LOG").arg("--config").arg(&file);
    let trainer = Trainer::spawned(command.args(sets.iter().flat_map(|set| ["--set", set])));
    trainer.until("the log is not read", |status| status["stages"][0]["fresh"] == 240);
    fs::write(&file, "[trainer.pace]\nexamples = \"many\"\n").unwrap();
    let status = trainer.until("no alarm", |status| !status["alarms"]["config"].is_null());
    assert!(status["alarms"]["config"]["problem"].as_str().unwrap().contains("examples"), "{status:#}");
    assert_eq!(status["stages"][0]["examples"], 1000, "the old settings stay in effect");
    // file times may have a coarse resolution
    sleep(Duration::from_millis(50));
    fs::write(&file, "[trainer.pace]\nexamples = 240\nseconds = 0\n").unwrap();
    assert_eq!(trainer.until_ended(1)["passed"], true);
    assert!(trainer.status()["alarms"]["config"].is_null());
    trainer.stop();
}

#[test]
fn configuration_errors_are_reported_at_the_start() {
    let home = shop();
    search(home.path(), 0..10);
    let refused = |more: &[&str], words: &str| {
        let output = Trainer::command(home.path(), more).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.contains(words), "`{message}` does not say `{words}`");
    };
    refused(&["trainer.stage=[]"], "[[trainer.stage]]");
    refused(&["trainer.stage=[{name=\"a b\"}]"], "`a b` is not a valid stage name");
    refused(&["trainer.stage=[{name=\"a\", set=[\"train.batch=0\"]}]"], "train.batch");
    refused(&["trainer.stage=[{name=\"a\", set=[\"train.batsch=1\"]}]"], "batsch");
    refused(&["trainer.gate.splits=[\"dev\"]"], "qrels/dev.tsv is not there");
    refused(&["log.brokers=\"localhost:1\""], "has both files and Kafka brokers");
    refused(&["trainer.gate.watched=[\"hits\"]"], "names `hits`");
    let trainer = Trainer::start(home.path(), &[]);
    refused(&[], "another trainer uses this state folder");
    trainer.stop();
}
