//! What is sold, searched for and judged while the loop is attacked: a shop of a few words, or a simulated market, whose shoppers
//! search and choose as its log says, whose test queries are held out, and whose oracle judges as a service.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use souk::market::{MarketSpec, write};
use tempfile::TempDir;

use crate::daemon::Daemon;
use crate::judge::Judge;
use souk_testing::small_shop::{messages, model, search, shop};

pub struct Scene {
    template: TempDir,
    pub model: PathBuf,
    /// What was searched for and clicked; of the small shop nothing, for it goes by numbers.
    clicks: Vec<(String, String)>,
    pub judge: Judge,
    _oracle: Option<Daemon>,
}

impl Scene {
    pub fn small() -> Self {
        Self { template: shop(), model: model(), clicks: Vec::new(), judge: Judge::start(None), _oracle: None }
    }

    /// With a model from nothing, which has all to learn.
    pub fn market() -> Self {
        let template = tempfile::tempdir().unwrap();
        let (data, model) = (template.path().join("data"), template.path().join("model"));
        let plan = MarketSpec { seed: 11, items: 1500, queries: 600, events: 60_000 };
        write(&plan, &data, &|_, _| ()).unwrap();
        let clicks = clicks(&data.join("logs.ndjson"));
        fs::remove_file(data.join("logs.ndjson")).unwrap();
        make(&data, &model);
        let verb = format!("relevance serve --oracle {}", data.display());
        let oracle = Daemon::start(&verb, &["relevance.serve.listen=127.0.0.1:0".into()], &template.path().join("log"));
        let judge = Judge::start(Some((oracle.address.clone(), oracle.name.clone())));
        Self { template, model, clicks, judge, _oracle: Some(oracle) }
    }

    /// A home with a shop in it that nobody has worked with.
    pub fn home(&self) -> TempDir {
        let home = tempfile::tempdir().unwrap();
        let data = self.template.path().join("data");
        assert!(Command::new("cp").arg("-r").args([&data, home.path()]).status().unwrap().success());
        home
    }

    /// A search and a click for each number.
    pub fn messages(&self, number: usize) -> Vec<(String, String)> {
        match self.clicks.get(number % self.clicks.len().max(1)) {
            Some((text, item)) => search(number, text, item).to_vec(),
            None => messages(number..number + 1).collect(),
        }
    }
}

/// What the market's shoppers searched for and chose, in turn.
fn clicks(log: &Path) -> Vec<(String, String)> {
    let (mut texts, mut clicks) = (HashMap::new(), Vec::new());
    for line in fs::read_to_string(log).unwrap().lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let query = line["query_id"].as_str().unwrap().to_owned();
        match (line["user_query"].as_str(), line["action_name"].as_str()) {
            (Some(text), _) => drop(texts.insert(query, text.to_owned())),
            (None, Some("click")) => {
                let item = line["event_attributes"]["object"]["object_id"].as_str().unwrap();
                clicks.extend(texts.get(&query).map(|text| (text.clone(), item.to_owned())));
            }
            _ => {}
        }
    }
    clicks
}

fn make(data: &Path, model: &Path) {
    let config = souk_testing::repository().join("configs/scratch-bert.toml");
    let mut init = Command::new(env!("CARGO_BIN_EXE_souk-engine"));
    init.arg("init").arg("--config").arg(config).arg("--data").arg(data).arg("--out").arg(model);
    for set in ["vocab=2000", "max_tokens=32", "architecture.num_hidden_layers=2", "architecture.hidden_size=64"] {
        init.args(["--set", &format!("scratch.{set}")]);
    }
    let heads =
        ["--set", "scratch.architecture.num_attention_heads=2", "--set", "scratch.architecture.intermediate_size=256"];
    let made = init.args(heads).env("OMP_NUM_THREADS", "1").stdout(Stdio::null()).stderr(Stdio::null()).status();
    assert!(made.unwrap().success());
}
