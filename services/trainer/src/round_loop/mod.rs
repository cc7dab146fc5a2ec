//! The training loop of the daemon: waits until a stage is due, then trains the stages of a round, measures the result and
//! publishes it. The round is recorded when it begins, and each part leaves a file when it is done, so a killed process resumes
//! with the part it was in.

mod stages;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::rounds::{Due, Round, RoundOutcome, Rounds, StageAttempt, StageSpan, due};
use serde::{Deserialize, Serialize};
use souk::atomic_dir::write_json_atomic;
use souk::backbone::hub;
use souk::backoff::Backoff;
use souk::beir::DataFolder;
use souk::catalogue_stream::CatalogueStream;
use souk::config::{Config, StageSettings};
use souk::dataset::{EXAMPLES_FOLDER, ExampleCounts, Extent, Span, prune};
use souk::model_card::{GateRecord, MeasurementRecord, add_measurements};
use souk::objects::Objects;
use souk::report::{GateSource, Metrics};
use souk::store::NewVersion;
use souk::telemetry::TRAINER;
use souk::{Error, Result};
use tokio::runtime::Handle;

use crate::drift;
use crate::measure::{BASE, Evaluator, GateDecision, JudgedSplit, MeasuredModel};
use crate::newest_days::{self, NewestDays};
use crate::ranks::Ranks;
use crate::registry::{Offer, Registry};
use crate::round_catalogue::RoundCatalogue;
use crate::signals::Signals;
use crate::status::{Activity, LastRound, StageWait, Status, seconds_now};

const POLL: Duration = Duration::from_millis(500);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(60);
const DAY: f64 = 86_400.0;
const DECISION: &str = "decision.json";

pub use self::stages::{TRAINING, check_stages};

use self::stages::StagesOutcome;

pub struct RoundLoop {
    config: Config,
    shop: Shop,
    home: PathBuf,
    rounds: Rounds,
    counts: ExampleCounts,
    registry: Arc<Registry>,
    ranks: Ranks,
    status: Arc<Status>,
    signals: Arc<Signals>,
    /// Modification time of the configuration file when it was last read.
    read_at: Option<SystemTime>,
    /// Start of the trainer: a stage that never ran has waited since then.
    began_at: i64,
}

/// Result of a round, kept in its folder until it is published.
#[derive(Serialize, Deserialize)]
struct Decision {
    /// The served version it was compared with.
    parent: Option<String>,
    served: MeasuredModel,
    candidate: MeasuredModel,
    gated: GateDecision,
}

/// The shop's data folder, and the stream of later changes of its catalogue.
pub struct Shop {
    pub data: DataFolder,
    pub stream: Arc<dyn CatalogueStream>,
    pub runtime: Handle,
}

/// Services that the loop shares with the other threads.
pub struct RoundContext {
    pub registry: Arc<Registry>,
    pub status: Arc<Status>,
    pub signals: Arc<Signals>,
}

impl RoundLoop {
    pub fn open(config: &Config, shop: Shop, ranks: Ranks, shared: RoundContext) -> Result<Self> {
        let RoundContext { registry, status, signals } = shared;
        let rounds = Rounds::open(&config.trainer.state)?;
        let home = shop.data.path().join(EXAMPLES_FOLDER);
        let mut counts = ExampleCounts::default();
        counts.refresh(&home)?;
        let last = rounds.ended().next().map(|(round, ended)| LastRound { round: round.number, ended: ended.clone() });
        status.change(|shown| shown.last_round = last);
        let (config, read_at, began_at) = (config.clone(), config.changed_at(), seconds_now());
        Ok(Self { config, shop, home, rounds, counts, registry, ranks, status, signals, read_at, began_at })
    }

    /// Runs until asked to stop. Errors raise an alarm and are retried with back-off.
    pub fn run(mut self) {
        let new_backoff = || Backoff::new(FIRST_PAUSE, MAX_PAUSE);
        let mut backoff = new_backoff();
        while !self.signals.stopped() {
            match self.poll() {
                Ok(()) => {
                    self.status.alarm("round", None);
                    backoff = new_backoff();
                }
                Err(_) if self.signals.stopped() => {}
                Err(error) => {
                    self.status.alarm("round", Some(error.with_causes()));
                    self.signals.wait(backoff.next_pause());
                }
            }
        }
    }

    fn poll(&mut self) -> Result<()> {
        if let Some(round) = self.rounds.unfinished().cloned() {
            return self.resume(&round);
        }
        self.status.change(|shown| (shown.round, shown.step, shown.steps) = (None, 0, 0));
        self.reload();
        match self.next()? {
            Some(round) => {
                self.report_input_drift(&round)?;
                self.rounds.begin(round)
            }
            None => {
                self.signals.wait(POLL);
                Ok(())
            }
        }
    }

    /// Reloads the settings of rounds (stages, paces, gate, retention) if the configuration file has changed.
    fn reload(&mut self) {
        let changed_at = self.config.changed_at();
        if changed_at == self.read_at {
            return;
        }
        self.read_at = changed_at;
        let read = self.config.read_again().and_then(|config| check_stages(&config).map(|()| config));
        self.status.alarm(
            "config",
            read.as_ref().err().map(|error| format!("{}: the old settings stay in effect", error.with_causes())),
        );
        if let Ok(read) = read {
            tracing::warn!("reloaded the settings of rounds; other changes take effect at the next start");
            self.config.trainer = self.config.trainer.reloaded(&read.trainer);
        }
    }

    /// Starts the next round if a stage is due.
    fn next(&mut self) -> Result<Option<Round>> {
        self.counts.refresh(&self.home)?;
        let held_out_from = self.held_out_from();
        let to = held_out_from.map_or_else(|| self.counts.extent(), |time| self.counts.extent_before(time));
        let stages: Vec<(StageSettings, Due)> = self.due(&to);
        // a first round on the oldest part of a log would be wasted
        if self.rounds.next() == 1 && !self.status.shown().log.is_caught_up {
            self.status.doing(Activity::Reading);
            return Ok(None);
        }
        if stages.is_empty() || self.signals.full.load(std::sync::atomic::Ordering::Relaxed) {
            self.status.doing(Activity::Waiting);
            return Ok(None);
        }
        let served = self.registry.served()?;
        let parent = served.as_ref().map(|served| served.version.clone());
        if self.is_offer_open()? {
            self.status.doing(Activity::Offering);
            return Ok(None);
        }
        let model = match served {
            Some(served) => served.path,
            None => hub::resolve(self.base()?)?.display().to_string(),
        };
        let mut learned = self.rounds.learned(parent.as_deref());
        let mut spans = Vec::new();
        for (stage, why) in stages {
            let known = learned.get(&stage.name).cloned().unwrap_or_default();
            // more days may be held out than before
            let to = later(&to, &known);
            let fresh = self.counts.within(&Span { from: known.clone(), to: to.clone() });
            let older = (self.config.trainer.pace_of(&stage).look_back * fresh as f64) as u64;
            let span = Span { from: self.counts.rewind(&known, older), to: to.clone() };
            let why = match why {
                Due::Examples => "enough new examples",
                Due::Time => "enough time, and some new examples",
            };
            learned.insert(stage.name.clone(), to);
            spans.push(StageSpan { stage: stage.name, span, fresh, why: why.into() });
        }
        let (number, began_at) = (self.rounds.next(), seconds_now());
        tracing::info!(round = number, parent, "round started");
        Ok(Some(Round { number, began_at, parent, model, stages: spans, learned, held_out_from }))
    }

    /// Beginning of the newest days of the log, if candidates are measured on them.
    fn held_out_from(&self) -> Option<i64> {
        let gate = &self.config.trainer.gate;
        let newest = self.counts.newest().filter(|_| gate.source == GateSource::Log)?;
        Some(newest - newest_days::millis(gate.days))
    }

    fn base(&self) -> Result<&str> {
        let problem = "is not set, and no version is served: give --model DIR, or set [model] path";
        self.config.model.path.as_deref().ok_or_else(|| Error::config("model.path", problem))
    }

    /// Stages that are due with the examples up to an extent. Updates the status.
    fn due(&self, to: &Extent) -> Vec<(StageSettings, Due)> {
        let settings = &self.config.trainer;
        let (mut found, mut shown) = (Vec::new(), Vec::new());
        for stage in &settings.stage {
            let pace = settings.pace_of(stage);
            let tried = self.rounds.tried(&stage.name);
            let from = tried.map(|(known, _)| known.clone()).unwrap_or_default();
            let fresh = self.counts.within(&Span { from, to: to.clone() });
            let since = seconds_now() - tried.map_or(self.began_at, |(_, ended_at)| ended_at);
            let tried = StageAttempt { fresh, seconds: since.try_into().unwrap_or_default() };
            TRAINER.fresh.with_label_values(&[&stage.name]).set(fresh as i64);
            shown.push(StageWait {
                stage: stage.name.clone(),
                fresh,
                examples: pace.examples,
                since: tried.seconds,
                seconds: pace.seconds,
            });
            found.extend(due(pace, tried).map(|why| (stage.clone(), why)));
        }
        self.status.change(|status| status.stages = shown);
        found
    }

    /// Whether an offered version is still waiting to be served. The next round waits for it, because it starts from the served
    /// model.
    fn is_offer_open(&self) -> Result<bool> {
        let Some(offer) = self.registry.open_offer()? else { return Ok(false) };
        let made = self.rounds.ended().find(|(_, ended)| ended.version.as_ref() == Some(&offer.version));
        let waited = made.map_or(i64::MAX, |(_, ended)| seconds_now() - ended.ended_at);
        let late = waited >= self.config.trainer.adopt_seconds as i64;
        let problem = || {
            format!(
                "`{}` passed its gate {waited} s ago and is not served yet: check the search service",
                offer.version
            )
        };
        self.status.alarm("offer", (late && made.is_some()).then(problem));
        Ok(!late)
    }

    /// Compares the round's examples with earlier ones.
    fn report_input_drift(&self, round: &Round) -> Result<()> {
        let Some(span) = round.stages.first() else { return Ok(()) };
        let known = self.rounds.learned(round.parent.as_deref()).remove(&span.stage).unwrap_or_default();
        let before = Span { from: self.counts.rewind(&known, span.fresh), to: known.clone() };
        let after = Span { from: self.counts.rewind(&known, 0), to: span.span.to.clone() };
        let moved = drift::mixes(&self.shop.data, &before, &after)?;
        self.status.drift("drift", &moved, self.config.trainer.alarms.max_drift);
        Ok(())
    }

    /// Compares the judge's levels with those of the same stage a round before.
    fn report_judge_drift(&self, round: &Round) -> Result<()> {
        let mut moved = Vec::new();
        for (at, span) in round.stages.iter().enumerate() {
            let now = self.stage_folder(round, at, &span.stage);
            let before = self.rounds.ended().find_map(|(ended, _)| {
                let at = ended.stages.iter().position(|other| other.stage == span.stage)?;
                Some(self.stage_folder(ended, at, &span.stage)).filter(|folder| folder.exists())
            });
            if let Some(before) = before {
                moved.extend(drift::levels(&before, &now)?.map(|moved| ("levels", moved)));
            }
        }
        self.status.drift("judge", &moved, self.config.trainer.alarms.max_drift);
        Ok(())
    }

    fn resume(&mut self, round: &Round) -> Result<()> {
        let Shop { data, stream, runtime } = &self.shop;
        let catalogue = RoundCatalogue { data, stream: &**stream, runtime };
        let data = catalogue.open(&self.rounds.place(round.number))?;
        let model = match self.train_stages(round, &data)? {
            StagesOutcome::Model(model) => model,
            StagesOutcome::Stopped => return Ok(()),
            StagesOutcome::Failed(reason) => {
                let ended =
                    RoundOutcome { ended_at: seconds_now(), version: None, passed: false, reasons: vec![reason] };
                return self.end(round, ended);
            }
        };
        let evaluator = Evaluator { config: &self.config, signals: &self.signals };
        // a recorded decision is final: the version may be served before the round has ended
        let file = self.rounds.place(round.number).join(DECISION);
        let decision = match read(&file)? {
            Some(decision) => decision,
            None => {
                self.status.doing(Activity::Measuring);
                self.report_judge_drift(round)?;
                let decision = self.decide(round, &model, &data, &evaluator)?;
                write_json_atomic(&file, &decision)?;
                decision
            }
        };
        self.status.doing(Activity::Publishing);
        self.remove_checkpoints(round)?;
        write_card(&decision)?;
        let path = self.upload(&decision)?;
        self.registry.publish(&offer(round, &decision, path))?;
        let Decision { candidate, served, gated, .. } = decision;
        evaluator.tidy(&[&served, &candidate])?;
        let (version, ended_at) = (Some(candidate.name), seconds_now());
        self.end(round, RoundOutcome { ended_at, version, passed: gated.passed, reasons: gated.reasons })
    }

    /// Compares the round's model with the served one.
    fn decide(&self, round: &Round, model: &str, data: &DataFolder, evaluator: &Evaluator<'_>) -> Result<Decision> {
        let candidate = evaluator.model("candidate", model)?;
        let name = format!("round-{}-{:.8}", round.number, candidate.fingerprint);
        let candidate = MeasuredModel { name, ..candidate };
        let place = self.rounds.place(round.number);
        let judged = self.judged(round, data, &place)?;
        loop {
            let now = self.registry.served()?;
            let (parent, path) = now.map_or((None, round.model.clone()), |now| (Some(now.version), now.path));
            let served = evaluator.model(parent.as_deref().unwrap_or(BASE), &path)?;
            let gated = evaluator.gate(&served, &candidate, &judged, &place)?;
            // another version may have been promoted meanwhile
            if self.registry.served()?.map(|now| now.version) == parent {
                return Ok(Decision { parent, served, candidate, gated });
            }
        }
    }

    /// Judgements that the round's candidate is measured with.
    fn judged(&self, round: &Round, data: &DataFolder, place: &Path) -> Result<Vec<JudgedSplit>> {
        let of_folder = |split: &String| JudgedSplit { data: data.clone(), split: split.clone() };
        let splits = &self.config.trainer.gate.splits;
        let Some(from) = round.held_out_from else { return Ok(splits.iter().map(of_folder).collect()) };
        let newest = NewestDays { config: &self.config, data, examples: &self.home, from };
        let beside = splits.iter().filter(|split| data.qrels(split).exists()).map(of_folder);
        Ok([newest.judge(place)?].into_iter().chain(beside).collect())
    }

    fn end(&mut self, round: &Round, ended: RoundOutcome) -> Result<()> {
        let outcome = match (&ended.version, ended.passed) {
            (_, true) => "passed",
            (Some(_), false) => "refused",
            (None, false) => "failed",
        };
        self.rounds.end(ended.clone())?;
        TRAINER.rounds.with_label_values(&[outcome]).inc();
        let reasons = ended.reasons.join("; ");
        if ended.passed {
            tracing::info!(round = round.number, outcome, version = ended.version, "round ended");
        } else {
            tracing::warn!(round = round.number, outcome, reasons, "round ended");
        }
        self.status.alarm("stage", (outcome == "failed").then(|| format!("round {}: {reasons}", round.number)));
        self.status.change(|shown| shown.last_round = Some(LastRound { round: round.number, ended }));
        self.tidy(round)
    }

    /// Uploads a model that passed if `trainer.publish` is set. Returns its address, or its local path.
    fn upload(&self, decision: &Decision) -> Result<String> {
        let MeasuredModel { name, path, .. } = &decision.candidate;
        match &self.config.trainer.publish {
            Some(home) if decision.gated.passed => {
                let address = published_address(home, name);
                Objects::open(&address)?.send(Path::new(path))?;
                Ok(address)
            }
            _ => Ok(path.clone()),
        }
    }

    /// Removes the checkpoints of finished stages.
    fn remove_checkpoints(&self, round: &Round) -> Result<()> {
        for (at, span) in round.stages.iter().enumerate() {
            let checkpoints = self.stage_folder(round, at, &span.stage).join("checkpoints");
            if checkpoints.exists() {
                std::fs::remove_dir_all(&checkpoints).map_err(Error::store(&checkpoints, "remove it"))?;
            }
        }
        Ok(())
    }

    /// Removes checkpoints, old rounds, unneeded models and old examples.
    fn tidy(&mut self, round: &Round) -> Result<()> {
        self.remove_checkpoints(round)?;
        let (registry, home) = (&self.registry, self.config.trainer.publish.as_deref());
        let going = |version: &str| {
            registry.retire(version)?;
            home.map_or(Ok(()), |home| Objects::open(&published_address(home, version))?.remove())
        };
        let needed = self.registry.needed()?;
        let keep = self.config.trainer.keep;
        self.rounds.tidy(keep, |version| needed.contains(version), going)?;
        if self.config.trainer.keep_days > 0.0 {
            prune(&self.home, Duration::from_secs_f64(self.config.trainer.keep_days * DAY))?;
        }
        Ok(())
    }

    /// Folder of a stage: its number in the round and its name.
    fn stage_folder(&self, round: &Round, at: usize, stage: &str) -> PathBuf {
        self.rounds.place(round.number).join(format!("{}-{stage}", at + 1))
    }
}

/// Shows the measurements and the gate's verdict in the card of the candidate.
fn write_card(decision: &Decision) -> Result<()> {
    let Decision { candidate, served, gated, .. } = decision;
    // those of a version of Souk that measured otherwise are left out
    let metrics = gated.reports.iter().filter_map(|(_, report)| Metrics::deserialize(report).ok());
    let measurements = metrics.map(|metrics| MeasurementRecord::of(&metrics)).collect();
    let (passed, reasons) = (gated.passed, gated.reasons.clone());
    let gate = GateRecord { compared_with: served.name.clone(), passed, reasons };
    add_measurements(Path::new(&candidate.path), measurements, Some(gate))
}

/// The later end of each lane.
fn later(a: &Extent, b: &Extent) -> Extent {
    let mut later = a.clone();
    for (lane, end) in b {
        let known = later.entry(lane.clone()).or_default();
        *known = *end.max(known);
    }
    later
}

/// Address of a version in the `publish` folder.
fn published_address(home: &str, version: &str) -> String {
    format!("{}/{version}", home.trim_end_matches('/'))
}

fn read(file: &Path) -> Result<Option<Decision>> {
    if !file.exists() {
        return Ok(None);
    }
    let text = std::fs::read(file).map_err(Error::store(file, "read it"))?;
    let broken = |e| Error::data(file, None, "is not a round's decision: remove it").because(e);
    serde_json::from_slice(&text).map(Some).map_err(broken)
}

fn offer(round: &Round, decision: &Decision, path: String) -> Offer {
    let Decision { parent, candidate, gated, .. } = decision;
    let stages: Vec<&str> = round.stages.iter().map(|span| span.stage.as_str()).collect();
    let metrics = serde_json::json!({
        "round": round.number, "stages": stages, "examples": round.stages.iter().map(|span| span.fresh).max(),
        "gate": {"passed": gated.passed, "reasons": gated.reasons, "drift": gated.drift},
    });
    let (version, fingerprint, parent) = (candidate.name.clone(), candidate.fingerprint.clone(), parent.clone());
    let version = NewVersion { version, path, fingerprint, parent, metrics };
    let (reports, parent_reports) = (gated.reports.clone(), gated.served_reports.clone());
    Offer { version, reports, parent_reports, passed: gated.passed }
}
