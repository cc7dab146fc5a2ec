//! Top-k over the postings. Takes a query, gives rows and scores. Rows are scored in windows that fit the processor's
//! cache; within one, a term after another adds to each row. Once `k` rows are found that no row can beat with common
//! terms alone, those terms are looked up for the rows of the rarer ones only (MaxScore). Terms always add up in the same
//! order, so that equal texts get equal scores. A query is never read beyond `MAX_QUERY_TERMS`.

use std::cmp::Ordering;
use std::sync::atomic::{self, AtomicUsize};
use std::thread;

use tantivy::TERMINATED;
use tantivy::postings::{BlockSegmentPostings, TermInfo};
use tantivy::schema::IndexRecordOption;

use super::analyser::Terms;
use super::{Lexical, LexicalHit, MAX_QUERY_TERMS, unreadable};
use souk_io::error::Result;

const WINDOW: usize = 8192;
/// Fewer are not worth a look for the better half.
const MIN_FOUND: usize = 32;

/// A sum of 256 terms in f32 is never further above the true one.
const ABOVE_ROUNDING: f64 = 1.0 + 1e-4;

/// What one thread needs to search, used again from query to query.
pub struct Searcher<'a> {
    lexical: &'a Lexical,
    terms: Terms,
    window: Window,
}

/// The scores of the rows from some row on, all 0 but the first `num_touched` of `touched`.
struct Window {
    scores: Vec<f32>,
    /// One more than there are rows: the next is written before it is known to be one.
    touched: Vec<u32>,
    num_touched: usize,
}

impl Window {
    fn new() -> Self {
        Self { scores: vec![0.0; WINDOW], touched: vec![0; WINDOW + 1], num_touched: 0 }
    }
}

/// A term of the query and how far its postings have been read.
struct Cursor {
    /// idf times how often the query has the term.
    weight: f32,
    /// No row gets more from this term and those after it together.
    ceiling: f32,
    blocks: BlockSegmentPostings,
    at: usize,
}

impl<'a> Searcher<'a> {
    pub fn new(lexical: &'a Lexical) -> Self {
        Self { lexical, terms: Terms::default(), window: Window::new() }
    }

    pub fn search(&mut self, query: &str, k: usize) -> Result<Vec<LexicalHit>> {
        self.terms.read(query);
        let mut cursors = self.cursors()?;
        let mut best = Best::new(k.min(self.lexical.norms.len()));
        if best.k == 0 {
            return Ok(Vec::new());
        }
        let mut leading = cursors.len();
        while let Some(start) = cursors[..leading].iter().map(Cursor::row).min().filter(|row| *row != TERMINATED) {
            let (leaders, others) = cursors.split_at_mut(leading);
            for cursor in leaders {
                cursor.add(start, &mut self.window, &self.lexical.norms);
            }
            best.take(start, &mut self.window, others, &self.lexical.norms);
            while leading > 0 && cursors[leading - 1].ceiling < best.bar {
                leading -= 1;
            }
        }
        Ok(best.into_hits())
    }

    fn cursors(&self) -> Result<Vec<Cursor>> {
        let mut counts: Vec<(&str, f32)> = Vec::new();
        for term in self.terms.iter().take(MAX_QUERY_TERMS) {
            match counts.iter_mut().find(|(known, _)| *known == term) {
                Some((_, count)) => *count += 1.0,
                None => counts.push((term, 1.0)),
            }
        }
        let mut cursors = Vec::with_capacity(counts.len());
        for (term, count) in counts {
            if let Some(info) = self.lexical.known(term) {
                cursors.push(self.cursor(&info, count)?);
                continue;
            }
            for term in self.lexical.meant(term)? {
                if let Some(info) = self.lexical.known(&term) {
                    cursors.push(self.cursor(&info, count)?);
                }
            }
        }
        cursors.sort_by(|a, b| b.weight.total_cmp(&a.weight));
        let mut ceiling = 0.0;
        for cursor in cursors.iter_mut().rev() {
            ceiling += f64::from(cursor.weight);
            cursor.ceiling = (ceiling * ABOVE_ROUNDING) as f32;
        }
        Ok(cursors)
    }

    fn cursor(&self, info: &TermInfo, count: f32) -> Result<Cursor> {
        let postings = &self.lexical.postings;
        let blocks = postings.read_block_postings_from_terminfo(info, IndexRecordOption::WithFreqs);
        let weight = count * self.lexical.idf(info.doc_freq);
        Ok(Cursor { weight, ceiling: 0.0, blocks: blocks.map_err(unreadable)?, at: 0 })
    }
}

impl Cursor {
    fn row(&self) -> u32 {
        self.blocks.docs().get(self.at).copied().unwrap_or(TERMINATED)
    }

    /// Adds the term's scores to the rows of the window that begins at `start`.
    fn add(&mut self, start: u32, window: &mut Window, norms: &[f32]) {
        let norms = &norms[start as usize..];
        let end = start.saturating_add(WINDOW as u32);
        while self.blocks.block_len() > 0 {
            let (rows, counts) = (&self.blocks.docs()[self.at..], &self.blocks.freqs()[self.at..]);
            let inside = rows.partition_point(|row| *row < end);
            let (scores, touched, weight) = (&mut window.scores[..], &mut window.touched[..], self.weight);
            let mut num_touched = window.num_touched;
            for (row, count) in rows[..inside].iter().zip(counts) {
                let (at, count) = (row.wrapping_sub(start), *count as f32);
                let score = &mut scores[at as usize];
                touched[num_touched] = at;
                num_touched += usize::from(*score == 0.0);
                *score += weight * (count / (count + norms[at as usize]));
            }
            window.num_touched = num_touched;
            self.at += inside;
            if self.at < self.blocks.block_len() {
                return;
            }
            self.blocks.advance();
            self.at = 0;
        }
    }

    /// The term's score of one row; rows may only rise from call to call.
    fn score(&mut self, row: u32, norms: &[f32]) -> f32 {
        if self.row() < row {
            self.at = self.blocks.seek(row);
        }
        if self.row() != row {
            return 0.0;
        }
        let count = self.blocks.freq(self.at) as f32;
        self.weight * (count / (count + norms[row as usize]))
    }
}

/// The best so far, and up to as many that came after and may be better.
struct Best {
    k: usize,
    found: Vec<LexicalHit>,
    /// `k` rows have at least this.
    bar: f32,
    /// Rows of one window that may be good enough.
    near: Vec<LexicalHit>,
}

impl Best {
    fn new(k: usize) -> Self {
        Self { k, found: Vec::new(), bar: 0.0, near: Vec::new() }
    }

    /// Empties the window and takes what is good enough, once the other terms have added to it.
    fn take(&mut self, start: u32, window: &mut Window, others: &mut [Cursor], norms: &[f32]) {
        let missing = others.first().map_or(0.0, |other| other.ceiling);
        let bar = self.bar;
        for at in &window.touched[..std::mem::take(&mut window.num_touched)] {
            let score = std::mem::take(&mut window.scores[*at as usize]);
            if score + missing >= bar && score > 0.0 {
                self.near.push(LexicalHit { row: start + at, score });
            }
        }
        if !others.is_empty() {
            self.near.sort_unstable_by_key(|hit| hit.row);
        }
        for at in 0..self.near.len() {
            let LexicalHit { row, mut score } = self.near[at];
            for other in &mut *others {
                if score + other.ceiling < self.bar {
                    break;
                }
                score += other.score(row, norms);
            }
            if score >= self.bar {
                self.found.push(LexicalHit { row, score });
                self.raise();
            }
        }
        self.near.clear();
    }

    /// Where there are twice as many as asked for, keeps the better half.
    fn raise(&mut self) {
        if self.found.len() >= self.k.saturating_mul(2).max(MIN_FOUND) {
            self.found.select_nth_unstable_by(self.k - 1, better);
            self.found.truncate(self.k);
            self.bar = self.found[self.k - 1].score;
        }
    }

    fn into_hits(mut self) -> Vec<LexicalHit> {
        self.found.sort_unstable_by(better);
        self.found.truncate(self.k);
        self.found
    }
}

fn better(a: &LexicalHit, b: &LexicalHit) -> Ordering {
    b.score.total_cmp(&a.score).then(a.row.cmp(&b.row))
}

/// Queries are handed out to as many threads as there are cores.
pub fn many(lexical: &Lexical, queries: &[&str], k: usize) -> Result<Vec<Vec<LexicalHit>>> {
    let num_threads = thread::available_parallelism().map_or(1, usize::from).min(queries.len());
    let next = AtomicUsize::new(0);
    let work = || -> Result<Vec<_>> {
        let mut searcher = Searcher::new(lexical);
        let mut found = Vec::new();
        while let Some((at, query)) = {
            let at = next.fetch_add(1, atomic::Ordering::Relaxed);
            queries.get(at).map(|query| (at, query))
        } {
            found.push((at, searcher.search(query, k)?));
        }
        Ok(found)
    };
    let mut answers = vec![Vec::new(); queries.len()];
    thread::scope(|scope| {
        let threads: Vec<_> = (0..num_threads).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            for (at, hits) in thread.join().expect("a search does not panic")? {
                answers[at] = hits;
            }
        }
        Ok(answers)
    })
}
