//! Index of given vectors: time to build and open, queries per second, and recall. `benches/nearest.py` measures other
//! libraries on the same vectors.
//!
//!     nearest ITEMS QUERIES WIDTH K OUT
//!
//! ITEMS and QUERIES are files of unit vectors, as f32. Prints one line of JSON per setting.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench that cannot go on stops, and says what it found"
)]

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::Instant;

use serde_json::json;
use souk::domain::Item;
use souk::index::{IndexKind, IndexSettings, Snapshot, VectorQuery};

const ROUNDS: usize = 5;
const EF_VALUES: [usize; 6] = [100, 125, 150, 200, 300, 400];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let [items, queries, width, k, out] = &arguments[..] else {
        panic!("expected `ITEMS QUERIES WIDTH K OUT`, got {arguments:?}")
    };
    let (width, k): (usize, usize) = (width.parse().unwrap(), k.parse().unwrap());
    let (items, queries) = (read(items, width), read(queries, width));
    let out = Path::new(out);
    let (_, exact) =
        built(&out.join("exact"), &items, IndexSettings { kind: IndexKind::Exact, ..IndexSettings::default() });
    let truth = answers(&exact, &queries, k, k, 1).1;
    for (name, codes) in [("f32", false), ("int8", true)] {
        let settings = IndexSettings { kind: IndexKind::Hnsw, codes, ..IndexSettings::default() };
        let (build, index) = built(&out.join(name), &items, settings);
        let begin = Instant::now();
        drop(open(&out.join(name), width));
        let opened = begin.elapsed().as_secs_f64();
        let bytes: u64 = index.manifest().files.values().map(|sum| sum.bytes).sum();
        println!("{}", json!({"name": name, "build": build, "open": opened, "bytes": bytes}));
        for ef in EF_VALUES {
            let best = |threads| {
                let rounds = (0..ROUNDS).map(|_| answers(&index, &queries, k, ef, threads));
                rounds.min_by(|a, b| a.0.total_cmp(&b.0)).unwrap()
            };
            let ((one, found), (two, _)) = (best(1), best(2));
            let right = |(found, truth): (&Vec<usize>, &Vec<usize>)| {
                let truth: HashSet<_> = truth.iter().collect();
                found.iter().filter(|item| truth.contains(item)).count()
            };
            let recall = found.iter().zip(&truth).map(right).sum::<usize>() as f64 / (truth.len() * k) as f64;
            let rate = |seconds: f64| truth.len() as f64 / seconds;
            println!("{}", json!({"name": name, "ef": ef, "recall": recall, "one": rate(one), "two": rate(two)}));
        }
    }
}

fn read(file: &str, width: usize) -> Vec<Vec<f32>> {
    let bytes = fs::read(file).unwrap();
    let flat: Vec<f32> = bytes.chunks_exact(4).map(|entry| f32::from_le_bytes(entry.try_into().unwrap())).collect();
    flat.chunks_exact(width).map(<[f32]>::to_vec).collect()
}

fn open(dir: &Path, width: usize) -> Snapshot {
    Snapshot::open(dir, "vectors", width as i64).unwrap()
}

fn built(dir: &Path, vectors: &[Vec<f32>], settings: IndexSettings) -> (f64, Snapshot) {
    let width = vectors[0].len();
    let mut builder = Snapshot::builder(dir, "vectors".into(), width as i64, settings).unwrap();
    for (place, vector) in vectors.iter().enumerate() {
        let fields = serde_json::Map::new();
        let item = Item { id: place.to_string(), title: String::new(), text: String::new(), fields };
        builder.add(&item, vector).unwrap();
    }
    let begin = Instant::now();
    builder.write(&mut |_| ()).unwrap();
    (begin.elapsed().as_secs_f64(), open(dir, width))
}

/// Seconds, and the item indices for each query.
fn answers(index: &Snapshot, queries: &[Vec<f32>], k: usize, ef: usize, threads: usize) -> (f64, Vec<Vec<usize>>) {
    let answer = |query: &Vec<f32>| -> Vec<usize> {
        let found = index.nearest(&VectorQuery { ef: Some(ef), ..VectorQuery::new(query, k) }).unwrap();
        found.into_iter().map(|(_, item)| index.catalogue_position(item)).collect()
    };
    let begin = Instant::now();
    let found = thread::scope(|scope| {
        let answer = &answer;
        let shares = queries.chunks(queries.len().div_ceil(threads));
        let works: Vec<_> =
            shares.map(|share| scope.spawn(move || share.iter().map(answer).collect::<Vec<_>>())).collect();
        works.into_iter().flat_map(|work| work.join().unwrap()).collect::<Vec<Vec<usize>>>()
    });
    (begin.elapsed().as_secs_f64(), found)
}
