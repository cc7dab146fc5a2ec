//! Writes judgements from the log into a data folder: `queries.jsonl` gains the log's queries, `qrels/` the splits, `slices.tsv` the
//! slices of queries that have none, and `judgements.json` says what the splits are. Judgements from elsewhere stay untouched.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde::Serialize;
use serde_json::{Value, json};

use super::grade::{Graded, Grades};
use super::period::{Period, Periods};
use super::position_bias::PositionBias;
use super::searches::{LogCounts, SearchLog};
use super::{JudgementSettings, JudgementSource};
use souk_io::atomic_dir::fsync;
use souk_io::catalogue::Catalogue;
use souk_io::domain::{Level, Query, normalized_query};
use souk_io::error::{Error, Result};
use souk_io::held_out::{HeldOut, HeldOutSplit};
use souk_io::time;

const KIND: &str = "implicit judgements from the search log";

/// Everything that is written.
pub struct Derived {
    pub catalogue: Catalogue,
    pub log: SearchLog,
    pub periods: Periods,
    pub bias: PositionBias,
    pub grades: Grades,
    pub slices: Vec<&'static str>,
}

/// Summary of the written judgements.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JudgementReport {
    pub held_out_from: String,
    pub held_out_to: String,
    pub splits: BTreeMap<String, SplitReport>,
    /// Queries of the held-out splits by slice.
    pub slices: BTreeMap<String, u64>,
    pub position_bias: PositionBias,
    pub counts: LogCounts,
    pub has_impressions: bool,
}

/// Size of one split.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SplitReport {
    pub from: String,
    pub to: String,
    pub queries: u64,
    /// Judged pairs of the levels L1 to L4.
    pub levels: [u64; 4],
}

pub fn write(source: &JudgementSource<'_>, settings: &JudgementSettings, derived: &Derived) -> Result<JudgementReport> {
    let data = source.data;
    let known = HeldOut::load(data)?;
    let is_judged = |period: Period| derived.grades.graded.iter().any(|of| of.period == period);
    let named = |period: Period| source.splits.name(period).filter(|_| is_judged(period)).map(|name| (period, name));
    let splits: Vec<(Period, String)> = Period::ALL.into_iter().filter_map(named).collect();
    if splits.is_empty() {
        let problem = format!("{}: nothing was shown or chosen in the newest part of the log", source.name);
        return Err(Error::input(problem));
    }
    for (_, split) in &splits {
        let file = data.qrels(split);
        if file.exists() && !known.as_ref().is_some_and(|known| known.splits.contains_key(split)) {
            let problem = "holds judgements that are not from the log: give --prefix log-, and the splits are named `log-dev` and so on";
            return Err(Error::config(file.display(), problem));
        }
    }
    let report = report(derived, &splits);
    let mut held_out: BTreeMap<String, HeldOutSplit> = known.map(|known| known.splits).unwrap_or_default();
    for (period, name) in &splits {
        let SplitReport { from, to, .. } = report.splits[name].clone();
        held_out.insert(name.clone(), HeldOutSplit { from, to, held_out: *period != Period::Train });
    }
    let details = json!({
        "settings": settings, "strength": source.strength, "log": source.name, "counts": report.counts,
        "position_bias": report.position_bias, "written": report.splits, "slices": report.slices,
    });
    let Value::Object(details) = details else { unreachable!("an object literal") };
    let held_out = HeldOut { kind: KIND.into(), splits: held_out, details };
    // first: were this stopped halfway, the splits are known to be ours when it runs again
    held_out.save(data)?;
    let written: Vec<Period> = splits.iter().map(|(period, _)| *period).collect();
    let ids = write_queries(source, derived, &written)?;
    for (period, name) in &splits {
        write_qrels(&data.qrels(name), derived, *period, &ids)?;
    }
    write_slices(source, derived, &ids)?;
    Ok(report)
}

fn report(derived: &Derived, splits: &[(Period, String)]) -> JudgementReport {
    let (mut reports, mut slices) = (BTreeMap::new(), BTreeMap::<String, u64>::new());
    let mut counted = HashSet::new();
    for (period, name) in splits {
        let (from, to) = derived.periods.span(*period);
        let mut split = SplitReport { from: time::format(from), to: time::format(to), ..SplitReport::default() };
        let mut queries = HashSet::new();
        for graded in derived.grades.graded.iter().filter(|graded| graded.period == *period) {
            split.levels[usize::from(graded.level.number()) - 1] += 1;
            queries.insert(graded.query);
            if *period != Period::Train && counted.insert(graded.query) {
                *slices.entry(derived.slices[graded.query as usize].to_owned()).or_default() += 1;
            }
        }
        split.queries = queries.len() as u64;
        reports.insert(name.clone(), split);
    }
    JudgementReport {
        held_out_from: time::format(derived.periods.dev),
        held_out_to: time::format(derived.periods.end()),
        splits: reports,
        slices,
        position_bias: derived.bias.clone(),
        counts: derived.log.counts.clone(),
        has_impressions: derived.log.has_impressions,
    }
}

/// Adds the judged queries of the written splits that `queries.jsonl` lacks. Returns the identifier of each, by its index.
fn write_queries(source: &JudgementSource<'_>, derived: &Derived, written: &[Period]) -> Result<HashMap<u32, String>> {
    let file = source.data.queries_file();
    let (mut known, mut taken) = (HashMap::new(), HashSet::new());
    if file.exists() {
        for query in source.data.queries()? {
            let query = query?;
            taken.insert(query.id.clone());
            known.entry(normalized_query(&query.text)).or_insert(query.id);
        }
    }
    let mut text =
        if file.exists() { fs::read_to_string(&file).map_err(Error::store(&file, "read it"))? } else { String::new() };
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    let (mut ids, mut next) = (HashMap::new(), taken.len());
    for Graded { query, period, .. } in &derived.grades.graded {
        if ids.contains_key(query) || !written.contains(period) {
            continue;
        }
        let words = &derived.log.queries[*query as usize];
        let id = match known.get(&normalized_query(words)) {
            Some(id) => id.clone(),
            None => {
                let id = loop {
                    next += 1;
                    let id = format!("q{next}");
                    if !taken.contains(&id) {
                        break id;
                    }
                };
                let line = serde_json::to_string(&Query { id: id.clone(), text: words.clone() });
                text += &line.expect("a query is two texts");
                text.push('\n');
                id
            }
        };
        ids.insert(*query, id);
    }
    replace(&file, &text)?;
    Ok(ids)
}

fn write_qrels(file: &Path, derived: &Derived, period: Period, ids: &HashMap<u32, String>) -> Result<()> {
    let mut text = String::from("query-id\tcorpus-id\tscore\n");
    let mut items: HashMap<u32, String> = HashMap::new();
    for Graded { query, item, level, .. } in derived.grades.graded.iter().filter(|graded| graded.period == period) {
        let id = match items.entry(*item) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => place.insert(derived.catalogue.item(*item)?.id),
        };
        let _ = writeln!(text, "{}\t{id}\t{}", ids[query], Level::number(*level));
    }
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).map_err(Error::store(folder, "create the folder"))?;
    }
    replace(file, &text)
}

/// Keeps the slices of other queries, and those that came from elsewhere.
fn write_slices(source: &JudgementSource<'_>, derived: &Derived, ids: &HashMap<u32, String>) -> Result<()> {
    let mut slices = source.data.slices()?;
    slices.retain(|_, slice| !super::slices::NAMES.contains(&slice.as_str()));
    for (query, id) in ids {
        slices.entry(id.clone()).or_insert_with(|| derived.slices[*query as usize].to_owned());
    }
    let mut text = String::from("query-id\tslice\n");
    for (query, slice) in slices {
        let _ = writeln!(text, "{query}\t{slice}");
    }
    replace(&source.data.path().join("slices.tsv"), &text)
}

/// Replaces a file atomically.
fn replace(file: &Path, text: &str) -> Result<()> {
    let staging = file.with_extension("part");
    fs::write(&staging, text).map_err(Error::store(&staging, "write it"))?;
    fsync(&staging)?;
    fs::rename(&staging, file).map_err(Error::store(file, "rename it into place"))
}
