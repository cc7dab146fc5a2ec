//! `souk doctor` for training: the stages, the judge of each stage that learns from one, and the judgements that the gate
//! measures candidates with.

use std::fs;
use std::sync::Arc;

use anyhow::Context;
use souk::beir::DataFolder;
use souk::config::Config;
use souk::domain::Item;
use souk::item_text::ItemText;
use souk::objective::Candidates;
use souk::report::{GateSettings, GateSource, Task};
use souk::reward::{Question, RewardSource};

/// Part and outcome of a check.
type Check = (String, anyhow::Result<String>);

pub fn checks(config: &Config, data: &DataFolder) -> Vec<Check> {
    let mut checks = judges(config, data);
    if !config.trainer.stage.is_empty() {
        checks.extend(gate(&config.trainer.gate, data).map(|outcome| ("judgements".into(), outcome)));
        checks.push(("trainer".into(), stages(config)));
    }
    checks
}

/// The judges of all stages that need one, and the configured judge if none of them is the same.
fn judges(config: &Config, data: &DataFolder) -> Vec<Check> {
    let mut opened = Vec::new();
    let mut checks = Vec::new();
    for stage in &config.trainer.stage {
        // a stage that cannot be read fails the check of the stages
        let Ok(own) = config.of_stage(stage, config.model.path.as_deref().unwrap_or_default()) else { continue };
        if own.objective.needs().candidates == Candidates::None || opened.contains(&own.judge) {
            continue;
        }
        let outcome = judge(&own, data)
            .with_context(|| format!("the stage `{}` learns from a judge, and has none that works", stage.name));
        checks.push((format!("judge of {}", stage.name), outcome));
        opened.push(own.judge);
    }
    if config.judge.is_some() && !opened.contains(&config.judge) {
        checks.push(("judge".into(), judge(config, data)));
    }
    checks
}

fn judge(config: &Config, data: &DataFolder) -> anyhow::Result<String> {
    // a model that cannot be opened fails a check of its own
    let item_text = config.open_reader().map_or_else(|_| config.item_text(), |reader| reader.item_text().clone());
    let judge: Arc<dyn RewardSource> = config.open_judge(data, &item_text)?;
    let query = data.queries()?.next().context("queries.jsonl is empty: add a query to test the judge")??;
    let item: Item = data.items()?.next().context("corpus.jsonl is empty: add an item to test the judge")??.1;
    let question =
        Question { query_id: &query.id, query: &query.text, item_id: &item.id, item: &item_text.render(&item) };
    let verdicts = judge.judge(&[question])?;
    match (verdicts.first().copied().flatten(), judge.trouble()) {
        (Some(verdict), _) => Ok(format!("{}: works ({:?} for the first pair)", judge.id(), verdict.level)),
        (None, Some(trouble)) => anyhow::bail!("{}: {trouble}", judge.id()),
        (None, None) => Ok(format!("{}: works (no judgement for the first query and item)", judge.id())),
    }
}

/// The judgements that candidates are measured with.
fn gate(gate: &GateSettings, data: &DataFolder) -> impl Iterator<Item = anyhow::Result<String>> {
    let of_log = gate.source == GateSource::Log;
    let newest = of_log.then(|| Ok(format!("from the newest days of the log in each round ({})", gate.days)));
    let splits = gate.splits.iter().filter(move |split| !of_log || data.qrels(split).exists());
    newest.into_iter().chain(splits.map(|split| judgements(data, split)))
}

/// Loads the judgements as the gate does.
fn judgements(data: &DataFolder, split: &str) -> anyhow::Result<String> {
    let file = data.qrels(split);
    if !file.exists() {
        let file = file.display();
        let others = match splits(data) {
            splits if splits.is_empty() => "there is no other split".into(),
            splits => format!("the folder has {}", splits.join(", ")),
        };
        anyhow::bail!(
            "{file} does not exist, and the gate measures every candidate with it: derive judgements from the log with \
             `souk judgements`, write your raters' (query-id, corpus-id and a level from 1 to 4, separated by tabs), \
             name another split in trainer.gate.splits ({others}), or set trainer.gate.source = \"log\""
        );
    }
    let task = Task::load(data, split, &ItemText::default())?;
    let num: usize = task.queries.iter().map(|query| query.judged.len()).sum();
    Ok(format!("{}: {num} judgements of {} queries", file.display(), task.queries.len()))
}

fn splits(data: &DataFolder) -> Vec<String> {
    let files = fs::read_dir(data.path().join("qrels")).into_iter().flatten().flatten();
    let name = |file: fs::DirEntry| Some(file.file_name().to_str()?.strip_suffix(".tsv")?.to_owned());
    let mut splits: Vec<String> = files.filter_map(name).collect();
    splits.sort();
    splits
}

fn stages(config: &Config) -> anyhow::Result<String> {
    souk_trainer::check_stages(config)?;
    let names: Vec<&str> = config.trainer.stage.iter().map(|stage| stage.name.as_str()).collect();
    Ok(format!("stages {}", names.join(", ")))
}
