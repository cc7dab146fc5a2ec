//! World of a market: departments, categories, attributes, facts and brands, with the words of sellers and shoppers. Read
//! from the TOML files in this folder, which are compiled in; the same for every seed.

mod read;
mod units;

use std::ops::Range;
use std::sync::LazyLock;

use super::dice::hash;

/// Marks an absent attribute value.
pub const NONE: u8 = u8::MAX;
/// Maximum attributes of a category.
pub const MAX_SLOTS: usize = 8;

pub struct World {
    pub departments: Vec<Department>,
    pub attributes: Vec<Attribute>,
    pub facts: Vec<Fact>,
    pub functions: Vec<Function>,
    pub categories: Vec<Category>,
    pub brands: Vec<Brand>,
    /// Slot of an attribute, by category and attribute.
    slot_index: Vec<u8>,
}

pub struct Department {
    pub name: String,
    /// Sellers' phrases that fit any item.
    pub fluff: Vec<String>,
    pub brands: Range<usize>,
}

pub struct Brand {
    pub name: String,
    /// Price factor.
    pub tier: f32,
}

/// Attribute of items. The patterns contain `{}` for the value's words.
pub struct Attribute {
    pub id: String,
    /// Whether its words come before the item's name.
    pub front: bool,
    /// Fraction of items without a value.
    pub absent: f32,
    /// Pattern of shoppers after the item's name.
    pub ask: String,
    /// Patterns of descriptions.
    pub tell: Vec<String>,
    /// Patterns of shoppers to exclude a value; the last is for test queries only.
    pub refuse: Vec<String>,
    pub values: Vec<AttributeValue>,
}

pub struct AttributeValue {
    pub id: String,
    /// Sellers' words for it.
    pub says: Vec<String>,
    /// Shoppers' words for it.
    pub asks: Vec<String>,
    pub weight: f32,
    pub implies: Facts,
    /// Default value, which no query excludes.
    pub plain: bool,
}

/// Consequence of a value, which sellers and shoppers describe in different words.
pub struct Fact {
    /// Shoppers' words after "that", or after "that does not" for a drawback.
    pub asks: Vec<String>,
    pub says: Vec<String>,
    pub drawback: bool,
}

/// Function of items. Categories of the same function are substitutes.
pub struct Function {
    /// Tasks after "how to", without a category's name; some contain `{attribute}`.
    pub tasks: Vec<FunctionTask>,
    pub categories: Vec<usize>,
}

pub struct FunctionTask {
    pub text: String,
    /// Attribute that the text contains.
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
    pub series: Vec<Series>,
}

/// Attribute of a category: its values there, and their weights.
pub struct Slot {
    pub attribute: usize,
    pub values: Vec<u8>,
    pub weights: Vec<f32>,
}

/// Model series of a brand in a category. Its items share the values of the first two slots.
pub struct Series {
    pub brand: usize,
    pub name: String,
    pub pins: [u8; 2],
}

/// Set of facts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Facts([u64; 3]);

impl Facts {
    pub const MAX: usize = 192;

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
        (0..Self::MAX).filter(move |fact| self.has(*fact))
    }
}

static WORLD: LazyLock<World> = LazyLock::new(|| read::read().expect("the compiled-in world files are valid (tested)"));

/// World compiled into the program.
pub fn world() -> &'static World {
    &WORLD
}

impl World {
    /// Slot of an attribute in a category, if the category has it.
    pub fn slot_of(&self, category: usize, attribute: usize) -> Option<usize> {
        let slot = self.slot_index[category * self.attributes.len() + attribute];
        (slot != NONE).then_some(usize::from(slot))
    }

    pub fn value(&self, attribute: usize, value: u8) -> &AttributeValue {
        &self.attributes[attribute].values[usize::from(value)]
    }
}

impl Slot {
    /// Fraction of a value among items that have one.
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
    fn the_world_has_enough_categories_values_and_brands() {
        let world = world();
        assert!(world.categories.len() >= 48, "{}", world.categories.len());
        let substitutes = world.functions.iter().filter(|function| function.categories.len() > 1).count();
        assert!(substitutes >= 15, "{substitutes}");
        for category in &world.categories {
            let combinations: usize = category.slots.iter().map(|slot| slot.values.len()).product();
            assert!(combinations >= 25, "{}: {combinations}", category.id);
            let brands: BTreeSet<_> = category.series.iter().map(|series| series.brand).collect();
            assert!(brands.len() >= 4, "{}", category.id);
            assert!(category.names.len() >= 3 && category.asks.len() >= 3, "{}", category.id);
            assert!(!world.functions[category.function].tasks.is_empty(), "{}", category.id);
        }
    }

    #[test]
    fn every_category_has_a_positive_fact_and_an_excludable_value() {
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
    fn sellers_and_shoppers_describe_facts_in_different_words() {
        for fact in &world().facts {
            let shared: Vec<_> = long_words(&fact.asks).intersection(&long_words(&fact.says)).copied().collect();
            assert!(shared.is_empty(), "{:?}: {shared:?}", fact.asks);
            assert!(fact.asks.len() >= 2 && fact.says.len() >= 2, "{:?}", fact.asks);
        }
    }

    #[test]
    fn tasks_do_not_contain_category_names() {
        let world = world();
        for function in &world.functions {
            for task in &function.tasks {
                // only the text before a value's words
                let text = task.text.split('{').next().unwrap_or_default();
                for category in function.categories.iter().map(|at| &world.categories[*at]) {
                    let named = category.names.iter().chain(&category.asks).find(|name| text.contains(name.as_str()));
                    assert_eq!(named, None, "{text}");
                }
            }
        }
    }
}
