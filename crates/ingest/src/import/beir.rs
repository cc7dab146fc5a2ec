//! A folder in BEIR's layout, gzipped or not: `corpus.jsonl`, `queries.jsonl`, `qrels/*.tsv`, and beside them
//! `slices.tsv` and `logs.ndjson` as Souk has them. Gives the same with our levels; extra keys of items are kept. Never
//! mixes scales: one is chosen for all files of `qrels/`, from their largest grade or by the user.

use std::fs;
use std::path::{Path, PathBuf};

use super::fields::{object, take_text};
use super::intake::{Intake, Refusal};
use super::lines::each_line;
use super::scale::{Scale, whole};
use super::ubi;
use souk_io::domain::{Item, Judgement, Query};
use souk_io::error::{Error, Result};

/// The folder of judgements.
pub const QRELS: &str = "qrels";

pub fn import(intake: &mut Intake, folder: &Path, scale: Option<&Scale>) -> Result<()> {
    let corpus = needed(folder, "corpus.jsonl")?;
    items(intake, &corpus)?;
    queries_and_judgements(intake, folder, scale)?;
    if let Some(log) = packed_or_not(folder, "logs.ndjson") {
        ubi::records(intake, &log)?;
    }
    unread(intake, folder, &["corpus.jsonl", "queries.jsonl", "slices.tsv", "logs.ndjson", QRELS])
}

/// What stands beside a catalogue, where it is there.
pub fn queries_and_judgements(intake: &mut Intake, folder: &Path, scale: Option<&Scale>) -> Result<()> {
    if let Some(queries) = packed_or_not(folder, "queries.jsonl") {
        each_line(intake, &queries, |intake, line, place| {
            let query = object(line).and_then(|mut query| {
                let id = take_text(&mut query, "_id")?.unwrap_or_default();
                Ok(Query { id, text: take_text(&mut query, "text")?.unwrap_or_default() })
            });
            intake.query(query, place)
        })?;
    }
    if let Some(slices) = packed_or_not(folder, "slices.tsv") {
        each_line(intake, &slices, |intake, line, place| match line.split_once('\t') {
            Some(("query-id", _)) if place.row == 1 => Ok(()),
            Some((query, slice)) => intake.slice(query, slice, place),
            None => intake.reject(place, &"not a slice: expected query-id and slice with a tab between".into()),
        })?;
    }
    let files = qrels(&folder.join(QRELS))?;
    if files.is_empty() {
        return Ok(());
    }
    let scale = match scale {
        Some(scale) => scale.clone(),
        None => scale_of(intake, &files, folder)?,
    };
    intake.summary.levels = scale.numbers();
    files.iter().try_for_each(|(split, file)| {
        each_line(intake, file, |intake, line, place| match columns(line, place.row) {
            Ok(None) => Ok(()),
            Ok(Some([query, item, grade])) => {
                let judgement = |level| Judgement { query: query.into(), item: item.into(), level };
                intake.judgement(split, scale.level(grade).map(judgement), place)
            }
            Err(refusal) => intake.reject(place, &refusal),
        })
    })
}

pub fn items(intake: &mut Intake, corpus: &Path) -> Result<()> {
    each_line(intake, corpus, |intake, line, place| {
        let item = object(line).and_then(|mut fields| {
            let id = take_text(&mut fields, "_id")?.unwrap_or_default();
            let title = take_text(&mut fields, "title")?.unwrap_or_default();
            let text = take_text(&mut fields, "text")?.unwrap_or_default();
            Ok(Item { id, title, text, fields })
        });
        intake.item(item, place)
    })
}

/// A file of this name or its gzipped form.
pub fn packed_or_not(folder: &Path, name: &str) -> Option<PathBuf> {
    [folder.join(name), folder.join(format!("{name}.gz"))].into_iter().find(|path| path.is_file())
}

/// As above, for what the format cannot do without.
pub fn needed(folder: &Path, name: &str) -> Result<PathBuf> {
    let missing = || {
        let found = names(folder).unwrap_or_default();
        let found = if found.is_empty() { "nothing".to_owned() } else { found.join(", ") };
        let problem = format!("has no {name} (nor {name}.gz); it has: {found}");
        Error::config(folder.display(), problem)
    };
    packed_or_not(folder, name).ok_or_else(missing)
}

/// Tells which files of the folder were not read: those of unknown names, and the packed form of a file that is there
/// unpacked, too.
pub fn unread(intake: &mut Intake, folder: &Path, known: &[&str]) -> Result<()> {
    let is_read = |name: &String| {
        let plain = name.strip_suffix(".gz").unwrap_or(name);
        known.contains(&plain) && packed_or_not(folder, plain).is_none_or(|read| read == folder.join(name))
    };
    intake.summary.unread_files.extend(names(folder)?.into_iter().filter(|name| !is_read(name)));
    if known.contains(&QRELS) && folder.join(QRELS).is_dir() {
        let others = names(&folder.join(QRELS))?.into_iter().filter(|name| split(name).is_none());
        intake.summary.unread_files.extend(others.map(|name| format!("{QRELS}/{name}")));
    }
    Ok(())
}

/// What a folder holds, in order.
pub fn names(folder: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(folder).map_err(Error::store(folder, "list the folder"))?;
    let name = |entry: std::io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
    let mut names: Vec<_> =
        entries.map(name).collect::<std::io::Result<_>>().map_err(Error::store(folder, "list the folder"))?;
    names.sort();
    Ok(names)
}

/// The splits of a folder of judgements, with their files.
fn qrels(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let file = |name: String| Some((split(&name)?.to_owned(), folder.join(&name)));
    Ok(names(folder)?.into_iter().filter_map(file).collect())
}

/// What the judgements in a file of this name are for.
fn split(name: &str) -> Option<&str> {
    let split = name.strip_suffix(".gz").unwrap_or(name).strip_suffix(".tsv")?;
    (!split.is_empty()).then_some(split)
}

/// Looks through all judgements for the least and the largest grade.
fn scale_of(intake: &mut Intake, files: &[(String, PathBuf)], folder: &Path) -> Result<Scale> {
    let mut range: Option<(i64, i64)> = None;
    for (_, file) in files {
        let mut lines = super::lines::Lines::open(file)?;
        while let Some(line) = lines.next()? {
            intake.tick();
            let text = String::from_utf8_lossy(&line.bytes);
            if let Ok(Some([.., grade])) = columns(text.trim_end(), line.number)
                && let Some(grade) = whole(grade)
            {
                range = Some(range.map_or((grade, grade), |(least, most)| (least.min(grade), most.max(grade))));
            }
        }
    }
    let (least, most) = range.unwrap_or((1, 4));
    Scale::of_range(least, most, &folder.join(QRELS))
}

/// Query, item and grade of BEIR's three columns, or TREC's four; `None` for the header.
fn columns(line: &str, row: u64) -> std::result::Result<Option<[&str; 3]>, Refusal> {
    let columns: Vec<&str> = match line.contains('\t') {
        true => line.split('\t').map(str::trim).collect(),
        false => line.split_whitespace().collect(),
    };
    match columns[..] {
        ["query-id", ..] if row == 1 => Ok(None),
        [query, item, grade] | [query, "0" | "Q0", item, grade] => Ok(Some([query, item, grade])),
        _ => Err("not a judgement: expected query-id, corpus-id and score with tabs between".into()),
    }
}
