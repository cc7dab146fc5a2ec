//! What a shopper wants, and how well an item serves it, from what both are: never from a word that either uses.
//!
//! L1: the item serves another function. L2: the right kind of thing, but a hard wish is not met, or two soft ones are
//! not. L3: one soft wish is not met. L4: all wishes are met. To be of the category that the shopper named is a soft
//! wish, so a substitute that does all the rest is L3.

use super::catalogue::{Catalogue, Traits};
use super::world::{NONE, world};
use souk_io::domain::Level;

/// Something about an item that an intent asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wish {
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
    /// At a price of at most so many cents.
    Below(u32),
}

/// What a shopper wants, before it is put in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intent {
    pub function: usize,
    pub hard: Vec<Wish>,
    pub soft: Vec<Wish>,
}

impl Wish {
    pub fn met(self, item: &Traits) -> bool {
        let has = |attribute: usize, value: u8| {
            let place = world().place(usize::from(item.category), attribute);
            // what has no value at all has not this one either
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
        if !self.hard.iter().all(|wish| wish.met(item)) {
            return Level::L2;
        }
        match self.soft.iter().filter(|wish| !wish.met(item)).count() {
            0 => Level::L4,
            1 => Level::L3,
            _ => Level::L2,
        }
    }

    /// All Good items of the catalogue, by row.
    pub fn good<'a>(&'a self, catalogue: &'a Catalogue) -> impl Iterator<Item = (u32, Level)> + 'a {
        let judged = catalogue.of_function(self.function).iter().map(|row| {
            let item = catalogue.get(*row).expect("the rows of a function are rows of its catalogue");
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

    /// An item of a category with some values, of the department's first brand, for 20.00.
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
            line: NONE,
            quality: 2,
        };
        for (attribute, value) in values {
            let (attribute, value) = has(attribute, value);
            item.values[world().place(at, attribute).unwrap()] = value;
            item.facts.join(world().value(attribute, value).implies);
        }
        item
    }

    fn intent(id: &str, hard: &[Wish], soft: &[Wish]) -> Intent {
        Intent { function: world().categories[category(id)].function, hard: hard.to_vec(), soft: soft.to_vec() }
    }

    fn wish((attribute, value): (usize, u8)) -> Wish {
        Wish::Has { attribute, value }
    }

    #[test]
    fn general_and_long_tail_by_hand() {
        let kettle = [("vessel", "steel"), ("colour", "black"), ("volume", "1700 ml")];
        let soft = [Wish::Category(category("electric-kettle")), wish(has("colour", "black"))];
        let intent = intent("electric-kettle", &[wish(has("vessel", "steel"))], &soft);
        assert_eq!(intent.judge(&item("electric-kettle", &kettle)), Level::L4);
        assert_eq!(intent.judge(&item("electric-kettle", &[("vessel", "steel"), ("colour", "white")])), Level::L3);
        assert_eq!(intent.judge(&item("stovetop-kettle", &[("vessel", "steel"), ("colour", "black")])), Level::L3);
        assert_eq!(intent.judge(&item("stovetop-kettle", &[("vessel", "steel")])), Level::L2, "two soft wishes");
        assert_eq!(intent.judge(&item("electric-kettle", &[("vessel", "glass"), ("colour", "black")])), Level::L2);
        assert_eq!(intent.judge(&item("wok", &[("colour", "black")])), Level::L1);
    }

    #[test]
    fn questions_are_answered_by_any_category_of_the_function() {
        // "what makes hair black"
        let black = intent("hair-dye", &[wish(has("shade", "black"))], &[]);
        assert_eq!(black.judge(&item("hair-dye", &[("shade", "black")])), Level::L4);
        assert_eq!(black.judge(&item("colour-mask", &[("shade", "black")])), Level::L4);
        assert_eq!(black.judge(&item("hair-dye", &[("shade", "blonde")])), Level::L2);
        assert_eq!(black.judge(&item("shampoo", &[])), Level::L1);
    }

    #[test]
    fn an_alternative_is_of_another_brand_and_may_have_to_be_cheaper() {
        let shown = item("headphones", &[("listening", "anc"), ("earfit", "over")]);
        let soft = [wish(has("listening", "anc")), Wish::Category(category("headphones"))];
        let hard = [Wish::NotBrand(usize::from(shown.brand)), Wish::Below(1999)];
        let cheaper = intent("headphones", &hard, &soft);
        assert_eq!(cheaper.judge(&shown), Level::L2, "the very brand");
        let other = Traits { brand: shown.brand + 1, cents: 1500, ..shown };
        assert_eq!(cheaper.judge(&other), Level::L4);
        assert_eq!(cheaper.judge(&Traits { cents: 2500, ..other }), Level::L2, "too dear");
        let buds = item("earbuds", &[("listening", "anc")]);
        assert_eq!(cheaper.judge(&Traits { brand: other.brand, cents: 1500, ..buds }), Level::L3, "a substitute");
    }

    #[test]
    fn negation_rules_out_what_it_names() {
        let (attribute, value) = has("upper", "leather");
        let boots = intent("hiking-boots", &[Wish::Lacks { attribute, value }], &[]);
        assert_eq!(boots.judge(&item("hiking-boots", &[("upper", "leather")])), Level::L2);
        assert_eq!(boots.judge(&item("hiking-boots", &[("upper", "mesh")])), Level::L4);
        assert_eq!(boots.judge(&item("hiking-boots", &[])), Level::L4, "what is not stated is not there");
        let greasy = intent("face-cream", &[Wish::NoFact(fact("leave a greasy film"))], &[]);
        assert_eq!(greasy.judge(&item("face-cream", &[("active", "shea")])), Level::L2);
        assert_eq!(greasy.judge(&item("face-cream", &[("active", "aloe")])), Level::L4);
    }

    #[test]
    fn knowledge_is_what_a_value_implies() {
        let induction = intent(
            "frying-pan",
            &[Wish::Fact(fact("works on an induction hob"))],
            &[Wish::Category(category("frying-pan"))],
        );
        assert_eq!(induction.judge(&item("frying-pan", &[("cookware", "cast-iron")])), Level::L4);
        assert_eq!(induction.judge(&item("wok", &[("cookware", "carbon-steel")])), Level::L3);
        assert_eq!(induction.judge(&item("frying-pan", &[("cookware", "ptfe")])), Level::L2);
    }

    fn any_wish(item: &Traits, at: usize, negated: bool) -> Wish {
        let slots = &world().categories[usize::from(item.category)].slots;
        let place = at % slots.len();
        let (attribute, value) = (slots[place].attribute, slots[place].values[at % slots[place].values.len()]);
        if negated { Wish::Lacks { attribute, value } } else { Wish::Has { attribute, value } }
    }

    proptest! {
        #[test]
        fn wishes_that_are_met_make_l4_and_a_broken_hard_one_never_helps(
            seed in 0..1000_u64, places in prop::collection::vec((0..1000_usize, any::<bool>()), 1..6),
        ) {
            let catalogue = Catalogue::build(seed, 1);
            let item = catalogue.get(0).unwrap();
            let function = world().categories[usize::from(item.category)].function;
            let wishes: Vec<Wish> = places.iter().map(|(at, negated)| any_wish(item, *at, *negated)).collect();
            let (met, unmet): (Vec<_>, Vec<_>) = wishes.iter().partition(|wish| wish.met(item));
            let half = met.len() / 2;
            let mut intent = Intent { function, hard: met[..half].to_vec(), soft: met[half..].to_vec() };
            prop_assert_eq!(intent.judge(item), Level::L4);
            for wish in unmet {
                let before = intent.judge(item);
                intent.soft.push(wish);
                prop_assert!(intent.judge(item) <= before);
                intent.hard.push(wish);
                prop_assert_eq!(intent.judge(item), Level::L2);
            }
            intent.function += 1;
            prop_assert_eq!(intent.judge(item), Level::L1);
        }
    }
}
