//! Experiment file: takes its TOML, gives checked rows, tables and figures. Never runs anything.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use souk::error::{Error, Result};
use souk::report::{TableSettings, names};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExperimentPlan {
    pub experiment: ExperimentSettings,
    pub row: Vec<ExperimentRow>,
    #[serde(default)]
    pub table: Vec<TableSettings>,
    #[serde(default)]
    pub figure: Vec<Figure>,
    /// Folder of the file; relative paths in it start here.
    #[serde(skip)]
    pub folder: PathBuf,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExperimentSettings {
    pub title: String,
    pub seeds: Vec<u64>,
    /// Data folder. Alternatives: `market`, which generates one, or `--data`.
    pub data: Option<PathBuf>,
    pub market: Option<SimulatedShop>,
    #[serde(default = "test")]
    pub split: String,
    /// Hits per query; the first metric is the hit rate at this depth.
    pub depth: usize,
    /// Configuration with the objective next_token; adds the perplexity of each model to the metrics.
    pub language: Option<PathBuf>,
    /// Id of a relevance row. Its model of the first seed judges unjudged pairs in every evaluation.
    pub judge: Option<String>,
}

fn test() -> String {
    "test".into()
}

/// Simulated shop to generate, with examples from its log.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimulatedShop {
    pub seed: u64,
    pub items: u64,
    pub queries: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowKind {
    /// BM25.
    Lexical,
    /// Existing model: a folder, or another row's model evaluated with other settings.
    Model,
    /// Model from scratch (`souk init`).
    Init,
    /// Training stage on another row's model or on a model folder.
    Train,
    /// Relevance model that judges other rows.
    Relevance,
}

/// Channels of a model's evaluation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowChannel {
    #[default]
    Dense,
    Hybrid,
}

/// Reranking of the first hits.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rerank {
    /// Id of a relevance row.
    pub by: String,
    pub depth: u32,
}

/// Judgements that hybrid search is fitted to (`souk fit-fusion`).
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fit {
    pub split: String,
    /// As in `train.held_out`, if the split is that of training.
    #[serde(default)]
    pub held_out: f64,
    /// Makes hybrid search a judge (`--as-judge`); a row that learns from it names this row in its `set`.
    #[serde(default)]
    pub as_judge: bool,
}

/// One row: a line of a table, or the base model of another row.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExperimentRow {
    pub id: String,
    pub name: String,
    pub kind: RowKind,
    /// Base model: a row's id, a model folder or a hub name.
    pub from: Option<String>,
    /// Configuration file.
    pub config: Option<PathBuf>,
    /// `--set` values for training. `{ID}` expands to the model folder of row ID with the same seed, `{ID.run}` to its evaluation.
    #[serde(default)]
    pub set: Vec<String>,
    /// `--set` values for evaluation.
    #[serde(default)]
    pub measured: Vec<String>,
    /// Channels that answer, as in `/search`.
    #[serde(default)]
    pub channel: RowChannel,
    /// Relevance model that orders the first hits again.
    pub rerank: Option<Rerank>,
    /// Fits hybrid search, and the weight of `rerank`, before the evaluation.
    pub fit: Option<Fit>,
    /// Split of the evaluation, for a run that another row learns from; such a row is in no table. Default: the experiment's.
    pub split: Option<String>,
    /// Hits per query of such a run.
    pub depth: Option<usize>,
    /// Query rewrites for BM25; `{data}` expands to the experiment's data folder.
    pub rewrites: Option<PathBuf>,
    /// Arguments of `souk rewrite`, which rewrites the queries for BM25, such as `["--model", "{ID}"]` with the model of row ID, or
    /// `["--url", "http://127.0.0.1:8000/v1", "--name", "MODEL"]`.
    #[serde(default)]
    pub rewriter: Vec<String>,
    /// Whether to evaluate the row.
    #[serde(default = "yes")]
    pub measure: bool,
}

fn yes() -> bool {
    true
}

/// Figure of a training stage: relevance levels over its steps, and candidates of sample queries.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    pub title: String,
    pub row: String,
}

impl ExperimentPlan {
    pub fn load(file: &Path, sets: &[String], data: Option<&Path>) -> Result<Self> {
        if let Some(set) = sets.first() {
            let problem = format!("--set {set}: an experiment takes no --set: change the file, or a copy of it");
            return Err(Error::input(problem));
        }
        let mut plan: Self = souk::config::load_toml(file)?;
        plan.folder = file.parent().unwrap_or(Path::new("")).into();
        let settings = &mut plan.experiment;
        settings.data = match (data, settings.data.take()) {
            (Some(_), Some(_)) => {
                return Err(Error::config(
                    "--data",
                    format!("{} already has `experiment.data`: drop one of them", file.display()),
                ));
            }
            (given, named) => given.map(PathBuf::from).or(named.map(|named| plan.folder.join(named))),
        };
        plan.check().map_err(|problem| Error::config(file.display(), problem))?;
        Ok(plan)
    }

    fn check(&self) -> std::result::Result<(), String> {
        let ExperimentSettings { seeds, data, market, .. } = &self.experiment;
        if seeds.is_empty() {
            return Err("`experiment.seeds` is empty: list one or more seeds".into());
        }
        if data.is_some() == market.is_some() {
            return Err("set exactly one of `experiment.data`, `experiment.market` and `--data DIR`".into());
        }
        let mut seen = BTreeSet::new();
        for row in &self.row {
            let id = &row.id;
            if !is_id(id) {
                return Err(format!("row id `{id}`: use only letters, digits, - and _"));
            }
            for other in row.needs(self) {
                if !seen.contains(other) {
                    return Err(format!("row `{id}` needs row `{other}`: put that one before it"));
                }
            }
            if matches!(row.kind, RowKind::Train | RowKind::Init | RowKind::Relevance) && row.config.is_none() {
                return Err(format!("row `{id}` has no `config`: add one"));
            }
            if matches!(row.kind, RowKind::Train | RowKind::Relevance | RowKind::Model) != row.from.is_some() {
                return Err(format!(
                    "row `{id}`: `from` is required for kind model, train and relevance, and not allowed for others"
                ));
            }
            let has_no_model = matches!(row.kind, RowKind::Lexical | RowKind::Relevance);
            if row.channel == RowChannel::Hybrid && has_no_model {
                return Err(format!("row `{id}`: `channel` is only for rows with an encoder"));
            }
            if let Some(rerank) = &row.rerank
                && self.row(&rerank.by).is_none_or(|by| by.kind != RowKind::Relevance)
            {
                return Err(format!("row `{id}`: `rerank.by` is `{}`, which is no row of kind relevance", rerank.by));
            }
            if row.fit.is_some() && row.channel != RowChannel::Hybrid {
                return Err(format!("row `{id}`: `fit` is for hybrid search: add `channel = \"hybrid\"`"));
            }
            if row.fit.is_some() && row.kind == RowKind::Model && row.base(self).is_none() {
                return Err(format!("row `{id}`: `fit` writes into the model's folder, which must be that of a row"));
            }
            if (row.rewrites.is_some() || !row.rewriter.is_empty()) && row.kind != RowKind::Lexical {
                return Err(format!("row `{id}`: `rewrites` and `rewriter` are only for kind lexical"));
            }
            if row.rewrites.is_some() && !row.rewriter.is_empty() {
                return Err(format!("row `{id}` has `rewrites` and `rewriter`: drop one of them"));
            }
            if !seen.insert(id.as_str()) {
                return Err(format!("two rows have the id `{id}`"));
            }
        }
        self.check_judge()?;
        self.check_tables()?;
        match self.figure.iter().find(|figure| !seen.contains(figure.row.as_str())) {
            Some(figure) => Err(format!("figure `{}`: there is no row `{}`", figure.title, figure.row)),
            None => Ok(()),
        }
    }

    fn check_judge(&self) -> std::result::Result<(), String> {
        let Some(id) = &self.experiment.judge else { return Ok(()) };
        match self.judge() {
            Some(row) if row.kind == RowKind::Relevance => Ok(()),
            _ => Err(format!("`experiment.judge` is `{id}`, but no row of kind `relevance` has that id")),
        }
    }

    /// Row whose model judges the evaluations.
    pub fn judge(&self) -> Option<&ExperimentRow> {
        self.row(self.experiment.judge.as_deref()?)
    }

    fn check_tables(&self) -> std::result::Result<(), String> {
        let mut metrics = names(self.experiment.depth).to_vec();
        metrics.extend(self.experiment.language.as_ref().map(|_| "perplexity".to_owned()));
        for table in &self.table {
            let title = &table.title;
            let is_compared = |row: &ExperimentRow| row.is_measured() && row.split.is_none() && row.depth.is_none();
            let measured = |id: &&String| self.row(id).is_some_and(is_compared);
            if let Some(id) = table.rows.iter().chain(&table.against).find(|id| !measured(id)) {
                return Err(format!(
                    "table `{title}`: row `{id}` does not exist, is not evaluated, or has a split or depth of its own"
                ));
            }
            let metric = |column: &String| column.split('/').next().unwrap_or_default().to_owned();
            if let Some(column) = table.columns.iter().find(|column| !metrics.contains(&metric(column))) {
                let all = metrics.join(", ");
                return Err(format!("table `{title}`: unknown column `{column}`; the metrics are {all}"));
            }
        }
        Ok(())
    }

    pub fn row(&self, id: &str) -> Option<&ExperimentRow> {
        self.row.iter().find(|row| row.id == id)
    }

    pub fn rows<'a>(&'a self, ids: Vec<&'a str>) -> impl Iterator<Item = &'a ExperimentRow> {
        ids.into_iter().filter_map(|id| self.row(id))
    }
}

fn is_id(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
}

impl ExperimentRow {
    /// Ids of the rows whose models or runs this row uses.
    pub fn needs<'a>(&'a self, plan: &'a ExperimentPlan) -> Vec<&'a str> {
        let mut ids = self.needs_models(plan);
        ids.extend(self.needs_runs());
        ids
    }

    pub fn needs_models<'a>(&'a self, plan: &'a ExperimentPlan) -> Vec<&'a str> {
        let from = self.from.as_deref().filter(|from| plan.row(from).is_some());
        // braces may also be an inline TOML table
        let named = self.placeholders().filter(|id| is_id(id));
        from.into_iter().chain(named).chain(self.rerank.as_ref().map(|rerank| rerank.by.as_str())).collect()
    }

    pub fn needs_runs(&self) -> Vec<&str> {
        self.placeholders().filter_map(|name| name.strip_suffix(".run")).filter(|id| is_id(id)).collect()
    }

    /// Texts between an opening brace and the next closing one.
    fn placeholders(&self) -> impl Iterator<Item = &str> {
        let parts = self.set.iter().chain(&self.rewriter).flat_map(|set| set.split('{').skip(1));
        parts.filter_map(|rest| rest.split_once('}')).map(|(name, _)| name)
    }

    pub fn is_measured(&self) -> bool {
        self.measure && self.kind != RowKind::Relevance
    }

    /// Whether the result depends on the seed.
    pub fn is_seeded(&self, plan: &ExperimentPlan) -> bool {
        match self.kind {
            RowKind::Lexical => plan.rows(self.needs(plan)).any(|row| row.is_seeded(plan)),
            RowKind::Model => self.base(plan).is_some_and(|row| row.is_seeded(plan)),
            RowKind::Init | RowKind::Train | RowKind::Relevance => true,
        }
    }

    /// Row of the base model.
    pub fn base<'a>(&self, plan: &'a ExperimentPlan) -> Option<&'a ExperimentRow> {
        plan.row(self.from.as_deref()?)
    }
}
