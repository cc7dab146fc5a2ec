//! Quality of items: how often a click on the item leads to a cart or a purchase and, where the catalogue has these fields, how few
//! of its `units` come back (`returns`) and how it is rated (`rating`, `num_ratings`). All are compared with the average item.
//!
//! Most items have little evidence, so each rate is an empirical Bayes estimate on two levels: a brand's rate is shrunk towards the
//! average of all, an item's towards its brand's, by how much of the spread is more than chance (method of moments). An estimate
//! is measured in standard deviations `z` of the true rates. `score = 1 / (1 + exp(-Σ z))`, so without evidence it is 0.5.

use std::collections::HashMap;

use serde::Serialize;

use super::period::{Period, Periods};
use super::searches::SearchLog;
use souk_io::catalogue::Catalogue;
use souk_io::domain::Item;
use souk_io::error::Result;
use souk_io::ubi::Action;

/// Variance of a single rating in stars.
const RATING_VARIANCE: f64 = 1.0;

/// Quality of an item, and what it was computed from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ItemQuality {
    pub item: String,
    pub clicks: u64,
    /// Clicks that led to a cart or a purchase.
    pub conversions: u64,
    /// Sold units: the catalogue's field, else the log's purchases.
    pub units: u64,
    pub returns: u64,
    /// Sum of the stars.
    pub ratings_sum: f64,
    pub num_ratings: u64,
    /// 0 to 1.
    pub score: f64,
}

/// Observations of one item: their sum and number.
#[derive(Clone, Copy, Debug, Default)]
struct Observed {
    brand: u32,
    sum: f64,
    num: f64,
}

/// Quality of the items of which something is known, be it only of their brand, in catalogue order. Only the log's time before the
/// held-out days counts.
pub fn qualities(log: &SearchLog, periods: &Periods, catalogue: &Catalogue) -> Result<Vec<ItemQuality>> {
    let (mut found, mut brands, mut numbers) = (Vec::new(), Vec::new(), HashMap::new());
    for row in 0..catalogue.len() {
        let item = catalogue.item(row)?;
        let next = numbers.len() as u32;
        brands.push(*numbers.entry(text(&item, "brand")).or_insert(next));
        found.push(ItemQuality::of_fields(item));
    }
    let mut purchases = vec![0_u64; found.len()];
    for shown in log.shown.iter().filter(|shown| shown.action > Action::Impression) {
        if periods.of(log.searches[shown.search as usize].time) == Period::Train {
            let item = shown.item as usize;
            found[item].clicks += 1;
            found[item].conversions += u64::from(shown.action >= Action::AddToCart);
            purchases[item] += u64::from(shown.action == Action::Purchase);
        }
    }
    let component = |sum: fn(&ItemQuality) -> f64, num: fn(&ItemQuality) -> u64, variance: fn(f64) -> f64| {
        let observed =
            |(of, brand): (&ItemQuality, &u32)| Observed { brand: *brand, sum: sum(of), num: num(of) as f64 };
        deviations(&found.iter().zip(&brands).map(observed).collect::<Vec<_>>(), variance)
    };
    let chance = |mean: f64| mean * (1.0 - mean);
    let converted = component(|of| of.conversions as f64, |of| of.clicks, chance);
    let returned = component(|of| of.returns as f64, |of| of.units, chance);
    let rated = component(|of| of.ratings_sum, |of| of.num_ratings, |_| RATING_VARIANCE);
    let sums: Vec<f64> = (0..found.len()).map(|at| converted[at] - returned[at] + rated[at]).collect();
    for ((of, sum), purchases) in found.iter_mut().zip(&sums).zip(purchases) {
        of.score = 1.0 / (1.0 + (-sum).exp());
        if of.units == 0 {
            of.units = purchases;
        }
    }
    Ok(found.into_iter().zip(sums).filter(|(_, sum)| *sum != 0.0).map(|(of, _)| of).collect())
}

impl ItemQuality {
    /// The catalogue's fields. A rating without its number counts as none, and at most all units come back.
    fn of_fields(item: Item) -> Self {
        let (units, rating) = (number(&item, "units") as u64, number(&item, "rating"));
        let num_ratings = if rating > 0.0 { number(&item, "num_ratings") as u64 } else { 0 };
        Self {
            clicks: 0,
            conversions: 0,
            units,
            returns: (number(&item, "returns") as u64).min(units),
            ratings_sum: rating * num_ratings as f64,
            num_ratings,
            score: 0.0,
            item: item.id,
        }
    }
}

fn text(item: &Item, field: &str) -> String {
    item.fields.get(field).and_then(serde_json::Value::as_str).unwrap_or_default().to_owned()
}

/// A count or a mean; 0 if the item has none.
fn number(item: &Item, field: &str) -> f64 {
    let found = item.fields.get(field).and_then(serde_json::Value::as_f64).unwrap_or_default();
    if found.is_finite() { found.max(0.0) } else { 0.0 }
}

/// Estimated deviation of each item's true rate from the average, in standard deviations of the true rates. `variance` is that
/// of a single observation.
fn deviations(items: &[Observed], variance: fn(f64) -> f64) -> Vec<f64> {
    let mut brands: HashMap<u32, Brand> = HashMap::new();
    for item in items.iter().filter(|item| item.num > 0.0) {
        let brand = brands.entry(item.brand).or_default();
        brand.sum += item.sum;
        brand.num += item.num;
        brand.squares += item.num * item.num;
        brand.items += 1.0;
    }
    let (sum, num) = brands.values().fold((0.0, 0.0), |(sum, num), brand| (sum + brand.sum, num + brand.num));
    if num == 0.0 {
        return vec![0.0; items.len()];
    }
    let average = sum / num;
    let noise = variance(average);
    let of_item = spread_within(items, &brands, noise);
    // noise of a brand's mean: of its observations, and of which items it happens to have
    let error = |brand: &Brand| noise / brand.num + of_item * brand.squares / (brand.num * brand.num);
    let excess = |brand: &Brand| brand.num * ((brand.mean() - average).powi(2) - error(brand));
    let of_brand = (brands.values().map(excess).sum::<f64>() / num).max(0.0);
    let scale = (of_item + of_brand).sqrt();
    if scale == 0.0 || !scale.is_finite() {
        return vec![0.0; items.len()];
    }
    let shrink = |spread: f64, error: f64| if spread > 0.0 { spread / (spread + error) } else { 0.0 };
    items
        .iter()
        .map(|item| {
            let of_brand =
                brands.get(&item.brand).map_or(0.0, |brand| (brand.mean() - average) * shrink(of_brand, error(brand)));
            let own = if item.num > 0.0 {
                (item.sum / item.num - average - of_brand) * shrink(of_item, noise / item.num)
            } else {
                0.0
            };
            (of_brand + own) / scale
        })
        .collect()
}

#[derive(Clone, Copy, Default)]
struct Brand {
    sum: f64,
    num: f64,
    /// Sum of the squared numbers of its items.
    squares: f64,
    items: f64,
}

impl Brand {
    fn mean(&self) -> f64 {
        self.sum / self.num
    }
}

/// Variance of the true rates of a brand's items, beyond chance.
fn spread_within(items: &[Observed], brands: &HashMap<u32, Brand>, noise: f64) -> f64 {
    let squared = |item: &Observed| item.num * (item.sum / item.num - brands[&item.brand].mean()).powi(2);
    let observed: f64 = items.iter().filter(|item| item.num > 0.0).map(squared).sum();
    let expected = noise * brands.values().map(|brand| brand.items - 1.0).sum::<f64>();
    let weight: f64 = brands.values().map(|brand| brand.num - brand.squares / brand.num).sum();
    if weight > 0.0 { ((observed - expected) / weight).max(0.0) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chance(mean: f64) -> f64 {
        mean * (1.0 - mean)
    }

    #[test]
    fn odd_fields_count_as_little_as_possible() {
        let of = |fields: serde_json::Value| {
            let mut item = serde_json::json!({"_id": "a"});
            item.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            let of = ItemQuality::of_fields(serde_json::from_value(item).unwrap());
            (of.units, of.returns, of.num_ratings, of.ratings_sum)
        };
        let fields = serde_json::json!({"units": 9, "returns": 2, "rating": 4.5, "num_ratings": 2});
        assert_eq!(of(fields), (9, 2, 2, 9.0));
        assert_eq!(of(serde_json::json!({"units": 3, "returns": 8, "num_ratings": 5})), (3, 3, 0, 0.0));
        assert_eq!(of(serde_json::json!({"units": -3, "returns": "many", "rating": 4})), (0, 0, 0, 0.0));
    }

    #[test]
    fn more_evidence_moves_an_item_further() {
        let item = |brand, sum, num| Observed { brand, sum, num };
        let mut items = vec![item(0, 90.0, 100.0), item(0, 9.0, 10.0), item(0, 0.0, 0.0), item(0, 10.0, 100.0)];
        items.extend((0..20).map(|at| item(1 + at, 50.0 + f64::from(at % 3) - 1.0, 100.0)));
        let found = deviations(&items, chance);
        assert!(found[0] > found[1] && found[1] > found[2] && found[2] > found[3], "{found:?}");
        assert!(found[2].abs() < 0.2, "no evidence of its own, and an average brand: {found:?}");
    }

    #[test]
    fn an_item_without_evidence_is_as_good_as_its_brand() {
        let brand = |brand: u32, rate: f64| (0..30).map(move |_| Observed { brand, sum: rate * 50.0, num: 50.0 });
        let mut items: Vec<Observed> = brand(0, 0.6).chain(brand(1, 0.3)).chain(brand(2, 0.45)).collect();
        items.extend((0..3).map(|brand| Observed { brand, sum: 0.0, num: 0.0 }));
        let found = deviations(&items, chance);
        let [good, bad, middle] = [90, 91, 92].map(|at| found[at]);
        assert!(good > 0.9 && bad < -0.9 && middle.abs() < 0.1, "{good} {bad} {middle}");
    }

    #[test]
    fn differences_that_chance_explains_are_none() {
        let same = [Observed { brand: 0, sum: 5.0, num: 10.0 }; 5];
        assert_eq!(deviations(&same, chance), [0.0; 5]);
        assert_eq!(deviations(&[Observed::default(); 2], chance), [0.0; 2]);
    }
}
