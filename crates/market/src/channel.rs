//! The shop's search as it is today, which the log comes from: BM25, moved by popularity, and a few places that a guess
//! of the shopper's need fills. Takes texts and the catalogue; knows nothing of levels.

use super::catalogue::{Catalogue, in_order};
use super::dice::{Dice, hash_text};
use super::requests::Request;
use super::world::world;
use souk_io::error::Result;
use souk_lexical::Lexical;

/// Items that BM25 brings.
const FOUND: usize = 50;
/// Items that the guess brings, and how often it is right.
const GUESSED: usize = 8;
const GUESS_RIGHT: f64 = 0.7;
/// What popularity adds to a BM25 score that was divided by the best.
const PULL: f32 = 0.7;
/// Where guessed items start.
const GUESS_SCORE: f32 = 0.5;

const OF_CHANNEL: u64 = 5;

/// An item that may be shown for a query.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    pub row: u32,
    pub score: f32,
}

pub struct Channel<'a> {
    catalogue: &'a Catalogue,
    lexical: Lexical,
    /// The most popular rows of each function.
    popular: Vec<Vec<u32>>,
}

impl<'a> Channel<'a> {
    /// `lexical` is over the catalogue's texts, in order.
    pub fn new(catalogue: &'a Catalogue, lexical: Lexical) -> Self {
        let best = |function: usize| {
            let mut rows = catalogue.of_function(function).to_vec();
            let popularity = |row: &u32| catalogue.get(*row).map_or(0.0, |item| item.popularity);
            rows.sort_by(|a, b| popularity(b).total_cmp(&popularity(a)).then(a.cmp(b)));
            rows.truncate(8 * GUESSED);
            rows
        };
        let popular = (0..world().functions.len()).map(best).collect();
        Self { catalogue, lexical, popular }
    }

    /// What may be shown, the best first, for each of the requests.
    pub fn pools(&self, requests: &[Request]) -> Result<Vec<Vec<Candidate>>> {
        let texts: Vec<&str> = requests.iter().map(|request| request.text.as_str()).collect();
        let found = self.lexical.search_many(&texts, FOUND)?;
        let both: Vec<_> = requests.iter().zip(found).collect();
        Ok(in_order(&both, |(request, hits)| {
            let best = hits.first().map_or(1.0, |hit| hit.score);
            let mut pool: Vec<Candidate> = hits
                .iter()
                .map(|hit| Candidate { row: hit.row, score: self.moved(hit.row, hit.score / best) })
                .collect();
            for row in self.guess(request) {
                if pool.iter().all(|candidate| candidate.row != row) {
                    pool.push(Candidate { row, score: self.moved(row, GUESS_SCORE) });
                }
            }
            pool.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.row.cmp(&b.row)));
            pool
        }))
    }

    fn moved(&self, row: u32, score: f32) -> f32 {
        score + PULL * self.catalogue.get(row).map_or(0.0, |item| item.popularity)
    }

    /// Popular items of the function that old sessions hint at, which is not always the right one.
    fn guess(&self, request: &Request) -> Vec<u32> {
        let mut dice = Dice::new(&[self.catalogue.seed, OF_CHANNEL, hash_text(&request.text)]);
        let right = dice.chance(GUESS_RIGHT);
        let function = if right { request.intent.function } else { dice.below(self.popular.len()) };
        let rows = &self.popular[function];
        match rows.is_empty() {
            true => Vec::new(),
            false => (0..GUESSED).map(|_| *dice.pick(rows)).collect(),
        }
    }
}
