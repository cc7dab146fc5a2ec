//! Brute-force versus graph search over a bank of vectors that a model computes for a shop; the basis of `candidates.search =
//! "auto"`. The variable below makes it single-threaded.
//!
//!     RAYON_NUM_THREADS=1 candidates MODEL DATA [K]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench that cannot go on stops, and says what it found"
)]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use souk::backbone::Precision;
use souk::beir::DataFolder;
use souk::candidates::{Bank, BankSearch};
use souk::domain::TextKind;
use souk::encoder::{Encoder, Overrides, Placement, Text};
use souk::item_text::ItemText;
use tch::{Device, Tensor};

const QUERIES: usize = 2048;
/// Queries per search, as in a training step.
const BATCH: i64 = 128;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let [model, data, k] = match &arguments[..] {
        [model, data] => [model, data, "16"],
        [model, data, k] => [model, data, k.as_str()],
        _ => panic!("expected `MODEL DATA [K]`, got {arguments:?}"),
    };
    let k: usize = k.parse().unwrap();
    tch::set_num_threads(1);
    let placement =
        Placement { device: Device::Cpu, precision: Precision::F32, adapter: None, ignore_fields: Vec::new() };
    let encoder = Encoder::open(Path::new(model), placement, Overrides::default()).unwrap().freeze().unwrap();
    let folder = DataFolder::open(Path::new(data)).unwrap();
    let items = folder.items().unwrap().map(|item| ItemText::default().render(&item.unwrap().1));
    let items = vectors(&encoder, items, TextKind::Item);
    let queries = folder.queries().unwrap().map(|query| query.unwrap().text).take(QUERIES);
    let queries = vectors(&encoder, queries, TextKind::Query);
    println!("{k} nearest, {} dimensions, {} queries in batches of {BATCH}", items.size()[1], queries.size()[0]);
    println!("| items | build, s | exact, ms a query | graph, ms a query | recall | the graph pays after, queries |");
    println!("|---|---|---|---|---|---|");
    for part in [4, 2, 1] {
        let items = items.narrow(0, 0, items.size()[0] / part);
        let (_, exact) = timed(|| Bank::build(0, items.shallow_clone(), BankSearch::Exact, &AtomicBool::new(false)));
        let (build, graph) = timed(|| Bank::build(0, items.shallow_clone(), BankSearch::Hnsw, &AtomicBool::new(false)));
        let search = |bank: &Bank| {
            let batches = queries.split(BATCH, 0);
            let (seconds, found) = timed(|| batches.iter().map(|some| bank.nearest(some, k).unwrap().rows).collect());
            let found: Vec<Tensor> = found;
            (seconds / queries.size()[0] as f64, Vec::<Vec<i64>>::try_from(Tensor::cat(&found, 0)).unwrap())
        };
        let ((by_product, truth), (by_graph, found)) = (search(&exact.unwrap()), search(&graph.unwrap()));
        let both: usize = truth.iter().zip(&found).map(|(truth, found)| shared(truth, found)).sum();
        let recall = both as f64 / (truth.len() * k) as f64;
        let saved = by_product - by_graph;
        let pays = if saved > 0.0 { format!("{:.0}", build / saved) } else { "never".into() };
        let [by_product, by_graph] = [by_product * 1e3, by_graph * 1e3];
        println!("| {} | {build:.1} | {by_product:.3} | {by_graph:.3} | {recall:.4} | {pays} |", items.size()[0]);
    }
}

fn vectors(encoder: &Encoder, texts: impl Iterator<Item = String>, kind: TextKind) -> Tensor {
    let texts: Vec<Text> = texts.map(|text| encoder.reader().read(&text, Some(kind)).unwrap()).collect();
    let blocks: Vec<Tensor> =
        texts.chunks(64).map(|some| encoder.encode(&some.iter().collect::<Vec<_>>()).unwrap()).collect();
    Tensor::cat(&blocks, 0)
}

fn timed<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let start = Instant::now();
    let done = work();
    (start.elapsed().as_secs_f64(), done)
}

fn shared(truth: &[i64], found: &[i64]) -> usize {
    let truth: BTreeSet<&i64> = truth.iter().collect();
    found.iter().filter(|row| truth.contains(row)).count()
}
