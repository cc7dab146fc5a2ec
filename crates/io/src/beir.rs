//! Data folders in BEIR's layout: `corpus.jsonl`, `queries.jsonl`, `qrels/SPLIT.tsv`, `slices.tsv`, and the search log
//! `logs.ndjson`.
//!
//! Items and queries are streamed, one line in memory at a time; judgements are read whole, because a pair may stand there
//! twice. Writing is atomic: the folder appears once it is complete.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::atomic_dir::AtomicDir;
use crate::domain::{Item, Judgement, Level, Query};
use crate::error::{Error, Result};
use crate::qrels::{settle, warn_once};

const QRELS_HEADER: &str = "query-id\tcorpus-id\tscore";
const SLICES_HEADER: &str = "query-id\tslice";
/// Size of read and write buffers.
const BUFFER_BYTES: usize = 1 << 18;
/// Longest line, read or written.
pub const MAX_LINE_BYTES: usize = 16 << 20;
/// Bytes kept of a line that is too long, for error messages.
const SHOWN_BYTES: usize = 1 << 10;

/// Data folder to read from.
#[derive(Clone, Debug)]
pub struct DataFolder {
    path: PathBuf,
}

impl DataFolder {
    pub fn open(path: &Path) -> Result<Self> {
        let folder = Self { path: path.into() };
        let corpus = folder.corpus();
        if !corpus.exists() {
            let problem = "cannot open it: the file does not exist; `souk market` and `souk import` write data folders";
            return Err(Error::data(&corpus, None, problem));
        }
        Ok(folder)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn corpus(&self) -> PathBuf {
        self.path.join("corpus.jsonl")
    }

    pub fn queries_file(&self) -> PathBuf {
        self.path.join("queries.jsonl")
    }

    pub fn qrels(&self, split: &str) -> PathBuf {
        self.path.join("qrels").join(format!("{split}.tsv"))
    }

    /// Path of the search log; the file may be missing.
    pub fn logs(&self) -> PathBuf {
        self.path.join("logs.ndjson")
    }

    /// Items of the catalogue with their line numbers.
    pub fn items(&self) -> Result<impl Iterator<Item = Result<(u64, Item)>> + use<>> {
        let file = self.corpus();
        let parsed = json_lines(&file)?;
        Ok(parsed.map(move |line| line.and_then(|(number, json)| Ok((number, Item::parse(&json, &file, number)?)))))
    }

    pub fn queries(&self) -> Result<impl Iterator<Item = Result<Query>> + use<>> {
        let file = self.queries_file();
        Ok(json_lines(&file)?.map(move |line| {
            let (number, json) = line?;
            let problem = "not a query: expected {\"_id\": \"...\", \"text\": \"...\"}";
            serde_json::from_slice(&json).map_err(|e| Error::data(&file, Some(number), problem).because(e))
        }))
    }

    /// Judgements of a split, one for each pair. Of different levels of a pair, the highest counts, with a warning.
    pub fn judgements(&self, split: &str) -> Result<impl Iterator<Item = Result<Judgement>> + use<>> {
        let file = self.qrels(split);
        let rows = rows::<3>(&file, QRELS_HEADER)?.map(|row| {
            let (number, [query, item, score]) = row?;
            let level = score.parse().ok().and_then(Level::from_number);
            let problem = || {
                let problem =
                    format!("the score `{score}` is not a level: use 1 to 4 (`souk import` maps other scales)");
                Error::data(&file, Some(number), problem)
            };
            Ok(Judgement { query, item, level: level.ok_or_else(problem)? })
        });
        let settled = settle(rows.collect::<Result<_>>()?);
        warn_once(&file, settled.num_conflicts);
        Ok(settled.judgements.into_iter().map(Ok))
    }

    /// Slice of each query that has one; empty if the folder has no `slices.tsv`.
    pub fn slices(&self) -> Result<BTreeMap<String, String>> {
        let file = self.path.join("slices.tsv");
        if !file.exists() {
            return Ok(BTreeMap::new());
        }
        let mut slices: BTreeMap<String, String> = BTreeMap::new();
        for row in rows::<2>(&file, SLICES_HEADER)? {
            let (number, [query, slice]) = row?;
            if let Some(other) = slices.get(&query).filter(|other| **other != slice) {
                let problem =
                    format!("the query `{query}` is in the slices `{other}` and `{slice}`: a query has one slice");
                return Err(Error::data(&file, Some(number), problem));
            }
            slices.insert(query, slice);
        }
        Ok(slices)
    }
}

/// Lines of a file with their numbers, without line ends; skips blank lines and a byte-order mark.
pub fn lines(file: &Path) -> Result<impl Iterator<Item = Result<(u64, Vec<u8>)>> + use<>> {
    let opened = File::open(file).map_err(Error::store(file, "open it"))?;
    let mut input = BufReader::with_capacity(BUFFER_BYTES, opened);
    let (file, mut number) = (file.to_path_buf(), 0);
    let next = move || {
        let mut line = Vec::new();
        number += 1;
        match read_line(&mut input, &mut line) {
            Err(e) => return Some(Err(Error::store(&file, "read it")(e))),
            Ok((0, _)) => return None,
            Ok((_, false)) => return Some(Err(Error::data(&file, Some(number), "longer than 16 MiB"))),
            Ok(_) => {}
        }
        if number == 1 && line.starts_with(b"\xef\xbb\xbf") {
            line.drain(..3);
        }
        line.truncate(line.trim_ascii_end().len());
        Some(Ok((number, line)))
    };
    Ok(std::iter::from_fn(next).filter(|line| !matches!(line, Ok((_, line)) if line.trim_ascii().is_empty())))
}

/// Reads a line without its `\n` into `line`. Returns the bytes read and whether `line` is complete; of a line that is
/// too long, only the beginning is kept.
pub fn read_line(input: &mut (impl BufRead + ?Sized), line: &mut Vec<u8>) -> std::io::Result<(u64, bool)> {
    let (mut length, mut is_complete) = (0, true);
    loop {
        let buffer = match input.fill_buf() {
            Ok(buffer) => buffer,
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let part = &buffer[..end.unwrap_or(buffer.len())];
        is_complete &= line.len() + part.len() <= MAX_LINE_BYTES;
        if is_complete {
            line.extend_from_slice(part);
        } else {
            line.truncate(SHOWN_BYTES);
            line.shrink_to_fit();
        }
        let used = part.len() + usize::from(end.is_some());
        input.consume(used);
        length += used as u64;
        if end.is_some() || used == 0 {
            return Ok((length, is_complete));
        }
    }
}

fn json_lines(file: &Path) -> Result<impl Iterator<Item = Result<(u64, Vec<u8>)>> + use<>> {
    let name = file.to_path_buf();
    Ok(lines(file)?.map(move |line| {
        let (number, line) = line?;
        match std::str::from_utf8(&line) {
            Ok(_) => Ok((number, line)),
            Err(e) => Err(Error::data(&name, Some(number), "not valid UTF-8: convert it first").because(e)),
        }
    }))
}

/// Tab-separated rows of `N` columns; the header line is optional.
fn rows<const N: usize>(
    file: &Path,
    header: &'static str,
) -> Result<impl Iterator<Item = Result<(u64, [String; N])>> + use<N>> {
    let name = file.to_path_buf();
    let rows = json_lines(file)?.filter(move |line| !matches!(line, Ok((1, line)) if line == header.as_bytes()));
    Ok(rows.map(move |line| {
        let (number, line) = line?;
        let text = String::from_utf8_lossy(&line);
        let columns: Vec<String> = text.split('\t').map(str::to_owned).collect();
        let problem = || format!("expected {N} tab-separated columns ({})", header.replace('\t', ", "));
        columns.try_into().map(|row| (number, row)).map_err(|_| Error::data(&name, Some(number), problem()))
    }))
}

/// Counts of what a writer has written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    pub items: u64,
    pub queries: u64,
    /// Judged pairs by split.
    pub judgements: BTreeMap<String, u64>,
    /// Lines of the search log, queries and events.
    pub log_lines: u64,
}

/// Data folder to write. Dropped before `finish`, it leaves nothing behind.
pub struct DataWriter {
    // declared before `atomic_dir`, so that files are closed before their folder is removed
    files: BTreeMap<String, (PathBuf, BufWriter<File>)>,
    atomic_dir: AtomicDir,
    counts: Counts,
}

impl DataWriter {
    /// `out` must be new or empty.
    pub fn create(out: &Path) -> Result<Self> {
        Ok(Self { atomic_dir: AtomicDir::new(out)?, files: BTreeMap::new(), counts: Counts::default() })
    }

    pub fn item(&mut self, item: &Item) -> Result<()> {
        self.json("corpus.jsonl", item)?;
        self.counts.items += 1;
        Ok(())
    }

    pub fn query(&mut self, query: &Query) -> Result<()> {
        self.json("queries.jsonl", query)?;
        self.counts.queries += 1;
        Ok(())
    }

    pub fn judgement(&mut self, split: &str, judgement: &Judgement) -> Result<()> {
        let Judgement { query, item, level } = judgement;
        let row = format!("{}\t{}\t{}", without_tabs(query)?, without_tabs(item)?, level.number());
        self.row(&format!("qrels/{split}.tsv"), QRELS_HEADER, &row)?;
        match self.counts.judgements.get_mut(split) {
            Some(count) => *count += 1,
            None => drop(self.counts.judgements.insert(split.into(), 1)),
        }
        Ok(())
    }

    pub fn slice(&mut self, query: &str, slice: &str) -> Result<()> {
        let row = format!("{}\t{}", without_tabs(query)?, without_tabs(slice)?);
        self.row("slices.tsv", SLICES_HEADER, &row)
    }

    /// Writes one line of the search log; `json` has no line end.
    pub fn log_line(&mut self, json: &[u8]) -> Result<()> {
        self.line("logs.ndjson", json)?;
        self.counts.log_lines += 1;
        Ok(())
    }

    /// Writes one JSON object as a line of another file, such as `rejected.jsonl`.
    pub fn json(&mut self, name: &str, value: &impl Serialize) -> Result<()> {
        let json = serde_json::to_vec(value).expect("JSON written here has string keys");
        self.line(name, &json)
    }

    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Folder of the files until `finish`.
    pub fn staging(&self) -> &Path {
        &self.atomic_dir.staging
    }

    /// Flushes all files, so that everything written so far can be read in `staging`.
    pub fn flush(&mut self) -> Result<()> {
        self.files.values_mut().try_for_each(|(path, file)| file.flush().map_err(Error::store(path, "write it")))
    }

    pub fn finish(mut self) -> Result<Counts> {
        self.flush()?;
        self.files.clear();
        self.atomic_dir.finish()?;
        Ok(self.counts)
    }

    fn row(&mut self, name: &str, header: &str, row: &str) -> Result<()> {
        if !self.files.contains_key(name) {
            self.line(name, header.as_bytes())?;
        }
        self.line(name, row.as_bytes())
    }

    fn line(&mut self, name: &str, line: &[u8]) -> Result<()> {
        if line.len() > MAX_LINE_BYTES {
            return Err(Error::input(format!(
                "a line of {name} would be longer than 16 MiB, and could not be read again"
            )));
        }
        if !self.files.contains_key(name) {
            let path = self.atomic_dir.staging.join(name);
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder).map_err(Error::store(folder, "create the folder"))?;
            }
            let file = File::create(&path).map_err(Error::store(&path, "create it"))?;
            self.files.insert(name.into(), (path, BufWriter::with_capacity(BUFFER_BYTES, file)));
        }
        let (path, file) = self.files.get_mut(name).expect("inserted above");
        file.write_all(line).and_then(|()| file.write_all(b"\n")).map_err(Error::store(path, "write it"))
    }
}

/// Identifiers are columns of tab-separated files, so they have neither tabs nor line ends.
fn without_tabs(id: &str) -> Result<&str> {
    if id.contains(['\t', '\n', '\r']) {
        return Err(Error::input(format!("the identifier {id:?} contains a tab or a line end: remove it")));
    }
    Ok(id)
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::*;

    #[test]
    fn reads_back_a_written_folder() {
        let home = tempfile::tempdir().unwrap();
        let out = home.path().join("shop");
        let item = Item { id: "7".into(), title: "Oak desk".into(), text: String::new(), fields: Map::new() };
        let query = Query { id: "q1".into(), text: "desk".into() };
        let judgement = Judgement { query: "q1".into(), item: "7".into(), level: Level::L3 };
        let mut writer = DataWriter::create(&out).unwrap();
        writer.item(&item).unwrap();
        writer.query(&query).unwrap();
        writer.judgement("test", &judgement).unwrap();
        writer.slice("q1", "general").unwrap();
        writer.log_line(b"{}").unwrap();
        assert!(writer.slice("q\t1", "general").is_err());
        assert!(DataFolder::open(&out).is_err(), "the folder appears on finish");
        let counts = writer.finish().unwrap();
        assert_eq!((counts.items, counts.queries, counts.judgements["test"], counts.log_lines), (1, 1, 1, 1));

        let folder = DataFolder::open(&out).unwrap();
        assert_eq!(folder.items().unwrap().map(|item| item.unwrap().1).collect::<Vec<_>>(), [item]);
        assert_eq!(folder.queries().unwrap().map(Result::unwrap).collect::<Vec<_>>(), [query]);
        assert_eq!(folder.judgements("test").unwrap().map(Result::unwrap).collect::<Vec<_>>(), [judgement]);
        assert_eq!(folder.slices().unwrap()["q1"], "general");
    }

    #[test]
    fn lines_over_the_limit_are_errors_when_read_and_written() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("corpus.jsonl");
        let longest = vec![b'x'; MAX_LINE_BYTES];
        fs::write(&file, [&longest[..], b"\n", &longest, b"x\n", b"next"].concat()).unwrap();
        let mut read = lines(&file).unwrap();
        assert!(read.next().unwrap().unwrap() == (1, longest.clone()));
        let error = read.next().unwrap().unwrap_err().to_string();
        assert!(error.ends_with("corpus.jsonl, line 2: longer than 16 MiB"), "{error}");
        assert_eq!(read.next().unwrap().unwrap(), (3, b"next".to_vec()));

        let mut writer = DataWriter::create(&home.path().join("shop")).unwrap();
        writer.log_line(&longest).unwrap();
        let error = writer.log_line(&[&longest[..], b"x"].concat()).unwrap_err().to_string();
        assert!(error.contains("a line of logs.ndjson would be longer than 16 MiB"), "{error}");
        assert_eq!(writer.counts().log_lines, 1);
    }

    #[test]
    fn errors_name_the_line_and_the_expected_form() {
        let home = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &[u8]| fs::write(home.path().join(name), text).unwrap();
        fs::create_dir(home.path().join("qrels")).unwrap();
        write("corpus.jsonl", b"\xef\xbb\xbf{\"_id\":\"1\"}\r\n\n{\"_id\":\"\xff\"}\n");
        write("queries.jsonl", b"{\"id\":\"1\"}\n");
        write("qrels/dev.tsv", b"query-id\tcorpus-id\tscore\nq\td\t0\n");
        write("qrels/short.tsv", b"query-id\tcorpus-id\tscore\nq\te\t1\nq\td\n");
        let folder = DataFolder::open(home.path()).unwrap();
        let items: Vec<_> = folder.items().unwrap().collect();
        assert_eq!(items[0].as_ref().unwrap().1.id, "1");
        let errors = [
            items[1].as_ref().unwrap_err().to_string(),
            folder.queries().unwrap().next().unwrap().unwrap_err().to_string(),
            folder.judgements("dev").err().unwrap().to_string(),
            folder.judgements("short").err().unwrap().to_string(),
        ];
        for (error, expected) in errors.iter().zip([
            "corpus.jsonl, line 3: not valid UTF-8",
            "queries.jsonl, line 1: not a query",
            "qrels/dev.tsv, line 2: the score `0` is not a level",
            "qrels/short.tsv, line 3: expected 3 tab-separated columns (query-id, corpus-id, score)",
        ]) {
            assert!(error.contains(expected), "{error}");
        }
    }
}
