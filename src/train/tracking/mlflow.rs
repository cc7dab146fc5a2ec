//! MLflow's REST API: an experiment, a run in it, and batches of metrics.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{End, RunStatus, StepValues, Tracker, now, run_name};
use souk_io::address::Address;
use souk_io::atomic_dir::write_json_atomic;
use souk_io::error::{Error, Result};
use souk_reward::{Failure, Http};

/// File in the stage's folder with the id of its run.
const RUN: &str = "mlflow.json";
/// Limits of one request of MLflow.
const MAX_METRICS: usize = 1000;
const MAX_PARAMETERS: usize = 100;
const MAX_VALUE_CHARS: usize = 500;

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

pub(super) struct Mlflow {
    search: Http,
    create_experiment: Http,
    create_run: Http,
    log: Http,
    update: Http,
    runs: Http,
    experiment: String,
    file: PathBuf,
    name: String,
    run: Option<String>,
    /// An earlier process began the run, and this one has not said that it goes on.
    is_resumed: bool,
    /// The last step of each metric that the server had when this process began.
    known: HashMap<String, u64>,
    /// Not sent yet.
    parameters: Vec<Value>,
    metrics: Vec<Value>,
}

impl Mlflow {
    pub(super) fn open(settings: &MlflowSettings, out: &Path, parameters: &[(String, Value)]) -> Result<Self> {
        let named = |e: Error| Error::config("train.mlflow", "cannot be used").because(e);
        let open = |route: &str| {
            Http::open(&settings.url, &format!("api/2.0/mlflow/{route}"), settings.key_env.as_deref()).map_err(named)
        };
        let file = out.join(RUN);
        let kept = fs::read(&file).ok().and_then(|text| serde_json::from_slice::<Value>(&text).ok());
        let run = kept.and_then(|kept| Some(kept["run_id"].as_str()?.to_owned()));
        let parameter = |(name, value): &(String, Value)| {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            json!({"key": name, "value": text.chars().take(MAX_VALUE_CHARS).collect::<String>()})
        };
        let parameters = if run.is_some() { &[] } else { parameters };
        Ok(Self {
            search: open("experiments/search")?,
            create_experiment: open("experiments/create")?,
            create_run: open("runs/create")?,
            log: open("runs/log-batch")?,
            update: open("runs/update")?,
            runs: open("runs")?,
            experiment: settings.experiment.clone(),
            name: run_name(out),
            file,
            parameters: parameters.iter().map(parameter).collect(),
            is_resumed: run.is_some(),
            known: HashMap::new(),
            run,
            metrics: Vec::new(),
        })
    }

    /// Continues the run of an earlier process.
    fn resume(&mut self, run: &str, end: &End) -> std::result::Result<(), Failure> {
        self.update.post(&json!({"run_id": run, "status": "RUNNING"}), end.patience())?;
        let found = self.runs.get(&format!("get?run_id={run}"), end.patience())?.unwrap_or_default();
        let metrics = found["run"]["data"]["metrics"].as_array().into_iter().flatten();
        let last = |metric: &Value| Some((metric["key"].as_str()?.to_owned(), metric["step"].as_u64()?));
        self.known = metrics.filter_map(last).collect();
        let known = &self.known;
        self.metrics
            .retain(|metric| metric["step"].as_u64() > metric["key"].as_str().and_then(|key| known.get(key)).copied());
        self.is_resumed = false;
        Ok(())
    }

    /// Begins a run; the file is written before anything is sent to it.
    fn begin(&mut self, end: &End) -> std::result::Result<String, Failure> {
        let name = self.experiment.replace('\'', "");
        let request = json!({"filter": format!("name = '{name}'"), "max_results": 1});
        let found = self.search.post(&request, end.patience())?;
        let known = found["experiments"][0]["experiment_id"].as_str().map(str::to_owned);
        let experiment = match known {
            Some(id) => id,
            None => {
                let created = self.create_experiment.post(&json!({"name": name}), end.patience())?;
                text(&created["experiment_id"])?
            }
        };
        let request = json!({"experiment_id": experiment, "run_name": self.name, "start_time": now()});
        let run = text(&self.create_run.post(&request, end.patience())?["run"]["info"]["run_id"])?;
        if let Err(error) = write_json_atomic(&self.file, &json!({"run_id": run})) {
            tracing::warn!("a resumed stage will begin another MLflow run: {error}");
        }
        self.run = Some(run.clone());
        Ok(run)
    }
}

impl Tracker for Mlflow {
    const NAME: &'static str = "MLflow";

    fn url(&self) -> &str {
        self.log.url()
    }

    fn add(&mut self, StepValues { step, time, values }: StepValues) {
        for (name, value) in values {
            // MLflow allows no other sign in a name
            let key = name.replace('@', "_at_");
            if Some(step) > self.known.get(&key).copied() {
                self.metrics.push(json!({"key": key, "value": value, "timestamp": time, "step": step}));
            }
        }
    }

    fn waiting(&mut self) -> &mut Vec<Value> {
        &mut self.metrics
    }

    fn push(&mut self, outcome: Option<RunStatus>, end: &End) -> std::result::Result<(), Failure> {
        let run = match self.run.clone() {
            Some(run) => run,
            None => self.begin(end)?,
        };
        if self.is_resumed {
            self.resume(&run, end)?;
        }
        while !self.parameters.is_empty() || !self.metrics.is_empty() {
            let num_parameters = self.parameters.len().min(MAX_PARAMETERS);
            let num_metrics = self.metrics.len().min(MAX_METRICS - num_parameters);
            let (parameters, metrics) = (&self.parameters[..num_parameters], &self.metrics[..num_metrics]);
            let batch = json!({"run_id": run, "params": parameters, "metrics": metrics});
            self.log.post(&batch, end.patience())?;
            self.parameters.drain(..num_parameters);
            self.metrics.drain(..num_metrics);
        }
        let Some(outcome) = outcome else { return Ok(()) };
        let status = match outcome {
            RunStatus::Finished => "FINISHED",
            RunStatus::Stopped => "KILLED",
            RunStatus::Failed => "FAILED",
        };
        let update = json!({"run_id": run, "status": status, "end_time": now()});
        self.update.post(&update, end.patience()).map(drop)
    }
}

fn text(value: &Value) -> std::result::Result<String, Failure> {
    let problem = || Failure::broken("its answer lacks an id: is it an MLflow server?");
    value.as_str().map(str::to_owned).ok_or_else(problem)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::super::{GRACE, INTERVAL, TIMEOUT, TrackedRun};
    use super::*;
    use souk_testing::fake_judge::{FakeJudge, JudgeReply, ReceivedRequest};

    /// An MLflow server that is away for the first requests.
    fn server(num_away: usize) -> FakeJudge {
        FakeJudge::start(move |number, request| match request.path.rsplit('/').next().unwrap() {
            _ if number < num_away => JudgeReply::Status(503, "", "starting".into()),
            "search" => JudgeReply::Json(json!({})),
            "create" if request.path.contains("experiments") => JudgeReply::Json(json!({"experiment_id": "7"})),
            "create" => JudgeReply::Json(json!({"run": {"info": {"run_id": "r1"}}})),
            "get?run_id=r1" => {
                let metrics = json!([{"key": "train/loss", "value": 1.25, "step": 2}, {"key": "train/lr", "value": 0.5, "step": 1}]);
                JudgeReply::Json(json!({"run": {"data": {"metrics": metrics}}}))
            }
            _ => JudgeReply::Json(json!({})),
        })
    }

    fn settings(url: &str) -> MlflowSettings {
        serde_json::from_value(json!({"url": url, "experiment": "shop"})).unwrap()
    }

    fn start(url: &str, out: &Path, parameters: &[(String, Value)]) -> TrackedRun {
        TrackedRun::start(Mlflow::open(&settings(url), out, parameters).unwrap()).unwrap()
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
        let parameters: Vec<_> = (0..150).map(|at| (format!("train.p{at}"), json!("x".repeat(600)))).collect();
        let mut run = start(&server.url(), &out, &parameters);
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

        // resumed: the same run, without its parameters and with what it lacks
        let mut run = start(&server.url(), &out, &[("a".into(), json!("b"))]);
        run.send(2, vec![("train/loss".into(), 1.25), ("train/lr".into(), 0.25)]);
        run.send(3, vec![("train/loss".into(), 1.0)]);
        run.finish(RunStatus::Stopped);
        let seen = server.seen();
        assert_eq!(bodies(&seen, "runs/create").len(), 1);
        assert_eq!(sent(&seen)[3..], [(2, "train/lr".to_owned()), (3, "train/loss".to_owned())]);
        let states = bodies(&seen, "runs/update").into_iter().map(|body| body["status"].clone()).collect::<Vec<_>>();
        assert_eq!(states, ["FINISHED", "RUNNING", "KILLED"]);
    }

    #[test]
    fn a_server_that_refuses_or_hangs_does_not_hold_a_stage_up() {
        let home = tempfile::tempdir().unwrap();
        let refusing = FakeJudge::start(|_, _| JudgeReply::Status(403, "", "no".into()));
        let begin = Instant::now();
        let run = start(&refusing.url(), home.path(), &[]);
        (0..10_000).for_each(|step| run.send(step, vec![("train/loss".into(), 1.0)]));
        drop(run);
        assert!(begin.elapsed() < GRACE && refusing.seen().len() == 1, "{:?}", begin.elapsed());
        let hanging = FakeJudge::start(|_, _| JudgeReply::Hang);
        let begin = Instant::now();
        let mut run = start(&hanging.url(), home.path(), &[]);
        run.send(1, vec![("train/loss".into(), 1.0)]);
        assert!(begin.elapsed() < INTERVAL, "sending waits for the server");
        run.finish(RunStatus::Finished);
        assert!(begin.elapsed() < GRACE + TIMEOUT, "{:?}", begin.elapsed());
    }

    #[test]
    fn an_address_that_is_none_is_an_error_before_training() {
        let home = tempfile::tempdir().unwrap();
        let error = Mlflow::open(&settings("mlflow:5000"), home.path(), &[]).err().unwrap();
        assert!(error.to_string().contains("train.mlflow"), "{error}");
    }
}
