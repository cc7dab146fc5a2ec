//! Results of an experiment: takes finished runs, writes tables and figures as HTML, Markdown and JSON.

use std::fs;
use std::path::Path;

use souk::error::{Error, Result};
use souk::report::{Contender, EvaluationRun, ExperimentPage, GroupLog, ResultsTable, TrainingLog};

use super::paths::ExperimentPaths;
use super::plan::ExperimentPlan;

pub struct Results {
    title: String,
    description: String,
    pub tables: Vec<ResultsTable>,
    /// Title, training log and logged candidate groups.
    figures: Vec<(String, TrainingLog, GroupLog)>,
}

pub fn gather(plan: &ExperimentPlan, out: &Path) -> Result<Results> {
    let paths = ExperimentPaths::new(plan, out);
    let mut contenders = Vec::new();
    for row in plan.row.iter().filter(|row| row.is_measured()) {
        let seeds = if row.is_seeded(plan) { plan.experiment.seeds.as_slice() } else { &plan.experiment.seeds[..1] };
        let runs = seeds.iter().map(|seed| EvaluationRun::load(&paths.run(row, *seed))).collect::<Result<Vec<_>>>()?;
        contenders.push(Contender { id: row.id.clone(), name: row.name.clone(), runs });
    }
    let tables = plan.table.iter().map(|table| ResultsTable::of(table, &contenders)).collect::<Result<Vec<_>>>()?;
    let mut figures = Vec::new();
    for figure in &plan.figure {
        let row = plan.row(&figure.row).ok_or_else(|| Error::input(format!("no row `{}`", figure.row)))?;
        let model = paths.model(row, plan.experiment.seeds[0]);
        let log = TrainingLog::load(&model)?.unwrap_or_default();
        figures.push((figure.title.clone(), log, GroupLog::load(&model)?));
    }
    let description = match &plan.experiment.market {
        Some(market) => format!(
            "A simulated shop of {} items and {} queries (seed {}); split {}, seeds {:?}.",
            market.items, market.queries, market.seed, plan.experiment.split, plan.experiment.seeds
        ),
        None => {
            format!("{}, split {}, seeds {:?}.", paths.data().display(), plan.experiment.split, plan.experiment.seeds)
        }
    };
    Ok(Results { title: plan.experiment.title.clone(), description, tables, figures })
}

impl Results {
    /// Writes the three files and returns the Markdown.
    pub fn write(&self, out: &Path) -> Result<String> {
        let tables: Vec<String> = self.tables.iter().map(ResultsTable::markdown).collect();
        let markdown = format!("## {}\n\n{}\n\n{}", self.title, self.description, tables.join("\n"));
        let json = serde_json::json!({"title": self.title, "about": self.description, "tables": self.tables});
        let page = ExperimentPage {
            title: &self.title,
            about: &self.description,
            tables: &self.tables,
            figures: &self.figures,
        };
        let files =
            [("results.md", markdown.clone()), ("results.json", format!("{json:#}\n")), ("results.html", page.html())];
        for (name, text) in files {
            let file = out.join(name);
            fs::write(&file, text).map_err(Error::store(&file, "write it"))?;
        }
        Ok(markdown)
    }
}
