//! Where an experiment keeps its files. Takes a plan and a folder, gives paths.

use std::path::{Path, PathBuf};

use super::plan::{ExperimentPlan, ExperimentRow, RowKind};

/// Paths of an experiment's files.
pub struct ExperimentPaths<'a> {
    plan: &'a ExperimentPlan,
    pub out: &'a Path,
}

impl<'a> ExperimentPaths<'a> {
    pub fn new(plan: &'a ExperimentPlan, out: &'a Path) -> Self {
        Self { plan, out }
    }

    pub fn data(&self) -> PathBuf {
        match &self.plan.experiment.data {
            Some(data) => data.clone(),
            None => self.out.join("shop"),
        }
    }

    pub fn home(&self, row: &ExperimentRow, seed: u64) -> PathBuf {
        let seed = if row.is_seeded(self.plan) { format!("seed-{seed}") } else { "all".into() };
        self.out.join(&row.id).join(seed)
    }

    pub fn model(&self, row: &ExperimentRow, seed: u64) -> PathBuf {
        match (&row.from, row.base(self.plan)) {
            (Some(_), Some(base)) if row.kind == RowKind::Model => self.model(base, seed),
            (Some(from), None) if row.kind == RowKind::Model => from.into(),
            _ => self.home(row, seed).join("model"),
        }
    }

    /// The file that marks a fit as done.
    pub fn fitted(&self, row: &ExperimentRow, seed: u64) -> PathBuf {
        self.home(row, seed).join("fitted")
    }

    /// The queries in a language model's words.
    pub fn rewrites(&self, row: &ExperimentRow, seed: u64) -> PathBuf {
        self.home(row, seed).join("rewrites.jsonl")
    }

    /// A value of a row, with the paths of other rows' models and runs put in.
    pub fn expanded(&self, row: &ExperimentRow, seed: u64, value: &str) -> String {
        let mut value = value.to_owned();
        for row in self.plan.rows(row.needs(self.plan)) {
            value = value.replace(&format!("{{{}}}", row.id), &text(&self.model(row, seed)));
            value = value.replace(&format!("{{{}.run}}", row.id), &text(&self.run(row, seed)));
        }
        value
    }

    pub fn run(&self, row: &ExperimentRow, seed: u64) -> PathBuf {
        self.home(row, seed).join("run")
    }

    /// Vectors of the catalogue, until all is measured.
    pub fn vectors(&self) -> PathBuf {
        self.out.join("vectors")
    }

    /// Relevance model that judges the evaluations. One for all seeds, so that results stay comparable.
    pub fn judge(&self) -> Option<PathBuf> {
        Some(self.model(self.plan.judge()?, self.plan.experiment.seeds[0]))
    }
}

/// A path as an argument.
pub fn text(path: &Path) -> String {
    path.display().to_string()
}
