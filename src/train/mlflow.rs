//! Pushes a stage's metrics to an MLflow server over its REST API, on a thread of its own. An outage delays metrics and never training: they
//! wait in memory up to a limit, and a server that refuses them is left alone after one warning. A resumed stage continues its run.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use souk_io::address::Address;
use souk_io::atomic_dir::write_json_atomic;
use souk_io::backoff::Backoff;
use souk_io::error::{Error, Result};
use souk_reward::{Failure, FailureKind, Http};

/// File in the stage's folder with the id of its run.
const RUN: &str = "mlflow.json";
/// Time in which metrics are collected for one request.
const INTERVAL: Duration = Duration::from_secs(1);
/// Limits of one request of MLflow.
const MAX_METRICS: usize = 1000;
const MAX_PARAMETERS: usize = 100;
const MAX_VALUE_CHARS: usize = 500;
/// Metrics that wait during an outage; older ones are dropped.
const MAX_WAITING: usize = 200_000;
const TIMEOUT: Duration = Duration::from_secs(10);
/// Time that the end of a stage waits for the last metrics.
const GRACE: Duration = Duration::from_secs(10);

/// An MLflow server that gets the stage's metrics.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MlflowSettings {
    /// For example `http://127.0.0.1:5000`.
    pub url: Address,
    /// Name of the experiment; it is created if it does not exist.
    #[serde(default = "experiment")]
    pub experiment: String,
    /// Environment variable with a bearer token.
    #[serde(default)]
    pub key_env: Option<String>,
}

fn experiment() -> String {
    "souk".into()
}

/// Outcome of a run, in MLflow's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunStatus {
    Finished,
    /// Asked to stop; it can be resumed.
    Killed,
    Failed,
}

/// A stage's run. Dropped before its end, the run has failed.
pub struct Mlflow {
    sender: Option<Sender<Metrics>>,
    end: Arc<Mutex<Option<(RunStatus, Instant)>>>,
    thread: Option<JoinHandle<()>>,
}

struct Metrics {
    step: u64,
    /// Milliseconds since 1970.
    time: u64,
    values: Vec<(String, f64)>,
}

impl Mlflow {
    /// Starts the thread; connects later. `parameters` are shown with a run that begins.
    pub fn open(settings: &MlflowSettings, out: &Path, parameters: Vec<(String, String)>) -> Result<Self> {
        let (sender, receiver) = channel();
        let end = Arc::default();
        let pusher = Pusher::open(settings, out, parameters, Arc::clone(&end))?;
        let thread = std::thread::Builder::new().name("mlflow".into()).spawn(move || pusher.run(&receiver));
        let thread = Some(thread.map_err(|e| Error::device("no thread for MLflow").because(e))?);
        Ok(Self { sender: Some(sender), end, thread })
    }

    /// Sends the values of a step, sooner or later.
    pub fn send(&self, step: u64, values: Vec<(String, f64)>) {
        // the thread ends early if the server refuses metrics
        drop(self.sender.as_ref().map(|sender| sender.send(Metrics { step, time: now(), values })));
    }

    /// Ends the run.
    pub fn finish(&mut self, status: RunStatus) {
        *self.end.lock().unwrap_or_else(PoisonError::into_inner) = Some((status, Instant::now() + GRACE));
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

impl Drop for Mlflow {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.finish(RunStatus::Failed);
        }
    }
}

/// The thread's side.
struct Pusher {
    search: Http,
    create_experiment: Http,
    create_run: Http,
    log: Http,
    update: Http,
    experiment: String,
    file: PathBuf,
    /// Name of the run: that of the stage's folder.
    name: String,
    run: Option<String>,
    /// An earlier process began the run, and this one has not said that it goes on.
    is_resumed: bool,
    /// Not sent yet.
    parameters: Vec<(String, String)>,
    metrics: Vec<Value>,
    num_dropped: usize,
    end: Arc<Mutex<Option<(RunStatus, Instant)>>>,
}

impl Pusher {
    fn open(
        settings: &MlflowSettings,
        out: &Path,
        parameters: Vec<(String, String)>,
        end: Arc<Mutex<Option<(RunStatus, Instant)>>>,
    ) -> Result<Self> {
        let named = |e: Error| Error::config("train.mlflow", "cannot be used").because(e);
        let open = |route: &str| {
            Http::open(&settings.url, &format!("api/2.0/mlflow/{route}"), settings.key_env.as_deref()).map_err(named)
        };
        let file = out.join(RUN);
        let kept = fs::read(&file).ok().and_then(|text| serde_json::from_slice::<Value>(&text).ok());
        let run = kept.and_then(|kept| Some(kept["run_id"].as_str()?.to_owned()));
        Ok(Self {
            search: open("experiments/search")?,
            create_experiment: open("experiments/create")?,
            create_run: open("runs/create")?,
            log: open("runs/log-batch")?,
            update: open("runs/update")?,
            experiment: settings.experiment.clone(),
            name: out.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
            file,
            parameters: if run.is_some() { Vec::new() } else { parameters },
            is_resumed: run.is_some(),
            run,
            metrics: Vec::new(),
            num_dropped: 0,
            end,
        })
    }

    fn run(mut self, receiver: &Receiver<Metrics>) {
        let mut backoff = Backoff::new(INTERVAL, Duration::from_secs(60));
        let (mut next, mut has_warned) = (Instant::now(), false);
        loop {
            let received = receiver.recv_timeout(INTERVAL);
            let is_end = matches!(received, Err(RecvTimeoutError::Disconnected));
            if let Ok(metrics) = received {
                self.add(metrics);
                if self.metrics.len() < MAX_METRICS {
                    continue;
                }
            }
            if !is_end && Instant::now() < next {
                continue;
            }
            match self.push() {
                Ok(()) if !is_end => (backoff, has_warned) = (Backoff::new(INTERVAL, Duration::from_secs(60)), false),
                Ok(()) => break,
                Err(failure) if failure.kind == FailureKind::Passing => {
                    if !std::mem::replace(&mut has_warned, true) {
                        tracing::warn!("{}: {}: metrics wait, training goes on", self.log.url(), failure.problem);
                    }
                    next = Instant::now() + failure.retry_after.unwrap_or_else(|| backoff.next_pause());
                    if is_end && self.time_left().is_none_or(|left| left < INTERVAL) {
                        tracing::warn!("{} metrics were not sent to MLflow", self.metrics.len());
                        return;
                    }
                    if is_end {
                        std::thread::sleep(INTERVAL);
                    }
                }
                Err(failure) => {
                    tracing::warn!("{}: {}: no more metrics are sent to MLflow", self.log.url(), failure.problem);
                    return;
                }
            }
        }
        if self.num_dropped > 0 {
            tracing::warn!("{} metrics were dropped while MLflow was away", self.num_dropped);
        }
    }

    fn add(&mut self, Metrics { step, time, values }: Metrics) {
        let metric = |(name, value): (String, f64)| {
            // MLflow allows no other sign in a name
            json!({"key": name.replace('@', "_at_"), "value": value, "timestamp": time, "step": step})
        };
        self.metrics.extend(values.into_iter().map(metric));
        let excess = self.metrics.len().saturating_sub(MAX_WAITING);
        self.num_dropped += excess;
        self.metrics.drain(..excess);
    }

    /// Sends all that waits, and the outcome once the stage has ended. What was sent is not sent again.
    fn push(&mut self) -> std::result::Result<(), Failure> {
        let run = match self.run.clone() {
            Some(run) => run,
            None => self.begin()?,
        };
        if self.is_resumed {
            self.post(&self.update, &json!({"run_id": run, "status": "RUNNING"}))?;
            self.is_resumed = false;
        }
        while !self.parameters.is_empty() || !self.metrics.is_empty() {
            let num_parameters = self.parameters.len().min(MAX_PARAMETERS);
            let num_metrics = self.metrics.len().min(MAX_METRICS - num_parameters);
            let shown = |(name, value): &(String, String)| json!({"key": name, "value": value.chars().take(MAX_VALUE_CHARS).collect::<String>()});
            let parameters: Vec<Value> = self.parameters[..num_parameters].iter().map(shown).collect();
            let batch = json!({"run_id": run, "params": parameters, "metrics": self.metrics[..num_metrics]});
            self.post(&self.log, &batch)?;
            self.parameters.drain(..num_parameters);
            self.metrics.drain(..num_metrics);
        }
        let Some((status, _)) = *self.end.lock().unwrap_or_else(PoisonError::into_inner) else { return Ok(()) };
        let status = match status {
            RunStatus::Finished => "FINISHED",
            RunStatus::Killed => "KILLED",
            RunStatus::Failed => "FAILED",
        };
        self.post(&self.update, &json!({"run_id": run, "status": status, "end_time": now()})).map(drop)
    }

    /// Begins a run; the file is written before anything is sent to it.
    fn begin(&mut self) -> std::result::Result<String, Failure> {
        let name = self.experiment.replace('\'', "");
        let found = self.post(&self.search, &json!({"filter": format!("name = '{name}'"), "max_results": 1}))?;
        let known = found["experiments"][0]["experiment_id"].as_str().map(str::to_owned);
        let experiment = match known {
            Some(id) => id,
            None => text(&self.post(&self.create_experiment, &json!({"name": name}))?["experiment_id"])?,
        };
        let request = json!({"experiment_id": experiment, "run_name": self.name, "start_time": now()});
        let run = text(&self.post(&self.create_run, &request)?["run"]["info"]["run_id"])?;
        if let Err(error) = write_json_atomic(&self.file, &json!({"run_id": run})) {
            tracing::warn!("a resumed stage will begin another MLflow run: {error}");
        }
        self.run = Some(run.clone());
        Ok(run)
    }

    fn post(&self, http: &Http, body: &Value) -> std::result::Result<Value, Failure> {
        http.post(body, self.time_left().unwrap_or(TIMEOUT).clamp(Duration::from_millis(100), TIMEOUT))
    }

    /// Time until the stage no longer waits; none before its end.
    fn time_left(&self) -> Option<Duration> {
        let end = *self.end.lock().unwrap_or_else(PoisonError::into_inner);
        end.map(|(_, deadline)| deadline.saturating_duration_since(Instant::now()))
    }
}

fn text(value: &Value) -> std::result::Result<String, Failure> {
    let problem = || Failure::broken("its answer lacks an id: is it an MLflow server?");
    value.as_str().map(str::to_owned).ok_or_else(problem)
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use souk_testing::fake_judge::{FakeJudge, JudgeReply, ReceivedRequest};

    /// An MLflow server that is away for the first requests.
    fn server(num_away: usize) -> FakeJudge {
        FakeJudge::start(move |number, request| match request.path.rsplit('/').next().unwrap() {
            _ if number < num_away => JudgeReply::Status(503, "", "starting".into()),
            "search" => JudgeReply::Json(json!({})),
            "create" if request.path.contains("experiments") => JudgeReply::Json(json!({"experiment_id": "7"})),
            "create" => JudgeReply::Json(json!({"run": {"info": {"run_id": "r1"}}})),
            _ => JudgeReply::Json(json!({})),
        })
    }

    fn settings(url: &str) -> MlflowSettings {
        serde_json::from_value(json!({"url": url, "experiment": "shop"})).unwrap()
    }

    /// Bodies that a route got.
    fn bodies(seen: &[ReceivedRequest], route: &str) -> Vec<Value> {
        let path = format!("/api/2.0/mlflow/{route}");
        seen.iter().filter(|request| request.path == path).map(|request| request.body.clone()).collect()
    }

    fn sent(seen: &[ReceivedRequest]) -> Vec<(u64, String)> {
        let metrics = |body: Value| body["metrics"].as_array().unwrap().clone();
        let all = bodies(seen, "runs/log-batch").into_iter().flat_map(metrics);
        all.map(|metric| (metric["step"].as_u64().unwrap(), metric["key"].as_str().unwrap().to_owned())).collect()
    }

    #[test]
    fn a_run_has_parameters_metrics_and_an_outcome_after_an_outage() {
        let (home, server) = (tempfile::tempdir().unwrap(), server(2));
        let out = home.path().join("SFT");
        fs::create_dir(&out).unwrap();
        let parameters = (0..150).map(|at| (format!("train.p{at}"), "x".repeat(600))).collect();
        let mut run = Mlflow::open(&settings(&server.url()), &out, parameters).unwrap();
        run.send(1, vec![("train/loss".into(), 1.5)]);
        run.send(2, vec![("train/loss".into(), 1.25), ("evaluate/ndcg@10".into(), 40.0)]);
        run.finish(RunStatus::Finished);
        let seen = server.seen();
        assert_eq!(bodies(&seen, "experiments/create"), [json!({"name": "shop"})]);
        let created = bodies(&seen, "runs/create");
        assert_eq!((&created[0]["experiment_id"], &created[0]["run_name"]), (&json!("7"), &json!("SFT")));
        let batches = bodies(&seen, "runs/log-batch");
        let num = |body: &Value| body["params"].as_array().unwrap().len();
        assert_eq!(batches.iter().map(num).collect::<Vec<_>>(), [100, 50]);
        assert_eq!(batches[0]["params"][0]["value"].as_str().unwrap().len(), MAX_VALUE_CHARS);
        let expected = [(1, "train/loss"), (2, "train/loss"), (2, "evaluate/ndcg_at_10")];
        assert_eq!(sent(&seen), expected.map(|(step, name)| (step, name.to_owned())));
        let ended = bodies(&seen, "runs/update").pop().unwrap();
        assert_eq!((&ended["run_id"], &ended["status"]), (&json!("r1"), &json!("FINISHED")));

        // resumed: the same run, without its parameters
        let mut run = Mlflow::open(&settings(&server.url()), &out, vec![("a".into(), "b".into())]).unwrap();
        run.send(3, vec![("train/loss".into(), 1.0)]);
        run.finish(RunStatus::Killed);
        let seen = server.seen();
        assert_eq!((bodies(&seen, "runs/create").len(), sent(&seen).len()), (1, 4));
        let states = bodies(&seen, "runs/update").into_iter().map(|body| body["status"].clone()).collect::<Vec<_>>();
        assert_eq!(states, ["FINISHED", "RUNNING", "KILLED"]);
    }

    #[test]
    fn a_server_that_refuses_or_hangs_does_not_hold_a_stage_up() {
        let home = tempfile::tempdir().unwrap();
        let refusing = FakeJudge::start(|_, _| JudgeReply::Status(403, "", "no".into()));
        let begin = Instant::now();
        let run = Mlflow::open(&settings(&refusing.url()), home.path(), Vec::new()).unwrap();
        (0..10_000).for_each(|step| run.send(step, vec![("train/loss".into(), 1.0)]));
        drop(run);
        assert!(begin.elapsed() < GRACE && refusing.seen().len() == 1, "{:?}", begin.elapsed());
        let hanging = FakeJudge::start(|_, _| JudgeReply::Hang);
        let begin = Instant::now();
        let mut run = Mlflow::open(&settings(&hanging.url()), home.path(), Vec::new()).unwrap();
        run.send(1, vec![("train/loss".into(), 1.0)]);
        assert!(begin.elapsed() < INTERVAL, "sending waits for the server");
        run.finish(RunStatus::Finished);
        assert!(begin.elapsed() < GRACE + TIMEOUT, "{:?}", begin.elapsed());
    }

    #[test]
    fn an_address_that_is_none_is_an_error_before_training() {
        let home = tempfile::tempdir().unwrap();
        let error = Mlflow::open(&settings("mlflow:5000"), home.path(), Vec::new()).err().unwrap();
        assert!(error.to_string().contains("train.mlflow"), "{error}");
    }
}
