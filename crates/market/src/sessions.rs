//! Thirty days of search: who typed what, what was shown at which place, and what was clicked and bought. Clicks follow
//! relevance only through what the shop showed, where it stood, how popular it was, and chance.
//!
//! A place is looked at with probability 1 / place: the examination that a correction for position may assume. What is
//! looked at is clicked with a probability of the item alone, so places do not influence each other.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::catalogue::{Catalogue, Traits};
use super::channel::Candidate;
use super::dice::{Dice, hash};
use super::requests::Request;
use super::seller::item_id;
use super::shopper::Slice;
use souk_io::domain::Level;
use souk_io::error::Result;
use souk_io::ubi::{Action, EventRecord, QueryRecord};

/// 1 January 2026, in milliseconds.
const START: i64 = 1_767_225_600_000;
const DAY: i64 = 86_400_000;
const DAYS: i64 = 30;
/// What one search leaves in the log, about.
const EVENTS_PER_SEARCH: u64 = 18;
/// How often a level is clicked when it is looked at, L1 first.
const ATTRACTS: [f64; 4] = [0.035, 0.11, 0.36, 0.5];
/// How often a click leads to the cart, L1 first.
const TAKEN: [f64; 4] = [0.01, 0.05, 0.2, 0.3];
const BOUGHT: f64 = 0.45;
/// Of the queries by how often they are typed.
const ZIPF: f64 = 0.85;
/// Moves the order from search to search, and that of an item from day to day.
const SHAKE: f64 = 0.06;
const DRIFT: f64 = 0.08;
/// How much likelier a popular item is clicked.
const HERD: f64 = 0.8;

const OF_SESSIONS: u64 = 6;
const OF_DRIFT: u64 = 7;
const OF_LOOKS: u64 = 8;
const OF_TYPING: u64 = 9;

/// A line of the log on its way: time, number in the order of making, JSON.
type Line = Reverse<(i64, u64, Vec<u8>)>;

pub struct Sessions<'a> {
    catalogue: &'a Catalogue,
    requests: &'a [Request],
    /// What may be shown, per request.
    pools: &'a [Vec<Candidate>],
    /// Requests and the sum of the weights up to each.
    typed: Vec<(usize, f64)>,
}

impl<'a> Sessions<'a> {
    /// `asked` are the requests that shoppers type.
    pub fn new(
        catalogue: &'a Catalogue,
        requests: &'a [Request],
        pools: &'a [Vec<Candidate>],
        asked: &[usize],
    ) -> Self {
        let mut dice = Dice::new(&[catalogue.seed, OF_TYPING]);
        // the usual queries tend to the head
        let head = |slice: Slice| if slice == Slice::General { 0.4 } else { 1.0 };
        let mut order: Vec<(f64, usize)> =
            asked.iter().map(|at| (dice.unit() * head(requests[*at].slice), *at)).collect();
        order.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut sum = 0.0;
        let typed = order.into_iter().enumerate().map(|(rank, (_, at))| {
            sum += (rank as f64 + 1.0).powf(-ZIPF);
            (at, sum)
        });
        Self { catalogue, requests, pools, typed: typed.collect() }
    }

    /// Writes `num_events` events and the queries they belong to, by time.
    pub fn write(&self, num_events: u64, line: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let Some((_, total)) = self.typed.last().copied() else { return Ok(()) };
        let searches = num_events.div_ceil(EVENTS_PER_SEARCH).max(1);
        let (mut waiting, mut number, mut left) = (BinaryHeap::<Line>::new(), 0, num_events);
        let mut search = 0;
        while left > 0 {
            let mut dice = Dice::new(&[self.catalogue.seed, OF_SESSIONS, search]);
            let drawn = dice.unit() * total;
            let place = self.typed.partition_point(|(_, sum)| *sum <= drawn).min(self.typed.len() - 1);
            let begin = START + when(search, searches);
            while waiting.peek().is_some_and(|Reverse((time, ..))| *time < begin) {
                let Reverse((_, _, json)) = waiting.pop().expect("it was seen above");
                line(&json)?;
            }
            let mut search_log =
                SearchLog { id: format!("s{search}"), client: String::new(), left: &mut left, lines: Vec::new() };
            self.search(&mut dice, self.typed[place].0, begin, &mut search_log);
            for (time, json) in search_log.lines {
                waiting.push(Reverse((time, number, json)));
                number += 1;
            }
            search += 1;
        }
        while let Some(Reverse((_, _, json))) = waiting.pop() {
            line(&json)?;
        }
        Ok(())
    }

    /// One search and what follows it.
    fn search(&self, dice: &mut Dice, at: usize, begin: i64, log: &mut SearchLog) {
        log.client = format!("c{}", dice.below(5_000));
        let day = (begin - START) / DAY;
        let mut shown: Vec<Candidate> = self.pools[at].clone();
        for candidate in &mut shown {
            let drift = Dice::new(&[self.catalogue.seed, OF_DRIFT, u64::from(candidate.row), day as u64 / 5]).normal();
            candidate.score += (SHAKE * dice.normal() + DRIFT * drift) as f32;
        }
        shown.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.row.cmp(&b.row)));
        // a phone shows less than a desk
        shown.truncate(if dice.chance(0.55) { 10 + dice.below(5) } else { 16 + dice.below(9) });
        let request = &self.requests[at];
        let ids: Vec<String> = shown.iter().map(|candidate| item_id(candidate.row)).collect();
        log.query(&request.text, begin, &ids);
        for (place, id) in (1..).zip(&ids) {
            log.event(Action::Impression, id, place, begin + 300);
        }
        let mut time = begin + 2_000;
        for ((place, candidate), id) in (1..).zip(&shown).zip(&ids) {
            let Some(item) = self.catalogue.get(candidate.row) else { continue };
            let level = request.intent.judge(item);
            if !dice.chance(1.0 / f64::from(place)) || !dice.chance(self.attraction(candidate.row, item, level)) {
                continue;
            }
            time += 1_000 + dice.below(20_000) as i64;
            log.event(Action::Click, id, place, time);
            let good = TAKEN[usize::from(level.number()) - 1] * (0.6 + 0.2 * f64::from(item.quality));
            if dice.chance(good) {
                time += 3_000 + dice.below(60_000) as i64;
                log.event(Action::AddToCart, id, place, time);
                if dice.chance(BOUGHT) {
                    time += 5_000 + dice.below(120_000) as i64;
                    log.event(Action::Purchase, id, place, time);
                }
            }
        }
    }

    /// How likely a look becomes a click: level and quality, what others buy, and a picture that is good or bad.
    fn attraction(&self, row: u32, item: &Traits, level: Level) -> f64 {
        let looks = Dice::new(&[hash(&[self.catalogue.seed, OF_LOOKS, u64::from(row)])]).normal();
        let quality = 0.7 + 0.15 * f64::from(item.quality);
        let herd = 1.0 + HERD * f64::from(item.popularity);
        (ATTRACTS[usize::from(level.number()) - 1] * quality * herd * (0.45 * looks).exp()).min(0.95)
    }
}

/// The lines of one search. What is beyond the number of events that was asked for is left out.
struct SearchLog<'a> {
    id: String,
    client: String,
    left: &'a mut u64,
    lines: Vec<(i64, Vec<u8>)>,
}

const APPLICATION: &str = "market";

impl SearchLog<'_> {
    fn query(&mut self, text: &str, time: i64, shown: &[String]) {
        let mut json = Vec::with_capacity(512);
        let hits = shown.iter().map(|id| Cow::Borrowed(id.as_str())).collect();
        let (query_id, client_id) = (self.id.as_str().into(), self.client.as_str().into());
        QueryRecord { query_id, client_id, text: text.into(), time, hits }.write(APPLICATION, &mut json);
        self.lines.push((time, json));
    }

    fn event(&mut self, action: Action, item: &str, place: u32, time: i64) {
        if *self.left == 0 {
            return;
        }
        *self.left -= 1;
        let mut json = Vec::with_capacity(256);
        let (query_id, client_id) = (self.id.as_str().into(), self.client.as_str().into());
        let event =
            EventRecord { action, query_id, client_id, item: item.into(), position: Some(place), time, text: None };
        event.write(APPLICATION, &mut json);
        self.lines.push((time, json));
    }
}

/// When a search begins: evenly over the days, and over a day as people are awake.
fn when(search: u64, searches: u64) -> i64 {
    let share = search as f64 / searches as f64 * DAYS as f64;
    let (day, hour) = (share.floor(), share.fract());
    // the day's curve, monotone: slow at night, fast in the evening
    let bent = hour + 0.12 * (std::f64::consts::TAU * hour).sin();
    ((day + bent) * DAY as f64) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_forward() {
        let times: Vec<i64> = (0..2000).map(|search| when(search, 1000)).collect();
        assert!(times.windows(2).all(|pair| pair[0] <= pair[1]));
        assert!(times[999] < DAYS * DAY);
    }
}
