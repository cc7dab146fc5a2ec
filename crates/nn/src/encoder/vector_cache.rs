//! Vectors of texts that are needed again and again, by a model that does not change.

use std::collections::HashMap;
use std::hash::Hash;

use souk_io::error::Result;

/// Vectors by key. A full cache is cleared.
pub struct VectorCache<K> {
    /// Number of each key's vector.
    places: HashMap<K, usize>,
    /// Concatenated.
    vectors: Vec<f32>,
    width: usize,
    max_bytes: usize,
}

impl<K: Clone + Eq + Hash> VectorCache<K> {
    /// `width`: dimensions of a vector. `max_bytes`: of all vectors; those of one call always fit.
    pub fn new(width: usize, max_bytes: usize) -> Self {
        Self { places: HashMap::new(), vectors: Vec::new(), width, max_bytes }
    }

    /// The vectors of `keys`, concatenated in their order. `encode` gives those of the keys at some places, which are new and differ.
    pub fn get_or_encode(&mut self, keys: &[K], encode: impl FnOnce(&[usize]) -> Result<Vec<f32>>) -> Result<Vec<f32>> {
        if self.vectors.len() * size_of::<f32>() > self.max_bytes {
            self.places.clear();
            self.vectors.clear();
        }
        let first = self.vectors.len() / self.width;
        let (mut missing, mut new) = (Vec::new(), HashMap::new());
        for (at, key) in keys.iter().enumerate() {
            if !self.places.contains_key(key) && !new.contains_key(key) {
                new.insert(key.clone(), first + missing.len());
                missing.push(at);
            }
        }
        if !missing.is_empty() {
            // before the keys, which an error must not leave without vectors
            let encoded = encode(&missing)?;
            debug_assert_eq!(encoded.len(), missing.len() * self.width);
            self.vectors.extend(encoded);
            self.places.extend(new);
        }
        let mut found = Vec::with_capacity(keys.len() * self.width);
        for key in keys {
            let start = self.places[key] * self.width;
            found.extend_from_slice(&self.vectors[start..start + self.width]);
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use souk_io::error::Error;

    use super::*;

    #[test]
    fn each_key_is_encoded_once_until_the_cache_is_full() {
        let mut asked = Vec::new();
        let mut cache = VectorCache::new(2, 3 * 8);
        let mut get = |keys: &[u32]| {
            let encode = |missing: &[usize]| {
                asked.push(missing.iter().map(|at| keys[*at]).collect::<Vec<_>>());
                Ok(missing.iter().flat_map(|at| [keys[*at] as f32, 0.5]).collect())
            };
            cache.get_or_encode(keys, encode).unwrap()
        };
        assert_eq!(get(&[7, 3, 7]), [7.0, 0.5, 3.0, 0.5, 7.0, 0.5]);
        assert_eq!(get(&[3, 9, 4]), [3.0, 0.5, 9.0, 0.5, 4.0, 0.5], "more than fits is kept until the next call");
        assert_eq!(get(&[]), [0.0; 0]);
        assert_eq!(get(&[3]), [3.0, 0.5]);
        assert_eq!(asked, [vec![7, 3], vec![9, 4], vec![3]]);
    }

    #[test]
    fn what_could_not_be_encoded_is_asked_for_again() {
        let mut cache = VectorCache::new(1, 100);
        assert!(cache.get_or_encode(&["a"], |_| Err(Error::input("away"))).is_err());
        assert_eq!(cache.get_or_encode(&["a"], |_| Ok(vec![1.0])).unwrap(), [1.0]);
    }
}
