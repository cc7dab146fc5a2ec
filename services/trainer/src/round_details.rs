//! Bodies of `/rounds` and `/rounds/N`: what a round learned, and how its gate decided. Read from the files that the round left.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use souk::judgements::UnclickedQuery;
use souk::report::{ComparisonRow, GateVerdict, Interval, QueryChanges};
use souk::{Error, Result};

use crate::measure::{CHANGES, GATE};
use crate::newest_days::UNCLICKED;
use crate::rounds::{Round, RoundOutcome, find, newest, place_of};

/// Rounds that are listed.
const LISTED: usize = 200;

#[derive(Serialize)]
pub struct RoundList {
    /// Newest first.
    pub rounds: Vec<RoundSummary>,
}

/// A round. Times are seconds since 1970.
#[derive(Serialize)]
pub struct RoundSummary {
    pub number: u64,
    pub began_at: i64,
    /// None while it runs.
    pub ended_at: Option<i64>,
    /// The served version that it started from.
    pub parent: Option<String>,
    pub version: Option<String>,
    pub passed: Option<bool>,
    /// Why it did not pass.
    pub reasons: Vec<String>,
    pub stages: Vec<StageSummary>,
}

#[derive(Serialize)]
pub struct StageSummary {
    pub stage: String,
    /// Why it was due.
    pub why: String,
    /// New examples.
    pub fresh: u64,
}

#[derive(Serialize)]
pub struct RoundDetails {
    #[serde(flatten)]
    pub round: RoundSummary,
    /// Empty before the gate has decided.
    pub splits: Vec<SplitDetails>,
    /// Queries without clicks; none if the gate's judgements are not from the log.
    pub unclicked: Option<Vec<UnclickedQuery>>,
}

/// The gate's decision on one split.
#[derive(Serialize)]
pub struct SplitDetails {
    pub split: String,
    pub passed: bool,
    pub reasons: Vec<String>,
    pub drift: Option<f64>,
    pub rows: Vec<GateRow>,
    /// None in rounds of a Souk that did not write them.
    pub changes: Option<QueryChanges>,
}

#[derive(Serialize)]
pub struct GateRow {
    pub slice: String,
    pub num_queries: usize,
    pub metric: String,
    pub served: Option<f64>,
    pub candidate: Option<f64>,
    pub difference: Option<f64>,
    pub interval: Option<Interval>,
    pub significant: bool,
}

/// The newest rounds of a trainer's state folder.
pub fn list(state: &Path) -> Result<RoundList> {
    let rounds = newest(state, LISTED)?;
    Ok(RoundList { rounds: rounds.into_iter().map(|(round, ended)| summary(round, ended)).collect() })
}

pub fn details(state: &Path, number: u64) -> Result<Option<RoundDetails>> {
    let Some((round, ended)) = find(state, number)? else { return Ok(None) };
    let place = place_of(state, number);
    let verdicts: BTreeMap<String, GateVerdict> = read(&place.join(GATE))?.unwrap_or_default();
    let mut changes: BTreeMap<String, QueryChanges> = read(&place.join(CHANGES))?.unwrap_or_default();
    let splits = verdicts.into_iter().map(|(split, verdict)| SplitDetails {
        changes: changes.remove(&split),
        passed: verdict.passed,
        reasons: verdict.reasons,
        drift: verdict.drift,
        rows: verdict.rows.into_iter().map(row).collect(),
        split,
    });
    let splits = splits.collect();
    Ok(Some(RoundDetails { round: summary(round, ended), splits, unclicked: read(&place.join(UNCLICKED))? }))
}

fn summary(round: Round, ended: Option<RoundOutcome>) -> RoundSummary {
    let stages = round.stages.into_iter();
    RoundSummary {
        number: round.number,
        began_at: round.began_at,
        ended_at: ended.as_ref().map(|ended| ended.ended_at),
        parent: round.parent,
        version: ended.as_ref().and_then(|ended| ended.version.clone()),
        passed: ended.as_ref().map(|ended| ended.passed),
        reasons: ended.map(|ended| ended.reasons).unwrap_or_default(),
        stages: stages.map(|span| StageSummary { stage: span.stage, why: span.why, fresh: span.fresh }).collect(),
    }
}

fn row(row: ComparisonRow) -> GateRow {
    GateRow {
        significant: row.is_significant(),
        slice: row.slice,
        num_queries: row.num_queries,
        metric: row.metric,
        served: row.reference,
        candidate: row.other,
        difference: row.paired.map(|paired| paired.difference),
        interval: row.paired.map(|paired| paired.interval),
    }
}

/// Content of a file, if there is one.
fn read<T: DeserializeOwned>(file: &Path) -> Result<Option<T>> {
    if !file.exists() {
        return Ok(None);
    }
    let text = fs::read(file).map_err(Error::store(file, "read it"))?;
    let broken = |e| Error::data(file, None, "was not written by this version of Souk: remove it").because(e);
    serde_json::from_slice(&text).map(Some).map_err(broken)
}
