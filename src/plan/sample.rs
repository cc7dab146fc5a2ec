//! Lengths of a data folder's texts in the model's tokens, and distinct items per batch: measured
//! on the batches that training will draw first.

use std::collections::HashSet;

use super::TextLengths;
use crate::train::TrainSettings;
use souk_ingest::dataset::Pairs;
use souk_io::beir::DataFolder;
use souk_io::catalogue::Catalogue;
use souk_io::domain::TextKind;
use souk_io::error::Result;
use souk_io::shuffle::{Draw, Order};
use souk_nn::encoder::Reader;

/// Pairs whose texts are tokenized.
const SAMPLE: usize = 2_000;
/// Pairs drawn to count distinct items.
const DRAWN: usize = 1 << 16;

/// Measures the first batches. A drawn negative that is also a pair's item is counted twice.
pub fn sample(data: &DataFolder, reader: &Reader, settings: &TrainSettings, negatives: usize) -> Result<TextLengths> {
    let catalogue = Catalogue::open(data)?.with_item_text(reader.item_text());
    let pairs = Pairs::open(data, &catalogue, settings.pairs, settings.training_split(), None)?;
    let order = Order { seed: settings.seed, block: settings.shuffle_block };
    let batch = settings.batch.clamp(1, DRAWN);
    let rows: Vec<u64> = Draw::new(pairs.len(), order, 0).take(batch * SAMPLE.div_ceil(batch)).collect();
    let tokens = |text: &str, kind| -> Result<u64> { Ok(reader.read(text, Some(kind))?.ids.len() as u64) };
    let item = |row: u32| tokens(&catalogue.text_of(&catalogue.item(row)?), TextKind::Item);
    let (mut queries, mut items) = (Vec::new(), Vec::new());
    for row in rows.iter().take(SAMPLE) {
        let pair = pairs.row(*row);
        queries.push(tokens(pair.query, TextKind::Query)?);
        items.push(item(pair.item)?);
    }
    // as many as a batch has beside its pairs
    let drawn = (negatives * SAMPLE / batch).min(SAMPLE) as u64;
    for draw in 0..drawn {
        items.push(item(catalogue.negative(settings.seed, draw))?);
    }
    let held = |batch: &[u64]| batch.iter().map(|row| pairs.row(*row).item).collect::<HashSet<u32>>().len();
    let distinct: usize = rows.chunks(batch).map(held).sum();
    TextLengths::new(queries, items, distinct as f64 / rows.len() as f64, Some(pairs.len()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use souk_nn::encoder::Overrides;

    #[test]
    fn lengths_and_shared_items_are_those_of_the_first_batches() {
        let home = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(home.path().join(name), text).unwrap();
        write("corpus.jsonl", "{\"_id\":\"a\",\"title\":\"oak desk\"}\n{\"_id\":\"b\",\"title\":\"lamp\"}\n");
        write("queries.jsonl", "{\"_id\":\"1\",\"text\":\"desk\"}\n{\"_id\":\"2\",\"text\":\"table of oak\"}\n");
        fs::create_dir(home.path().join("qrels")).unwrap();
        write("qrels/train.tsv", "query-id\tcorpus-id\tscore\n1\ta\t4\n2\ta\t4\n");
        let golden = souk_testing::golden("st_cls");
        let reader = Reader::open(&golden, &Overrides::default(), &[]).unwrap();
        let data = DataFolder::open(home.path()).unwrap();
        let settings = TrainSettings { batch: 2, ..TrainSettings::default() };
        let texts = sample(&data, &reader, &settings, 0).unwrap();
        assert_eq!((texts.distinct, texts.pairs), (0.5, Some(2)), "both pairs chose one item");
        let length = |text: &str, kind| reader.read(text, Some(kind)).unwrap().ids.len() as f64;
        let queries = (length("desk", TextKind::Query) + length("table of oak", TextKind::Query)) / 2.0;
        assert_eq!(texts.mean_tokens(), [queries, length("oak desk", TextKind::Item)]);
    }
}
