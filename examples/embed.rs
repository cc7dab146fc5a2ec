//! Encodes a query and two items, and prints their cosine similarities.
//!
//!     cargo run --release --example embed -- MODEL_FOLDER
#![expect(clippy::print_stdout, reason = "it shows its result")]

use std::path::Path;

use souk::Result;
use souk::backbone::Precision;
use souk::domain::TextKind;
use souk::encoder::{Encoder, Overrides, Placement, Text};
use tch::Device;

fn main() -> Result<()> {
    let model = std::env::args().nth(1).unwrap_or_else(|| "tests/golden/st_mean_dense".into());
    for (text, similarity) in run(Path::new(&model))? {
        println!("{similarity:.4}  {text}");
    }
    Ok(())
}

/// The similarity of each item to the query `oak desk`.
pub fn run(model: &Path) -> Result<Vec<(&'static str, f64)>> {
    let placement =
        Placement { device: Device::Cpu, precision: Precision::F32, adapter: None, ignore_fields: Vec::new() };
    let encoder = Encoder::open(model, placement, Overrides::default())?.freeze()?;
    let reader = encoder.reader();
    let query = reader.read("oak desk", Some(TextKind::Query))?;
    let titles = ["a desk made of solid oak", "a red rain jacket"];
    let items: Vec<Text> =
        titles.iter().map(|title| reader.read(title, Some(TextKind::Item))).collect::<Result<_>>()?;
    let texts: Vec<&Text> = std::iter::once(&query).chain(&items).collect();
    let vectors = encoder.encode(&texts)?;
    let similarity = |row: i64| vectors.get(0).dot(&vectors.get(row)).double_value(&[]);
    Ok(titles.iter().zip(1..).map(|(title, row)| (*title, similarity(row))).collect())
}
