//! Memory: a long-lived process that opens many models in turn must not leak memory for each.

#![expect(clippy::unwrap_used, reason = "a test stops at the first error")]
#![cfg(target_os = "linux")]

use souk_native_allocator as _;
use souk_nn::encoder::{Overrides, Reader};

const MODELS: usize = 24;
/// Size of the tokenizer library's word cache.
const WORDS: usize = 10_000;

fn anonymous_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

/// The library caches words per thread and tokenizer and never frees them: 4 MiB each.
#[test]
fn dropped_tokenizers_leave_no_word_cache_behind() {
    let dir = souk_testing::golden("st_last");
    let use_one = || {
        let reader = Reader::open(&dir, &Overrides::default(), &[]).unwrap();
        for word in 0..WORDS {
            reader.read(&format!("lamp{word}oak{}", word * 7919), None).unwrap();
        }
    };
    (0..4).for_each(|_| use_one());
    let before = anonymous_bytes();
    (0..MODELS).for_each(|_| use_one());
    let leaked = anonymous_bytes().saturating_sub(before) / MODELS;
    assert!(leaked < 500_000, "{leaked} bytes leaked per tokenizer");
}
