//! Simulated production search, the source of the log: BM25 with a popularity boost, plus a few items from a noisy guess of
//! the query's function. Takes query texts and the catalogue; never uses relevance levels.

use super::catalogue::MarketCatalogue;
use super::dice::{Dice, STREAM_CHANNEL};
use super::requests::Request;
use super::world::world;
use souk_io::cores::on_all_cores;
use souk_io::error::Result;
use souk_io::fnv::hash_text;
use souk_lexical::Lexical;

/// Hits of BM25.
const BM25_HITS: usize = 50;
/// Number of guessed items, and accuracy of the guess.
const NUM_GUESSED: usize = 8;
const GUESS_ACCURACY: f64 = 0.7;
/// Weight of popularity, added to a BM25 score divided by the best score.
const POPULARITY_WEIGHT: f32 = 0.7;
/// Score of guessed items before the popularity boost.
const GUESS_SCORE: f32 = 0.5;

/// Hit of the shop's search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShopHit {
    pub row: u32,
    pub score: f32,
}

pub struct ShopSearch<'a> {
    catalogue: &'a MarketCatalogue,
    lexical: Lexical,
    /// Most popular rows of each function.
    popular: Vec<Vec<u32>>,
}

impl<'a> ShopSearch<'a> {
    /// Builds the search; `lexical` must index the catalogue's texts in order.
    pub fn new(catalogue: &'a MarketCatalogue, lexical: Lexical) -> Self {
        let best = |function: usize| {
            let mut rows = catalogue.of_function(function).to_vec();
            let popularity = |row: &u32| catalogue.get(*row).map_or(0.0, |item| item.popularity);
            rows.sort_by(|a, b| popularity(b).total_cmp(&popularity(a)).then(a.cmp(b)));
            rows.truncate(8 * NUM_GUESSED);
            rows
        };
        let popular = (0..world().functions.len()).map(best).collect();
        Self { catalogue, lexical, popular }
    }

    /// Hits for each request, best first.
    pub fn pools(&self, requests: &[Request]) -> Result<Vec<Vec<ShopHit>>> {
        let texts: Vec<&str> = requests.iter().map(|request| request.text.as_str()).collect();
        let found = self.lexical.search_many(&texts, BM25_HITS)?;
        Ok(on_all_cores(requests.len(), |at| {
            let (request, hits) = (&requests[at], &found[at]);
            let best = hits.first().map_or(1.0, |hit| hit.score);
            let mut pool: Vec<ShopHit> = hits
                .iter()
                .map(|hit| ShopHit { row: hit.row, score: self.boosted(hit.row, hit.score / best) })
                .collect();
            for row in self.guess(request) {
                if pool.iter().all(|hit| hit.row != row) {
                    pool.push(ShopHit { row, score: self.boosted(row, GUESS_SCORE) });
                }
            }
            pool.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.row.cmp(&b.row)));
            pool
        }))
    }

    fn boosted(&self, row: u32, score: f32) -> f32 {
        score + POPULARITY_WEIGHT * self.catalogue.get(row).map_or(0.0, |item| item.popularity)
    }

    /// Popular items of the query's function, or of a random one if the guess is wrong.
    fn guess(&self, request: &Request) -> Vec<u32> {
        let mut dice = Dice::new(&[self.catalogue.seed, STREAM_CHANNEL, hash_text(&request.text)]);
        let right = dice.chance(GUESS_ACCURACY);
        let function = if right { request.intent.function } else { dice.below(self.popular.len()) };
        let rows = &self.popular[function];
        if rows.is_empty() { Vec::new() } else { (0..NUM_GUESSED).map(|_| *dice.pick(rows)).collect() }
    }
}
