//! BEIR folders, gzipped or not: `corpus.jsonl`, `queries.jsonl`, `qrels/*.tsv`, plus Souk's `slices.tsv` and
//! `logs.ndjson`. Gives the same with our levels; extra keys of items are kept. Never mixes scales: one scale applies
//! to all files of `qrels/`, chosen by the user or by their largest grade.

use std::path::{Path, PathBuf};

use super::corpus::import_items;
use super::fields::{object, take_text};
use super::folder::{QRELS, find_file, note_unread_files, qrels_files, require_file};
use super::import_writer::ImportWriter;
use super::lines::{Lines, each_line};
use super::rejection::Rejection;
use super::scale::{Scale, whole_number};
use super::ubi;
use souk_io::domain::{Judgement, Query};
use souk_io::error::Result;

pub fn import(writer: &mut ImportWriter, folder: &Path, scale: Option<&Scale>) -> Result<()> {
    let corpus = require_file(folder, "corpus.jsonl")?;
    import_items(writer, &corpus)?;
    queries_and_judgements(writer, folder, scale)?;
    if let Some(log) = find_file(folder, "logs.ndjson") {
        ubi::records(writer, &log)?;
    }
    note_unread_files(writer, folder, &["corpus.jsonl", "queries.jsonl", "slices.tsv", "logs.ndjson", QRELS])
}

/// Imports the queries, slices and judgements of a folder, where present.
pub fn queries_and_judgements(writer: &mut ImportWriter, folder: &Path, scale: Option<&Scale>) -> Result<()> {
    if let Some(queries) = find_file(folder, "queries.jsonl") {
        each_line(writer, &queries, |writer, line, location| {
            let query = object(line).and_then(|mut query| {
                let id = take_text(&mut query, "_id")?.unwrap_or_default();
                Ok(Query { id, text: take_text(&mut query, "text")?.unwrap_or_default() })
            });
            writer.add_query(query, location)
        })?;
    }
    if let Some(slices) = find_file(folder, "slices.tsv") {
        each_line(writer, &slices, |writer, line, location| match line.split_once('\t') {
            Some(("query-id", _)) if location.row == 1 => Ok(()),
            Some((query, slice)) => writer.add_slice(query, slice, location),
            None => writer.reject(location, &"not a slice: expected query-id and slice separated by a tab".into()),
        })?;
    }
    let files = qrels_files(&folder.join(QRELS))?;
    if files.is_empty() {
        return Ok(());
    }
    let scale = match scale {
        Some(scale) => scale.clone(),
        None => detect_scale(writer, &files, folder)?,
    };
    writer.summary.levels = scale.numbers();
    files.iter().try_for_each(|(split, file)| {
        each_line(writer, file, |writer, line, location| match columns(line, location.row) {
            Ok(None) => Ok(()),
            Ok(Some([query, item, grade])) => {
                let judgement = |level| Judgement { query: query.into(), item: item.into(), level };
                writer.add_judgement(split, scale.level(grade).map(judgement), location)
            }
            Err(rejection) => writer.reject(location, &rejection),
        })
    })
}

/// Chooses the scale by the smallest and largest grade of all judgements.
fn detect_scale(writer: &mut ImportWriter, files: &[(String, PathBuf)], folder: &Path) -> Result<Scale> {
    let mut range: Option<(i64, i64)> = None;
    for (_, file) in files {
        let mut lines = Lines::open(file)?;
        while let Some(line) = lines.next()? {
            writer.count_row();
            let text = String::from_utf8_lossy(&line.bytes);
            if let Ok(Some([.., grade])) = columns(text.trim_end(), line.number)
                && let Some(grade) = whole_number(grade)
            {
                range = Some(range.map_or((grade, grade), |(min, max)| (min.min(grade), max.max(grade))));
            }
        }
    }
    let (min, max) = range.unwrap_or((1, 4));
    Scale::from_range(min, max, &folder.join(QRELS))
}

/// Query, item and grade from BEIR's three columns or TREC's four; `None` for the header.
fn columns(line: &str, row: u64) -> std::result::Result<Option<[&str; 3]>, Rejection> {
    let columns: Vec<&str> =
        if line.contains('\t') { line.split('\t').map(str::trim).collect() } else { line.split_whitespace().collect() };
    match columns[..] {
        ["query-id", ..] if row == 1 => Ok(None),
        [query, item, grade] | [query, "0" | "Q0", item, grade] => Ok(Some([query, item, grade])),
        _ => Err("not a judgement: expected query-id, corpus-id and score separated by tabs".into()),
    }
}
