//! A cache of bytes by key, in memory or in Redis. A cache may forget at any time; it never returns a value that was
//! not put there.

mod memory;
mod redis;

use std::sync::Arc;
use std::time::Duration;

use souk_io::address::Address;
use souk_io::error::{Error, Result};

pub use self::memory::{Cache, MAX_KEY, MAX_VALUE, MemoryCache, Value};
pub use self::redis::RedisCache;

/// Opens `memory`, limited to `max_bytes`, or `redis://HOST:PORT/N` (`rediss://` with TLS), whose entries expire after `lifetime`.
pub fn open_cache(address: &Address, max_bytes: usize, lifetime: Option<Duration>) -> Result<Arc<dyn Cache>> {
    match address.scheme() {
        "memory" => Ok(Arc::new(MemoryCache::new(max_bytes))),
        "redis" | "rediss" => Ok(Arc::new(RedisCache::open(address, "souk:", lifetime)?)),
        _ => Err(Error::config(
            address,
            "is not a cache address: use memory, redis://HOST:PORT/N, or rediss:// with TLS",
        )),
    }
}
