//! The `Cache` trait, and an in-memory LRU cache. Keys and values are bytes, read and written in batches. Entries may
//! be evicted at any time; a value that was not put is never returned.

use std::collections::{BTreeMap, HashMap};
use std::future::ready;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use souk_io::error::{Answer, Error, Result};

/// Longest key, in bytes. Keys are ids or hashes, not texts.
pub const MAX_KEY: usize = 512;
/// Longest value, in bytes; a vector has a few thousand. Limits the keys of one request to Redis.
pub const MAX_VALUE: usize = 256 << 10;
/// Overhead of an entry: slots in two tables and two reference counts. Between 160 and 210 bytes as the tables grow, on
/// a 64-bit machine.
const ENTRY_BYTES: usize = 200;

/// Cached bytes, shared to avoid copies.
pub type Value = Arc<[u8]>;

/// Cache of bytes by key.
pub trait Cache: Send + Sync {
    /// Values in the order of `keys`; `None` if missing.
    fn get_many<'a>(&'a self, keys: &'a [Vec<u8>]) -> Answer<'a, Vec<Option<Value>>>;
    /// Stores entries. If a key occurs twice, its last entry wins.
    fn put_many<'a>(&'a self, entries: &'a [(Vec<u8>, Value)]) -> Answer<'a, ()>;
}

/// In-memory LRU cache, limited by bytes.
pub struct MemoryCache {
    entries: Mutex<Entries>,
    max_bytes: usize,
}

#[derive(Default)]
struct Entries {
    by_key: HashMap<Arc<[u8]>, Entry>,
    /// Keys by last use.
    by_use: BTreeMap<u64, Arc<[u8]>>,
    num_uses: u64,
    num_bytes: usize,
}

struct Entry {
    value: Value,
    last_use: u64,
}

impl MemoryCache {
    pub fn new(max_bytes: usize) -> Self {
        Self { entries: Mutex::default(), max_bytes }
    }

    /// Bytes of all entries, with their overhead.
    pub fn num_bytes(&self) -> usize {
        self.lock().num_bytes
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        // no code under this lock panics midway, so a poisoned lock is safe to use
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    fn get(&mut self, key: &[u8]) -> Option<Value> {
        let entry = self.by_key.get_mut(key)?;
        let key = self.by_use.remove(&entry.last_use).expect("each entry is in `by_use`");
        self.num_uses += 1;
        entry.last_use = self.num_uses;
        self.by_use.insert(self.num_uses, key);
        Some(entry.value.clone())
    }

    fn put(&mut self, key: &[u8], value: &Value, max_bytes: usize) {
        if let Some((key, old)) = self.by_key.remove_entry(key) {
            self.by_use.remove(&old.last_use);
            self.num_bytes -= cost(&key, &old.value);
        }
        let num_bytes = cost(key, value);
        // a value larger than the cache evicts nothing
        if num_bytes > max_bytes {
            return;
        }
        while self.num_bytes + num_bytes > max_bytes {
            let Some((_, oldest)) = self.by_use.pop_first() else { break };
            let entry = self.by_key.remove(&oldest).expect("each key of `by_use` has an entry");
            self.num_bytes -= cost(&oldest, &entry.value);
        }
        let key: Arc<[u8]> = key.into();
        self.num_uses += 1;
        self.num_bytes += num_bytes;
        self.by_use.insert(self.num_uses, key.clone());
        self.by_key.insert(key, Entry { value: value.clone(), last_use: self.num_uses });
    }
}

impl Cache for MemoryCache {
    fn get_many<'a>(&'a self, keys: &'a [Vec<u8>]) -> Answer<'a, Vec<Option<Value>>> {
        let values = check_keys(keys.iter()).map(|()| {
            let mut entries = self.lock();
            keys.iter().map(|key| entries.get(key)).collect()
        });
        Box::pin(ready(values))
    }

    fn put_many<'a>(&'a self, new: &'a [(Vec<u8>, Value)]) -> Answer<'a, ()> {
        let done = check_entries(new).map(|()| {
            let mut entries = self.lock();
            new.iter().for_each(|(key, value)| entries.put(key, value, self.max_bytes));
        });
        Box::pin(ready(done))
    }
}

fn cost(key: &[u8], value: &[u8]) -> usize {
    key.len() + value.len() + ENTRY_BYTES
}

pub(super) fn check_keys<'a>(mut keys: impl Iterator<Item = &'a Vec<u8>>) -> Result<()> {
    match keys.find(|key| key.is_empty() || key.len() > MAX_KEY) {
        Some(key) => Err(Error::input(format!("a key has {} bytes: use 1 to {MAX_KEY}", key.len()))),
        None => Ok(()),
    }
}

pub(super) fn check_entries(entries: &[(Vec<u8>, Value)]) -> Result<()> {
    check_keys(entries.iter().map(|(key, _)| key))?;
    match entries.iter().find(|(_, value)| value.len() > MAX_VALUE) {
        Some((_, value)) => Err(Error::input(format!("a value has {} bytes: use at most {MAX_VALUE}", value.len()))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value(text: &str) -> Value {
        text.as_bytes().into()
    }

    #[test]
    fn evicts_least_recently_used_and_counts_every_byte() {
        let mut entries = Entries::default();
        let max_bytes = 3 * (ENTRY_BYTES + 2);
        for key in ["a", "b", "c"] {
            entries.put(key.as_bytes(), &value("1"), max_bytes);
        }
        assert_eq!(entries.num_bytes, max_bytes);
        assert_eq!(entries.get(b"a"), Some(value("1")), "most recently used from now on");
        entries.put(b"d", &value("1"), max_bytes);
        assert_eq!(entries.get(b"b"), None);
        assert_eq!(entries.get(b"a"), Some(value("1")));
        entries.put(b"a", &value("12"), max_bytes);
        assert_eq!(entries.num_bytes, 2 * (ENTRY_BYTES + 2) + 1, "a longer value evicts one more entry");
        assert_eq!(entries.get(b"c"), None);
        entries.put(b"a", &value(&"x".repeat(max_bytes)), max_bytes);
        assert_eq!(entries.get(b"a"), None, "a value too large for the cache removes the old one");
        assert_eq!(entries.get(b"d"), Some(value("1")));
    }

    proptest! {
        #[test]
        fn behaves_like_a_map_with_eviction(
            steps in prop::collection::vec((0u8..12, prop::option::of(0usize..200)), 1..200),
            max_bytes in 0usize..2000,
        ) {
            let (mut entries, mut all) = (Entries::default(), HashMap::new());
            for (step, (key, put)) in steps.into_iter().enumerate() {
                match put {
                    Some(length) => {
                        let value: Value = vec![step as u8; length].into();
                        entries.put(&[key], &value, max_bytes);
                        let fits = cost(&[key], &value) <= max_bytes;
                        prop_assert_eq!(entries.by_key.contains_key([key].as_slice()), fits);
                        all.insert(key, value);
                    }
                    None => {
                        let found = entries.get(&[key]);
                        prop_assert!(found.is_none() || found.as_ref() == all.get(&key));
                    }
                }
                let expected: usize = entries.by_key.iter().map(|(key, entry)| cost(key, &entry.value)).sum();
                prop_assert_eq!(entries.num_bytes, expected);
                prop_assert!(expected <= max_bytes);
                prop_assert_eq!(entries.by_use.len(), entries.by_key.len());
            }
        }
    }
}
