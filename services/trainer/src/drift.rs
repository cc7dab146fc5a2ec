//! Drift of the inputs: distributions of queries, sellers and judged levels, compared with the previous round. Reports population
//! stability indexes; never stops a round.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;

use crate::exposure;
use crate::rounds::{Mix, stability};
use souk::Result;
use souk::beir::DataFolder;
use souk::catalogue::Catalogue;
use souk::dataset::{EXAMPLES_FOLDER, Examples, Span};
use souk::domain::Item;
use souk::report::TrainingLog;

/// First steps of a stage whose levels are compared, before training changes the candidates much.
const FIRST_STEPS: usize = 10;
/// Number of candidates that the levels of these steps count as.
const NUM_JUDGED: f64 = 1000.0;

/// Drift of queries and sellers between two spans of examples; left out if either span is too small.
pub fn mixes(data: &DataFolder, before: &Span, after: &Span) -> Result<Vec<(&'static str, f64)>> {
    let catalogue = Catalogue::open(data)?;
    let mixes = |span: &Span| -> Result<[Mix; 2]> {
        let examples = Examples::open(&data.path().join(EXAMPLES_FOLDER), &catalogue, Some(span))?;
        let mut mixes = [Mix::default(), Mix::default()];
        let mut sellers: HashMap<u32, String> = HashMap::new();
        for row in 0..examples.len() {
            let example = examples.row(row);
            mixes[0].count(&example.query.to_lowercase());
            let seller = match sellers.entry(example.item) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(place) => place.insert(seller(&catalogue.item(example.item)?)),
            };
            mixes[1].count(seller);
        }
        Ok(mixes)
    };
    let (before, after) = (mixes(before)?, mixes(after)?);
    let moved = ["queries", "items"].into_iter().zip(before.iter().zip(&after));
    Ok(moved.filter_map(|(what, (before, after))| Some((what, stability(before, after)?))).collect())
}

/// The item's seller, else its brand, category or id. Click spam usually pushes all items of one seller.
fn seller(item: &Item) -> String {
    let category = || item.fields.get("category")?.as_str().filter(|text| !text.is_empty());
    exposure::seller(item).or_else(category).unwrap_or(&item.id).to_owned()
}

/// Drift between the judged levels of two stages' first candidates; none if either has no levels.
pub fn levels(before: &Path, after: &Path) -> Result<Option<f64>> {
    let mix = |folder: &Path| -> Result<Option<Mix>> {
        let log = TrainingLog::load(folder)?.unwrap_or_default();
        let first = &log.levels[..log.levels.len().min(FIRST_STEPS)];
        let mean = |level: usize| first.iter().map(|(_, shares)| shares[level]).sum::<f64>() / first.len() as f64;
        let counts: Vec<f64> = (0..4).map(|level| NUM_JUDGED * mean(level)).collect();
        Ok((!first.is_empty()).then(|| Mix::of(&counts)))
    };
    Ok(mix(before)?.zip(mix(after)?).and_then(|(before, after)| stability(&before, &after)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn changed_levels_are_detected() {
        let home = tempfile::tempdir().unwrap();
        let stage = |name: &str, levels: Option<[f64; 4]>| {
            let folder = home.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            let line = json!({"step": 1, "loss": 1.0, "learning_rate": 0.1, "levels": levels});
            std::fs::write(folder.join("steps.jsonl"), format!("{line}\n")).unwrap();
            folder
        };
        let before = stage("before", Some([0.5, 0.3, 0.1, 0.1]));
        let strict = stage("strict", Some([0.9, 0.05, 0.03, 0.02]));
        assert_eq!(levels(&before, &before).unwrap(), Some(0.0));
        assert!(levels(&before, &strict).unwrap().unwrap() > 0.25);
        assert_eq!(levels(&before, &stage("clicks", None)).unwrap(), None);
    }

    #[test]
    fn seller_falls_back_to_brand_category_and_id() {
        let item = |fields: serde_json::Value| Item {
            id: "i".into(),
            title: String::new(),
            text: String::new(),
            fields: fields.as_object().unwrap().clone(),
        };
        assert_eq!(seller(&item(json!({"brand": "B", "category": "C"}))), "B");
        assert_eq!(seller(&item(json!({"brand": "", "category": "C"}))), "C");
        assert_eq!(seller(&item(json!({}))), "i");
    }
}
