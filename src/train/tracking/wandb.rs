//! The protocol of Weights & Biases: a GraphQL request begins or continues a run, and its history is a file on the server that grows by
//! lines. Each line says where it belongs, so that one that is sent again after a lost answer is not counted twice.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{End, RunStatus, StepValues, Tracker, now, run_name};
use souk_io::address::Address;
use souk_io::atomic_dir::write_json_atomic;
use souk_io::error::{Error, Result};
use souk_reward::{Failure, Http};

/// File in the stage's folder with the id of its run.
const RUN: &str = "wandb.json";
/// Pauses between requests, those of the official client: with numbers to send, and without.
const PAUSE: Duration = Duration::from_secs(15);
const HEARTBEAT: Duration = Duration::from_secs(30);
/// Rows in one request.
const MAX_ROWS: usize = 1000;
/// Exit code of a process that was asked to stop.
const STOPPED: i32 = 255;
/// User name beside a key.
const USER: &str = "api";
/// Begins the run, or continues it if the project has it.
const BEGIN: &str = "mutation UpsertBucket($name: String!, $project: String, $entity: String, $displayName: String, $config: JSONString) { \
    upsertBucket(input: {name: $name, modelName: $project, entityName: $entity, displayName: $displayName, config: $config}) { \
    bucket { historyLineCount summaryMetrics project { name entity { name } } } } }";

/// A project of Weights & Biases that gets the stage's numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WandbSettings {
    /// Name of the project; it is created if it does not exist.
    #[serde(default = "project")]
    pub project: String,
    /// Team or user whose project it is; none: the default of the key.
    #[serde(default)]
    pub entity: Option<String>,
    /// Server, if it is one of your own.
    #[serde(default = "url")]
    pub url: Address,
    /// Environment variable with the API key.
    #[serde(default = "key_env")]
    pub key_env: String,
}

fn project() -> String {
    "souk".into()
}

fn url() -> Address {
    Address::new("https://api.wandb.ai")
}

fn key_env() -> String {
    "WANDB_API_KEY".into()
}

pub(super) struct Wandb {
    settings: WandbSettings,
    begin: Http,
    id: String,
    name: String,
    config: Map<String, Value>,
    /// One for each step. The last one may still get numbers, and is sent when the next one or the end is there.
    rows: Vec<Value>,
    /// The last step that the server had when this process began.
    known: Option<u64>,
    /// None until the run has begun.
    stream: Option<Stream>,
}

/// The run on the server.
struct Stream {
    http: Http,
    /// Number of lines that its history has.
    num_lines: u64,
    /// The last value of each number.
    summary: Map<String, Value>,
    /// Seconds that the run took before this process.
    runtime: f64,
    /// Seconds since 1970.
    began: f64,
    sent: Instant,
}

impl Wandb {
    pub(super) fn open(settings: &WandbSettings, out: &Path, parameters: &[(String, Value)]) -> Result<Self> {
        if settings.project.is_empty() || settings.project.contains(|c: char| "/\\#?%:".contains(c) || c.is_control()) {
            let problem = format!("`{}` is no name of a project: write one without / \\ # ? % :", settings.project);
            return Err(Error::config("train.wandb.project", problem));
        }
        if std::env::var(&settings.key_env).unwrap_or_default().trim().is_empty() {
            let problem = format!("`{}` is not set in the environment: export it with your API key", settings.key_env);
            return Err(Error::config("train.wandb.key_env", problem));
        }
        let named = |e: Error| Error::config("train.wandb", "cannot be used").because(e);
        let begin = Http::open(&settings.url, "graphql", Some(&settings.key_env)).map_err(named)?.with_user(USER);
        let file = out.join(RUN);
        let kept = fs::read(&file).ok().and_then(|text| serde_json::from_slice::<Value>(&text).ok());
        let id = match kept.and_then(|kept| Some(kept["run_id"].as_str()?.to_owned())) {
            Some(id) => id,
            None => {
                let id = format!("{:016x}", RandomState::new().hash_one(now()));
                write_json_atomic(&file, &json!({"run_id": id}))?;
                id
            }
        };
        let config = parameters.iter().map(|(name, value)| (name.clone(), json!({"value": value}))).collect();
        let settings = settings.clone();
        Ok(Self { settings, begin, id, name: run_name(out), config, rows: Vec::new(), known: None, stream: None })
    }

    /// Begins the run, or finds what the server already has of it.
    fn begin(&self, end: &End) -> std::result::Result<Stream, Failure> {
        let variables = json!({
            "name": self.id,
            "project": self.settings.project,
            "entity": self.settings.entity,
            "displayName": self.name,
            "config": json!(self.config).to_string(),
        });
        let request = json!({"operationName": "UpsertBucket", "query": BEGIN, "variables": variables});
        let answer = self.begin.post(&request, end.patience())?;
        if let Some(problem) = answer["errors"][0]["message"].as_str() {
            return Err(Failure::fatal(format!("rejected the run: `{problem}`")));
        }
        let bucket = &answer["data"]["upsertBucket"]["bucket"];
        let (project, entity) = (&bucket["project"]["name"], &bucket["project"]["entity"]["name"]);
        let Some((project, entity)) = project.as_str().zip(entity.as_str()) else {
            return Err(Failure::broken("its answer names no project: is it a server of Weights & Biases?"));
        };
        let route = format!("files/{entity}/{}/{}/file_stream", encoded(project), self.id);
        let http = Http::open(&self.settings.url, &route, Some(&self.settings.key_env));
        let http = http.map_err(|e| Failure::fatal(e.to_string()))?.with_user(USER);
        let summary = bucket["summaryMetrics"].as_str().and_then(|text| serde_json::from_str(text).ok());
        let summary: Map<String, Value> = summary.unwrap_or_default();
        let runtime = summary.get("_runtime").and_then(Value::as_f64).unwrap_or_default();
        let num_lines = bucket["historyLineCount"].as_u64().unwrap_or_default();
        let site = self.settings.url.to_string().replace("//api.", "//");
        tracing::info!("W&B: {}/{entity}/{project}/runs/{}", site.trim_end_matches('/'), self.id);
        Ok(Stream { http, num_lines, summary, runtime, began: seconds(now()), sent: Instant::now() })
    }
}

impl Tracker for Wandb {
    const NAME: &'static str = "W&B";

    fn url(&self) -> &str {
        self.stream.as_ref().map_or(&self.begin, |stream| &stream.http).url()
    }

    fn add(&mut self, StepValues { step, time, values }: StepValues) {
        if Some(step) <= self.known {
            return;
        }
        if self.rows.last().is_none_or(|row| row["_step"] != step) {
            self.rows.push(json!({"_step": step, "_timestamp": seconds(time)}));
        }
        let Some(Value::Object(row)) = self.rows.last_mut() else { return };
        row.extend(values.into_iter().map(|(name, value)| (name, json!(value))));
    }

    fn waiting(&mut self) -> &mut Vec<Value> {
        &mut self.rows
    }

    fn push(&mut self, outcome: Option<RunStatus>, end: &End) -> std::result::Result<(), Failure> {
        if self.stream.is_none() {
            let stream = self.begin(end)?;
            self.known = stream.summary.get("_step").and_then(Value::as_u64);
            self.rows.retain(|row| row["_step"].as_u64() > self.known);
            self.stream = Some(stream);
        }
        let Some(stream) = &mut self.stream else { return Ok(()) };
        if outcome.is_none() && self.rows.len() <= MAX_ROWS && stream.sent.elapsed() < PAUSE {
            return Ok(());
        }
        loop {
            // a stage that was stopped can be resumed, and then evaluate its last step
            let is_open = !self.rows.is_empty() && matches!(outcome, None | Some(RunStatus::Stopped));
            let num_ready = self.rows.len() - usize::from(is_open);
            let num = num_ready.min(MAX_ROWS);
            if num == 0 && outcome.is_none() && stream.sent.elapsed() < HEARTBEAT {
                return Ok(());
            }
            let is_last = num == num_ready;
            stream.send(&self.rows[..num], outcome.filter(|_| is_last), end)?;
            self.rows.drain(..num);
            if is_last {
                return Ok(());
            }
        }
    }
}

impl Stream {
    /// A row with the time that the run had taken.
    fn timed(&self, row: &Value) -> Value {
        let mut row = row.clone();
        let since = row["_timestamp"].as_f64().map_or(0.0, |time| time - self.began);
        row["_runtime"] = json!(self.runtime + since.max(0.0));
        row
    }

    /// Adds rows to the history, and ends the run if its status is given.
    fn send(&mut self, rows: &[Value], status: Option<RunStatus>, end: &End) -> std::result::Result<(), Failure> {
        let mut summary = self.summary.clone();
        let mut update = Map::new();
        if !rows.is_empty() {
            let timed: Vec<Value> = rows.iter().map(|row| self.timed(row)).collect();
            let lines: Vec<String> = timed.iter().map(Value::to_string).collect();
            timed.iter().filter_map(Value::as_object).for_each(|row| summary.extend(row.clone()));
            let files = json!({
                "wandb-history.jsonl": {"offset": self.num_lines, "content": lines},
                "wandb-summary.json": {"offset": 0, "content": [json!(summary).to_string()]},
            });
            update.insert("files".into(), files);
        }
        if let Some(status) = status {
            let code = match status {
                RunStatus::Finished => 0,
                RunStatus::Stopped => STOPPED,
                RunStatus::Failed => 1,
            };
            update.extend([("complete".to_owned(), json!(true)), ("exitcode".to_owned(), json!(code))]);
        }
        self.http.post(&Value::Object(update), end.patience())?;
        self.num_lines += rows.len() as u64;
        (self.summary, self.sent) = (summary, Instant::now());
        Ok(())
    }
}

/// From milliseconds.
fn seconds(time: u64) -> f64 {
    time as f64 / 1000.0
}

/// A name as a part of a URL's path.
fn encoded(name: &str) -> String {
    let byte = |byte: u8| match byte {
        b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
        _ if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    name.bytes().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::TrackedRun;
    use super::*;
    use souk_testing::fake_judge::{FakeJudge, JudgeReply, ReceivedRequest};

    const STREAM: &str = "/files/team/shop/r1/file_stream";

    /// A server with a project, which has a number of lines of the run, and does not answer the request after the first `num`.
    fn server(num_lines: u64, summary: Value, num: usize) -> FakeJudge {
        FakeJudge::start(move |number, request| match request.path.as_str() {
            _ if number == num => JudgeReply::Close,
            "/graphql" => {
                let project = json!({"name": "shop", "entity": {"name": "team"}});
                let bucket = json!({"historyLineCount": num_lines, "summaryMetrics": summary, "project": project});
                JudgeReply::Json(json!({"data": {"upsertBucket": {"bucket": bucket}}}))
            }
            _ => JudgeReply::Json(json!({})),
        })
    }

    /// The folder of a stage whose run is r1.
    fn stage(home: &tempfile::TempDir) -> PathBuf {
        let out = home.path().join("SFT");
        fs::create_dir(&out).unwrap();
        write_json_atomic(&out.join(RUN), &json!({"run_id": "r1"})).unwrap();
        out
    }

    fn settings(url: &str) -> WandbSettings {
        // a variable that every test has
        serde_json::from_value(json!({"url": url, "project": "shop", "key_env": "CARGO_PKG_NAME"})).unwrap()
    }

    fn tracker(server: &FakeJudge, out: &Path, parameters: &[(String, Value)]) -> Wandb {
        Wandb::open(&settings(&server.url()), out, parameters).unwrap()
    }

    fn values(step: u64, name: &str, value: f64) -> StepValues {
        StepValues { step, time: 0, values: vec![(name.into(), value)] }
    }

    /// History and summary of a server after the requests, and the last request.
    fn streamed(seen: &[ReceivedRequest], has: usize) -> (Vec<Value>, Value, Value) {
        let parse = |line: &Value| serde_json::from_str::<Value>(line.as_str().unwrap()).unwrap();
        let (mut history, mut summary) = (vec![Value::Null; has], Value::Null);
        let updates: Vec<&Value> =
            seen.iter().filter(|request| request.path == STREAM).map(|request| &request.body).collect();
        for update in &updates {
            let Some(files) = update.get("files") else { continue };
            let lines = &files["wandb-history.jsonl"];
            history.truncate(lines["offset"].as_u64().unwrap() as usize);
            history.extend(lines["content"].as_array().unwrap().iter().map(parse));
            summary = parse(&files["wandb-summary.json"]["content"][0]);
        }
        for json in history.iter_mut().chain([&mut summary]) {
            assert!(
                json.is_null() || json["_runtime"].as_f64() >= Some(0.0) && json["_timestamp"].is_number(),
                "{json}"
            );
            let _ = json
                .as_object_mut()
                .map(|row| row.retain(|name, _| !["_runtime", "_timestamp"].contains(&name.as_str())));
        }
        (history, summary, updates.last().map_or(Value::Null, |update| (*update).clone()))
    }

    #[test]
    fn a_server_is_told_what_the_official_client_tells_it() {
        let golden = souk_testing::repository().join("tests/golden/wandb/requests.json");
        let golden: Value = serde_json::from_slice(&fs::read(golden).unwrap()).unwrap();
        let (home, server) = (tempfile::tempdir().unwrap(), server(0, Value::Null, usize::MAX));
        let parameters = [("model".into(), json!("bert")), ("train.optimizer.learning_rate".into(), json!(1e-5))];
        let mut run = TrackedRun::start(tracker(&server, &stage(&home), &parameters)).unwrap();
        run.send(1, vec![("train/loss".into(), 1.5)]);
        run.send(2, vec![("train/loss".into(), 1.25)]);
        run.send(2, vec![("evaluate/ndcg@10".into(), 40.5)]);
        run.finish(RunStatus::Finished);

        let seen = server.seen();
        let begin = &seen[0].body["variables"];
        for name in ["name", "project", "displayName"] {
            assert_eq!(begin[name], golden["begin"][name], "{name}");
        }
        assert_eq!(serde_json::from_str::<Value>(begin["config"].as_str().unwrap()).unwrap(), golden["config"]);
        assert_eq!(golden["stream"]["path"], STREAM);
        let (history, summary, last) = streamed(&seen, 0);
        assert_eq!((&json!(history), &summary), (&golden["stream"]["history"], &golden["stream"]["summary"]));
        assert_eq!((&last["complete"], &last["exitcode"]), (&json!(true), &golden["stream"]["exitcode"]));
        // of `api:souk`, as the golden file's is of `api:kkk…`
        assert!(golden["authorization"].as_str().unwrap().starts_with("Basic YXBpOm"));
        assert!(seen.iter().all(|request| request.headers.contains("basic yxbponnvdws=")), "{}", seen[0].headers);
    }

    #[test]
    fn a_resumed_run_sends_what_the_server_does_not_have() {
        let summary = json!({"_step": 2, "_runtime": 50.0, "train/loss": 1.25, "train/lr": 0.5}).to_string();
        let (home, server) = (tempfile::tempdir().unwrap(), server(2, json!(summary), usize::MAX));
        let mut run = TrackedRun::start(tracker(&server, &stage(&home), &[])).unwrap();
        (2..5).for_each(|step| run.send(step, vec![("train/loss".into(), 1.0 / step as f64)]));
        run.finish(RunStatus::Finished);
        let (history, summary, _) = streamed(&server.seen(), 2);
        let row = |step: u64| json!({"_step": step, "train/loss": 1.0 / step as f64});
        assert_eq!(history, [Value::Null, Value::Null, row(3), row(4)]);
        assert_eq!(summary, json!({"_step": 4, "train/loss": 0.25, "train/lr": 0.5}));
    }

    #[test]
    fn a_stopped_run_leaves_its_last_step_to_the_one_that_resumes_it() {
        let (home, server) = (tempfile::tempdir().unwrap(), server(0, Value::Null, usize::MAX));
        let mut run = TrackedRun::start(tracker(&server, &stage(&home), &[])).unwrap();
        (1..4).for_each(|step| run.send(step, vec![("train/loss".into(), 0.5)]));
        run.finish(RunStatus::Stopped);
        let (history, _, last) = streamed(&server.seen(), 0);
        assert_eq!(history.iter().map(|row| row["_step"].as_u64()).collect::<Vec<_>>(), [Some(1), Some(2)]);
        assert_eq!((&last["complete"], &last["exitcode"]), (&json!(true), &json!(255)));
    }

    #[test]
    fn rows_whose_answer_was_lost_are_sent_to_the_same_place() {
        // the connection breaks during the first rows
        let (home, server) = (tempfile::tempdir().unwrap(), server(0, Value::Null, 1));
        let mut tracker = tracker(&server, &stage(&home), &[]);
        let end = End::default();
        (0..MAX_ROWS as u64 + 9).for_each(|step| tracker.add(values(step, "train/loss", 0.5)));
        tracker.push(Some(RunStatus::Failed), &end).unwrap_err();
        tracker.push(Some(RunStatus::Failed), &end).unwrap();
        let seen = server.seen();
        let (history, _, last) = streamed(&seen, 0);
        assert!(history.iter().map(|row| row["_step"].as_u64().unwrap()).eq(0..MAX_ROWS as u64 + 9));
        assert_eq!((seen.len(), &last["exitcode"]), (4, &json!(1)));
        assert!(seen[2].body.get("complete").is_none(), "the run ends with its last rows");
    }

    #[test]
    fn a_run_without_news_shows_that_it_lives() {
        let (home, server) = (tempfile::tempdir().unwrap(), server(0, Value::Null, usize::MAX));
        let mut tracker = tracker(&server, &stage(&home), &[]);
        let end = End::default();
        let mut after = |pause: Duration| {
            tracker.push(None, &end).unwrap();
            tracker.stream.as_mut().unwrap().sent = Instant::now().checked_sub(pause).unwrap();
            tracker.push(None, &end).unwrap();
            server.seen().len()
        };
        assert_eq!([PAUSE, HEARTBEAT].map(&mut after), [1, 2]);
        assert_eq!(server.seen()[1].body, json!({}));
        tracker.add(values(1, "train/loss", 0.5));
        tracker.add(values(2, "train/loss", 0.25));
        tracker.stream.as_mut().unwrap().sent = Instant::now().checked_sub(PAUSE).unwrap();
        tracker.push(None, &end).unwrap();
        assert_eq!(streamed(&server.seen(), 0).0.len(), 1, "the newest row waits for the next step");
    }

    #[test]
    fn any_name_of_a_project_fits_into_a_url() {
        assert_eq!(encoded("my-shop_1.0 Küche"), "my-shop_1.0%20K%C3%BCche");
    }

    #[test]
    fn mistakes_are_named_before_training_and_a_refused_run_is_left_alone() {
        let home = tempfile::tempdir().unwrap();
        let out = stage(&home);
        let mistakes = [
            ("project", "a/b", "train.wandb.project"),
            ("key_env", "SOUK_NO_SUCH_KEY", "train.wandb.key_env"),
            ("url", "wandb", "train.wandb"),
        ];
        for (field, value, expected) in mistakes {
            let mut wrong = json!(settings("http://127.0.0.1:1"));
            wrong[field] = json!(value);
            let error = Wandb::open(&serde_json::from_value(wrong).unwrap(), &out, &[]).err().unwrap();
            assert!(format!("{error:?}").contains(expected), "{error:?}");
        }
        let refusing = FakeJudge::start(|_, _| JudgeReply::Json(json!({"errors": [{"message": "permission denied"}]})));
        let mut run = TrackedRun::start(tracker(&refusing, &out, &[])).unwrap();
        run.send(1, vec![("train/loss".into(), 1.0)]);
        run.finish(RunStatus::Finished);
        assert_eq!(refusing.seen().len(), 1);
    }
}
