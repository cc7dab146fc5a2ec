//! Arguments of the commands that train, fit, rewrite for and evaluate a row.

use super::paths::{ExperimentPaths, text};
use super::plan::{ExperimentPlan, ExperimentRow, RowChannel, RowKind};

/// Arguments of the command that makes a row's model.
pub fn train_args(plan: &ExperimentPlan, paths: &ExperimentPaths, row: &ExperimentRow, seed: u64) -> Vec<String> {
    let (command, seed_key): (&[&str], &str) = match row.kind {
        RowKind::Init => (&["init"], "scratch.seed"),
        RowKind::Relevance => (&["relevance", "train"], "relevance.seed"),
        RowKind::Train | RowKind::Lexical | RowKind::Model => (&["train"], "train.seed"),
    };
    let mut args: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
    if let Some(config) = &row.config {
        args.extend(["--config".into(), text(&plan.folder.join(config))]);
    }
    args.extend(["--data".into(), text(&paths.data()), "--out".into(), text(&paths.model(row, seed))]);
    let mut set = |set: String| args.extend(["--set".into(), set]);
    if let Some(from) = &row.from {
        let from = plan.row(from).map_or(from.clone(), |row| text(&paths.model(row, seed)));
        set(format!("model.path={from}"));
    }
    // first, so that a row may override it
    set(format!("{seed_key}={seed}"));
    for value in &row.set {
        set(paths.expanded(row, seed, value));
    }
    if row.kind == RowKind::Train {
        args.push("--resume".into());
    }
    args
}

/// Arguments of the command that fits hybrid search and the reranker's weight.
pub fn fit_args(plan: &ExperimentPlan, paths: &ExperimentPaths, row: &ExperimentRow, seed: u64) -> Option<Vec<String>> {
    let fit = row.fit.as_ref()?;
    let mut args = vec!["fit-fusion".into(), "--model".into(), text(&paths.model(row, seed))];
    args.extend(["--data".into(), text(&paths.data()), "--split".into(), fit.split.clone()]);
    args.extend(["--set".into(), format!("train.held_out={}", fit.held_out)]);
    if let Some((rerank, by)) = row.rerank.as_ref().and_then(|rerank| Some((rerank, plan.row(&rerank.by)?))) {
        args.extend(["--reranker".into(), text(&paths.model(by, seed)), "--depth".into(), rerank.depth.to_string()]);
    }
    if fit.as_judge {
        args.push("--as-judge".into());
    }
    args.extend(row.measured.iter().flat_map(|set| ["--set".to_owned(), set.clone()]));
    Some(args)
}

/// Arguments of the command that rewrites the queries for BM25.
pub fn rewrite_args(plan: &ExperimentPlan, paths: &ExperimentPaths, row: &ExperimentRow, seed: u64) -> Vec<String> {
    let mut args = vec!["rewrite".to_owned(), "--data".into(), text(&paths.data()), "--split".into()];
    args.push(row.split.as_ref().unwrap_or(&plan.experiment.split).clone());
    args.extend(["--out".into(), text(&paths.rewrites(row, seed))]);
    args.extend(row.rewriter.iter().map(|value| paths.expanded(row, seed, value)));
    args
}

/// Arguments of the command that evaluates a row.
pub fn evaluate_args(plan: &ExperimentPlan, paths: &ExperimentPaths, row: &ExperimentRow, seed: u64) -> Vec<String> {
    let settings = &plan.experiment;
    let mut args = vec!["evaluate".to_owned()];
    match row.kind {
        RowKind::Lexical => args.extend(["--channel".into(), "lexical".into()]),
        _ => args.extend(["--model".into(), text(&paths.model(row, seed))]),
    }
    if row.channel == RowChannel::Hybrid {
        args.extend(["--channel".into(), "hybrid".into()]);
    }
    if let Some((rerank, by)) = row.rerank.as_ref().and_then(|rerank| Some((rerank, plan.row(&rerank.by)?))) {
        args.extend(["--rerank".into(), rerank.depth.to_string()]);
        if row.fit.is_none() {
            args.extend(["--reranker".into(), text(&paths.model(by, seed))]);
        }
    }
    if let Some(rewrites) = &row.rewrites {
        let file = match rewrites.strip_prefix("{data}") {
            Ok(name) => paths.data().join(name),
            Err(_) => plan.folder.join(rewrites),
        };
        args.extend(["--rewrites".into(), text(&file)]);
    }
    if !row.rewriter.is_empty() {
        args.extend(["--rewrites".into(), text(&paths.rewrites(row, seed))]);
    }
    args.extend(["--data".into(), text(&paths.data()), "--split".into()]);
    args.push(row.split.as_ref().unwrap_or(&settings.split).clone());
    args.extend(["--depth".into(), row.depth.unwrap_or(settings.depth).to_string(), "--name".into(), row.name.clone()]);
    if let Some(judge) = paths.judge() {
        args.extend([
            "--set".into(),
            "judge.type=model".into(),
            "--set".into(),
            format!("judge.path={}", text(&judge)),
        ]);
    }
    if let Some(language) = settings.language.as_ref().filter(|_| row.kind != RowKind::Lexical) {
        args.extend(["--language".into(), text(&plan.folder.join(language))]);
    }
    args.extend(row.measured.iter().flat_map(|set| ["--set".to_owned(), set.clone()]));
    args.extend(["--out".into(), text(&paths.run(row, seed))]);
    args
}
