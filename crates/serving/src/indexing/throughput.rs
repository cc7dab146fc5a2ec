//! Throughput of encoding a catalogue: items done, items per second, and the time for a billion items.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::Serialize;

use super::shard_files::ShardResult;
use souk_ingest::import::Shard;

const BILLION: f64 = 1e9;
const DAY: f64 = 86_400.0;

#[derive(Clone, Debug, Serialize)]
pub struct Throughput {
    /// Items encoded by this run, and its seconds.
    pub items: u64,
    pub seconds: f64,
    pub items_per_second: f64,
    /// Days for a billion items.
    pub billion_days: f64,
    #[serde(skip)]
    started: Instant,
    /// Source bytes in finished shards, and in all.
    #[serde(skip)]
    pub bytes: (u64, u64),
    #[serde(skip)]
    pub shards: (usize, usize),
    /// Bytes and items that this run encoded, to estimate the size of an item.
    #[serde(skip)]
    encoded: (u64, u64),
}

impl Throughput {
    /// Counts the shards of one rank, some of which are done.
    pub fn new<'a>(shards: impl Iterator<Item = (usize, &'a Shard)>, before: &BTreeMap<usize, ShardResult>) -> Self {
        let (mut bytes, mut num) = ((0, 0), (0, 0));
        for (at, shard) in shards {
            let is_done = before.contains_key(&at);
            bytes = (bytes.0 + if is_done { shard.bytes } else { 0 }, bytes.1 + shard.bytes);
            num = (num.0 + usize::from(is_done), num.1 + 1);
        }
        Self {
            items: 0,
            seconds: 0.0,
            items_per_second: 0.0,
            billion_days: 0.0,
            started: Instant::now(),
            bytes,
            shards: num,
            encoded: (0, 0),
        }
    }

    pub fn add_item(&mut self) {
        self.items += 1;
        self.refresh();
    }

    pub fn finish_shard(&mut self, shard: &Shard) {
        self.bytes.0 += shard.bytes;
        self.shards.0 += 1;
        self.encoded = (self.encoded.0 + shard.bytes, self.items);
    }

    fn refresh(&mut self) {
        self.seconds = self.started.elapsed().as_secs_f64();
        if self.seconds > 0.0 {
            self.items_per_second = self.items as f64 / self.seconds;
            self.billion_days = BILLION / self.items_per_second / DAY;
        }
    }

    /// Estimated number of items that this run encodes; None until a shard is done.
    pub fn expected(&self) -> Option<u64> {
        let (bytes, items) = self.encoded;
        let all = self.bytes.1 - self.bytes.0 + bytes;
        (bytes > 0 && items > 0).then(|| (all as f64 * items as f64 / bytes as f64) as u64)
    }

    /// Totals over all ranks, once all are done.
    pub fn for_all_ranks(mut self, num_items: u64, before: &BTreeMap<usize, ShardResult>) -> Self {
        self.items = num_items - before.values().map(|result| result.items).sum::<u64>();
        self.refresh();
        self
    }
}
