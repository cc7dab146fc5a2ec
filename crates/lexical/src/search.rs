//! Top-k search over the postings (MaxScore). Takes a query, gives rows and scores. Rows are scored term by term, in
//! windows that fit the CPU cache. Once `k` rows have scores that common terms alone cannot reach, those terms are only
//! looked up for rows that have a rarer term. Scores always add up in the same term order, so equal texts get equal
//! scores.

use std::cmp::Ordering;
use std::sync::atomic::{self, AtomicUsize};
use std::thread;

use tantivy::TERMINATED;
use tantivy::postings::BlockSegmentPostings;
use tantivy::schema::IndexRecordOption;

use super::analyser::Terms;
use super::norms::NormsFrom;
use super::spellings::SearchTerm;
use super::{Lexical, LexicalHit, unreadable};
use souk_io::error::Result;

const WINDOW: usize = 8192;
/// Minimum number of hits to prune.
const MIN_PRUNED: usize = 32;

/// Bound of the rounding error: a sum of 256 terms in f32 is at most this factor above the exact sum.
const ABOVE_ROUNDING: f64 = 1.0 + 1e-4;

/// Search buffers of one thread, reused between queries.
pub struct Searcher<'a> {
    lexical: &'a Lexical,
    terms: Terms,
    window: Window,
}

/// Scores of a window of rows; non-zero only at the first `num_touched` offsets in `touched`.
struct Window {
    scores: Vec<f32>,
    /// One longer than the window, because an offset is written before it is known to be new.
    touched: Vec<u32>,
    num_touched: usize,
}

impl Window {
    fn new() -> Self {
        Self { scores: vec![0.0; WINDOW], touched: vec![0; WINDOW + 1], num_touched: 0 }
    }
}

/// Position in the postings of a query term.
struct Cursor {
    /// idf times the count of the term in the query.
    weight: f32,
    /// Upper bound of the sum of this term and all later ones.
    max_rest: f32,
    blocks: BlockSegmentPostings,
    at: usize,
}

impl<'a> Searcher<'a> {
    pub fn new(lexical: &'a Lexical) -> Self {
        Self { lexical, terms: Terms::new(lexical.language()), window: Window::new() }
    }

    pub fn search(&mut self, query: &str, k: usize) -> Result<Vec<LexicalHit>> {
        self.terms.read(query);
        let mut cursors = self.cursors()?;
        let mut top_k = TopK::new(k.min(self.lexical.norms.num_items()));
        if top_k.k == 0 {
            return Ok(Vec::new());
        }
        let mut num_leaders = cursors.len();
        while let Some(start) = cursors[..num_leaders].iter().map(Cursor::row).min().filter(|row| *row != TERMINATED) {
            let (leaders, others) = cursors.split_at_mut(num_leaders);
            for cursor in leaders {
                cursor.add(start, &mut self.window, self.lexical.norms.starting_at(start as usize));
            }
            top_k.take(start, &mut self.window, others, self.lexical.norms.starting_at(0));
            while num_leaders > 0 && cursors[num_leaders - 1].max_rest < top_k.threshold {
                num_leaders -= 1;
            }
        }
        Ok(top_k.into_hits())
    }

    fn cursors(&self) -> Result<Vec<Cursor>> {
        let terms = self.lexical.search_terms(&self.terms)?;
        let mut cursors: Vec<Cursor> = terms.iter().map(|term| self.cursor(term)).collect::<Result<_>>()?;
        cursors.sort_by(|a, b| b.weight.total_cmp(&a.weight));
        let mut max_rest = 0.0;
        for cursor in cursors.iter_mut().rev() {
            max_rest += f64::from(cursor.weight);
            cursor.max_rest = (max_rest * ABOVE_ROUNDING) as f32;
        }
        Ok(cursors)
    }

    fn cursor(&self, SearchTerm { info, count, .. }: &SearchTerm) -> Result<Cursor> {
        let postings = &self.lexical.postings;
        let blocks = postings.read_block_postings_from_terminfo(info, IndexRecordOption::WithFreqs);
        let weight = count * self.lexical.idf(info.doc_freq);
        Ok(Cursor { weight, max_rest: 0.0, blocks: blocks.map_err(unreadable)?, at: 0 })
    }
}

impl Cursor {
    fn row(&self) -> u32 {
        self.blocks.docs().get(self.at).copied().unwrap_or(TERMINATED)
    }

    /// Adds the term's scores to the rows of the window that begins at `start`; `norms` begin there too.
    fn add(&mut self, start: u32, window: &mut Window, norms: NormsFrom) {
        let end = start.saturating_add(WINDOW as u32);
        while self.blocks.block_len() > 0 {
            let (rows, counts) = (&self.blocks.docs()[self.at..], &self.blocks.freqs()[self.at..]);
            let inside = rows.partition_point(|row| *row < end);
            let (scores, touched, weight) = (&mut window.scores[..], &mut window.touched[..], self.weight);
            let mut num_touched = window.num_touched;
            for (row, count) in rows[..inside].iter().zip(counts) {
                let at = row.wrapping_sub(start);
                let score = &mut scores[at as usize];
                touched[num_touched] = at;
                num_touched += usize::from(*score == 0.0);
                *score += weight * norms.score(at as usize, *count);
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

    /// Score of the term for one row; rows must not decrease between calls.
    fn score(&mut self, row: u32, norms: NormsFrom) -> f32 {
        if self.row() < row {
            self.at = self.blocks.seek(row);
        }
        if self.row() != row {
            return 0.0;
        }
        self.weight * norms.score(row as usize, self.blocks.freq(self.at))
    }
}

/// Best hits so far, and newer ones that may replace them.
struct TopK {
    k: usize,
    hits: Vec<LexicalHit>,
    /// Score that `k` rows have reached.
    threshold: f32,
    /// Rows of the window that may reach the threshold.
    candidates: Vec<LexicalHit>,
}

impl TopK {
    fn new(k: usize) -> Self {
        Self { k, hits: Vec::new(), threshold: 0.0, candidates: Vec::new() }
    }

    /// Empties the window, adds the scores of the other terms, and keeps rows that reach the threshold.
    fn take(&mut self, start: u32, window: &mut Window, others: &mut [Cursor], norms: NormsFrom) {
        let max_others = others.first().map_or(0.0, |other| other.max_rest);
        let threshold = self.threshold;
        for at in &window.touched[..std::mem::take(&mut window.num_touched)] {
            let score = std::mem::take(&mut window.scores[*at as usize]);
            if score + max_others >= threshold && score > 0.0 {
                self.candidates.push(LexicalHit { row: start + at, score });
            }
        }
        if !others.is_empty() {
            self.candidates.sort_unstable_by_key(|hit| hit.row);
        }
        for at in 0..self.candidates.len() {
            let LexicalHit { row, mut score } = self.candidates[at];
            for other in &mut *others {
                if score + other.max_rest < self.threshold {
                    break;
                }
                score += other.score(row, norms);
            }
            if score >= self.threshold {
                self.hits.push(LexicalHit { row, score });
                self.prune();
            }
        }
        self.candidates.clear();
    }

    /// Keeps the best `k` once there are twice as many, and raises the threshold.
    fn prune(&mut self) {
        if self.hits.len() >= self.k.saturating_mul(2).max(MIN_PRUNED) {
            self.hits.select_nth_unstable_by(self.k - 1, by_rank);
            self.hits.truncate(self.k);
            self.threshold = self.hits[self.k - 1].score;
        }
    }

    fn into_hits(mut self) -> Vec<LexicalHit> {
        self.hits.sort_unstable_by(by_rank);
        self.hits.truncate(self.k);
        self.hits
    }
}

/// Higher scores first, then lower rows.
fn by_rank(a: &LexicalHit, b: &LexicalHit) -> Ordering {
    b.score.total_cmp(&a.score).then(a.row.cmp(&b.row))
}

/// Searches many queries on as many threads as there are cores.
pub fn search_many(lexical: &Lexical, queries: &[&str], k: usize) -> Result<Vec<Vec<LexicalHit>>> {
    let num_threads = thread::available_parallelism().map_or(1, usize::from).min(queries.len());
    let next = AtomicUsize::new(0);
    let work = || -> Result<Vec<_>> {
        let mut searcher = Searcher::new(lexical);
        let mut results = Vec::new();
        while let Some((at, query)) = {
            let at = next.fetch_add(1, atomic::Ordering::Relaxed);
            queries.get(at).map(|query| (at, query))
        } {
            results.push((at, searcher.search(query, k)?));
        }
        Ok(results)
    };
    let mut results = vec![Vec::new(); queries.len()];
    thread::scope(|scope| {
        let threads: Vec<_> = (0..num_threads).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            for (at, hits) in thread.join().expect("a search does not panic")? {
                results[at] = hits;
            }
        }
        Ok(results)
    })
}
