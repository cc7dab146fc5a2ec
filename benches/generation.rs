//! Tokens per second of a decoder, for `benches/generation.py`, which compares it with transformers.
//!
//!     generation MODEL TOKENS EACH      texts on standard input; a JSON object: tokens written, seconds, threads
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench says what it found, and one that cannot go on stops"
)]

use std::io::{BufRead, stdin};
use std::path::Path;
use std::time::Instant;

use souk::backbone::{Precision, Sampling};
use souk::encoder::{Encoder, Overrides, Placement, Rationale};
use tch::Device;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let [model, tokens, each] = &arguments[..] else { panic!("expected MODEL TOKENS EACH, got {arguments:?}") };
    let rationale = Some(Rationale { max_tokens: Some(tokens.parse().unwrap()), ..Rationale::default() });
    let overrides = Overrides { rationale, ..Overrides::default() };
    let placement =
        Placement { device: Device::Cpu, precision: Precision::F32, adapter: None, ignore_fields: Vec::new() };
    let encoder = Encoder::open(Path::new(model), placement, overrides).unwrap().freeze().unwrap();
    let texts: Vec<_> =
        stdin().lock().lines().map(|line| encoder.reader().read(&line.unwrap(), None).unwrap()).collect();
    let texts: Vec<_> = texts.iter().collect();
    let how = Sampling { max_tokens: tokens.parse().unwrap(), ..Sampling::default() };
    drop(encoder.generate(&texts[..1], 1, &how).unwrap());
    let begin = Instant::now();
    let written = encoder.generate(&texts, each.parse().unwrap(), &how).unwrap();
    let seconds = begin.elapsed().as_secs_f64();
    let tokens: usize = written.iter().map(|text| text.ids.len()).sum();
    println!("{}", serde_json::json!({"tokens": tokens, "seconds": seconds, "threads": tch::get_num_threads()}));
}
