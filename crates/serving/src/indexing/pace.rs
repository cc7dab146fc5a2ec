//! How fast a catalogue is encoded: what was done, what that makes in a second, and how long the rest and a billion items take.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::Serialize;

use super::kept::Left;
use souk_ingest::import::Shard;

const BILLION: f64 = 1e9;
const DAY: f64 = 86_400.0;

#[derive(Clone, Debug, Serialize)]
pub struct Pace {
    /// Items encoded by this run, and since when.
    pub items: u64,
    pub seconds: f64,
    pub items_per_second: f64,
    /// Days that a billion items take.
    pub billion_days: f64,
    #[serde(skip)]
    began: Instant,
    /// As they lie in the files: in shards that are through, and in all.
    #[serde(skip)]
    pub bytes: (u64, u64),
    #[serde(skip)]
    pub shards: (usize, usize),
    /// Of what this run has done, to know how large an item is.
    #[serde(skip)]
    own: (u64, u64),
}

impl Pace {
    /// Of the shards of one rank, some of which are through.
    pub fn new<'a>(shards: impl Iterator<Item = (usize, &'a Shard)>, before: &BTreeMap<usize, Left>) -> Self {
        let (mut bytes, mut num) = ((0, 0), (0, 0));
        for (at, shard) in shards {
            let through = before.contains_key(&at);
            bytes = (bytes.0 + if through { shard.bytes } else { 0 }, bytes.1 + shard.bytes);
            num = (num.0 + usize::from(through), num.1 + 1);
        }
        Self {
            items: 0,
            seconds: 0.0,
            items_per_second: 0.0,
            billion_days: 0.0,
            began: Instant::now(),
            bytes,
            shards: num,
            own: (0, 0),
        }
    }

    pub fn encoded(&mut self) {
        self.items += 1;
        self.look();
    }

    pub fn ended(&mut self, shard: &Shard) {
        self.bytes.0 += shard.bytes;
        self.shards.0 += 1;
        self.own = (self.own.0 + shard.bytes, self.items);
    }

    fn look(&mut self) {
        self.seconds = self.began.elapsed().as_secs_f64();
        if self.seconds > 0.0 {
            self.items_per_second = self.items as f64 / self.seconds;
            self.billion_days = BILLION / self.items_per_second / DAY;
        }
    }

    /// About how many items this run has to encode; unknown until a shard is through.
    pub fn expected(&self) -> Option<u64> {
        let (bytes, items) = self.own;
        let all = self.bytes.1 - self.bytes.0 + bytes;
        (bytes > 0 && items > 0).then(|| (all as f64 * items as f64 / bytes as f64) as u64)
    }

    /// Of all ranks together, once all are through.
    pub fn of_all(mut self, num_items: u64, before: &BTreeMap<usize, Left>) -> Self {
        self.items = num_items - before.values().map(|left| left.items).sum::<u64>();
        self.look();
        self
    }
}
