//! Top-k over the postings. Takes a query, gives rows and scores. Rows are scored in windows that fit the processor's
//! cache; within one, a term after another adds to each row, always in the order of the query, so that equal texts get
//! equal scores. A query is never read beyond `MAX_QUERY_TERMS`.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::atomic::{self, AtomicUsize};
use std::thread;

use tantivy::TERMINATED;
use tantivy::postings::{BlockSegmentPostings, TermInfo};
use tantivy::schema::IndexRecordOption;

use super::analyser::Terms;
use super::{Lexical, LexicalHit, MAX_QUERY_TERMS, unreadable};
use crate::error::Result;

const WINDOW: u32 = 8192;
/// So many rows of a window are passed over at once where none is good enough.
const STRIDE: usize = 32;

/// What one thread needs to search, used again from query to query.
pub struct Searcher<'a> {
    lexical: &'a Lexical,
    terms: Terms,
    window: Vec<f32>,
}

/// A term of the query and how far its postings have been read.
struct Cursor {
    /// idf times how often the query has the term.
    weight: f32,
    blocks: BlockSegmentPostings,
    at: usize,
}

impl<'a> Searcher<'a> {
    pub fn new(lexical: &'a Lexical) -> Self {
        Self { lexical, terms: Terms::default(), window: vec![0.0; WINDOW as usize] }
    }

    pub fn search(&mut self, query: &str, k: usize) -> Result<Vec<LexicalHit>> {
        self.terms.read(query);
        let mut cursors = self.cursors()?;
        let mut best = Best::new(k.min(self.lexical.norms.len()));
        if best.k == 0 {
            return Ok(Vec::new());
        }
        while let Some(first) = cursors.iter().map(Cursor::row).min().filter(|row| *row != TERMINATED) {
            let start = first - first % STRIDE as u32;
            for cursor in &mut cursors {
                cursor.add(start, &mut self.window, &self.lexical.norms);
            }
            best.take(start, &mut self.window);
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
        Ok(cursors)
    }

    fn cursor(&self, info: &TermInfo, count: f32) -> Result<Cursor> {
        let postings = &self.lexical.postings;
        let blocks = postings.read_block_postings_from_terminfo(info, IndexRecordOption::WithFreqs);
        let weight = count * self.lexical.idf(info.doc_freq);
        Ok(Cursor { weight, blocks: blocks.map_err(unreadable)?, at: 0 })
    }
}

impl Cursor {
    fn row(&self) -> u32 {
        self.blocks.docs().get(self.at).copied().unwrap_or(TERMINATED)
    }

    /// Adds the term's scores to the rows of the window that begins at `start`.
    fn add(&mut self, start: u32, window: &mut [f32], norms: &[f32]) {
        let end = start.saturating_add(window.len() as u32);
        loop {
            let (rows, counts) = (&self.blocks.docs()[self.at..], &self.blocks.freqs()[self.at..]);
            let inside = rows.partition_point(|row| *row < end);
            for (row, count) in rows.iter().zip(counts).take(inside) {
                let count = *count as f32;
                window[(row - start) as usize] += self.weight * (count / (count + norms[*row as usize]));
            }
            self.at += inside;
            if self.at < self.blocks.block_len() || self.blocks.block_len() == 0 {
                return;
            }
            self.blocks.advance();
            self.at = 0;
        }
    }
}

/// The best so far.
struct Best {
    k: usize,
    heap: BinaryHeap<Reverse<Found>>,
    /// A row must have more than this; rows come in rising order, so of equal ones the first stays.
    bar: f32,
}

#[derive(PartialEq)]
struct Found {
    score: f32,
    row: u32,
}

impl Eq for Found {}

impl Ord for Found {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.row.cmp(&self.row))
    }
}

impl PartialOrd for Found {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Best {
    fn new(k: usize) -> Self {
        Self { k, heap: BinaryHeap::new(), bar: 0.0 }
    }

    /// Takes what is good enough from a window and empties it.
    fn take(&mut self, start: u32, window: &mut [f32]) {
        for (stride, scores) in window.chunks_exact_mut(STRIDE).enumerate() {
            if scores.iter().fold(0.0_f32, |best, score| best.max(*score)) > self.bar {
                for (at, score) in scores.iter().enumerate() {
                    if *score > self.bar {
                        self.push(Found { score: *score, row: start + (stride * STRIDE + at) as u32 });
                    }
                }
            }
            scores.fill(0.0);
        }
    }

    fn push(&mut self, found: Found) {
        if self.heap.len() == self.k {
            self.heap.pop();
        }
        self.heap.push(Reverse(found));
        if self.heap.len() == self.k {
            self.bar = self.heap.peek().map_or(0.0, |Reverse(worst)| worst.score);
        }
    }

    fn into_hits(self) -> Vec<LexicalHit> {
        let hit = |Reverse(Found { score, row })| LexicalHit { row, score };
        self.heap.into_sorted_vec().into_iter().map(hit).collect()
    }
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
