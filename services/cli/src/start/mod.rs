//! `souk start`: from a shop's catalogue and search log to a served model that was measured on the shop's own log.
//!
//! Runs other souk commands one after the other. Everything is below one folder:
//!
//! | path | content |
//! |---|---|
//! | `shop.toml` | settings; edit them and start again |
//! | `data/` | catalogue, log, queries and judgements |
//! | `models/` | trained models |
//! | `measured/` | evaluations, each with a report |
//! | `served` | link to the model that is served |

mod results;
mod steps;

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Child;

use anyhow::Context;
use clap::Args;
use serde_json::json;
use souk::backbone::hub;
use souk::config::{Config, StageSettings};
use souk::error::Error;
use souk::objective::Candidates;
use souk::report::{EvaluationRun, GateInput};
use souk::reward::Judge;
use souk::store::NewVersion;

use self::steps::{Steps, say};
use crate::GlobalArgs;
use crate::output::print;

const DEFAULT_MODEL: &str = "sentence-transformers/all-MiniLM-L6-v2";
/// Where `make setup` puts the default model, below the home folder.
const SETUP_MODEL: &str = ".cache/souk/models/all-MiniLM-L6-v2";
/// Queries of the gate, and those of the last table, which decided nothing.
const GATE_SPLIT: &str = "dev";
const TABLE_SPLIT: &str = "test";
/// Names of the evaluations of what needs no training.
const LEXICAL: &str = "BM25";
const UNTRAINED: &str = "untrained";
const CONFIG: &str = include_str!("../../../../configs/shop.toml");

/// Bring a shop's catalogue and log to a measured, trained and served search
///
/// Serves the given or default model at once, with the lexical channel beside it. With a log, it derives judgements from the log's
/// newest days, measures BM25 and the model, trains on the older days, and serves the trained model if the judgements say that it
/// is better. Run again, it goes on where it was stopped. Delete a folder below SHOP to repeat its step.
///
/// Examples:
///   souk start --items products.csv
///   souk start --items products.csv --log searches.csv.gz --out SHOP
///   souk start --out SHOP                # again
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct StartCommand {
    /// Catalogue: CSV, TSV, JSON lines, Parquet or Arrow; a file or a folder
    #[arg(long, value_name = "PATH")]
    items: Option<PathBuf>,
    /// Search log: a table or UBI 1.3; a file or a folder
    #[arg(long, value_name = "PATH", requires = "items")]
    log: Option<PathBuf>,
    /// Columns of the catalogue, where the guess is wrong, such as id=sku,title=name
    #[arg(long, value_name = "FIELD=COLUMN,...")]
    columns: Option<String>,
    /// Columns of the log, where the guess is wrong, such as query=search_term,item=sku
    #[arg(long, value_name = "FIELD=COLUMN,...")]
    log_columns: Option<String>,
    /// Model folder or Hugging Face hub name to start from
    #[arg(long, value_name = "DIR")]
    model: Option<String>,
    /// Folder of the shop
    #[arg(long, value_name = "SHOP", default_value = "shop")]
    out: PathBuf,
    /// Address and port of the search service
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    listen: String,
    /// End when all is done instead of serving
    #[arg(long)]
    once: bool,
}

impl StartCommand {
    pub fn run(&self, globals: &GlobalArgs) -> anyhow::Result<()> {
        let steps = Steps::begin();
        self.import(&steps)?;
        let config = self.config()?;
        let base = hub::resolve(config.model.path.as_deref().unwrap_or(DEFAULT_MODEL))?;
        if !self.served().exists() {
            self.link_served(&base)?;
        }
        let server = if self.once { None } else { Some(self.serve(&steps)?) };
        let json = if self.data().join("logs.ndjson").exists() {
            let served = self.learn(&steps, &config, &base, server.is_some())?;
            results::show(&self.measured(), TABLE_SPLIT, &served)?
        } else {
            say(
                "\nThere is no log, so there is nothing to learn from. A log of searches (time, session, query, item, position, event)",
            );
            say(
                "shows how good the search is, and trains it: give it with --log. Impressions and positions make it better.",
            );
            json!({})
        };
        say(&format!("\ndone after {} s; settings in {}", steps.elapsed().as_secs(), self.config_file().display()));
        print(
            globals,
            &json!({"out": self.out, "served": self.served(), "metrics": json}),
            &format!("served: {}", self.served().display()),
        )?;
        match server {
            Some(mut server) => {
                say(&format!("serving on http://{}; stop with Ctrl-C", self.listen));
                let status = server.wait().context("the search service was lost")?;
                anyhow::ensure!(status.success(), "the search service ended: {status}");
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn data(&self) -> PathBuf {
        self.out.join("data")
    }

    fn measured(&self) -> PathBuf {
        self.out.join("measured")
    }

    fn served(&self) -> PathBuf {
        self.out.join("served")
    }

    fn config_file(&self) -> PathBuf {
        self.out.join("shop.toml")
    }

    /// Converts catalogue and log to a data folder.
    fn import(&self, steps: &Steps) -> anyhow::Result<()> {
        if self.data().exists() {
            return Ok(());
        }
        let Some(items) = &self.items else {
            let problem = format!("{} has no catalogue yet: give it with --items", self.out.display());
            return Err(Error::input(problem).into());
        };
        fs::create_dir_all(&self.out).with_context(|| format!("cannot create {}", self.out.display()))?;
        let read = |format: &str, from: &Path, out: &Path, columns: &Option<String>| {
            let mut arguments = words(&["import", "--format", format]);
            arguments.extend(["--from".into(), from.into(), "--out".into(), out.into()]);
            arguments.extend(columns.iter().flat_map(|columns| ["--columns".into(), columns.into()]));
            arguments
        };
        let Some(log) = &self.log else {
            steps.run("Read the catalogue", None, read("items", items, &self.data(), &self.columns))?;
            return Ok(());
        };
        let catalogue = self.out.join("catalogue");
        let arguments = read("items", items, &catalogue, &self.columns);
        steps.run("Read the catalogue", Some(&catalogue), arguments)?;
        let mut arguments = read("log", log, &self.data(), &self.log_columns);
        arguments.extend(["--catalogue".into(), catalogue.into()]);
        steps.run("Read the log", None, arguments)?;
        Ok(())
    }

    /// Opens `shop.toml`, and writes it first if there is none.
    fn config(&self) -> anyhow::Result<Config> {
        let file = self.config_file();
        if !file.exists() {
            let setup =
                std::env::var_os("HOME").map(|home| Path::new(&home).join(SETUP_MODEL)).filter(|model| model.exists());
            let model = match (&self.model, setup) {
                (Some(model), _) => model.clone(),
                (None, Some(model)) => model.display().to_string(),
                (None, None) => DEFAULT_MODEL.into(),
            };
            let text = self.settings(&model);
            fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        }
        Ok(Config::load(Some(&file), &[])?)
    }

    /// `configs/shop.toml` with this shop's model and folders.
    fn settings(&self, model: &str) -> String {
        let place = |name: &str| quoted(&self.out.join(name).display().to_string());
        let database = quoted(&format!("sqlite:{}", self.out.join("souk.db").display()));
        let mut text = format!(
            "# Settings of this shop, used by `souk start --out {}` and all other commands (--config).\n\n\
             [store]\ndatabase = {database}\n\n",
            self.out.display()
        );
        let mut section = "";
        for line in CONFIG.lines().skip_while(|line| line.starts_with('#') || line.is_empty()) {
            if line.starts_with('[') {
                section = line;
            }
            let key = line.split(" = ").next().unwrap_or_default();
            text += &match (section, key) {
                ("[model]", "path") => format!("path = {}", quoted(model)),
                ("[search]", "[search]") => {
                    format!("{line}\ndata = {}\nstate = {}", place("data"), place("search"))
                }
                ("[judge]", "path") => format!("path = {}", place("models/judge")),
                ("[judge]", "int8") => format!("int8 = {}", souk::supports_int8()),
                _ => line.to_owned(),
            };
            text.push('\n');
        }
        text
    }

    /// Points `served` at a model.
    fn link_served(&self, model: &Path) -> anyhow::Result<()> {
        let (aside, link) = (self.out.join(".served"), self.served());
        drop(fs::remove_file(&aside));
        let target = model.canonicalize().with_context(|| format!("cannot find {}", model.display()))?;
        symlink(target, &aside)
            .and_then(|()| fs::rename(&aside, &link))
            .with_context(|| format!("cannot link {}", link.display()))
    }

    fn serve(&self, steps: &Steps) -> anyhow::Result<Child> {
        let mut arguments = words(&["serve", "--listen", &self.listen, "--precision", precision(), "--config"]);
        // the link moves, but a version keeps its model
        let model = self.served().canonicalize().context("cannot find the served model")?;
        arguments.extend([self.config_file().into(), "--model".into(), model.into()]);
        steps.spawn("Serve", arguments)
    }

    /// Measures, trains stage by stage, and serves each model that the gate passes. Returns the names of the evaluations for the last
    /// table.
    fn learn(&self, steps: &Steps, config: &Config, base: &Path, serving: bool) -> anyhow::Result<Vec<String>> {
        let data = self.data();
        let mut arguments = self.with_config(&["judgements", "--quality"]);
        arguments.extend(["--data".into(), data.clone().into()]);
        steps.run("Derive judgements from the log", None, arguments)?;
        let mut arguments = self.with_config(&["ingest"]);
        arguments.extend(["--from".into(), data.join("logs.ndjson").into(), "--data".into(), data.into()]);
        steps.run("Collect training examples from the log", None, arguments)?;
        self.evaluate(steps, LEXICAL, None, GATE_SPLIT)?;
        let (mut before, _) = self.evaluate(steps, UNTRAINED, Some(base), GATE_SPLIT)?;
        let mut best = base.to_path_buf();
        let mut models = vec![(UNTRAINED.to_owned(), best.clone())];
        for stage in &config.trainer.stage {
            let (trained, is_new) = self.train(steps, config, stage, &best)?;
            let (after, is_measured) = self.evaluate(steps, &stage.name, Some(&trained), GATE_SPLIT)?;
            models.push((stage.name.clone(), trained.clone()));
            let gate = config.trainer.gate.judge(&GateInput { served: &before, candidate: &after, drift: None })?;
            if !gate.passed {
                say(&format!("\nThe model of `{}` is not served: {}", stage.name, gate.reasons.join("; ")));
                continue;
            }
            say(&format!(
                "\nThe model of `{}` passed: no watched metric is significantly worse, and at least one is higher.",
                stage.name
            ));
            if is_new || is_measured {
                self.link_served(&trained)?;
                if serving {
                    offer(config, &stage.name, &trained, [&before, &after])?;
                }
            }
            (before, best) = (after, trained);
        }
        if self.served().canonicalize().ok() != best.canonicalize().ok() {
            self.link_served(&best)?;
        }
        self.evaluate(steps, LEXICAL, None, TABLE_SPLIT)?;
        for (name, model) in &models {
            self.evaluate(steps, name, Some(model), TABLE_SPLIT)?;
        }
        Ok([LEXICAL.to_owned()].into_iter().chain(models.into_iter().map(|(name, _)| name)).collect())
    }

    /// Trains a stage from `model`, and the judge before it if it needs one. True if it was trained now.
    fn train(
        &self,
        steps: &Steps,
        config: &Config,
        stage: &StageSettings,
        model: &Path,
    ) -> anyhow::Result<(PathBuf, bool)> {
        if stage.config.is_some() {
            let problem = format!("the stage `{}` has a file: `souk start` needs its settings in `set`", stage.name);
            return Err(Error::config("trainer.stage.config", problem).into());
        }
        let judged = config.of_stage(stage, &model.display().to_string())?.objective.needs().candidates;
        if let (Some(Judge::Model(judge)), true) = (&config.judge, judged != Candidates::None) {
            let mut arguments = self.with_config(&["relevance", "train"]);
            arguments.extend(["--model".into(), model.into(), "--data".into(), self.data().into()]);
            arguments.extend(["--out".into(), judge.path.clone().into()]);
            steps.run("Train the judge on the log's judgements", Some(&judge.path), arguments)?;
        }
        let out = self.out.join("models").join(&stage.name);
        let mut arguments = self.with_config(&["train", "--resume"]);
        arguments.extend(stage.set.iter().flat_map(|set| ["--set".into(), set.into()]));
        arguments.extend(["--model".into(), model.into(), "--data".into(), self.data().into()]);
        arguments.extend(["--out".into(), out.clone().into()]);
        let is_new = steps.run(&format!("Train: {}", stage.name), Some(&out.join("config.json")), arguments)?;
        Ok((out, is_new))
    }

    /// Measures a model as it is served, or BM25. True if it was measured now.
    fn evaluate(
        &self,
        steps: &Steps,
        name: &str,
        model: Option<&Path>,
        split: &str,
    ) -> anyhow::Result<(EvaluationRun, bool)> {
        let out = self.measured().join(format!("{name}-{split}"));
        let mut arguments =
            self.with_config(&["evaluate", "--name", name, "--split", split, "--judge", "qrels", "--depth", "1000"]);
        match model {
            Some(model) => {
                arguments.extend(["--model".into(), model.into(), "--precision".into(), precision().into()]);
                let config = Config::load(Some(&self.config_file()), &[])?;
                arguments.extend(config.search.hybrid.weights().map(|_| "--hybrid".into()));
            }
            None => arguments.push("--lexical".into()),
        }
        arguments.extend(["--data".into(), self.data().into(), "--out".into(), out.clone().into()]);
        fs::create_dir_all(self.measured()).context("cannot create the folder of evaluations")?;
        let is_new = steps.run(&format!("Measure {name} on {split}"), Some(&out), arguments)?;
        Ok((EvaluationRun::load(&out)?, is_new))
    }

    fn with_config(&self, arguments: &[&str]) -> Vec<OsString> {
        let mut arguments = words(arguments);
        arguments.extend(["--config".into(), self.config_file().into()]);
        arguments
    }
}

/// Registers a model that passed with its measurement, so that the running service swaps to it.
fn offer(config: &Config, stage: &str, model: &Path, measured: [&EvaluationRun; 2]) -> anyhow::Result<()> {
    let path = model.canonicalize().context("cannot find the trained model")?.display().to_string();
    let mut opened = config.clone();
    opened.model.path = Some(path.clone());
    let fingerprint = opened.open_encoder()?.fingerprint()?;
    let version = format!("{stage}-{fingerprint:.8}");
    let metrics = json!({"gate": {"passed": true, "reasons": []}});
    let [before, after] = measured.map(|run| serde_json::to_value(&run.metrics));
    let (before, after) = (before.context("cannot write metrics")?, after.context("cannot write metrics")?);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start a runtime")?;
    runtime.block_on(async {
        let ledger = config.store.open_own_ledger().await?;
        if ledger.version(&version).await?.is_some() {
            return Ok(());
        }
        let parent = ledger.served().await?.map(|served| served.version);
        let new = NewVersion { version: version.clone(), path, fingerprint, parent: parent.clone(), metrics };
        ledger.add_version(&new).await?;
        if let Some(parent) = parent {
            ledger.add_report(&parent, GATE_SPLIT, &before).await?;
        }
        // last: the service waits for it
        ledger.add_report(&version, GATE_SPLIT, &after).await?;
        Ok(())
    })
}

/// Precision of measuring and serving: the fastest of this processor.
fn precision() -> &'static str {
    if souk::supports_int8() { "int8" } else { "f32" }
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

/// A TOML string.
fn quoted(text: &str) -> String {
    json!(text).to_string()
}
