//! Files of training pairs as sentence-transformers has them: a query and a positive in each row, and any number of negatives. Every
//! distinct text becomes an item; positives become judgements of level 4, negatives of level 1. Spellings of a query share one id.

use std::collections::HashSet;
use std::path::Path;

use serde_json::Map;

use super::guess::{Guess, Guesses, ReadOptions, pair_guesses};
use super::import_writer::{ImportWriter, hash};
use super::log_output::search_id;
use super::rejection::RowLocation;
use super::rows::{InputFiles, Row, RowFile, input_files};
use souk_io::domain::{Item, Judgement, Level, Query, normalized_query};
use souk_io::error::Result;

/// The one file that is read of a folder that has it.
const OWN: &str = "pairs.jsonl";
const SPLIT: &str = "train";

/// Guesses the columns of a file of pairs, or of the files of a folder.
pub fn guess(from: &Path, options: &ReadOptions) -> Result<Guesses> {
    pair_guesses(&input_files(from, OWN)?.files, options)
}

pub fn import(writer: &mut ImportWriter, from: &Path, options: &ReadOptions) -> Result<()> {
    let InputFiles { files, others } = input_files(from, OWN)?;
    writer.summary.unread_files.extend(others);
    let guesses = pair_guesses(&files, options)?;
    guesses.unread.iter().for_each(|unread| writer.note_unread(&unread.file));
    let mut judged = JudgedPairs::default();
    guesses.files.iter().try_for_each(|guess| judged.add_positives(writer, guess))?;
    // a positive of one row may be a negative of another
    guesses.files.iter().try_for_each(|guess| judged.add_negatives(writer, guess))
}

/// Hashes of the pairs of query and item that were written.
#[derive(Default)]
struct JudgedPairs {
    positives: HashSet<u64>,
    negatives: HashSet<u64>,
}

impl JudgedPairs {
    fn add_positives(&mut self, writer: &mut ImportWriter, guess: &Guess) -> Result<()> {
        let Some(format) = guess.format() else { return Ok(()) };
        let mut rows = RowFile::open(&guess.file, format)?;
        while let Some(row) = rows.next(writer)? {
            let Some(query) = query_of(&row, guess) else {
                row.reject(&guess.file, &"pair without a query or without a positive".into(), writer)?;
                continue;
            };
            let start = row.start().into_owned();
            let location = RowLocation { file: &guess.file, row: row.number(), start: &start };
            if !writer.has_query(&query.id) {
                writer.add_query(Ok(query.clone()), &location)?;
            }
            for text in texts(&row, guess, "positive") {
                let item = add_item(writer, &text, &location)?;
                if self.positives.insert(hash((&query.id, &item))) {
                    let judgement = Judgement { query: query.id.clone(), item, level: Level::L4 };
                    writer.add_judgement(SPLIT, Ok(judgement), &location)?;
                } else {
                    writer.note("repeated positives");
                }
            }
        }
        Ok(())
    }

    fn add_negatives(&mut self, writer: &mut ImportWriter, guess: &Guess) -> Result<()> {
        let Some(format) = guess.format().filter(|_| guess.column("negative").is_some()) else { return Ok(()) };
        let mut rows = RowFile::open(&guess.file, format)?;
        while let Some(read) = rows.read()? {
            // the first pass has rejected the others
            let Some((row, query)) = read.ok().and_then(|row| query_of(&row, guess).map(|query| (row, query))) else {
                continue;
            };
            let start = row.start().into_owned();
            let location = RowLocation { file: &guess.file, row: row.number(), start: &start };
            for text in texts(&row, guess, "negative") {
                let item = add_item(writer, &text, &location)?;
                let pair = hash((&query.id, &item));
                if self.positives.contains(&pair) {
                    writer.note("negatives left out: they are positives of the same query");
                } else if self.negatives.insert(pair) {
                    let judgement = Judgement { query: query.id.clone(), item, level: Level::L1 };
                    writer.add_judgement(SPLIT, Ok(judgement), &location)?;
                    writer.note("hard negatives: objective.judged_split=train learns from them");
                }
            }
        }
        Ok(())
    }
}

/// The query of a row that has a positive.
fn query_of(row: &Row, guess: &Guess) -> Option<Query> {
    let text = texts(row, guess, "query").into_iter().next()?;
    let query = Query { id: search_id(&normalized_query(&text)), text };
    (!texts(row, guess, "positive").is_empty()).then_some(query)
}

/// Texts of a field that are not blank.
fn texts(row: &Row, guess: &Guess, field: &str) -> Vec<String> {
    let columns = guess.places().filter(|(name, _)| *name == field);
    let texts = columns.flat_map(|(_, place)| row.texts(place));
    texts.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty()).collect()
}

/// Adds an item unless it is there; returns its id.
fn add_item(writer: &mut ImportWriter, text: &str, location: &RowLocation) -> Result<String> {
    let id = search_id(text);
    if !writer.has_item(&id) {
        let item = Item { id: id.clone(), title: String::new(), text: text.into(), fields: Map::new() };
        writer.add_item(Ok(item), location)?;
    }
    Ok(id)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use super::super::{Format, Options, Summary};
    use super::*;
    use souk_io::beir::DataFolder;

    /// Levels by texts of query and item.
    type Levels = BTreeMap<(String, String), u8>;

    fn imported(name: &str, text: &str, columns: &[&str]) -> Result<(Summary, Levels)> {
        let home = tempfile::tempdir().unwrap();
        let (file, out) = (home.path().join(name), home.path().join("shop"));
        fs::write(&file, text).unwrap();
        let columns = columns.iter().map(|column| column.parse().unwrap()).collect();
        let options = Options { columns, ..Options::default() };
        let summary = super::super::import(Format::Pairs, &options, &file, &out, &mut |_| ())?;
        let data = DataFolder::open(&out).unwrap();
        let items: BTreeMap<String, String> =
            data.items().unwrap().map(|item| item.unwrap().1).map(|item| (item.id, item.text)).collect();
        let queries: BTreeMap<String, String> =
            data.queries().unwrap().map(|query| query.unwrap()).map(|query| (query.id, query.text)).collect();
        let judged = data.judgements(SPLIT).unwrap().map(|judgement| judgement.unwrap());
        let of =
            |judged: Judgement| ((queries[&judged.query].clone(), items[&judged.item].clone()), judged.level.number());
        Ok((summary, judged.map(of).collect()))
    }

    fn levels(expected: &[(&str, &str, u8)]) -> Levels {
        expected.iter().map(|(query, item, level)| (((*query).to_owned(), (*item).to_owned()), *level)).collect()
    }

    #[test]
    fn triplets_become_judgements_of_levels_4_and_1() {
        let table = "anchor,positive,negative_1,negative_2\n\
            oak desk,Desk of oak,Red lamp,Oak lamp\nOak  Desk,Desk of oak,Pipe,\nred lamp,Red lamp,Desk of oak,Red lamp\n\
            ,Pipe,,\n";
        let expected = levels(&[
            ("oak desk", "Desk of oak", 4),
            ("oak desk", "Red lamp", 1),
            ("oak desk", "Oak lamp", 1),
            ("oak desk", "Pipe", 1),
            ("red lamp", "Red lamp", 4),
            ("red lamp", "Desk of oak", 1),
        ]);
        let (summary, found) = imported("pairs.csv", table, &[]).unwrap();
        assert_eq!(found, expected);
        assert_eq!((summary.counts.items, summary.counts.queries, summary.num_rejected()), (4, 2, 1));
        assert_eq!(summary.noted["repeated positives"], 1);
        assert_eq!(summary.noted["negatives left out: they are positives of the same query"], 1);
        assert_eq!(summary.noted["hard negatives: objective.judged_split=train learns from them"], 4);
    }

    #[test]
    fn lists_of_json_lines_are_several_items() {
        let lines =
            "{\"query\": \"oak desk\", \"pos\": [\"Desk\", \"Table\"], \"neg\": [\"Lamp\", \"Pipe\"], \"x\": 1}\n";
        let expected =
            [("Desk", 4), ("Table", 4), ("Lamp", 1), ("Pipe", 1)].map(|(item, level)| ("oak desk", item, level));
        assert_eq!(imported("pairs.jsonl", lines, &[]).unwrap().1, levels(&expected));
    }

    #[test]
    fn columns_go_by_order_without_names_and_by_option() {
        let expected = levels(&[("oak desk", "Desk of oak", 4), ("lamp", "Red lamp", 4)]);
        let of = |name: &str, text: &str, columns: &[&str]| imported(name, text, columns).unwrap().1;
        assert_eq!(of("a.tsv", "oak desk\tDesk of oak\nlamp\tRed lamp\n", &["query=0", "positive=1"]), expected);
        assert_eq!(of("a.tsv", "frage\tantwort\noak desk\tDesk of oak\nlamp\tRed lamp\n", &[]), expected);
        let turned = "x,y,z\n7,Desk of oak,oak desk\n8,Red lamp,lamp\n";
        assert_eq!(of("a.csv", turned, &["query=z", "positive=y"]), expected);
    }

    #[test]
    fn files_that_are_no_pairs_are_errors_that_say_what_to_do() {
        for (name, text, expected) in [
            ("a.csv", "sentence1,sentence2,score\nred lamp,lamp,0.9\n", "has a column `score`"),
            ("a.csv", "a,b,c,d\noak desk,Desk,x y,z\n", "cannot tell which column of this file of pairs is the query"),
            ("a.jsonl", "{\"a\": \"oak desk\", \"b\": \"Desk\"}\n", "--columns query=a,positive=b"),
        ] {
            let error = imported(name, text, &[]).err().unwrap().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let error = imported("a.csv", "query,text\nlamp,Red lamp\n", &["title=text"]).err().unwrap().to_string();
        assert!(error.contains("--columns has no field `title`: use query, positive, negative"), "{error}");
    }
}
