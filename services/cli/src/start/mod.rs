//! `souk start`: from a shop's catalogue and search log to a served model that was measured on the shop's own log.
//!
//! Runs other souk commands one after the other. Everything is below one folder:
//!
//! | path | content |
//! |---|---|
//! | `shop.toml` | settings; edit them and start again |
//! | `data/` | catalogue, log, queries and judgements |
//! | `models/` | trained models |
//! | `measured/` | evaluations, each with a report; `report.html` compares the last of them |
//! | `served` | link to the model that is served |

mod learn;
mod results;
mod steps;

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Child;

use anyhow::Context;
use clap::Args;
use serde_json::{Value, json};
use souk::backbone::hub;
use souk::config::Config;
use souk::error::Error;

use self::learn::{Learner, TABLE_SPLIT};
use self::steps::{Steps, say};
use crate::GlobalArgs;
use crate::output::print;

const DEFAULT_MODEL: &str = "sentence-transformers/all-MiniLM-L6-v2";
/// Where `make setup` puts the default model, below the home folder.
const SETUP_MODEL: &str = ".cache/souk/models/all-MiniLM-L6-v2";
/// Place of the base model's copy in the shop's folder.
const UNTRAINED_MODEL: &str = "models/untrained";
/// Name of the log in the data folder.
const LOG: &str = "logs.ndjson";
const CONFIG: &str = include_str!("../../../../configs/shop.toml");

/// Bring a shop's catalogue and log to a measured, trained and served search
///
/// Serves the given or default model at once, hybrid with BM25. With a log, it derives judgements
/// from the log's newest days, measures BM25 and the model, trains on the older days, and serves
/// the trained model if the judgements say that it is better. Run again, it goes on where it was
/// stopped. Delete a folder below SHOP to repeat its step.
///
/// Examples:
///   souk start --items products.csv
///   souk start --items products.csv --log searches.csv.gz --out SHOP
///   souk start --items s3://shop/products --kafka localhost:9092 --topic ubi --out SHOP
///   souk start --out SHOP                # again
#[derive(Args)]
#[command(verbatim_doc_comment)]
pub struct StartCommand {
    /// Catalogue: CSV, TSV, JSON lines, Parquet or Arrow; a file, a folder or an address such as s3://BUCKET/FOLDER
    #[arg(long, value_name = "PATH")]
    items: Option<PathBuf>,
    /// Search log: tables or UBI 1.3; files, a folder or an address
    #[arg(long, value_name = "PATH", num_args = 1.., conflicts_with = "kafka")]
    log: Vec<PathBuf>,
    /// Kafka brokers, for a log in UBI 1.3 that is read to its present end
    #[arg(long, value_name = "HOST:PORT,...", requires = "topic")]
    kafka: Option<String>,
    /// Kafka topic; repeatable
    #[arg(long, value_name = "NAME", requires = "kafka")]
    topic: Vec<String>,
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
        self.check_log()?;
        self.import(&steps)?;
        let config = self.config()?;
        config.open_data(&self.data())?;
        let base = hub::resolve(config.model.path.as_deref().unwrap_or(DEFAULT_MODEL))?;
        if !self.served().exists() {
            self.link_served(&base)?;
        }
        let server = if self.once { None } else { Some(self.serve(&steps, &config)?) };
        let learner = Learner { shop: self, steps: &steps, config: &config, is_serving: server.is_some() };
        let (metrics, problem) = match self.learn(&learner, &base) {
            Err(error) if server.is_some() => {
                say(&format!("\nLearning from the log stopped: {error:#}\nSearch goes on with what is served."));
                (json!({}), Some(format!("{error:#}")))
            }
            learned => (learned?, None),
        };
        say(&format!("\ndone after {} s; settings in {}", steps.elapsed().as_secs(), self.config_file().display()));
        print(
            globals,
            &json!({"out": self.out, "served": self.served(), "metrics": metrics, "problem": problem}),
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

    /// Learns from the log, if there is one; returns the metrics.
    fn learn(&self, learner: &Learner, base: &Path) -> anyhow::Result<Value> {
        if has_log(learner.config) {
            return Ok(results::show(&self.measured(), TABLE_SPLIT, &learner.learn(base)?)?);
        }
        say(
            "\nThere is no log, so there is nothing to learn from. A log of searches (time, session, query, item, position, event)",
        );
        say(
            "shows how good the search is, and trains it: give it with --log. Impressions and positions make it better.",
        );
        Ok(json!({}))
    }

    fn data(&self) -> PathBuf {
        self.out.join("data")
    }

    fn measured(&self) -> PathBuf {
        self.out.join("measured")
    }

    /// The catalogue's vectors by each model, until all is measured.
    fn vectors(&self) -> PathBuf {
        self.out.join("vectors")
    }

    /// A copy of the base model, with fitted weights of hybrid search.
    fn untrained(&self) -> PathBuf {
        self.out.join(UNTRAINED_MODEL)
    }

    fn served(&self) -> PathBuf {
        self.out.join("served")
    }

    fn config_file(&self) -> PathBuf {
        self.out.join("shop.toml")
    }

    /// A shop keeps the log that it began with.
    fn check_log(&self) -> anyhow::Result<()> {
        let file = self.config_file();
        if !file.exists() {
            return Ok(());
        }
        let known = Config::load(Some(&file), &[])?.log;
        let is_other_topic =
            self.kafka.as_ref().is_some_and(|brokers| (brokers, &self.topic) != (&known.brokers, &known.topics));
        let is_file = !self.log.is_empty() && !known.brokers.is_empty();
        if (!known.paths.is_empty() || !known.brokers.is_empty()) && (is_other_topic || is_file) {
            let problem = "names another log: change it there, or give another --out";
            return Err(Error::config(format!("[log] of {}", file.display()), problem).into());
        }
        Ok(())
    }

    /// Converts catalogue and log to a data folder. A log may come later than the catalogue.
    fn import(&self, steps: &Steps) -> anyhow::Result<()> {
        let (data, catalogue) = (self.data(), self.out.join("catalogue"));
        let log_is_new = !self.log.is_empty() && !data.join(LOG).exists();
        if data.exists() && !log_is_new {
            return Ok(());
        }
        let read = |format: &str, from: &Path, out: &Path, columns: &Option<String>| {
            let mut arguments = words(&["import", "--format", format]);
            arguments.extend(["--from".into(), from.into(), "--out".into(), out.into()]);
            arguments.extend(columns.iter().flat_map(|columns| ["--columns".into(), columns.into()]));
            arguments
        };
        let out = if log_is_new { &catalogue } else { &data };
        if data.exists() && !catalogue.exists() {
            fs::rename(&data, &catalogue).with_context(|| format!("cannot rename {}", data.display()))?;
        }
        if !out.exists() {
            let missing =
                if catalogue.exists() { "log yet: give it with --log" } else { "catalogue yet: give it with --items" };
            let problem = || Error::input(format!("{} has no {missing}", self.out.display()));
            let items = self.items.as_ref().ok_or_else(problem)?;
            fs::create_dir_all(&self.out).with_context(|| format!("cannot create {}", self.out.display()))?;
            steps.run("Read the catalogue", None, read("items", items, out, &self.columns))?;
        }
        if log_is_new {
            let mut arguments = read("log", &self.log_files()?, &data, &self.log_columns);
            arguments.extend(["--catalogue".into(), catalogue.into()]);
            steps.run("Read the log", None, arguments)?;
        }
        Ok(())
    }

    /// The log, or a folder of links to its files.
    fn log_files(&self) -> anyhow::Result<PathBuf> {
        if let [log] = &self.log[..] {
            return Ok(log.clone());
        }
        let folder = self.out.join("logs");
        drop(fs::remove_dir_all(&folder));
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        for (number, log) in self.log.iter().enumerate() {
            let file = log.canonicalize().with_context(|| format!("cannot find {}", log.display()))?;
            if !file.is_file() {
                let problem = format!("{} is not a file: give files, or one folder or address", log.display());
                return Err(Error::input(problem).into());
            }
            // files in different folders may have the same name
            let name = format!("{number}-{}", file.file_name().unwrap_or_default().to_string_lossy());
            symlink(&file, folder.join(name)).with_context(|| format!("cannot link to {}", file.display()))?;
        }
        Ok(folder)
    }

    /// Opens `shop.toml`. Writes it first if there is none, and adds the log if it names none.
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
            let text = self.settings(&model)?;
            fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        }
        let config = Config::load(Some(&file), &[])?;
        let log = self.data().join(LOG);
        let added = match &self.kafka {
            _ if has_log(&config) => return Ok(config),
            Some(brokers) => format!("brokers = {}\ntopics = {}", quoted(brokers), json!(self.topic)),
            None if log.exists() => format!("paths = [{}]", quoted(&log.display().to_string())),
            None => return Ok(config),
        };
        let mut text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        text += &format!("\n[log]\n{added}\n");
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        Ok(Config::load(Some(&file), &[])?)
    }

    /// `configs/shop.toml` with this shop's model and folders.
    fn settings(&self, model: &str) -> anyhow::Result<String> {
        let is_int8 = precision(&Config::default())? == "int8";
        let place = |name: &str| quoted(&self.out.join(name).display().to_string());
        let database = quoted(&format!("sqlite:{}", self.out.join("souk.db").display()));
        let mut text = format!(
            "# Settings of this shop, used by `souk start --out {}` and all other commands (--config).\n\n\
             [store]\ndatabase = {database}\n\n[trainer]\ndata = {}\nstate = {}\n\n",
            self.out.display(),
            place("data"),
            place("trainer")
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
                ("[judge]", "path") => format!("path = {}", place(UNTRAINED_MODEL)),
                ("[judge]", "int8") => format!("int8 = {is_int8}"),
                _ => line.to_owned(),
            };
            text.push('\n');
        }
        Ok(text)
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

    fn serve(&self, steps: &Steps, config: &Config) -> anyhow::Result<Child> {
        let mut arguments = words(&["serve", "--listen", &self.listen, "--precision", precision(config)?, "--config"]);
        // the link moves, but a version keeps its model
        let model = self.served().canonicalize().context("cannot find the served model")?;
        arguments.extend([self.config_file().into(), "--model".into(), model.into()]);
        steps.spawn("Serve", arguments)
    }

    fn with_config(&self, arguments: &[&str]) -> Vec<OsString> {
        let mut arguments = words(arguments);
        arguments.extend(["--config".into(), self.config_file().into()]);
        arguments
    }
}

fn has_log(config: &Config) -> bool {
    !config.log.paths.is_empty() || !config.log.brokers.is_empty()
}

/// Precision of measuring and serving: int8, which GPUs do not have.
fn precision(config: &Config) -> anyhow::Result<&'static str> {
    Ok(if config.model.open_device()?.is_cuda() { "f32" } else { "int8" })
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

/// A TOML string.
fn quoted(text: &str) -> String {
    json!(text).to_string()
}
