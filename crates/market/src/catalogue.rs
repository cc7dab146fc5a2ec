//! The catalogue as it is, before anybody writes about it: what each row is, a function of the seed and the row alone.
//! Never holds a text; `seller` writes those when they are needed.

use std::thread;

use super::dice::{Dice, hash};
use super::quality::{Maker, Sales};
use super::world::{Facts, MAX_SLOTS, NONE, world};

/// What the oracle sees of an item.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traits {
    pub facts: Facts,
    pub cents: u32,
    /// How often shoppers come by it, 0 to 1.
    pub popularity: f32,
    pub brand: u16,
    pub category: u16,
    /// Values by slot of the category.
    pub values: [u8; MAX_SLOTS],
    /// The series in the category, or `NONE`.
    pub line: u8,
    /// 0 to 4.
    pub quality: u8,
}

impl Traits {
    /// A number that any difference changes.
    pub fn digest(&self) -> u64 {
        let values = u64::from_le_bytes(self.values);
        let small = [u64::from(self.brand), u64::from(self.category), u64::from(self.line), u64::from(self.quality)];
        let place = small.iter().fold(0, |sum, part| (sum << 16) | part);
        hash(&[values, place, u64::from(self.cents), u64::from(self.popularity.to_bits()), self.facts.digest()])
    }
}

// a million of them is 64 MB at most
const _: () = assert!(size_of::<Traits>() <= 64);

/// Places of the dice: one for each thing that is drawn for a row.
pub const OF_TRAITS: u64 = 1;
pub const OF_SALES: u64 = 2;
pub const OF_TEXT: u64 = 3;
pub const OF_MAKERS: u64 = 10;

/// How many items are looked at when queries are made.
pub const SAMPLE: u32 = 20_000;

pub struct Catalogue {
    pub seed: u64,
    traits: Vec<Traits>,
    by_function: Vec<Vec<u32>>,
}

impl Catalogue {
    pub fn build(seed: u64, num_items: u32) -> Self {
        let rows: Vec<u32> = (0..num_items).collect();
        let traits = in_order(&rows, |row| draw(seed, *row));
        let world = world();
        let mut by_function = vec![Vec::new(); world.functions.len()];
        for (row, item) in rows.iter().zip(&traits) {
            by_function[world.categories[usize::from(item.category)].function].push(*row);
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

    /// The rows that serve a function, ascending.
    pub fn of_function(&self, function: usize) -> &[u32] {
        &self.by_function[function]
    }

    /// Those of them by which queries are made, so that any larger catalogue has the same queries.
    pub fn sample(&self, function: usize) -> impl Iterator<Item = &Traits> {
        let rows = self.of_function(function).iter().take_while(|row| **row < SAMPLE);
        rows.filter_map(|row| self.get(*row))
    }
}

/// Maps on all cores; results in the order of the input.
pub fn in_order<T: Sync, R: Send>(input: &[T], make: impl Fn(&T) -> R + Sync) -> Vec<R> {
    on_threads(thread::available_parallelism().map_or(1, usize::from), input, make)
}

fn on_threads<T: Sync, R: Send>(threads: usize, input: &[T], make: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let part = input.len().div_ceil(threads).max(1);
    thread::scope(|scope| {
        let make = &make;
        let parts: Vec<_> =
            input.chunks(part).map(|rows| scope.spawn(move || rows.iter().map(make).collect::<Vec<R>>())).collect();
        let mut all = Vec::with_capacity(input.len());
        for part in parts {
            match part.join() {
                Ok(made) => all.extend(made),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        all
    })
}

fn draw(seed: u64, row: u32) -> Traits {
    let world = world();
    let mut dice = Dice::new(&[seed, OF_TRAITS, u64::from(row)]);
    let at = dice.weighted(world.categories.iter().map(|category| category.weight));
    let category = &world.categories[at];
    let brands = world.departments[category.department].brands.clone();
    let mut brand = brands.start + dice.below(brands.len());
    let mut line = NONE;
    if dice.chance(0.6) {
        let drawn = dice.below(category.lines.len());
        (line, brand) = (drawn as u8, category.lines[drawn].brand);
    }
    let mut values = [NONE; MAX_SLOTS];
    let mut facts = Facts::default();
    for (place, slot) in category.slots.iter().enumerate() {
        let absent = dice.chance(f64::from(world.attributes[slot.attribute].absent));
        let drawn = slot.values[dice.weighted(slot.weights.iter().copied())];
        values[place] = match category.lines.get(usize::from(line)) {
            Some(line) if place < line.pins.len() => line.pins[place],
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
    let sales = Sales::draw(seed, row, popularity, Maker { brand, category, line });
    Traits { facts, cents, popularity, brand, category, values, line, quality: sales.quality() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_does_not_depend_on_how_many_there_are() {
        let (few, many) = (Catalogue::build(3, 50), Catalogue::build(3, 500));
        assert!(few.iter().all(|(row, item)| many.get(row) == Some(item)));
        let other = Catalogue::build(4, 50);
        assert!(few.iter().any(|(row, item)| other.get(row) != Some(item)));
    }

    #[test]
    fn the_number_of_threads_changes_nothing() {
        let rows: Vec<u32> = (0..101).collect();
        let alone: Vec<Traits> = rows.iter().map(|row| draw(9, *row)).collect();
        for threads in [1, 2, 3, 7, 200] {
            assert_eq!(on_threads(threads, &rows, |row| draw(9, *row)), alone);
        }
        assert!(on_threads(2, &[], |row: &u32| *row).is_empty());
    }

    #[test]
    fn rows_stand_with_their_function_and_carry_what_their_values_imply() {
        let (catalogue, world) = (Catalogue::build(1, 2000), world());
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
