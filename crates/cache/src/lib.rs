//! A cache of bytes by key, in memory or in Redis. A cache may forget at any time; it never returns a value that was not put there.

mod memory;
mod redis;

pub use self::memory::{Cache, MAX_KEY, MAX_VALUE, MemoryCache, Value, open_cache};
pub use self::redis::RedisCache;
