//! Cost of soft tokens (GIRCSE, Table 6): operations, time and memory, with and without a cache, compared with one plain pass
//! over the same tokens.
//!
//!     refine MODEL [TOKENS] [TEXTS] [ROUNDS]      MODEL: a decoder that can write, such as docs/generative.md makes
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench says what it found, and one that cannot go on stops"
)]

use std::path::Path;
use std::time::Instant;

use souk::backbone::Precision;
use souk::encoder::{Encoder, Outline, Overrides, Placement, Pooling, Rationale, Refine, Scratch, Text};
use souk::plan::{KNOWN_WRITERS, ReadingCost};
use tch::Device;

const STEPS: [u64; 4] = [1, 5, 10, 20];

/// Maximum number of steps to time without a cache; beyond it, only operations are counted.
const MAX_AGAIN: u64 = 5;

/// Way to encode: `None` is the plain pass.
type Way = Option<(u64, bool)>;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let model = Path::new(arguments.first().expect("expected MODEL [TOKENS] [TEXTS] [ROUNDS]"));
    let number = |at: usize, usual: u64| arguments.get(at).map_or(usual, |said| said.parse().unwrap());
    let (tokens, texts, rounds) = (number(1, 512), number(2, 8), number(3, 3));
    let known = KNOWN_WRITERS.map(|(name, json)| (name.to_owned(), json.parse().unwrap(), 2));
    let config = std::fs::read_to_string(model.join("config.json")).unwrap().parse().unwrap();
    for (name, json, bytes) in known.into_iter().chain([("the model given".to_owned(), config, 4)]) {
        println!("\n{name}, counted for one text of {tokens} tokens:\n");
        println!(
            "| soft tokens | GFLOP cached | of one pass | without | of one pass | kept, MiB |\n|---|---|---|---|---|---|"
        );
        let outline = outline(json);
        let of = |steps, cached| ReadingCost { tokens, steps, cached };
        let plain = of(0, true).flops(&outline);
        println!("| none | {:.1} | 1.00 | | | |", plain / 1e9);
        for steps in STEPS {
            let [cached, again] = [true, false].map(|cached| of(steps, cached).flops(&outline));
            let kept = of(steps, true).kept_bytes(&outline, bytes) as f64 / f64::from(1 << 20);
            println!(
                "| {steps} | {:.1} | {:.3} | {:.1} | {:.2} | {kept:.1} |",
                cached / 1e9,
                cached / plain,
                again / 1e9,
                again / plain
            );
        }
    }
    timed(model, tokens, texts, rounds);
}

fn outline(json: serde_json::Value) -> Outline {
    let prompt = String::new;
    let scratch = Scratch {
        seed: 1,
        vocab: 1,
        pooling: Pooling::LastToken,
        max_tokens: 512,
        query_prompt: prompt(),
        item_prompt: prompt(),
        architecture: json,
    };
    Outline::of_scratch(&scratch, &Overrides::default()).unwrap()
}

fn timed(model: &Path, tokens: u64, texts: u64, rounds: u64) {
    let again = STEPS.into_iter().filter(|steps| *steps <= MAX_AGAIN).map(|steps| Some((steps, false)));
    let ways: Vec<Way> =
        [None].into_iter().chain(STEPS.into_iter().map(|steps| Some((steps, true)))).chain(again).collect();
    let encoders: Vec<Encoder> = ways.iter().map(|way| open(model, *way)).collect();
    let vocab = encoders[0].vocab() as u64;
    let texts: Vec<Text> = (0..texts)
        .map(|text| Text::new((0..tokens).map(|at| ((text * 7919 + at * 104_729) % vocab) as u32).collect(), 0))
        .collect();
    let texts: Vec<&Text> = texts.iter().collect();
    let mut seconds = vec![Vec::new(); ways.len()];
    // alternate, and drop the first round as warm-up
    for round in 0..=rounds {
        for (encoder, seconds) in encoders.iter().zip(&mut seconds) {
            let begin = Instant::now();
            drop(encoder.vectors(&texts).unwrap());
            if round > 0 {
                seconds.push(begin.elapsed().as_secs_f64());
            }
        }
    }
    println!(
        "\nthe model given, {} texts of {tokens} tokens together, median of {rounds} rounds, {} threads:\n",
        texts.len(),
        tch::get_num_threads()
    );
    println!("| soft tokens | cached | ms | of one pass |\n|---|---|---|---|");
    let medians: Vec<f64> = seconds.iter_mut().map(|seconds| median(seconds)).collect();
    for (way, found) in ways.iter().zip(&medians) {
        let (steps, cached) = match way {
            None => ("none".to_owned(), ""),
            Some((steps, cached)) => (steps.to_string(), if *cached { "yes" } else { "no" }),
        };
        println!("| {steps} | {cached} | {:.1} | {:.3} |", found * 1e3, found / medians[0]);
    }
}

fn open(model: &Path, way: Way) -> Encoder {
    let refine = way.map(|(steps, cached)| Refine { steps: Some(steps as usize), cached: Some(cached) });
    let rationale = way.is_none().then(|| Rationale { max_tokens: Some(0), ..Rationale::default() });
    let overrides = Overrides { refine, rationale, pooling: Some(Pooling::LastToken), ..Overrides::default() };
    let placement =
        Placement { device: Device::Cpu, precision: Precision::F32, adapter: None, ignore_fields: Vec::new() };
    Encoder::open(model, placement, overrides).unwrap().freeze().unwrap()
}

fn median(seconds: &mut [f64]) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}
