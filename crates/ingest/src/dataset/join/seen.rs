//! Keys of a lane's latest events, to recognise repeated ones.
//!
//! A hash table of buckets, each one cache line, so that looking a key up and adding it touch one place in memory. A new key
//! takes the same branches whatever its bucket holds: the processor goes on while it waits for the memory. Keys are hashes
//! already.

use std::collections::VecDeque;

const BUCKET: usize = 8;
/// Buckets of the first table.
const MIN_BUCKETS: usize = 1 << 9;

#[derive(Default)]
pub struct SeenKeys {
    /// Each key is in the first bucket from `home` on that had room for it. At least a quarter of the room is free.
    buckets: Vec<Bucket>,
    /// Whether 0 is among the keys; it has no place in a bucket.
    has_zero: bool,
    /// Keys in the order of arrival.
    order: VecDeque<u64>,
}

/// Keys, then zeros.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Bucket([u64; BUCKET]);

impl Bucket {
    #[inline]
    fn has(&self, key: u64) -> bool {
        self.0.iter().fold(false, |has, found| has | (*found == key))
    }

    #[inline]
    fn len(&self) -> usize {
        self.0.iter().map(|key| usize::from(*key != 0)).sum()
    }

    /// Takes the key at `place` out.
    fn take(&mut self, place: usize) -> u64 {
        let last = self.len() - 1;
        self.0.swap(place, last);
        std::mem::take(&mut self.0[last])
    }
}

impl SeenKeys {
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Returns false if the key is known already.
    #[inline]
    pub fn insert(&mut self, key: u64) -> bool {
        if self.order.len() * 4 >= self.buckets.len() * BUCKET * 3 {
            self.grow();
        }
        let is_new = if key == 0 { !std::mem::replace(&mut self.has_zero, true) } else { self.place(key) };
        if is_new {
            self.order.push_back(key);
        }
        is_new
    }

    /// Forgets the oldest keys, so that no more than `max` are left.
    #[inline]
    pub fn truncate(&mut self, max: usize) {
        while self.order.len() > max {
            match self.order.pop_front() {
                Some(0) => self.has_zero = false,
                Some(key) => self.remove(key),
                None => return,
            }
        }
    }

    /// Puts a key into the table, unless it is there.
    #[inline]
    fn place(&mut self, key: u64) -> bool {
        let mask = self.buckets.len() - 1;
        let mut at = self.home(key);
        loop {
            let bucket = &mut self.buckets[at & mask];
            let len = bucket.len();
            if bucket.has(key) {
                return false;
            }
            if let Some(free) = bucket.0.get_mut(len) {
                *free = key;
                return true;
            }
            at += 1;
        }
    }

    /// Removes a key of the table. A key that was put into a later bucket, because this one was full, moves up.
    fn remove(&mut self, key: u64) {
        let mask = self.buckets.len() - 1;
        let mut at = self.home(key);
        let place = loop {
            match self.buckets[at & mask].0.iter().position(|found| *found == key) {
                Some(place) => break place,
                None => at += 1,
            }
        };
        let mut was_full = self.buckets[at & mask].len() == BUCKET;
        self.buckets[at & mask].take(place);
        let mut later = at;
        while was_full {
            later += 1;
            let bucket = &self.buckets[later & mask];
            was_full = bucket.len() == BUCKET;
            let belongs_before = |key: &u64| *key != 0 && later.wrapping_sub(self.home(*key)) & mask >= later - at;
            if let Some(place) = bucket.0.iter().position(belongs_before) {
                let moved = self.buckets[later & mask].take(place);
                let free = self.buckets[at & mask].len();
                self.buckets[at & mask].0[free] = moved;
                at = later;
            }
        }
    }

    /// First bucket to look for a key: the high bits of a product, because the low bits of FNV-1a are weak.
    #[inline]
    fn home(&self, key: u64) -> usize {
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - self.buckets.len().trailing_zeros())) as usize
    }

    #[cold]
    fn grow(&mut self) {
        let larger = vec![Bucket::default(); (self.buckets.len() * 2).max(MIN_BUCKETS)];
        // homes have the same order in both tables, so that memory is touched in order
        for key in std::mem::replace(&mut self.buckets, larger).iter().flat_map(|bucket| bucket.0) {
            if key != 0 {
                self.place(key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn is_a_set_that_forgets_the_oldest(keys in proptest::collection::vec(0..60_u64, 0..300), max in 1..40_usize) {
            let (mut seen, mut set, mut order) = (SeenKeys::default(), HashSet::new(), Vec::new());
            for key in keys {
                // many keys with neighbouring homes, and some at the end of the table
                let key = if key % 3 == 0 { key } else { (u64::MAX / 3).wrapping_mul(key) };
                let is_new = set.insert(key);
                prop_assert_eq!(seen.insert(key), is_new);
                if is_new {
                    order.push(key);
                }
                if order.len() > max {
                    set.remove(&order.remove(0));
                }
                seen.truncate(max);
                prop_assert_eq!(seen.len(), order.len());
            }
        }
    }

    #[test]
    fn keeps_keys_that_share_their_home() {
        let mut seen = SeenKeys { buckets: vec![Bucket::default(); 8], ..SeenKeys::default() };
        // they fill the last buckets and three of the first
        let all: Vec<u64> = (1..2000).filter(|key| seen.home(*key) >= 6).take(40).collect();
        assert!(all.len() == 40 && all.iter().all(|key| seen.insert(*key)));
        assert_eq!(seen.buckets.len(), 8);
        for num_left in (0..all.len()).rev() {
            seen.truncate(num_left);
            let left = &all[all.len() - num_left..];
            let found: HashSet<u64> = seen.buckets.iter().flat_map(|bucket| bucket.0).filter(|key| *key != 0).collect();
            assert_eq!(found, left.iter().copied().collect());
            assert!(left.iter().all(|key| !seen.place(*key)), "{num_left}");
        }
    }

    #[test]
    fn grows_with_its_keys() {
        let mut seen = SeenKeys::default();
        let keys = || (0..200_000_u64).map(|number| number * number);
        assert!(keys().all(|key| seen.insert(key)));
        assert!(!keys().any(|key| seen.insert(key)));
        seen.truncate(0);
        assert!(seen.buckets.iter().all(|bucket| bucket.len() == 0) && !seen.has_zero);
    }
}
