//! Result tables of an experiment: engines as rows, metrics (of slices) as columns, several seeds per engine. Cells have
//! intervals and paired differences; output is Markdown, HTML and JSON. A query's value is its mean over seeds, so intervals
//! and tests are over queries; the spread over seeds is shown beside them.

use serde::{Deserialize, Serialize};

use super::compare::check;
use super::html::{bdi, escape};
use super::metrics::names;
use super::run::{EvaluationRun, OVERALL, SEED};
use super::significance::{Interval, PairedTest, bootstrap, holm, paired};
use souk_io::error::{Error, Result};

/// Engine, with one run per seed.
pub struct Contender {
    pub id: String,
    pub name: String,
    pub runs: Vec<EvaluationRun>,
}

/// Table settings.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableSettings {
    pub title: String,
    /// Row ids.
    pub rows: Vec<String>,
    /// `METRIC` for all queries, `METRIC/SLICE`, or `perplexity`.
    pub columns: Vec<String>,
    /// Baseline row that the others are compared with.
    #[serde(default)]
    pub against: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct ResultsTable {
    pub title: String,
    pub against: Option<String>,
    pub columns: Vec<String>,
    pub rows: Vec<TableRow>,
    /// Number of tests corrected for.
    pub num_tests: usize,
}

#[derive(Clone, Debug, Serialize)]
pub struct TableRow {
    pub name: String,
    pub num_seeds: usize,
    pub cells: Vec<Cell>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Cell {
    pub mean: Option<f64>,
    /// 95 % interval over queries.
    pub interval: Option<Interval>,
    /// Standard deviation of the seeds' means.
    pub std_over_seeds: Option<f64>,
    /// Difference from the baseline row.
    pub difference: Option<PairedTest>,
    /// Larger of the two tests' p-values, corrected for all tests of the table.
    pub p: Option<f64>,
}

impl ResultsTable {
    pub fn of(settings: &TableSettings, contenders: &[Contender]) -> Result<Self> {
        let wrong = |problem: String| Error::config(format!("table `{}`", settings.title), problem);
        let find = |id: &String| {
            let found = contenders.iter().find(|contender| contender.id == *id && !contender.runs.is_empty());
            found.ok_or_else(|| wrong(format!("names the row `{id}`, which is not among the measured rows")))
        };
        let rows = settings.rows.iter().map(find).collect::<Result<Vec<_>>>()?;
        let against = settings.against.as_ref().map(find).transpose()?;
        let mut table = Self {
            title: settings.title.clone(),
            against: against.map(|contender| contender.name.clone()),
            columns: settings.columns.clone(),
            rows: Vec::with_capacity(rows.len()),
            num_tests: 0,
        };
        for contender in rows {
            let other = against.filter(|other| other.id != contender.id);
            let cell = |column: &String| cell(contender, other, column).map_err(|e| wrong(format!("{column}: {e}")));
            let cells = settings.columns.iter().map(cell).collect::<Result<Vec<_>>>()?;
            table.rows.push(TableRow { name: contender.name.clone(), num_seeds: contender.runs.len(), cells });
        }
        table.correct();
        Ok(table)
    }

    fn correct(&mut self) {
        let cells = || self.rows.iter().flat_map(|row| &row.cells).filter_map(|cell| cell.difference.as_ref());
        let probabilities = holm(&cells().map(|paired| paired.p_t.max(paired.p_randomised)).collect::<Vec<_>>());
        self.num_tests = probabilities.len();
        let cells = self.rows.iter_mut().flat_map(|row| &mut row.cells).filter(|cell| cell.difference.is_some());
        cells.zip(probabilities).for_each(|(cell, p)| cell.p = Some(p));
    }

    fn note(&self) -> String {
        let seeds = self.rows.iter().map(|row| row.num_seeds).max().unwrap_or(1);
        let means = if seeds == 1 { "One seed".to_owned() } else { format!("Means over {seeds} seeds") };
        let of_seeds = format!("{means}, 95 % intervals over queries.");
        match &self.against {
            Some(name) => format!(
                "{of_seeds} Below, the difference to {name}; * where both paired tests find it below 0.05 after Holm's \
                 correction for the {} tests of this table.",
                self.num_tests
            ),
            None => of_seeds,
        }
    }

    pub fn markdown(&self) -> String {
        let mut text = format!("### {}\n\n| | {} |\n|---|", self.title, self.columns.join(" | "));
        text += &"---|".repeat(self.columns.len());
        text += "\n";
        for row in &self.rows {
            let cells: Vec<String> = row.cells.iter().map(|cell| cell.said("<br>")).collect();
            text += &format!("| {} | {} |\n", row.name, cells.join(" | "));
        }
        format!("{text}\n{}\n", self.note())
    }

    pub fn html(&self) -> String {
        let head: String = self.columns.iter().map(|name| format!("<th scope=\"col\">{}</th>", escape(name))).collect();
        let mut rows = String::new();
        for row in &self.rows {
            let cells: String = row.cells.iter().map(|cell| format!("<td>{}</td>", cell.said("<br>"))).collect();
            rows += &format!("<tr><th scope=\"row\">{}</th>{cells}</tr>\n", bdi(&row.name));
        }
        format!(
            "<div class=\"scroll\"><table><caption>{}</caption>\n<thead><tr><th scope=\"col\">Model</th>{head}</tr></thead>\n\
             <tbody>\n{rows}</tbody></table></div>\n",
            escape(&self.note())
        )
    }
}

impl Cell {
    /// True if both tests are significant after correction.
    pub fn is_significant(&self) -> bool {
        self.p.is_some_and(|p| p < 0.05)
    }

    fn said(&self, newline: &str) -> String {
        let Some(mean) = self.mean else { return "–".into() };
        let mut text = format!("{mean:.2}");
        if let Some([low, high]) = self.interval {
            text += &format!(" [{low:.1}, {high:.1}]");
        }
        if let Some(std) = self.std_over_seeds {
            text += &format!(" ±{std:.2}");
        }
        if let Some(paired) = &self.difference {
            let [low, high] = paired.interval;
            let star = if self.is_significant() { " *" } else { "" };
            text += &format!("{newline}{:+.2} [{low:+.2}, {high:+.2}]{star}", paired.difference);
        }
        text
    }
}

/// Cell for a number of the model, which has no per-query values.
const PERPLEXITY: &str = "perplexity";

fn cell(contender: &Contender, against: Option<&Contender>, column: &str) -> Result<Cell> {
    if column == PERPLEXITY {
        let found: Vec<f64> = contender.runs.iter().filter_map(|run| run.metrics.perplexity).collect();
        let std_over_seeds = (found.len() > 1).then(|| deviation(&found));
        let mean = mean(&found.into_iter().map(Some).collect::<Vec<_>>());
        return Ok(Cell { mean, std_over_seeds, ..Cell::default() });
    }
    let own = Column::of(contender, column)?;
    let mean = mean(&own.values);
    let interval = bootstrap(std::slice::from_ref(&own.values), SEED).pop().flatten();
    let mut cell = Cell { mean, interval, std_over_seeds: own.std, ..Cell::default() };
    if let Some(other) = against {
        check(&other.runs[0], &contender.runs[0])?;
        cell.difference = paired(&Column::of(other, column)?.values, &own.values, SEED);
    }
    Ok(cell)
}

/// Values per query of a metric on a slice, averaged over seeds.
struct Column {
    values: Vec<Option<f64>>,
    std: Option<f64>,
}

impl Column {
    fn of(contender: &Contender, column: &str) -> Result<Self> {
        let (metric, slice) = column.split_once('/').unwrap_or((column, OVERALL));
        let first = &contender.runs[0];
        let all = names(first.metrics.asked.depth);
        let unknown = || Error::input(format!("no metric `{metric}`: use one of {}", all.join(", ")));
        let metric = all.iter().position(|name| name == metric).ok_or_else(unknown)?;
        let mut columns = Vec::with_capacity(contender.runs.len());
        for run in &contender.runs {
            check(first, run)?;
            let slices = run.slices();
            let named = slices.iter().find(|found| found.name == slice);
            let named = named.ok_or_else(|| Error::input(format!("the queries have no slice `{slice}`")))?;
            columns.push(run.column(named, metric));
        }
        let over_seeds = |at: usize| mean(&columns.iter().map(|column| column[at]).collect::<Vec<_>>());
        let values = (0..columns[0].len()).map(over_seeds).collect();
        let means: Vec<f64> = columns.iter().filter_map(|column| mean(column)).collect();
        Ok(Self { values, std: (means.len() > 1).then(|| deviation(&means)) })
    }
}

fn mean(values: &[Option<f64>]) -> Option<f64> {
    let known: Vec<f64> = values.iter().copied().flatten().collect();
    (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
}

/// Standard deviation of a sample.
fn deviation(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (squares / (values.len() - 1) as f64).sqrt()
}
