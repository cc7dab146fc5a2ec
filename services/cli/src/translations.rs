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

/// The training pairs of a data folder.
pub fn translation_pairs(config: &Config, data: &DataFolder, item_text: &ItemText) -> Result<TranslationPairs> {
    let settings = &config.train;
    let source = if matches!(settings.pairs, PairSource::Items | PairSource::Excerpts) {
        PairSource::Auto
    } else {
        settings.pairs
    };
    let catalogue = Catalogue::open(data)?.with_item_text(item_text);
    let pairs = Pairs::open(data, &catalogue, source, TrainingSplit::whole(&settings.split), None)?;
    let mut weights: BTreeMap<(u32, u32), (&str, f32)> = BTreeMap::new();
    for row in pairs.len().saturating_sub(MAX_PAIRS)..pairs.len() {
        let pair = pairs.row(row);
        weights.entry((pair.query_number, pair.item)).or_insert((pair.query, 0.0)).1 += pair.strength;
    }
    let mut found = TranslationPairs::new(config.search.lexical.unwrap_or_default().language);
    for ((_, item), (query, weight)) in weights {
        found.add(query, &catalogue.text_of(&catalogue.item(item)?), weight.min(MAX_WEIGHT));
    }
    Ok(found)
}
