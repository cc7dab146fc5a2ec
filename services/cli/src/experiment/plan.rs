//! The file of an experiment, read and checked: rows, what each of them begins with, and the tables made of them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use souk::error::{Error, Result};
use souk::report::{TableSettings, names};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    pub experiment: Settings,
    pub row: Vec<Row>,
    #[serde(default)]
    pub table: Vec<TableSettings>,
    #[serde(default)]
    pub figure: Vec<Figure>,
    /// Where the file lies: what it names is found from there.
    #[serde(skip)]
    pub folder: PathBuf,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    pub title: String,
    pub seeds: Vec<u64>,
    /// A data folder; or `market`, and it is written; or neither, and it is given with `--data`.
    pub data: Option<PathBuf>,
    pub market: Option<Market>,
    #[serde(default = "test")]
    pub split: String,
    /// Hits of each query; the first metric is the hitrate among them.
    pub depth: usize,
    /// A configuration whose objective is next_token: how well each model still writes is measured as well.
    pub language: Option<PathBuf>,
    /// A relevance row, whose model of the first seed gives the levels that the judgements lack, to all that is measured.
    pub judge: Option<String>,
}

fn test() -> String {
    "test".into()
}

/// A simulated shop, with the examples of its log.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Market {
    pub seed: u64,
    pub items: u64,
    pub queries: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The lexical channel.
    Lexical,
    /// A model that is there already: a folder's, or another row's, to be measured in another way.
    Model,
    /// A model from nothing.
    Init,
    /// A stage that begins with another row, or with a model's folder.
    Train,
    /// A relevance model, for other rows to be judged by.
    Relevance,
}

/// One line of a table, or what another line begins with.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    pub id: String,
    pub name: String,
    pub kind: Kind,
    /// A row's id, or a model's folder or hub name.
    pub from: Option<String>,
    /// A configuration file.
    pub config: Option<PathBuf>,
    /// As `--set`. `{ID}` stands for the folder of that row's model of the same seed.
    #[serde(default)]
    pub set: Vec<String>,
    /// As `--set`, where it is measured.
    #[serde(default)]
    pub measured: Vec<String>,
    /// Rewritten queries, for the lexical channel; `{data}` stands for the experiment's data folder.
    pub rewrites: Option<PathBuf>,
    /// Whether it is measured.
    #[serde(default = "yes")]
    pub measure: bool,
}

fn yes() -> bool {
    true
}

/// What a stage learned from, drawn: levels over its steps, and some queries' candidates.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    pub title: String,
    pub row: String,
}

impl Plan {
    pub fn load(file: &Path, sets: &[String], data: Option<&Path>) -> Result<Self> {
        if let Some(set) = sets.first() {
            let problem = format!("--set {set}: an experiment is what its file says: change the file, or a copy of it");
            return Err(Error::input(problem));
        }
        let mut plan: Self = souk::config::load_toml(file)?;
        plan.folder = file.parent().unwrap_or(Path::new("")).into();
        let settings = &mut plan.experiment;
        settings.data = match (data, settings.data.take()) {
            (Some(_), Some(_)) => return Err(Error::config("--data", format!("{} names a folder", file.display()))),
            (given, named) => given.map(PathBuf::from).or(named.map(|named| plan.folder.join(named))),
        };
        plan.check().map_err(|problem| Error::config(file.display(), problem))?;
        Ok(plan)
    }

    fn check(&self) -> std::result::Result<(), String> {
        let Settings { seeds, data, market, .. } = &self.experiment;
        if seeds.is_empty() {
            return Err("`experiment.seeds` names none: say one or more".into());
        }
        if data.is_some() == market.is_some() {
            return Err("say one of `experiment.data`, `experiment.market` and `--data DIR`".into());
        }
        let mut seen = BTreeSet::new();
        for row in &self.row {
            let id = &row.id;
            if !is_id(id) {
                return Err(format!("the id `{id}` is not of letters, digits, - and _"));
            }
            for other in row.needs(self) {
                if !seen.contains(other) {
                    return Err(format!("the row `{id}` needs `{other}`, which must stand before it"));
                }
            }
            if matches!(row.kind, Kind::Train | Kind::Init | Kind::Relevance) && row.config.is_none() {
                return Err(format!("the row `{id}` has no `config`"));
            }
            if matches!(row.kind, Kind::Train | Kind::Relevance | Kind::Model) != row.from.is_some() {
                return Err(format!(
                    "the row `{id}`: `from` is for a model and for rows that are trained, and they need it"
                ));
            }
            if row.rewrites.is_some() && row.kind != Kind::Lexical {
                return Err(format!("the row `{id}`: `rewrites` are for the lexical channel"));
            }
            if !seen.insert(id.as_str()) {
                return Err(format!("two rows have the id `{id}`"));
            }
        }
        self.check_judge()?;
        self.check_tables()?;
        match self.figure.iter().find(|figure| !seen.contains(figure.row.as_str())) {
            Some(figure) => {
                Err(format!("the figure `{}` is of the row `{}`, which is not there", figure.title, figure.row))
            }
            None => Ok(()),
        }
    }

    fn check_judge(&self) -> std::result::Result<(), String> {
        let Some(id) = &self.experiment.judge else { return Ok(()) };
        match self.judge() {
            Some(row) if row.kind == Kind::Relevance => Ok(()),
            _ => Err(format!("`experiment.judge` is `{id}`, and no row of the kind `relevance` has that id")),
        }
    }

    /// The row whose model judges what is measured.
    pub fn judge(&self) -> Option<&Row> {
        self.row(self.experiment.judge.as_deref()?)
    }

    fn check_tables(&self) -> std::result::Result<(), String> {
        let mut metrics = names(self.experiment.depth).to_vec();
        metrics.extend(self.experiment.language.as_ref().map(|_| "perplexity".to_owned()));
        for table in &self.table {
            let title = &table.title;
            let measured = |id: &&String| self.row(id).is_some_and(|row| row.measure && row.kind != Kind::Relevance);
            if let Some(id) = table.rows.iter().chain(&table.against).find(|id| !measured(id)) {
                return Err(format!("the table `{title}` names the row `{id}`, and no such row is measured"));
            }
            let metric = |column: &String| column.split('/').next().unwrap_or_default().to_owned();
            if let Some(column) = table.columns.iter().find(|column| !metrics.contains(&metric(column))) {
                let all = metrics.join(", ");
                return Err(format!("the table `{title}` has the column `{column}`, and the metrics are {all}"));
            }
        }
        Ok(())
    }

    pub fn row(&self, id: &str) -> Option<&Row> {
        self.row.iter().find(|row| row.id == id)
    }
}

fn is_id(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c))
}

impl Row {
    /// The ids of the rows whose models it uses.
    pub fn needs<'a>(&'a self, plan: &'a Plan) -> Vec<&'a str> {
        let from = self.from.as_deref().filter(|from| plan.row(from).is_some());
        let named = self.set.iter().flat_map(|set| set.split('{').skip(1).filter_map(|rest| rest.split_once('}')));
        // a table of TOML stands in braces, too
        from.into_iter().chain(named.map(|(id, _)| id).filter(|id| is_id(id))).collect()
    }

    /// Whether a seed makes a difference.
    pub fn is_seeded(&self, plan: &Plan) -> bool {
        match self.kind {
            Kind::Lexical => false,
            Kind::Model => self.other(plan).is_some_and(|row| row.is_seeded(plan)),
            Kind::Init | Kind::Train | Kind::Relevance => true,
        }
    }

    /// The row whose model it begins with.
    pub fn other<'a>(&self, plan: &'a Plan) -> Option<&'a Row> {
        plan.row(self.from.as_deref()?)
    }
}
