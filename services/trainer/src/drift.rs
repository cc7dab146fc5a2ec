//! Whether what comes in is what it was: the mix of queries and of sellers beside the mix before, and the levels that a judge
//! gives. Gives indexes by what they are of; stops nothing.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;

use crate::rounds::{Mix, stability};
use souk::Result;
use souk::beir::DataFolder;
use souk::catalogue::Catalogue;
use souk::dataset::{EXAMPLES_FOLDER, Examples, Span};
use souk::domain::Item;
use souk::report::TrainingLog;

/// Steps at a stage's beginning whose levels count: before it has learned much.
const FIRST_STEPS: usize = 10;
/// What stands for the candidates of these steps.
const JUDGED: f64 = 1000.0;

/// How far the queries and the sellers of one stretch of examples are from those of another, where both have enough.
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

/// Whose item it is, as far as the catalogue says: who pushes wares pushes all of them.
fn seller(item: &Item) -> String {
    let said = |name: &&str| item.fields.get(*name)?.as_str().filter(|text| !text.is_empty());
    ["seller", "brand", "category"].iter().find_map(said).unwrap_or(&item.id).to_owned()
}

/// How far the levels that a stage's first candidates were given are from those of another; none where nobody judged.
pub fn levels(before: &Path, after: &Path) -> Result<Option<f64>> {
    let mix = |folder: &Path| -> Result<Option<Mix>> {
        let log = TrainingLog::load(folder)?.unwrap_or_default();
        let first = &log.levels[..log.levels.len().min(FIRST_STEPS)];
        let mean = |level: usize| first.iter().map(|(_, shares)| shares[level]).sum::<f64>() / first.len() as f64;
        let counts: Vec<f64> = (0..4).map(|level| JUDGED * mean(level)).collect();
        Ok((!first.is_empty()).then(|| Mix::of(&counts)))
    };
    Ok(mix(before)?.zip(mix(after)?).and_then(|(before, after)| stability(&before, &after)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn other_levels_are_seen_and_the_same_are_not() {
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
    fn a_seller_is_what_the_catalogue_says() {
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
