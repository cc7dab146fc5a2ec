//! Query intents and the relevance level of an item for an intent, from traits and constraints only, never from text.
//!
//! L1: the item has another function. L2: right function, but a hard constraint or two soft ones are violated. L3: one soft
//! constraint is violated. L4: all constraints are met. The category that the query names is a soft constraint, so a
//! substitute that meets all others is L3.

use super::catalogue::{MarketCatalogue, Traits};
use super::world::{NONE, world};
use souk_io::domain::Level;

/// Constraint of an intent on an item. The oracle's digest hashes the `Debug` output: names of variants and fields are
/// fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Constraint {
    Category(usize),
    Has {
        attribute: usize,
        value: u8,
    },
    Lacks {
        attribute: usize,
        value: u8,
    },
    Fact(usize),
    NoFact(usize),
    Brand(usize),
    NotBrand(usize),
    /// Price below this number of cents.
    Below(u32),
}

/// Intent of a query: function, hard and soft constraints. Field names are fixed, as in [`Constraint`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    pub function: usize,
    pub hard: Vec<Constraint>,
    pub soft: Vec<Constraint>,
}

impl Constraint {
    pub fn is_met(self, item: &Traits) -> bool {
        let has = |attribute: usize, value: u8| {
            let place = world().slot_of(usize::from(item.category), attribute);
            // an absent attribute has no value
            value != NONE && place.is_some_and(|place| item.values[place] == value)
        };
        match self {
            Self::Category(category) => usize::from(item.category) == category,
            Self::Has { attribute, value } => has(attribute, value),
            Self::Lacks { attribute, value } => !has(attribute, value),
            Self::Fact(fact) => item.facts.has(fact),
            Self::NoFact(fact) => !item.facts.has(fact),
            Self::Brand(brand) => usize::from(item.brand) == brand,
            Self::NotBrand(brand) => usize::from(item.brand) != brand,
            Self::Below(cents) => item.cents < cents,
        }
    }
}

impl Intent {
    pub fn judge(&self, item: &Traits) -> Level {
        if world().categories[usize::from(item.category)].function != self.function {
            return Level::L1;
        }
        if !self.hard.iter().all(|constraint| constraint.is_met(item)) {
            return Level::L2;
        }
        match self.soft.iter().filter(|constraint| !constraint.is_met(item)).count() {
            0 => Level::L4,
            1 => Level::L3,
            _ => Level::L2,
        }
    }

    /// Good items of the catalogue with their level, by row.
    pub fn good<'a>(&'a self, catalogue: &'a MarketCatalogue) -> impl Iterator<Item = (u32, Level)> + 'a {
        let judged = catalogue.of_function(self.function).iter().map(|row| {
            let item = catalogue.get(*row).expect("rows of a function are rows of the catalogue");
            (*row, self.judge(item))
        });
        judged.filter(|(_, level)| level.is_good())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::world::{Facts, MAX_SLOTS};
    use super::*;

    fn category(id: &str) -> usize {
        world().categories.iter().position(|category| category.id == id).unwrap()
    }

    fn has(attribute: &str, value: &str) -> (usize, u8) {
        let attribute = world().attributes.iter().position(|other| other.id == attribute).unwrap();
        let value = world().attributes[attribute].values.iter().position(|other| other.id == value).unwrap();
        (attribute, value as u8)
    }

    fn fact(asked: &str) -> usize {
        world().facts.iter().position(|fact| fact.asks.iter().any(|asks| asks == asked)).unwrap()
    }

    /// Item of a category with some values, of the department's first brand, for 20.00.
    fn item(id: &str, values: &[(&str, &str)]) -> Traits {
        let at = category(id);
        let brand = world().departments[world().categories[at].department].brands.start as u16;
        let mut item = Traits {
            facts: Facts::default(),
            cents: 2000,
            popularity: 0.0,
            brand,
            category: at as u16,
            values: [NONE; MAX_SLOTS],
            series: NONE,
            quality: 2,
        };
        for (attribute, value) in values {
            let (attribute, value) = has(attribute, value);
            item.values[world().slot_of(at, attribute).unwrap()] = value;
            item.facts.join(world().value(attribute, value).implies);
        }
        item
    }

    fn intent(id: &str, hard: &[Constraint], soft: &[Constraint]) -> Intent {
        Intent { function: world().categories[category(id)].function, hard: hard.to_vec(), soft: soft.to_vec() }
    }

    fn requires(attribute: &str, value: &str) -> Constraint {
        let (attribute, value) = has(attribute, value);
        Constraint::Has { attribute, value }
    }

    #[test]
    fn judges_general_and_long_tail_queries() {
        let kettle = [("vessel", "steel"), ("colour", "black"), ("volume", "1700 ml")];
        let soft = [Constraint::Category(category("electric-kettle")), requires("colour", "black")];
        let intent = intent("electric-kettle", &[requires("vessel", "steel")], &soft);
        assert_eq!(intent.judge(&item("electric-kettle", &kettle)), Level::L4);
        assert_eq!(intent.judge(&item("electric-kettle", &[("vessel", "steel"), ("colour", "white")])), Level::L3);
        assert_eq!(intent.judge(&item("stovetop-kettle", &[("vessel", "steel"), ("colour", "black")])), Level::L3);
        assert_eq!(
            intent.judge(&item("stovetop-kettle", &[("vessel", "steel")])),
            Level::L2,
            "two soft constraints violated"
        );
        assert_eq!(intent.judge(&item("electric-kettle", &[("vessel", "glass"), ("colour", "black")])), Level::L2);
        assert_eq!(intent.judge(&item("wok", &[("colour", "black")])), Level::L1);
    }

    #[test]
    fn any_category_of_the_function_answers_a_question() {
        // "what makes hair black"
        let black = intent("hair-dye", &[requires("shade", "black")], &[]);
        assert_eq!(black.judge(&item("hair-dye", &[("shade", "black")])), Level::L4);
        assert_eq!(black.judge(&item("colour-mask", &[("shade", "black")])), Level::L4);
        assert_eq!(black.judge(&item("hair-dye", &[("shade", "blonde")])), Level::L2);
        assert_eq!(black.judge(&item("shampoo", &[])), Level::L1);
    }

    #[test]
    fn an_alternative_is_of_another_brand_and_may_have_a_price_limit() {
        let shown = item("headphones", &[("listening", "anc"), ("earfit", "over")]);
        let soft = [requires("listening", "anc"), Constraint::Category(category("headphones"))];
        let hard = [Constraint::NotBrand(usize::from(shown.brand)), Constraint::Below(1999)];
        let cheaper = intent("headphones", &hard, &soft);
        assert_eq!(cheaper.judge(&shown), Level::L2, "the same brand");
        let other = Traits { brand: shown.brand + 1, cents: 1500, ..shown };
        assert_eq!(cheaper.judge(&other), Level::L4);
        assert_eq!(cheaper.judge(&Traits { cents: 2500, ..other }), Level::L2, "too expensive");
        let buds = item("earbuds", &[("listening", "anc")]);
        assert_eq!(cheaper.judge(&Traits { brand: other.brand, cents: 1500, ..buds }), Level::L3, "a substitute");
    }

    #[test]
    fn negations_exclude_values_and_facts() {
        let (attribute, value) = has("upper", "leather");
        let boots = intent("hiking-boots", &[Constraint::Lacks { attribute, value }], &[]);
        assert_eq!(boots.judge(&item("hiking-boots", &[("upper", "leather")])), Level::L2);
        assert_eq!(boots.judge(&item("hiking-boots", &[("upper", "mesh")])), Level::L4);
        assert_eq!(boots.judge(&item("hiking-boots", &[])), Level::L4, "an absent attribute has no value");
        let greasy = intent("face-cream", &[Constraint::NoFact(fact("leave a greasy film"))], &[]);
        assert_eq!(greasy.judge(&item("face-cream", &[("active", "shea")])), Level::L2);
        assert_eq!(greasy.judge(&item("face-cream", &[("active", "aloe")])), Level::L4);
    }

    #[test]
    fn facts_are_implied_by_values() {
        let induction = intent(
            "frying-pan",
            &[Constraint::Fact(fact("works on an induction hob"))],
            &[Constraint::Category(category("frying-pan"))],
        );
        assert_eq!(induction.judge(&item("frying-pan", &[("cookware", "cast-iron")])), Level::L4);
        assert_eq!(induction.judge(&item("wok", &[("cookware", "carbon-steel")])), Level::L3);
        assert_eq!(induction.judge(&item("frying-pan", &[("cookware", "ptfe")])), Level::L2);
    }

    fn any_constraint(item: &Traits, at: usize, negated: bool) -> Constraint {
        let slots = &world().categories[usize::from(item.category)].slots;
        let place = at % slots.len();
        let (attribute, value) = (slots[place].attribute, slots[place].values[at % slots[place].values.len()]);
        if negated { Constraint::Lacks { attribute, value } } else { Constraint::Has { attribute, value } }
    }

    proptest! {
        #[test]
        fn met_constraints_are_l4_and_violations_never_raise_the_level(
            seed in 0..1000_u64, places in prop::collection::vec((0..1000_usize, any::<bool>()), 1..6),
        ) {
            let catalogue = MarketCatalogue::build(seed, 1);
            let item = catalogue.get(0).unwrap();
            let function = world().categories[usize::from(item.category)].function;
            let constraints: Vec<Constraint> = places.iter().map(|(at, negated)| any_constraint(item, *at, *negated)).collect();
            let (met, unmet): (Vec<_>, Vec<_>) = constraints.iter().partition(|constraint| constraint.is_met(item));
            let half = met.len() / 2;
            let mut intent = Intent { function, hard: met[..half].to_vec(), soft: met[half..].to_vec() };
            prop_assert_eq!(intent.judge(item), Level::L4);
            for constraint in unmet {
                let before = intent.judge(item);
                intent.soft.push(constraint);
                prop_assert!(intent.judge(item) <= before);
                intent.hard.push(constraint);
                prop_assert_eq!(intent.judge(item), Level::L2);
            }
            intent.function += 1;
            prop_assert_eq!(intent.judge(item), Level::L1);
        }
    }
}
