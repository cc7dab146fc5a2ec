//! What is closed is gone: a process that opens one model after the other for months must not keep something of each.

#![expect(clippy::unwrap_used, reason = "a test stops at the first thing that is wrong")]
#![cfg(target_os = "linux")]

use souk_nn::encoder::{Overrides, Reader};

const MODELS: usize = 24;
/// As many as the tokenizer's library would remember of each.
const WORDS: usize = 10_000;

fn anonymous_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

/// The library keeps words for each thread and tokenizer, and never lets go of them by itself: 4 MiB each.
#[test]
fn a_thread_keeps_no_words_of_tokenizers_that_are_gone() {
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
    let kept = anonymous_bytes().saturating_sub(before) / MODELS;
    assert!(kept < 500_000, "{kept} bytes of each tokenizer are still there");
}
