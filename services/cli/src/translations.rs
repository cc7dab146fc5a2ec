//! Pairs that translations of words are learned from: those that `souk train` draws.

use std::collections::BTreeMap;

use souk::beir::DataFolder;
use souk::catalogue::Catalogue;
use souk::config::Config;
use souk::dataset::{PairSource, Pairs, TrainingSplit};
use souk::error::Result;
use souk::item_text::ItemText;
use souk::lexical::TranslationPairs;

/// The newest pairs are used.
const MAX_PAIRS: u64 = 1_000_000;
/// A pair counts at most as often, however often it was chosen.
const MAX_WEIGHT: f32 = 5.0;

/// The training pairs of a data folder, without those of the queries of `split` that weights are fitted to. Empty if these are all.
pub fn translation_pairs(
    config: &Config,
    data: &DataFolder,
    item_text: &ItemText,
    split: &str,
) -> Result<TranslationPairs> {
    let settings = &config.train;
    let mut learned = TranslationPairs::default();
    let training = settings.training_split();
    let (source, training) = match settings.pairs {
        // all queries of the split are fitted to
        _ if training.name == split && training.held_out == 0.0 => return Ok(learned),
        _ if training.name == split => (PairSource::Qrels, training),
        PairSource::Items => (PairSource::Auto, TrainingSplit::whole(training.name)),
        source => (source, TrainingSplit::whole(training.name)),
    };
    let catalogue = Catalogue::open(data)?.with_item_text(item_text);
    let pairs = Pairs::open(data, &catalogue, source, training, None)?;
    let mut weights: BTreeMap<(u32, u32), (&str, f32)> = BTreeMap::new();
    for row in pairs.len().saturating_sub(MAX_PAIRS)..pairs.len() {
        let pair = pairs.row(row);
        weights.entry((pair.query_number, pair.item)).or_insert((pair.query, 0.0)).1 += pair.strength;
    }
    for ((_, item), (query, weight)) in weights {
        learned.add(query, &catalogue.text_of(&catalogue.item(item)?), weight.min(MAX_WEIGHT));
    }
    Ok(learned)
}
