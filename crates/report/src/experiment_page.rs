//! Report of an experiment: its tables, how the relevance levels of retrieved items changed in training, and candidates of some
//! queries with their rewards. One self-contained HTML file.

use std::path::Path;

use serde::Deserialize;

use super::html::{bdi, document, escape};
use super::plots::{curve, levels};
use super::table::ResultsTable;
use super::training_log::TrainingLog;
use souk_io::beir::lines;
use souk_io::error::{Error, Result};

/// File in a stage's folder: one group of candidates per step.
const FILE: &str = "groups.jsonl";
/// Number of groups shown, spread over the stage.
const SHOWN: usize = 4;

/// Candidates of one query at one step, best first.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct LoggedGroup {
    pub step: u64,
    pub query: String,
    pub candidates: Vec<LoggedCandidate>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct LoggedCandidate {
    pub item: String,
    pub title: String,
    /// Probability under the policy.
    pub probability: f64,
    /// None if missing.
    pub reward: Option<f64>,
    pub level: Option<String>,
    pub advantage: f64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupLog(pub Vec<LoggedGroup>);

impl GroupLog {
    /// Loads a stage's log; empty if there is none.
    pub fn load(model: &Path) -> Result<Self> {
        let file = model.join(FILE);
        if !file.exists() {
            return Ok(Self::default());
        }
        let mut groups = Vec::new();
        for line in lines(&file)? {
            let (number, line) = line?;
            let problem = "not a group of candidates";
            groups
                .push(serde_json::from_slice(&line).map_err(|e| Error::data(&file, Some(number), problem).because(e))?);
        }
        Ok(Self(groups))
    }

    /// Evenly spaced groups, including the first and the last.
    fn some(&self) -> impl Iterator<Item = &LoggedGroup> {
        let (num, shown) = (self.0.len(), self.0.len().min(SHOWN));
        (0..shown).map(move |at| &self.0[if shown > 1 { at * (num - 1) / (shown - 1) } else { 0 }])
    }
}

pub struct ExperimentPage<'a> {
    pub title: &'a str,
    pub about: &'a str,
    pub tables: &'a [ResultsTable],
    /// Title, training log, and logged groups.
    pub figures: &'a [(String, TrainingLog, GroupLog)],
}

impl ExperimentPage<'_> {
    pub fn html(&self) -> String {
        let mut sections: Vec<(String, &str, String)> = Vec::new();
        for (at, table) in self.tables.iter().enumerate() {
            sections.push((format!("table-{}", at + 1), &table.title, table.html()));
        }
        for (at, (title, log, groups)) in self.figures.iter().enumerate() {
            sections.push((format!("figure-{}", at + 1), title, figure(log, groups)));
        }
        document(self.title, &bdi(self.title), &format!("<p>{}</p>\n", escape(self.about)), &sections)
    }
}

fn figure(log: &TrainingLog, groups: &GroupLog) -> String {
    let mut html = String::from("<div class=\"figures\">\n");
    html += &levels("Levels of what was retrieved, over the stage", &log.levels);
    for (name, points) in [("Reward", &log.reward), ("KL from the reference", &log.kl), ("Entropy", &log.entropy)] {
        html += &curve(name, points);
    }
    html += "</div>\n";
    groups.some().for_each(|group| html += &table_of(group));
    html
}

fn table_of(group: &LoggedGroup) -> String {
    let mut rows = String::new();
    for candidate in &group.candidates {
        let level = candidate.level.as_deref().unwrap_or("missing");
        let reward = candidate.reward.map_or("–".into(), |reward| format!("{reward:.2}"));
        rows += &format!(
            "<tr><td class=\"level {}\">{level}</td><td>{reward}</td><td>{:+.2}</td><td>{:.1} %</td><td class=\"text\">{}</td></tr>\n",
            level.to_lowercase(),
            candidate.advantage,
            100.0 * candidate.probability,
            bdi(&candidate.title)
        );
    }
    format!(
        "<details open><summary>Step {}: {}</summary>\n<div class=\"scroll\"><table><thead><tr><th scope=\"col\">Level</th>\
         <th scope=\"col\">Reward</th><th scope=\"col\">Advantage</th><th scope=\"col\">Probability</th><th scope=\"col\" class=\"text\">Item</th>\
         </tr></thead>\n<tbody>\n{rows}</tbody></table></div></details>\n",
        group.step,
        bdi(&group.query)
    )
}
