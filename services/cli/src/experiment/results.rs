//! What an experiment found: its tables and figures, as a page, as Markdown and as JSON.

use std::fs;
use std::path::Path;

use souk::error::{Error, Result};
use souk::report::{Contender, ExperimentPage, GroupLog, Run, Table, TrainingLog};

use super::jobs::Places;
use super::plan::{Kind, Plan};

pub struct Results {
    title: String,
    about: String,
    pub tables: Vec<Table>,
    /// Title, what training wrote down, and the groups it showed.
    figures: Vec<(String, TrainingLog, GroupLog)>,
}

pub fn gather(plan: &Plan, out: &Path) -> Result<Results> {
    let places = Places::new(plan, out);
    let mut contenders = Vec::new();
    for row in plan.row.iter().filter(|row| row.measure && row.kind != Kind::Relevance) {
        let seeds = if row.is_seeded(plan) { plan.experiment.seeds.as_slice() } else { &plan.experiment.seeds[..1] };
        let runs = seeds.iter().map(|seed| Run::load(&places.run(row, *seed))).collect::<Result<Vec<_>>>()?;
        contenders.push(Contender { id: row.id.clone(), name: row.name.clone(), runs });
    }
    let tables = plan.table.iter().map(|table| Table::of(table, &contenders)).collect::<Result<Vec<_>>>()?;
    let mut figures = Vec::new();
    for figure in &plan.figure {
        let row = plan.row(&figure.row).ok_or_else(|| Error::input(format!("no row `{}`", figure.row)))?;
        let model = places.model(row, plan.experiment.seeds[0]);
        let log = TrainingLog::load(&model)?.unwrap_or_default();
        figures.push((figure.title.clone(), log, GroupLog::load(&model)?));
    }
    let about = match &plan.experiment.market {
        Some(market) => format!(
            "A simulated shop of {} items and {} queries (seed {}); split {}, seeds {:?}.",
            market.items, market.queries, market.seed, plan.experiment.split, plan.experiment.seeds
        ),
        None => {
            format!("{}, split {}, seeds {:?}.", places.data().display(), plan.experiment.split, plan.experiment.seeds)
        }
    };
    Ok(Results { title: plan.experiment.title.clone(), about, tables, figures })
}

impl Results {
    /// Writes the three files; gives the Markdown.
    pub fn write(&self, out: &Path) -> Result<String> {
        let tables: Vec<String> = self.tables.iter().map(Table::markdown).collect();
        let markdown = format!("## {}\n\n{}\n\n{}", self.title, self.about, tables.join("\n"));
        let json = serde_json::json!({"title": self.title, "about": self.about, "tables": self.tables});
        let page =
            ExperimentPage { title: &self.title, about: &self.about, tables: &self.tables, figures: &self.figures };
        let files =
            [("results.md", markdown.clone()), ("results.json", format!("{json:#}\n")), ("results.html", page.html())];
        for (name, text) in files {
            let file = out.join(name);
            fs::write(&file, text).map_err(Error::store(&file, "write it"))?;
        }
        Ok(markdown)
    }
}
