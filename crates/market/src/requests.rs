//! All queries of a market: test and training apart in their wish lists, in their strings and in part in their phrasing.
//! A function of seed, catalogue and counts; never of what the production channel finds.

use std::collections::{BTreeMap, HashSet};

use super::catalogue::{Catalogue, SAMPLE};
use super::dice::{Dice, hash};
use super::intent::{Intent, Wish};
use super::shopper::{Draft, Shopper, Slice};
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

/// A query with what is behind it.
#[derive(Clone, Debug)]
pub struct Request {
    pub text: String,
    pub slice: Slice,
    pub split: Split,
    pub intent: Intent,
}

const OF_REQUESTS: u64 = 4;
const FEWEST_TEST: usize = 60;
/// Draws before a query is given up: the world is used up for it.
const TRIES: u64 = 3_000;

/// The identifier of a query.
pub fn query_id(at: usize) -> String {
    format!("q{at}")
}

/// The place of an identifier.
pub fn query_at(id: &str) -> Option<usize> {
    id.strip_prefix('q').and_then(|digits| digits.parse().ok())
}

/// A fifth, or enough to measure something.
pub fn num_test(num_queries: usize) -> usize {
    (num_queries / 5).max(FEWEST_TEST.min(num_queries / 2))
}

/// Test queries first, the slices in turn; then training queries.
pub fn draw(seed: u64, catalogue: &Catalogue, num_queries: usize) -> Result<Vec<Request>> {
    let mut seen = HashSet::new();
    let mut requests: Vec<Request> = Vec::with_capacity(num_queries);
    let num_test = num_test(num_queries);
    for at in 0..num_queries {
        let mut dice = Dice::new(&[seed, OF_REQUESTS, at as u64]);
        let (split, slice) = if at < num_test {
            (Split::Test, Slice::ALL[at % Slice::ALL.len()])
        } else {
            (Split::Train, Slice::ALL[dice.weighted(Slice::ALL.iter().map(|slice| slice.share()))])
        };
        let request = (0..TRIES).find_map(|attempt| {
            let mut shopper = Shopper::new(catalogue, Dice::new(&[dice.clone().next(), attempt]), split == Split::Test);
            let draft = shopper.draft(slice)?;
            let fits =
                is_held_out(&draft.intent) == (split == Split::Test) && is_worth_asking(&draft, catalogue, slice);
            let text = fits.then(|| draft.words.sentence(&mut shopper.dice, slice, split == Split::Test))?;
            seen.insert(text.clone()).then_some(Request { text, slice, split, intent: draft.intent })
        });
        requests.push(request.ok_or_else(|| {
            let problem = format!("query {at} cannot be drawn: {num_queries} queries over {} items", catalogue.len());
            Error::input(format!("{problem} are more than this world can tell apart: ask for fewer, or more items"))
        })?);
    }
    Ok(requests)
}

/// Whether a wish list is kept for the test: one in five, whatever its words.
fn is_held_out(intent: &Intent) -> bool {
    let number = |wish: &Wish| match *wish {
        Wish::Category(_) => [0, 0, 0],
        Wish::Has { attribute, value } => [1, attribute as u64, u64::from(value)],
        Wish::Lacks { attribute, value } => [2, attribute as u64, u64::from(value)],
        Wish::Fact(fact) => [3, fact as u64, 0],
        Wish::NoFact(fact) => [4, fact as u64, 0],
        Wish::Brand(brand) => [5, brand as u64, 0],
        Wish::NotBrand(brand) => [6, brand as u64, 0],
        // a price alone makes no new wish list
        Wish::Below(_) => [0, 0, 0],
    };
    let mut wishes: Vec<[u64; 3]> =
        intent.hard.iter().chain(&intent.soft).map(number).filter(|wish| wish[0] > 0).collect();
    wishes.sort_unstable();
    let mut place = vec![intent.function as u64];
    place.extend(wishes.iter().flatten());
    hash(&place).is_multiple_of(5)
}

/// Neither hopeless nor trivial: something Excellent, enough Good items, and where something is ruled out, enough items that have it.
fn is_worth_asking(draft: &Draft, catalogue: &Catalogue, slice: Slice) -> bool {
    let size = catalogue.len().min(SAMPLE);
    let mut levels = BTreeMap::new();
    for item in catalogue.sample(draft.intent.function) {
        *levels.entry(draft.intent.judge(item)).or_insert(0) += 1;
    }
    let num_good: u32 = levels.iter().filter(|(level, _)| level.is_good()).map(|(_, count)| count).sum();
    let broken = levels.values().sum::<u32>() - num_good;
    let (least, most, min_broken) = match slice {
        Slice::General => (25, 250, 0),
        Slice::LongTail => (12, 150, 0),
        Slice::Qa => (25, 300, 0),
        Slice::Alternative => (25, 300, 20),
        Slice::Negative => (50, 220, 100),
        Slice::Knowledge => (25, 250, 60),
    };
    // bounds are for a catalogue of the sample's size
    let scaled = |count: u32| count * size / SAMPLE;
    // wishes that contradict each other leave nothing Excellent
    levels.contains_key(&Level::L4)
        && num_good >= scaled(least).max(1)
        && num_good <= scaled(most).max(3)
        && broken >= scaled(min_broken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests() -> (Catalogue, Vec<Request>) {
        let catalogue = Catalogue::build(11, 5000);
        let requests = draw(11, &catalogue, 3000).unwrap();
        (catalogue, requests)
    }

    #[test]
    fn test_and_training_share_no_string_and_no_wish_list() {
        let (_, requests) = requests();
        let texts: HashSet<&str> = requests.iter().map(|request| request.text.as_str()).collect();
        assert_eq!(texts.len(), requests.len());
        for request in &requests {
            assert_eq!(is_held_out(&request.intent), request.split == Split::Test);
        }
        let tests = requests.iter().filter(|request| request.split == Split::Test).count();
        assert_eq!(tests, 600);
        for slice in Slice::ALL {
            let of_slice = |request: &&Request| request.slice == slice;
            assert_eq!(requests[..tests].iter().filter(of_slice).count(), 100);
            assert!(requests[tests..].iter().filter(of_slice).count() >= 100, "{slice:?}");
        }
    }

    #[test]
    fn words_of_test_queries_are_heard_elsewhere() {
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
            heard.extend(words(&super::super::seller::item(catalogue.seed, row, traits).passage()));
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
