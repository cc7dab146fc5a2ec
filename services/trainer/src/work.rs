//! From round to round: waits until it is time, trains stage by stage, measures, publishes. Everything that a round is was
//! written down when it began, and each of its parts is known by what it leaves, so that a process that is killed at any
//! moment goes on with the part it was at.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::rounds::{Due, Round, RoundOutcome, Rounds, StageAttempt, StageSpan, due};
use serde::{Deserialize, Serialize};
use souk::atomic_dir::write_whole;
use souk::backbone::hub;
use souk::beir::DataFolder;
use souk::config::Config;
use souk::config::{StageSettings, TrainerSettings};
use souk::dataset::{EXAMPLES_FOLDER, ExampleCounts, Span, prune};
use souk::objects::Objects;
use souk::store::NewVersion;
use souk::telemetry::TRAINER;
use souk::train::Progress;
use souk::{Error, Result};

use crate::drift;
use crate::measure::{Gated, Gauge, Model};
use crate::ranks::{Order, Ranks};
use crate::reader::said;
use crate::registry::{Offer, Registry};
use crate::status::{Doing, Last, Status, Waiting, seconds_now};
use crate::watch::Signals;

const POLL: Duration = Duration::from_millis(500);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(60);
const DAY: f64 = 86_400.0;
/// A link to the folder of the stage that trains, for the console's curves.
const TRAINING: &str = "training";
/// What makes a folder a model; written last.
const WHOLE: &str = "config.json";
const DECISION: &str = "decision.json";

pub struct Work {
    config: Config,
    data: DataFolder,
    home: PathBuf,
    rounds: Rounds,
    stock: ExampleCounts,
    registry: Arc<Registry>,
    ranks: Ranks,
    status: Arc<Status>,
    signals: Arc<Signals>,
    /// When the configuration's file was changed that was read last.
    read_at: Option<SystemTime>,
    /// When the trainer was started: a stage that never had a turn has waited since then.
    began_at: i64,
}

/// What a round's model was found to be, and is published as.
#[derive(Serialize, Deserialize)]
struct Decision {
    /// What was served then.
    parent: Option<String>,
    served: Model,
    candidate: Model,
    gated: Gated,
}

/// What came of a round's stages.
enum Trained {
    Model(String),
    /// Nothing, and it would be the same again.
    Failed(String),
    Stopped,
}

impl Work {
    pub fn open(
        config: &Config,
        data: DataFolder,
        (registry, ranks): (Arc<Registry>, Ranks),
        (status, signals): (Arc<Status>, Arc<Signals>),
    ) -> Result<Self> {
        let rounds = Rounds::open(&config.trainer.state)?;
        let home = data.path().join(EXAMPLES_FOLDER);
        let mut stock = ExampleCounts::default();
        stock.refresh(&home)?;
        let last = rounds.ended().next().map(|(round, ended)| Last { round: round.number, ended: ended.clone() });
        status.change(|shown| shown.last_round = last);
        let (config, read_at, began_at) = (config.clone(), config.changed_at(), seconds_now());
        Ok(Self { config, data, home, rounds, stock, registry, ranks, status, signals, read_at, began_at })
    }

    /// Until it is asked to stop. What goes wrong is said, and tried again.
    pub fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        while !self.signals.stopped() {
            match self.turn() {
                Ok(()) => {
                    self.status.alarm("round", None);
                    pause = FIRST_PAUSE;
                }
                Err(_) if self.signals.stopped() => {}
                Err(error) => {
                    self.status.alarm("round", Some(said(&error)));
                    self.signals.wait(pause);
                    pause = (2 * pause).min(MAX_PAUSE);
                }
            }
        }
    }

    fn turn(&mut self) -> Result<()> {
        if let Some(round) = self.rounds.unfinished().cloned() {
            return self.go_on(&round);
        }
        self.status.change(|shown| (shown.round, shown.step, shown.steps) = (None, 0, 0));
        self.reload();
        match self.next()? {
            Some(round) => {
                self.drifted(&round)?;
                self.rounds.begin(round)
            }
            None => {
                self.signals.wait(POLL);
                Ok(())
            }
        }
    }

    /// Between rounds, what the configuration says of them may change: stages, paces, the gate, what is kept.
    fn reload(&mut self) {
        let changed_at = self.config.changed_at();
        if changed_at == self.read_at {
            return;
        }
        self.read_at = changed_at;
        let read = self.config.read_again().and_then(|config| check_stages(&config).map(|()| config));
        self.status.alarm("config", read.as_ref().err().map(|error| format!("{}: going on as before", said(error))));
        if let Ok(read) = read {
            tracing::warn!("the configuration was read again; what is not of rounds counts from the next start on");
            // where the trainer is, and what it watches, stays
            let trainer = TrainerSettings {
                stage: read.trainer.stage.clone(),
                pace: read.trainer.pace.clone(),
                gate: read.trainer.gate.clone(),
                keep: read.trainer.keep,
                keep_days: read.trainer.keep_days,
                adopt_seconds: read.trainer.adopt_seconds,
                ..self.config.trainer.clone()
            };
            self.config.trainer = trainer;
        }
    }

    /// The round that it is time for, if any.
    fn next(&mut self) -> Result<Option<Round>> {
        self.stock.refresh(&self.home)?;
        let stages: Vec<(StageSettings, Due)> = self.due();
        if stages.is_empty() || self.signals.full.load(std::sync::atomic::Ordering::Relaxed) {
            self.status.doing(Doing::Waiting);
            return Ok(None);
        }
        let served = self.registry.served()?;
        let parent = served.as_ref().map(|served| served.version.clone());
        if self.is_waited_for()? {
            self.status.doing(Doing::Offering);
            return Ok(None);
        }
        let model = match served {
            Some(served) => served.path,
            None => hub::resolve(self.base()?)?.display().to_string(),
        };
        let (mut learned, to) = (self.rounds.learned(parent.as_deref()), self.stock.extent());
        let mut lessons = Vec::new();
        for (stage, why) in stages {
            let known = learned.get(&stage.name).cloned().unwrap_or_default();
            let fresh = self.stock.since(&known);
            let older = (self.config.trainer.pace_of(&stage).look_back * fresh as f64) as u64;
            let span = Span { from: self.stock.rewind(&known, older), to: to.clone() };
            let why = match why {
                Due::Examples => "enough new examples",
                Due::Time => "enough time, and some new examples",
            };
            learned.insert(stage.name.clone(), to.clone());
            lessons.push(StageSpan { stage: stage.name, span, fresh, why: why.into() });
        }
        let (number, began_at) = (self.rounds.next(), seconds_now());
        tracing::info!(round = number, parent, "a round begins");
        Ok(Some(Round { number, began_at, parent, model, lessons, learned }))
    }

    fn base(&self) -> Result<&str> {
        let problem = "no model to begin with: give --model DIR, or [model] path in the configuration";
        self.config.model.path.as_deref().ok_or_else(|| Error::config("model.path", problem))
    }

    /// The stages whose turn it is.
    fn due(&self) -> Vec<(StageSettings, Due)> {
        let settings = &self.config.trainer;
        let (mut found, mut shown) = (Vec::new(), Vec::new());
        for stage in &settings.stage {
            let pace = settings.pace_of(stage);
            let tried = self.rounds.tried(&stage.name);
            let fresh = tried.map_or_else(|| self.stock.since(&<_>::default()), |(to, _)| self.stock.since(to));
            let since = seconds_now() - tried.map_or(self.began_at, |(_, ended_at)| ended_at);
            let tried = StageAttempt { fresh, seconds: since.try_into().unwrap_or_default() };
            TRAINER.fresh.with_label_values(&[&stage.name]).set(fresh as i64);
            shown.push(Waiting {
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

    /// Whether a search service may still come to serve what was offered last: until then the next round would begin
    /// without what that has learned.
    fn is_waited_for(&self) -> Result<bool> {
        let Some(offer) = self.registry.waiting()? else { return Ok(false) };
        let made = self.rounds.ended().find(|(_, ended)| ended.version.as_ref() == Some(&offer.version));
        let waited = made.map_or(i64::MAX, |(_, ended)| seconds_now() - ended.ended_at);
        let late = waited >= self.config.trainer.adopt_seconds as i64;
        let problem = || format!("`{}` passed its gate {waited} s ago, and nobody serves it", offer.version);
        self.status.alarm("offer", (late && made.is_some()).then(problem));
        Ok(!late)
    }

    /// Says whether what a round learns from is distributed as what came before it.
    fn drifted(&self, round: &Round) -> Result<()> {
        let Some(lesson) = round.lessons.first() else { return Ok(()) };
        let known = self.rounds.learned(round.parent.as_deref()).remove(&lesson.stage).unwrap_or_default();
        let before = Span { from: self.stock.rewind(&known, lesson.fresh), to: known.clone() };
        let after = Span { from: self.stock.rewind(&known, 0), to: lesson.span.to.clone() };
        let moved = drift::mixes(&self.data, &before, &after)?;
        self.status.drift("drift", &moved, self.config.trainer.alarms.max_drift);
        Ok(())
    }

    /// Says whether the judge gives other levels than it gave the same stage a round before.
    fn judged(&self, round: &Round) -> Result<()> {
        let mut moved = Vec::new();
        for (at, lesson) in round.lessons.iter().enumerate() {
            let now = self.stage_folder(round, at, &lesson.stage);
            let before = self.rounds.ended().find_map(|(ended, _)| {
                let at = ended.lessons.iter().position(|other| other.stage == lesson.stage)?;
                Some(self.stage_folder(ended, at, &lesson.stage)).filter(|folder| folder.exists())
            });
            if let Some(before) = before {
                moved.extend(drift::levels(&before, &now)?.map(|moved| ("levels", moved)));
            }
        }
        self.status.drift("judge", &moved, self.config.trainer.alarms.max_drift);
        Ok(())
    }

    fn go_on(&mut self, round: &Round) -> Result<()> {
        let model = match self.train(round)? {
            Trained::Model(model) => model,
            Trained::Stopped => return Ok(()),
            Trained::Failed(reason) => {
                let ended =
                    RoundOutcome { ended_at: seconds_now(), version: None, passed: false, reasons: vec![reason] };
                return self.end(round, ended);
            }
        };
        let gauge = Gauge { config: &self.config, data: &self.data, signals: &self.signals };
        // once it is made a decision stands: what it is published as may be served before the round has ended
        let file = self.rounds.place(round.number).join(DECISION);
        let decision = match read(&file)? {
            Some(decision) => decision,
            None => {
                self.status.doing(Doing::Measuring);
                self.judged(round)?;
                let decision = self.decide(round, &model, &gauge)?;
                write_whole(&file, &decision)?;
                decision
            }
        };
        self.status.doing(Doing::Publishing);
        self.clear(round)?;
        let path = self.put(&decision)?;
        self.registry.publish(&offer(round, &decision, path))?;
        let Decision { candidate, served, gated, .. } = decision;
        gauge.tidy(&[&served, &candidate])?;
        let (version, ended_at) = (Some(candidate.name), seconds_now());
        self.end(round, RoundOutcome { ended_at, version, passed: gated.passed, reasons: gated.reasons })
    }

    /// Holds a round's model against what is served.
    fn decide(&self, round: &Round, model: &str, gauge: &Gauge<'_>) -> Result<Decision> {
        let candidate = gauge.model("candidate", model)?;
        let name = format!("round-{}-{:.8}", round.number, candidate.fingerprint);
        let candidate = Model { name, ..candidate };
        loop {
            let now = self.registry.served()?;
            let (parent, path) = now.map_or((None, round.model.clone()), |now| (Some(now.version), now.path));
            let served = gauge.model(parent.as_deref().unwrap_or("base"), &path)?;
            let gated = gauge.gate(&served, &candidate, &self.rounds.place(round.number))?;
            // somebody may have promoted another meanwhile
            if self.registry.served()?.map(|now| now.version) == parent {
                return Ok(Decision { parent, served, candidate, gated });
            }
        }
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
        match ended.passed {
            true => tracing::info!(round = round.number, outcome, version = ended.version, "a round has ended"),
            false => tracing::warn!(round = round.number, outcome, reasons, "a round has ended"),
        }
        self.status.alarm("stage", (outcome == "failed").then(|| format!("round {}: {reasons}", round.number)));
        self.status.change(|shown| shown.last_round = Some(Last { round: round.number, ended }));
        self.tidy(round)
    }

    /// Puts a model that passed where services read it; its path, or its address there.
    fn put(&self, decision: &Decision) -> Result<String> {
        let Model { name, path, .. } = &decision.candidate;
        match &self.config.trainer.publish {
            Some(home) if decision.gated.passed => {
                let address = published(home, name);
                Objects::open(&address)?.send(Path::new(path))?;
                Ok(address)
            }
            _ => Ok(path.clone()),
        }
    }

    /// The checkpoints of stages that are through.
    fn clear(&self, round: &Round) -> Result<()> {
        for (at, lesson) in round.lessons.iter().enumerate() {
            let checkpoints = self.stage_folder(round, at, &lesson.stage).join("checkpoints");
            if checkpoints.exists() {
                std::fs::remove_dir_all(&checkpoints).map_err(Error::store(&checkpoints, "remove it"))?;
            }
        }
        Ok(())
    }

    /// What nobody needs any more goes.
    fn tidy(&mut self, round: &Round) -> Result<()> {
        self.clear(round)?;
        let (registry, home) = (&self.registry, self.config.trainer.publish.as_deref());
        let going = |version: &str| {
            registry.retire(version)?;
            home.map_or(Ok(()), |home| Objects::open(&published(home, version))?.remove())
        };
        let needed = self.registry.needed()?;
        let keep = self.config.trainer.keep;
        self.rounds.tidy(keep, |version| needed.contains(version), going)?;
        if self.config.trainer.keep_days > 0.0 {
            prune(&self.home, Duration::from_secs_f64(self.config.trainer.keep_days * DAY))?;
        }
        Ok(())
    }

    /// Where a stage trains: its number in the round and its name.
    fn stage_folder(&self, round: &Round, at: usize, stage: &str) -> PathBuf {
        self.rounds.place(round.number).join(format!("{}-{stage}", at + 1))
    }

    /// All stages, each beginning with what the one before it made.
    fn train(&mut self, round: &Round) -> Result<Trained> {
        let mut model = round.model.clone();
        for (at, lesson) in round.lessons.iter().enumerate() {
            let out = self.stage_folder(round, at, &lesson.stage);
            if !out.join(WHOLE).exists() {
                match self.stage((round, lesson), &model, &out) {
                    Ok(true) => {}
                    Ok(false) => return Ok(Trained::Stopped),
                    Err(error) if is_final(&error) => {
                        return Ok(Trained::Failed(format!("the stage `{}`: {}", lesson.stage, said(&error))));
                    }
                    Err(error) => return Err(error),
                }
            }
            model = out.canonicalize().map_err(Error::store(&out, "find the model"))?.display().to_string();
        }
        Ok(Trained::Model(model))
    }

    /// Trains one stage to its end, or until it is asked to stop: false. Where a weight is no number any more, it goes on from
    /// the last checkpoint with half the learning rate.
    fn stage(&mut self, (round, lesson): (&Round, &StageSpan), model: &str, out: &Path) -> Result<bool> {
        let settings = &self.config.trainer;
        let known = settings.stage.iter().find(|stage| stage.name == lesson.stage).cloned();
        let gone =
            || Error::config("trainer.stage", format!("the stage `{}` of a round is not there any more", lesson.stage));
        let (known, most) = (known.ok_or_else(gone)?, settings.alarms.max_diverged);
        self.link(out)?;
        let within = out.strip_prefix(&settings.state).unwrap_or(out).to_path_buf();
        for halved in 0.. {
            self.status.stage(round.number, &lesson.stage);
            let status = self.status.clone();
            let told = |progress: Progress| {
                if let Progress::Step(learned) = progress {
                    status.learned(learned);
                }
            };
            let order = Order::new(known.clone(), model, lesson.span.clone(), (&within, halved));
            match self.ranks.train(order, (&self.config, &self.data), (&self.signals.stop, told)) {
                Ok(summary) => return Ok(summary.finished),
                Err(error @ Error::Diverged { .. }) if (halved as u64) < most => {
                    tracing::error!(%error, "a stage goes on from its last checkpoint with half the learning rate");
                }
                // the others are lost, or will be: all begin again
                Err(error) if self.ranks.are_several() && !is_final(&error) => {
                    self.signals.fail(&error);
                    return Err(error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// Points the console at a stage's folder.
    fn link(&self, out: &Path) -> Result<()> {
        let (link, aside) = (self.config.trainer.state.join(TRAINING), self.config.trainer.state.join(".training"));
        drop(std::fs::remove_file(&aside));
        let target = out.strip_prefix(&self.config.trainer.state).unwrap_or(out);
        symlink(target, &aside).map_err(Error::store(&aside, "link to the stage"))?;
        std::fs::rename(&aside, &link).map_err(Error::store(&link, "link to the stage"))
    }
}

/// What is wrong with the stages is told before one begins.
pub fn check_stages(config: &Config) -> Result<()> {
    config.trainer.check()?;
    for stage in &config.trainer.stage {
        let stage = config.of_stage(stage, config.model.path.as_deref().unwrap_or_default())?;
        stage.train.check()?;
        stage.candidates.check()?;
    }
    Ok(())
}

/// Whether trying again would come to the same.
pub fn is_final(error: &Error) -> bool {
    match error {
        Error::Config { .. }
        | Error::Input { .. }
        | Error::Data { .. }
        | Error::Weights { .. }
        | Error::Diverged { .. } => true,
        Error::Busy { .. } | Error::Upstream { .. } | Error::Store { .. } | Error::Device { .. } => false,
    }
}

/// Where services find a version.
fn published(home: &str, version: &str) -> String {
    format!("{}/{version}", home.trim_end_matches('/'))
}

fn read(file: &Path) -> Result<Option<Decision>> {
    if !file.exists() {
        return Ok(None);
    }
    let text = std::fs::read(file).map_err(Error::store(file, "read it"))?;
    let broken = |e| Error::data(file, None, "is not what a trainer writes: remove it").because(e);
    serde_json::from_slice(&text).map(Some).map_err(broken)
}

fn offer(round: &Round, decision: &Decision, path: String) -> Offer {
    let Decision { parent, candidate, gated, .. } = decision;
    let stages: Vec<&str> = round.lessons.iter().map(|lesson| lesson.stage.as_str()).collect();
    let metrics = serde_json::json!({
        "round": round.number, "stages": stages, "examples": round.lessons.iter().map(|lesson| lesson.fresh).max(),
        "gate": {"passed": gated.passed, "reasons": gated.reasons, "drift": gated.drift},
    });
    let (version, fingerprint, parent) = (candidate.name.clone(), candidate.fingerprint.clone(), parent.clone());
    let version = NewVersion { version, path, fingerprint, parent, metrics };
    let (reports, parent_reports) = (gated.reports.clone(), gated.served_reports.clone());
    Offer { version, reports, parent_reports, passed: gated.passed }
}
