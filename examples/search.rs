//! Builds an index of three items in a new folder, then searches it in this process, without a service.
//!
//!     cargo run --release --example search -- MODEL_FOLDER
#![expect(clippy::print_stdout, reason = "it shows its result")]

use std::path::Path;

use souk::backbone::Precision;
use souk::domain::{Item, TextKind};
use souk::encoder::{Encoder, Overrides, Placement};
use souk::index::{Index, IndexHit, IndexSettings, Live, Snapshot, VectorQuery};
use souk::{Error, Result};
use tch::Device;

/// Stored in the index; opening it with another model's id is an error.
const MODEL_ID: &str = "example";
const ITEMS: [&str; 3] = ["a desk made of solid oak", "a table lamp of brass", "a red rain jacket"];

fn main() -> Result<()> {
    let model = std::env::args().nth(1).unwrap_or_else(|| "tests/golden/st_mean_dense".into());
    let folder = std::env::temp_dir().join(format!("souk-example-{}", std::process::id()));
    for hit in run(Path::new(&model), &folder, "oak desk")? {
        println!("{:.4}  {}", hit.score, hit.item.load()?.title);
    }
    std::fs::remove_dir_all(&folder).map_err(Error::store(&folder, "remove the folder"))
}

/// The two nearest items to a query. The index stays in `folder`.
pub fn run(model: &Path, folder: &Path, query: &str) -> Result<Vec<IndexHit>> {
    let placement =
        Placement { device: Device::Cpu, precision: Precision::F32, adapter: None, ignore_fields: Vec::new() };
    let encoder = Encoder::open(model, placement, Overrides::default())?.freeze()?;
    let vector = |text: &str, kind| -> Result<Vec<f32>> {
        let text = encoder.reader().read(text, Some(kind))?;
        Ok(encoder.vectors(&[&text])?.remove(0))
    };
    let mut builder = Snapshot::builder(folder, MODEL_ID.into(), encoder.dimensions(), IndexSettings::default())?;
    for (title, number) in ITEMS.iter().zip(1..) {
        let item =
            Item { id: number.to_string(), title: (*title).into(), text: String::new(), fields: Default::default() };
        builder.add(&item, &vector(&encoder.item_text().render(&item), TextKind::Item)?)?;
    }
    builder.write(&mut |_| {})?;

    let index = Live::open(folder, MODEL_ID, encoder.dimensions(), encoder.item_text())?;
    let vector = vector(query, TextKind::Query)?;
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.map_err(|e| Error::input("no runtime could be started").because(e))?;
    runtime.block_on(index.nearest(VectorQuery::new(&vector, 2), None))
}
