//! Simulated search log of thirty days: queries, impressions, clicks and purchases. Clicks depend on relevance, quality,
//! popularity, position and chance, and only on hits that were shown.
//!
//! Position-based click model: a position is examined with probability 1 / position, as position-bias correction may assume.
//! An examined item is clicked with a probability of the item only, so positions are independent.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::catalogue::{MarketCatalogue, Traits};
use super::dice::{Dice, STREAM_DRIFT, STREAM_LOOKS, STREAM_SESSIONS, STREAM_TYPING, hash};
use super::requests::Request;
use super::seller::item_id;
use super::shop_search::ShopHit;
use super::slice::QuerySlice;
use souk_io::domain::Level;
use souk_io::error::Result;
use souk_io::ubi::{Action, EventRecord, QueryRecord};

/// 1 January 2026, in milliseconds.
const START: i64 = 1_767_225_600_000;
const DAY: i64 = 86_400_000;
const DAYS: i64 = 30;
/// Approximate number of events per search.
const EVENTS_PER_SEARCH: u64 = 18;
/// Click rate of an examined item by level, L1 first.
const CLICK_RATES: [f64; 4] = [0.035, 0.11, 0.36, 0.5];
/// Rate of add-to-cart after a click by level, L1 first.
const CART_RATES: [f64; 4] = [0.01, 0.05, 0.2, 0.3];
const PURCHASE_RATE: f64 = 0.45;
/// Zipf exponent of query frequencies.
const ZIPF: f64 = 0.85;
/// Noise of the ranking per search, and of an item's score per five days.
const SEARCH_NOISE: f64 = 0.06;
const DAILY_DRIFT: f64 = 0.08;
/// Effect of popularity on clicks.
const POPULARITY_EFFECT: f64 = 0.8;

/// Pending log line: time, sequence number, JSON.
type LogLine = Reverse<(i64, u64, Vec<u8>)>;

pub struct Sessions<'a> {
    catalogue: &'a MarketCatalogue,
    requests: &'a [Request],
    /// Hits per request.
    pools: &'a [Vec<ShopHit>],
    /// Request indices with cumulative weights.
    query_weights: Vec<(usize, f64)>,
}

impl<'a> Sessions<'a> {
    /// Ranks the requests `logged` by frequency; only these appear in the log.
    pub fn new(
        catalogue: &'a MarketCatalogue,
        requests: &'a [Request],
        pools: &'a [Vec<ShopHit>],
        logged: &[usize],
    ) -> Self {
        let mut dice = Dice::new(&[catalogue.seed, STREAM_TYPING]);
        // general queries tend to be frequent
        let head = |slice: QuerySlice| if slice == QuerySlice::General { 0.4 } else { 1.0 };
        let mut order: Vec<(f64, usize)> =
            logged.iter().map(|at| (dice.unit() * head(requests[*at].slice), *at)).collect();
        order.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut sum = 0.0;
        let query_weights = order.into_iter().enumerate().map(|(rank, (_, at))| {
            sum += (rank as f64 + 1.0).powf(-ZIPF);
            (at, sum)
        });
        Self { catalogue, requests, pools, query_weights: query_weights.collect() }
    }

    /// Writes `num_events` events and their queries, ordered by time.
    pub fn write(&self, num_events: u64, line: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let Some((_, total)) = self.query_weights.last().copied() else { return Ok(()) };
        let searches = num_events.div_ceil(EVENTS_PER_SEARCH).max(1);
        let (mut pending, mut number, mut left) = (BinaryHeap::<LogLine>::new(), 0, num_events);
        let mut search = 0;
        while left > 0 {
            let mut dice = Dice::new(&[self.catalogue.seed, STREAM_SESSIONS, search]);
            let drawn = dice.unit() * total;
            let index = self.query_weights.partition_point(|(_, sum)| *sum <= drawn).min(self.query_weights.len() - 1);
            let begin = START + search_time(search, searches);
            while pending.peek().is_some_and(|Reverse((time, ..))| *time < begin) {
                let Reverse((_, _, json)) = pending.pop().expect("peek returned a line");
                line(&json)?;
            }
            let mut search_log =
                SearchLog { id: format!("s{search}"), client: String::new(), left: &mut left, lines: Vec::new() };
            self.search(&mut dice, self.query_weights[index].0, begin, &mut search_log);
            for (time, json) in search_log.lines {
                pending.push(Reverse((time, number, json)));
                number += 1;
            }
            search += 1;
        }
        while let Some(Reverse((_, _, json))) = pending.pop() {
            line(&json)?;
        }
        Ok(())
    }

    /// Simulates one search and its clicks.
    fn search(&self, dice: &mut Dice, at: usize, begin: i64, log: &mut SearchLog) {
        log.client = format!("c{}", dice.below(5_000));
        let day = (begin - START) / DAY;
        let mut shown: Vec<ShopHit> = self.pools[at].clone();
        for hit in &mut shown {
            let drift = Dice::new(&[self.catalogue.seed, STREAM_DRIFT, u64::from(hit.row), day as u64 / 5]).normal();
            hit.score += (SEARCH_NOISE * dice.normal() + DAILY_DRIFT * drift) as f32;
        }
        shown.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.row.cmp(&b.row)));
        // a phone shows fewer hits than a desktop
        shown.truncate(if dice.chance(0.55) { 10 + dice.below(5) } else { 16 + dice.below(9) });
        let request = &self.requests[at];
        let ids: Vec<String> = shown.iter().map(|hit| item_id(hit.row)).collect();
        log.query(&request.text, begin, &ids);
        for (position, id) in (1..).zip(&ids) {
            log.event(Action::Impression, id, position, begin + 300);
        }
        let mut time = begin + 2_000;
        for ((position, hit), id) in (1..).zip(&shown).zip(&ids) {
            let Some(item) = self.catalogue.get(hit.row) else { continue };
            let level = request.intent.judge(item);
            if !dice.chance(1.0 / f64::from(position)) || !dice.chance(self.click_rate(hit.row, item, level)) {
                continue;
            }
            time += 1_000 + dice.below(20_000) as i64;
            log.event(Action::Click, id, position, time);
            let cart_rate = CART_RATES[usize::from(level.number()) - 1] * (0.6 + 0.2 * f64::from(item.quality));
            if dice.chance(cart_rate) {
                time += 3_000 + dice.below(60_000) as i64;
                log.event(Action::AddToCart, id, position, time);
                if dice.chance(PURCHASE_RATE) {
                    time += 5_000 + dice.below(120_000) as i64;
                    log.event(Action::Purchase, id, position, time);
                }
            }
        }
    }

    /// Click probability of an examined item: level, quality, popularity and the appeal of its picture.
    fn click_rate(&self, row: u32, item: &Traits, level: Level) -> f64 {
        let appeal = Dice::new(&[hash(&[self.catalogue.seed, STREAM_LOOKS, u64::from(row)])]).normal();
        let quality = 0.7 + 0.15 * f64::from(item.quality);
        let popularity = 1.0 + POPULARITY_EFFECT * f64::from(item.popularity);
        (CLICK_RATES[usize::from(level.number()) - 1] * quality * popularity * (0.45 * appeal).exp()).min(0.95)
    }
}

/// Log lines of one search. Events beyond the requested number are omitted.
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

    fn event(&mut self, action: Action, item: &str, position: u32, time: i64) {
        if *self.left == 0 {
            return;
        }
        *self.left -= 1;
        let mut json = Vec::with_capacity(256);
        let (query_id, client_id) = (self.id.as_str().into(), self.client.as_str().into());
        let event =
            EventRecord { action, query_id, client_id, item: item.into(), position: Some(position), time, text: None };
        event.write(APPLICATION, &mut json);
        self.lines.push((time, json));
    }
}

/// Start of a search in milliseconds: uniform over days, with a day-night curve within each day.
fn search_time(search: u64, searches: u64) -> i64 {
    let days = search as f64 / searches as f64 * DAYS as f64;
    let (day, hour) = (days.floor(), days.fract());
    // monotone: few searches at night, many in the evening
    let warped = hour + 0.12 * (std::f64::consts::TAU * hour).sin();
    ((day + warped) * DAY as f64) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_ascending() {
        let times: Vec<i64> = (0..2000).map(|search| search_time(search, 1000)).collect();
        assert!(times.windows(2).all(|pair| pair[0] <= pair[1]));
        assert!(times[999] < DAYS * DAY);
    }
}
