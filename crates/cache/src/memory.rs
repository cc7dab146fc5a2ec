//! What is cheap to lose and dear to compute: keys and values of bytes. Takes and gives many at a time. A cache may
//! forget at any moment, and never answers with what was not put there.

use std::collections::{BTreeMap, HashMap};
use std::future::ready;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::RedisCache;
use souk_io::address::Address;
use souk_io::error::{Answer, Error, Result};

/// A key is an id or a hash, not a text.
pub const MAX_KEY: usize = 512;
/// A vector has a few thousand bytes. What a server may answer at once follows from this.
pub const MAX_VALUE: usize = 256 << 10;
/// What an entry costs beside its bytes: slots in two tables, two reference counts. Between 160 and 210 as the tables
/// grow, on a 64-bit machine.
const ENTRY_BYTES: usize = 200;

/// Shared, so that to get it is not to copy it.
pub type Value = Arc<[u8]>;

/// Remembers bytes by key, for a while.
pub trait Cache: Send + Sync {
    /// In the order of `keys`.
    fn get_many<'a>(&'a self, keys: &'a [Vec<u8>]) -> Answer<'a, Vec<Option<Value>>>;
    /// The last of two entries with one key wins.
    fn put_many<'a>(&'a self, entries: &'a [(Vec<u8>, Value)]) -> Answer<'a, ()>;
}

/// `memory`, in which `max_bytes` may be held, or `redis://HOST/N`, where entries live for `lifetime`.
pub fn open_cache(address: &Address, max_bytes: usize, lifetime: Option<Duration>) -> Result<Arc<dyn Cache>> {
    match address.scheme() {
        "memory" => Ok(Arc::new(MemoryCache::new(max_bytes))),
        "redis" => Ok(Arc::new(RedisCache::open(address, "souk:", lifetime)?)),
        _ => Err(Error::config(address, "is no cache: say memory, or redis://HOST:PORT/N")),
    }
}

/// A cache in this process, bounded by bytes; what was used longest ago leaves first.
pub struct MemoryCache {
    entries: Mutex<Entries>,
    max_bytes: usize,
}

#[derive(Default)]
struct Entries {
    by_key: HashMap<Arc<[u8]>, Entry>,
    /// Keys by when they were last used.
    by_use: BTreeMap<u64, Arc<[u8]>>,
    num_uses: u64,
    num_bytes: usize,
}

struct Entry {
    value: Value,
    used: u64,
}

impl MemoryCache {
    pub fn new(max_bytes: usize) -> Self {
        Self { entries: Mutex::default(), max_bytes }
    }

    /// What is held now, with what holding it costs.
    pub fn num_bytes(&self) -> usize {
        self.lock().num_bytes
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        // nothing under this lock panics half-way
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entries {
    fn get(&mut self, key: &[u8]) -> Option<Value> {
        let entry = self.by_key.get_mut(key)?;
        let key = self.by_use.remove(&entry.used).expect("each entry has its use");
        self.num_uses += 1;
        entry.used = self.num_uses;
        self.by_use.insert(self.num_uses, key);
        Some(entry.value.clone())
    }

    fn put(&mut self, key: &[u8], value: &Value, max_bytes: usize) {
        if let Some((key, old)) = self.by_key.remove_entry(key) {
            self.by_use.remove(&old.used);
            self.num_bytes -= cost(&key, &old.value);
        }
        let num_bytes = cost(key, value);
        // what is too large for the whole is not worth forgetting the rest
        if num_bytes > max_bytes {
            return;
        }
        while self.num_bytes + num_bytes > max_bytes {
            let Some((_, oldest)) = self.by_use.pop_first() else { break };
            let entry = self.by_key.remove(&oldest).expect("each use has its entry");
            self.num_bytes -= cost(&oldest, &entry.value);
        }
        let key: Arc<[u8]> = key.into();
        self.num_uses += 1;
        self.num_bytes += num_bytes;
        self.by_use.insert(self.num_uses, key.clone());
        self.by_key.insert(key, Entry { value: value.clone(), used: self.num_uses });
    }
}

impl Cache for MemoryCache {
    fn get_many<'a>(&'a self, keys: &'a [Vec<u8>]) -> Answer<'a, Vec<Option<Value>>> {
        let found = checked_keys(keys.iter()).map(|()| {
            let mut entries = self.lock();
            keys.iter().map(|key| entries.get(key)).collect()
        });
        Box::pin(ready(found))
    }

    fn put_many<'a>(&'a self, new: &'a [(Vec<u8>, Value)]) -> Answer<'a, ()> {
        let done = checked_entries(new).map(|()| {
            let mut entries = self.lock();
            new.iter().for_each(|(key, value)| entries.put(key, value, self.max_bytes));
        });
        Box::pin(ready(done))
    }
}

fn cost(key: &[u8], value: &[u8]) -> usize {
    key.len() + value.len() + ENTRY_BYTES
}

pub(super) fn checked_keys<'a>(mut keys: impl Iterator<Item = &'a Vec<u8>>) -> Result<()> {
    match keys.find(|key| key.is_empty() || key.len() > MAX_KEY) {
        Some(key) => Err(Error::input(format!("a key of {} bytes: give 1 to {MAX_KEY}", key.len()))),
        None => Ok(()),
    }
}

pub(super) fn checked_entries(entries: &[(Vec<u8>, Value)]) -> Result<()> {
    checked_keys(entries.iter().map(|(key, _)| key))?;
    match entries.iter().find(|(_, value)| value.len() > MAX_VALUE) {
        Some((_, value)) => Err(Error::input(format!("a value of {} bytes: at most {MAX_VALUE}", value.len()))),
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
    fn what_was_used_longest_ago_leaves_first_and_every_byte_is_counted() {
        let mut entries = Entries::default();
        let max_bytes = 3 * (ENTRY_BYTES + 2);
        for key in ["a", "b", "c"] {
            entries.put(key.as_bytes(), &value("1"), max_bytes);
        }
        assert_eq!(entries.num_bytes, max_bytes);
        assert_eq!(entries.get(b"a"), Some(value("1")), "and is now the newest");
        entries.put(b"d", &value("1"), max_bytes);
        assert_eq!(entries.get(b"b"), None);
        assert_eq!(entries.get(b"a"), Some(value("1")));
        entries.put(b"a", &value("12"), max_bytes);
        assert_eq!(entries.num_bytes, 2 * (ENTRY_BYTES + 2) + 1, "a longer value pushed one more out");
        assert_eq!(entries.get(b"c"), None);
        entries.put(b"a", &value(&"x".repeat(max_bytes)), max_bytes);
        assert_eq!(entries.get(b"a"), None, "an old value does not stand for a new one that has no room");
        assert_eq!(entries.get(b"d"), Some(value("1")));
    }

    proptest! {
        #[test]
        fn a_cache_is_a_map_that_forgets(
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
                let counted: usize = entries.by_key.iter().map(|(key, entry)| cost(key, &entry.value)).sum();
                prop_assert_eq!(entries.num_bytes, counted);
                prop_assert!(counted <= max_bytes);
                prop_assert_eq!(entries.by_use.len(), entries.by_key.len());
            }
        }
    }
}
