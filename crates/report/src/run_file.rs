//! TREC files, which other evaluation tools read: runs (`query Q0 item rank score tag`) and judgements (`query 0 item level`),
//! read and written line by line.
//!
//! Tools break ties in different ways, so a written run has no ties: each hit's score is below the previous one, by the
//! smallest f32 step if needed. A loaded run is ranked like trec_eval: by the f32 score, ties by falling id, and the rank
//! column is ignored.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use souk_io::beir::lines;
use souk_io::domain::{Judgement, Level};
use souk_io::error::{Error, Result};

/// Writer of a run.
pub struct RunWriter {
    file: TrecFile,
    tag: String,
}

impl RunWriter {
    /// `tag` names the engine; white space in it becomes `_`.
    pub fn create(path: &Path, tag: &str) -> Result<Self> {
        let tag: String = tag.chars().map(|letter| if letter.is_whitespace() { '_' } else { letter }).collect();
        let tag = if tag.is_empty() { "souk".into() } else { tag };
        Ok(Self { file: TrecFile::create(path)?, tag })
    }

    /// Writes the hits of one query, best first.
    pub fn query<'a>(&mut self, query: &str, hits: impl Iterator<Item = (&'a str, f32)>) -> Result<()> {
        let query = one_word(query)?;
        let mut last = f32::INFINITY;
        for (rank, (item, score)) in hits.enumerate() {
            last = score.min(last.next_down());
            let line = format!("{query} Q0 {} {} {last} {}", one_word(item)?, rank + 1, self.tag);
            self.file.line(&line)?;
        }
        Ok(())
    }

    pub fn finish(self) -> Result<()> {
        self.file.finish()
    }
}

/// Writes judgements in the order they come.
pub fn write_qrels<'a>(path: &Path, rows: impl Iterator<Item = (&'a str, &'a str, Level)>) -> Result<()> {
    let mut file = TrecFile::create(path)?;
    for (query, item, level) in rows {
        file.line(&format!("{} 0 {} {}", one_word(query)?, one_word(item)?, level.number()))?;
    }
    file.finish()
}

struct TrecFile {
    path: PathBuf,
    out: BufWriter<File>,
}

impl TrecFile {
    fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).map_err(Error::store(path, "create it"))?;
        Ok(Self { path: path.into(), out: BufWriter::with_capacity(1 << 18, file) })
    }

    fn line(&mut self, line: &str) -> Result<()> {
        writeln!(self.out, "{line}").map_err(Error::store(&self.path, "write it"))
    }

    fn finish(mut self) -> Result<()> {
        self.out.flush().map_err(Error::store(&self.path, "write it"))
    }
}

/// Checks an id: columns are separated by white space.
pub fn one_word(id: &str) -> Result<&str> {
    if id.is_empty() || id.contains(char::is_whitespace) {
        Err(Error::input(format!("the id {id:?} cannot be written to a TREC file: it is empty or has white space")))
    } else {
        Ok(id)
    }
}

/// Line of a run, with its position for error messages.
#[derive(Clone, Debug, PartialEq)]
pub struct RunLine {
    pub line: u64,
    pub query: String,
    pub item: String,
    pub score: f32,
}

pub fn read_run(file: &Path) -> Result<impl Iterator<Item = Result<RunLine>> + use<>> {
    let name = file.to_path_buf();
    Ok(columns::<6>(file, "query Q0 item rank score tag")?.map(move |row| {
        let (line, [query, _, item, _, score, _]) = row?;
        let score = match score.parse::<f32>() {
            Ok(score) if score.is_finite() => score,
            _ => return Err(Error::data(&name, Some(line), format!("the score `{score}` is not a finite number"))),
        };
        Ok(RunLine { line, query, item, score })
    }))
}

pub fn read_qrels(file: &Path) -> Result<impl Iterator<Item = Result<Judgement>> + use<>> {
    let name = file.to_path_buf();
    Ok(columns::<4>(file, "query 0 item level")?.map(move |row| {
        let (line, [query, _, item, level]) = row?;
        let level = level.parse().ok().and_then(Level::from_number).ok_or_else(|| {
            Error::data(&name, Some(line), format!("`{level}` is not a level: use 1 to 4 (map other scales first)"))
        })?;
        Ok(Judgement { query, item, level })
    }))
}

/// Rows of `N` columns.
fn columns<const N: usize>(
    file: &Path,
    names: &'static str,
) -> Result<impl Iterator<Item = Result<(u64, [String; N])>> + use<N>> {
    let name = file.to_path_buf();
    Ok(lines(file)?.map(move |line| {
        let (number, line) = line?;
        let text = std::str::from_utf8(&line)
            .map_err(|e| Error::data(&name, Some(number), "not valid UTF-8: convert it first").because(e))?;
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        let found = words.len();
        let problem = || format!("expected {N} columns ({names}), found {found}");
        words.try_into().map(|row| (number, row)).map_err(|_| Error::data(&name, Some(number), problem()))
    }))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_run_is_read_back_in_its_order_by_any_tool() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("run.trec");
        let hits = [("b", 0.5), ("a", 0.5), ("c", 0.5), ("d", 0.499_999_97), ("e", 0.0), ("f", 0.0), ("g", -1.0)];
        let mut run = RunWriter::create(&file, "all MiniLM").unwrap();
        run.query("q1", hits.into_iter()).unwrap();
        run.query("q2", [].into_iter()).unwrap();
        run.finish().unwrap();
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.starts_with("q1 Q0 b 1 0.5 all_MiniLM\nq1 Q0 a 2 0.49999997 all_MiniLM\n"), "{text}");
        let read: Vec<RunLine> = read_run(&file).unwrap().map(Result::unwrap).collect();
        assert_eq!(read.iter().map(|row| row.item.as_str()).collect::<String>(), "bacdefg");
        assert!(read.windows(2).all(|pair| pair[0].score > pair[1].score), "no two are equal: {text}");
        assert!(read.iter().zip(&hits).all(|(row, (_, score))| (row.score - score).abs() < 1e-6));
    }

    #[test]
    fn judgements_are_read_back() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("qrels.trec");
        write_qrels(&file, [("q1", "a", Level::L4), ("q1", "b", Level::L1)].into_iter()).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "q1 0 a 4\nq1 0 b 1\n");
        let read: Vec<_> = read_qrels(&file).unwrap().map(|row| row.unwrap().level.number()).collect();
        assert_eq!(read, [4, 1]);
        let error = write_qrels(&file, [("q1", "a b", Level::L4)].into_iter()).unwrap_err().to_string();
        assert!(error.contains("\"a b\" cannot be written to a TREC file"), "{error}");
    }

    #[test]
    fn a_bad_line_is_named_and_a_tab_is_white_space() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("run.trec");
        fs::write(&file, "q Q0 a 1 0.5 t\nq\tQ0\tb\t2\t1e-3\tt\r\n\nq Q0 c 3 nan t\nq Q0 c 3\n").unwrap();
        let read: Vec<_> = read_run(&file).unwrap().collect();
        assert_eq!(read[1].as_ref().unwrap(), &RunLine { line: 2, query: "q".into(), item: "b".into(), score: 1e-3 });
        let said = |at: usize| read[at].as_ref().unwrap_err().to_string();
        assert!(said(2).ends_with("run.trec, line 4: the score `nan` is not a finite number"), "{}", said(2));
        assert!(said(3).ends_with("line 5: expected 6 columns (query Q0 item rank score tag), found 4"), "{}", said(3));
        fs::write(&file, "q 0 a 0\n").unwrap();
        let error = read_qrels(&file).unwrap().next().unwrap().unwrap_err().to_string();
        assert!(error.contains("line 1: `0` is not a level"), "{error}");
    }
}
