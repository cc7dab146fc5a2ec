//! Catalogue of a market: the traits of each item, a function of seed and row only. Never holds texts; `seller` generates
//! them on demand.

use super::dice::{Dice, STREAM_TRAITS, hash};
use super::quality::{Maker, Sales};
use super::world::{Facts, MAX_SLOTS, NONE, world};
use souk_io::cores::on_all_cores;

/// Properties of an item that the oracle judges by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traits {
    pub facts: Facts,
    pub cents: u32,
    /// Popularity, 0 to 1.
    pub popularity: f32,
    pub brand: u16,
    pub category: u16,
    /// Attribute values by slot of the category.
    pub values: [u8; MAX_SLOTS],
    /// Series in the category, or `NONE`.
    pub series: u8,
    /// Quality level, 0 to 4.
    pub quality: u8,
}

impl Traits {
    /// Hash of all traits.
    pub fn digest(&self) -> u64 {
        let values = u64::from_le_bytes(self.values);
        let small = [u64::from(self.brand), u64::from(self.category), u64::from(self.series), u64::from(self.quality)];
        let packed = small.iter().fold(0, |sum, part| (sum << 16) | part);
        hash(&[values, packed, u64::from(self.cents), u64::from(self.popularity.to_bits()), self.facts.digest()])
    }
}

// a million items take at most 64 MB
const _: () = assert!(size_of::<Traits>() <= 64);

/// Number of rows considered when queries are drawn.
pub const SAMPLE: u32 = 20_000;

pub struct MarketCatalogue {
    pub seed: u64,
    traits: Vec<Traits>,
    by_function: Vec<Vec<u32>>,
}

impl MarketCatalogue {
    pub fn build(seed: u64, num_items: u32) -> Self {
        let traits = on_all_cores(num_items as usize, |row| draw(seed, row as u32));
        let world = world();
        let mut by_function = vec![Vec::new(); world.functions.len()];
        for (row, item) in (0..num_items).zip(&traits) {
            by_function[world.categories[usize::from(item.category)].function].push(row);
        }
        Self { seed, traits, by_function }
    }

    pub fn len(&self) -> u32 {
        self.traits.len() as u32
    }

    pub fn is_empty(&self) -> bool {
        self.traits.is_empty()
    }

    pub fn get(&self, row: u32) -> Option<&Traits> {
        self.traits.get(row as usize)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &Traits)> {
        (0..).zip(&self.traits)
    }

    /// Rows of a function, ascending.
    pub fn of_function(&self, function: usize) -> &[u32] {
        &self.by_function[function]
    }

    /// Items of a function among the first `SAMPLE` rows, so that larger catalogues have the same queries.
    pub fn sample(&self, function: usize) -> impl Iterator<Item = &Traits> {
        let rows = self.of_function(function).iter().take_while(|row| **row < SAMPLE);
        rows.filter_map(|row| self.get(*row))
    }
}

fn draw(seed: u64, row: u32) -> Traits {
    let world = world();
    let mut dice = Dice::new(&[seed, STREAM_TRAITS, u64::from(row)]);
    let at = dice.weighted(world.categories.iter().map(|category| category.weight));
    let category = &world.categories[at];
    let brands = world.departments[category.department].brands.clone();
    let mut brand = brands.start + dice.below(brands.len());
    let mut series = NONE;
    if dice.chance(0.6) {
        let drawn = dice.below(category.series.len());
        (series, brand) = (drawn as u8, category.series[drawn].brand);
    }
    let mut values = [NONE; MAX_SLOTS];
    let mut facts = Facts::default();
    for (place, slot) in category.slots.iter().enumerate() {
        let absent = dice.chance(f64::from(world.attributes[slot.attribute].absent));
        let drawn = slot.values[dice.weighted(slot.weights.iter().copied())];
        values[place] = match category.series.get(usize::from(series)) {
            Some(series) if place < series.pins.len() => series.pins[place],
            _ if absent => NONE,
            _ => drawn,
        };
        if values[place] != NONE {
            facts.join(world.value(slot.attribute, values[place]).implies);
        }
    }
    let (low, high) = category.price;
    let spread = 0.35 + 0.13 * dice.normal();
    let euros =
        f64::from(low) * f64::from(high / low).powf(spread.clamp(0.0, 1.0)) * f64::from(world.brands[brand].tier);
    let cents = (euros as u32) * 100 + [99, 95, 0, 49][dice.below(4)];
    let popularity = dice.unit().powi(4) as f32;
    let (brand, category) = (brand as u16, at as u16);
    let sales = Sales::draw(seed, row, popularity, Maker { brand, category, series });
    Traits { facts, cents, popularity, brand, category, values, series, quality: sales.quality() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_independent_of_the_catalogue_size() {
        let (few, many) = (MarketCatalogue::build(3, 50), MarketCatalogue::build(3, 500));
        assert!(few.iter().all(|(row, item)| many.get(row) == Some(item)));
        let other = MarketCatalogue::build(4, 50);
        assert!(few.iter().any(|(row, item)| other.get(row) != Some(item)));
    }

    #[test]
    fn rows_are_grouped_by_function_and_have_the_facts_of_their_values() {
        let (catalogue, world) = (MarketCatalogue::build(1, 2000), world());
        let mut rows = 0;
        for function in 0..world.functions.len() {
            for row in catalogue.of_function(function) {
                let item = catalogue.get(*row).unwrap();
                let category = &world.categories[usize::from(item.category)];
                assert_eq!(category.function, function);
                for (slot, value) in category.slots.iter().zip(item.values).filter(|(_, value)| *value != NONE) {
                    assert!(slot.values.contains(&value));
                    assert!(world.value(slot.attribute, value).implies.iter().all(|fact| item.facts.has(fact)));
                }
                rows += 1;
            }
        }
        assert_eq!(rows, 2000);
    }
}
