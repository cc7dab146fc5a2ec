//! Queries of a market. Test and training queries share no intent and no text, and differ partly in phrasing. A function of
//! seed, catalogue and counts; never of search results.

use std::collections::{BTreeMap, HashSet};

use super::catalogue::{MarketCatalogue, SAMPLE};
use super::dice::{Dice, STREAM_REQUESTS, hash};
use super::intent::{Constraint, Intent};
use super::shopper::{Draft, Shopper};
use super::slice::QuerySlice;
use souk_io::domain::Level;
use souk_io::error::{Error, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    Train,
    Test,
}

impl Split {
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Test => "test",
        }
    }
}

/// Query with its intent. The oracle's digest hashes the `Debug` output: names of the fields are fixed.
#[derive(Clone, Debug)]
pub struct Request {
    pub text: String,
    pub slice: QuerySlice,
    pub split: Split,
    pub intent: Intent,
}

const MIN_TEST: usize = 60;
/// Maximum attempts to draw one query.
const MAX_ATTEMPTS: u64 = 3_000;

/// Identifier of a query.
pub fn query_id(at: usize) -> String {
    format!("q{at}")
}

/// Index of an identifier.
pub fn query_at(id: &str) -> Option<usize> {
    id.strip_prefix('q').and_then(|digits| digits.parse().ok())
}

/// Number of test queries: a fifth, but at least `MIN_TEST` or half.
pub fn num_test(num_queries: usize) -> usize {
    (num_queries / 5).max(MIN_TEST.min(num_queries / 2))
}

/// Draws all queries: test queries first, with slices in rotation, then training queries.
pub fn draw(seed: u64, catalogue: &MarketCatalogue, num_queries: usize) -> Result<Vec<Request>> {
    let mut seen = HashSet::new();
    let mut requests: Vec<Request> = Vec::with_capacity(num_queries);
    let num_test = num_test(num_queries);
    for at in 0..num_queries {
        let mut dice = Dice::new(&[seed, STREAM_REQUESTS, at as u64]);
        let (split, slice) = if at < num_test {
            (Split::Test, QuerySlice::ALL[at % QuerySlice::ALL.len()])
        } else {
            (Split::Train, QuerySlice::ALL[dice.weighted(QuerySlice::ALL.iter().map(|slice| slice.weight()))])
        };
        let request = (0..MAX_ATTEMPTS).find_map(|attempt| {
            let mut shopper = Shopper::new(catalogue, Dice::new(&[dice.clone().next(), attempt]), split == Split::Test);
            let draft = shopper.draft(slice)?;
            let fits =
                is_held_out(&draft.intent) == (split == Split::Test) && has_fair_difficulty(&draft, catalogue, slice);
            let text = fits.then(|| draft.words.sentence(&mut shopper.dice, slice, split == Split::Test))?;
            seen.insert(text.clone()).then_some(Request { text, slice, split, intent: draft.intent })
        });
        requests.push(request.ok_or_else(|| {
            let problem = format!("cannot draw query {at} of {num_queries} over {} items", catalogue.len());
            Error::input(format!("{problem}: no new query found; reduce the queries or increase the items"))
        })?);
    }
    Ok(requests)
}

/// Whether an intent is reserved for test queries: one in five, independent of its words.
fn is_held_out(intent: &Intent) -> bool {
    let number = |constraint: &Constraint| match *constraint {
        Constraint::Category(_) => [0, 0, 0],
        Constraint::Has { attribute, value } => [1, attribute as u64, u64::from(value)],
        Constraint::Lacks { attribute, value } => [2, attribute as u64, u64::from(value)],
        Constraint::Fact(fact) => [3, fact as u64, 0],
        Constraint::NoFact(fact) => [4, fact as u64, 0],
        Constraint::Brand(brand) => [5, brand as u64, 0],
        Constraint::NotBrand(brand) => [6, brand as u64, 0],
        // a price alone does not make a new intent
        Constraint::Below(_) => [0, 0, 0],
    };
    let mut constraints: Vec<[u64; 3]> =
        intent.hard.iter().chain(&intent.soft).map(number).filter(|constraint| constraint[0] > 0).collect();
    constraints.sort_unstable();
    let mut key = vec![intent.function as u64];
    key.extend(constraints.iter().flatten());
    hash(&key).is_multiple_of(5)
}

/// Whether a query is neither too hard nor trivial: it needs an Excellent item, a bounded number of Good ones and, if it
/// excludes something, enough items that violate it.
fn has_fair_difficulty(draft: &Draft, catalogue: &MarketCatalogue, slice: QuerySlice) -> bool {
    let size = catalogue.len().min(SAMPLE);
    let mut levels = BTreeMap::new();
    for item in catalogue.sample(draft.intent.function) {
        *levels.entry(draft.intent.judge(item)).or_insert(0) += 1;
    }
    let num_good: u32 = levels.iter().filter(|(level, _)| level.is_good()).map(|(_, count)| count).sum();
    let num_violating = levels.values().sum::<u32>() - num_good;
    let (min_good, max_good, min_violating) = match slice {
        QuerySlice::General => (25, 250, 0),
        QuerySlice::LongTail => (12, 150, 0),
        QuerySlice::Qa => (25, 300, 0),
        QuerySlice::Alternative => (25, 300, 20),
        QuerySlice::Negative => (50, 220, 100),
        QuerySlice::Knowledge => (25, 250, 60),
    };
    // the bounds are for a full sample
    let scaled = |count: u32| count * size / SAMPLE;
    // contradictory constraints have no Excellent item
    levels.contains_key(&Level::L4)
        && num_good >= scaled(min_good).max(1)
        && num_good <= scaled(max_good).max(3)
        && num_violating >= scaled(min_violating)
}

#[cfg(test)]
mod tests {
    use super::*;
    use souk_io::item_text::ItemText;

    fn requests() -> (MarketCatalogue, Vec<Request>) {
        let catalogue = MarketCatalogue::build(11, 5000);
        let requests = draw(11, &catalogue, 3000).unwrap();
        (catalogue, requests)
    }

    #[test]
    fn test_and_training_share_no_text_and_no_intent() {
        let (_, requests) = requests();
        let texts: HashSet<&str> = requests.iter().map(|request| request.text.as_str()).collect();
        assert_eq!(texts.len(), requests.len());
        for request in &requests {
            assert_eq!(is_held_out(&request.intent), request.split == Split::Test);
        }
        let tests = requests.iter().filter(|request| request.split == Split::Test).count();
        assert_eq!(tests, 600);
        for slice in QuerySlice::ALL {
            let of_slice = |request: &&Request| request.slice == slice;
            assert_eq!(requests[..tests].iter().filter(of_slice).count(), 100);
            assert!(requests[tests..].iter().filter(of_slice).count() >= 100, "{slice:?}");
        }
    }

    #[test]
    fn most_words_of_test_queries_occur_in_training_or_items() {
        let (catalogue, requests) = requests();
        let words = |text: &str| -> Vec<String> {
            text.to_lowercase()
                .split(|c: char| !c.is_alphanumeric())
                .filter(|word| !word.is_empty())
                .map(str::to_owned)
                .collect()
        };
        let mut heard: HashSet<String> = requests
            .iter()
            .filter(|request| request.split == Split::Train)
            .flat_map(|request| words(&request.text))
            .collect();
        for (row, traits) in catalogue.iter() {
            heard.extend(words(&ItemText::default().render(&super::super::seller::item(catalogue.seed, row, traits))));
        }
        let tests: Vec<String> = requests
            .iter()
            .filter(|request| request.split == Split::Test)
            .flat_map(|request| words(&request.text))
            .collect();
        let new = tests.iter().filter(|word| !heard.contains(*word)).count();
        assert!(new * 25 < tests.len(), "{new} of {} words", tests.len());
    }

    #[test]
    fn every_query_has_good_items() {
        let (catalogue, requests) = requests();
        assert!(requests.iter().all(|request| request.intent.good(&catalogue).next().is_some()));
        assert_eq!((num_test(3000), num_test(200), num_test(10)), (600, 60, 5));
    }
}
