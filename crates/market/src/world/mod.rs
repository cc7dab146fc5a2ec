//! What there is to sell and how people speak of it: departments, categories, attributes, facts, brands. Taken from the
//! TOML files beside this one, which are part of the program; the same for every seed.

mod read;
mod units;

use std::ops::Range;
use std::sync::LazyLock;

use super::dice::hash;

/// No value: an item that has nothing to say about an attribute.
pub const NONE: u8 = u8::MAX;
/// The most attributes of a category.
pub const MAX_SLOTS: usize = 8;

pub struct World {
    pub departments: Vec<Department>,
    pub attributes: Vec<Attribute>,
    pub facts: Vec<Fact>,
    pub functions: Vec<Function>,
    pub categories: Vec<Category>,
    pub brands: Vec<Brand>,
    /// Where a category keeps an attribute, by category and attribute.
    places: Vec<u8>,
}

pub struct Department {
    pub name: String,
    /// What sellers say of anything.
    pub fluff: Vec<String>,
    pub brands: Range<usize>,
}

pub struct Brand {
    pub name: String,
    /// What the name does to a price.
    pub tier: f32,
}

/// Something that can be said of an item. The patterns have `{}` for the value's words.
pub struct Attribute {
    pub id: String,
    /// Whether its words stand before the name of the thing.
    pub front: bool,
    /// The share of items that have none of its values.
    pub absent: f32,
    /// How a shopper adds it behind the name.
    pub ask: String,
    /// How a description says it.
    pub tell: Vec<String>,
    /// How a shopper rules it out; the last is heard in test queries only.
    pub refuse: Vec<String>,
    pub values: Vec<Value>,
}

pub struct Value {
    pub id: String,
    /// Sellers' words for it.
    pub says: Vec<String>,
    /// Shoppers' words for it.
    pub asks: Vec<String>,
    pub weight: f32,
    pub implies: Facts,
    /// Nobody rules it out: it is what there is without a wish.
    pub plain: bool,
}

/// What a value brings with it, which sellers and shoppers put in different words.
pub struct Fact {
    /// Behind "that", or behind "that does not" where it is a drawback.
    pub asks: Vec<String>,
    pub says: Vec<String>,
    pub drawback: bool,
}

/// A need. Categories that serve the same need are substitutes.
pub struct Function {
    /// Behind "how to", without the name of any category; some hold `{attribute}`.
    pub tasks: Vec<Task>,
    pub categories: Vec<usize>,
}

pub struct Task {
    pub text: String,
    /// The attribute in it.
    pub attribute: Option<usize>,
}

pub struct Category {
    pub id: String,
    pub department: usize,
    pub function: usize,
    pub names: Vec<String>,
    pub asks: Vec<String>,
    pub price: (f32, f32),
    pub weight: f32,
    pub slots: Vec<Slot>,
    pub lines: Vec<Line>,
}

/// An attribute as a category has it: which of its values, and how common.
pub struct Slot {
    pub attribute: usize,
    pub values: Vec<u8>,
    pub weights: Vec<f32>,
}

/// A model series of a brand in a category. Its items share the values of the first two slots.
pub struct Line {
    pub brand: usize,
    pub name: String,
    pub pins: [u8; 2],
}

/// A set of facts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts([u64; 3]);

impl Facts {
    pub const MOST: usize = 192;

    pub fn has(self, fact: usize) -> bool {
        (self.0[fact / 64] >> (fact % 64)) & 1 == 1
    }

    pub fn insert(&mut self, fact: usize) {
        self.0[fact / 64] |= 1 << (fact % 64);
    }

    pub fn join(&mut self, other: Self) {
        self.0.iter_mut().zip(other.0).for_each(|(mine, theirs)| *mine |= theirs);
    }

    pub fn digest(self) -> u64 {
        hash(&self.0)
    }

    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..Self::MOST).filter(move |fact| self.has(*fact))
    }
}

static WORLD: LazyLock<World> =
    LazyLock::new(|| read::read().expect("the files of the world are valid, which a test checks"));

/// The world of the program.
pub fn world() -> &'static World {
    &WORLD
}

impl World {
    /// Where a category keeps an attribute, if it has it.
    pub fn place(&self, category: usize, attribute: usize) -> Option<usize> {
        let place = self.places[category * self.attributes.len() + attribute];
        (place != NONE).then_some(usize::from(place))
    }

    pub fn value(&self, attribute: usize, value: u8) -> &Value {
        &self.attributes[attribute].values[usize::from(value)]
    }
}

impl Slot {
    /// How common a value is among items that have one.
    pub fn share(&self, value: u8) -> f32 {
        let own = self.values.iter().position(|other| *other == value).map_or(0.0, |at| self.weights[at]);
        own / self.weights.iter().sum::<f32>()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn long_words(texts: &[String]) -> BTreeSet<&str> {
        texts.iter().flat_map(|text| text.split(|c: char| !c.is_alphanumeric())).filter(|word| word.len() > 4).collect()
    }

    #[test]
    fn the_world_is_as_wide_as_it_promises() {
        let world = world();
        assert!(world.categories.len() >= 48, "{}", world.categories.len());
        let substitutes = world.functions.iter().filter(|function| function.categories.len() > 1).count();
        assert!(substitutes >= 15, "{substitutes}");
        for category in &world.categories {
            let combinations: usize = category.slots.iter().map(|slot| slot.values.len()).product();
            assert!(combinations >= 25, "{}: {combinations}", category.id);
            let brands: BTreeSet<_> = category.lines.iter().map(|line| line.brand).collect();
            assert!(brands.len() >= 4, "{}", category.id);
            assert!(category.names.len() >= 3 && category.asks.len() >= 3, "{}", category.id);
            assert!(!world.functions[category.function].tasks.is_empty(), "{}", category.id);
        }
    }

    #[test]
    fn every_category_has_a_fact_to_know_and_something_to_refuse() {
        let world = world();
        for category in &world.categories {
            let (mut good, mut refusable) = (false, false);
            for slot in &category.slots {
                let attribute = &world.attributes[slot.attribute];
                refusable |= attribute.refuse.len() >= 2;
                let implied = slot.values.iter().flat_map(|value| attribute.values[usize::from(*value)].implies.iter());
                good |= implied.into_iter().any(|fact| !world.facts[fact].drawback);
            }
            assert!(good && refusable, "{}", category.id);
        }
    }

    #[test]
    fn sellers_and_shoppers_put_facts_in_different_words() {
        for fact in &world().facts {
            let shared: Vec<_> = long_words(&fact.asks).intersection(&long_words(&fact.says)).copied().collect();
            assert!(shared.is_empty(), "{:?}: {shared:?}", fact.asks);
            assert!(fact.asks.len() >= 2 && fact.says.len() >= 2, "{:?}", fact.asks);
        }
    }

    #[test]
    fn tasks_do_not_name_the_thing() {
        let world = world();
        for function in &world.functions {
            for task in &function.tasks {
                // the words of a value may
                let text = task.text.split('{').next().unwrap_or_default();
                for category in function.categories.iter().map(|at| &world.categories[*at]) {
                    let named = category.names.iter().chain(&category.asks).find(|name| text.contains(name.as_str()));
                    assert_eq!(named, None, "{text}");
                }
            }
        }
    }
}
