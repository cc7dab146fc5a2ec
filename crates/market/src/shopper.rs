//! What shoppers want, slice by slice, and the words that each of their wishes has. Takes the world and the prices of the
//! catalogue; never looks at a title.

use serde::Serialize;

use super::catalogue::{Catalogue, Traits};
use super::dice::Dice;
use super::intent::{Intent, Wish};
use super::phrase::{self, Words};
use super::world::{Category, Slot, World, world};

/// The kinds of test queries, as the paper has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Slice {
    General,
    LongTail,
    Qa,
    Alternative,
    Negative,
    Knowledge,
}

impl Slice {
    pub const ALL: [Self; 6] =
        [Self::General, Self::LongTail, Self::Qa, Self::Alternative, Self::Negative, Self::Knowledge];

    pub fn name(self) -> &'static str {
        match self {
            Self::General => "general",
            Self::LongTail => "long_tail",
            Self::Qa => "qa",
            Self::Alternative => "alternative",
            Self::Negative => "negative",
            Self::Knowledge => "knowledge",
        }
    }

    /// Its share of what shoppers type.
    pub fn share(self) -> f32 {
        match self {
            Self::General => 0.44,
            Self::LongTail => 0.24,
            _ => 0.08,
        }
    }
}

/// What a word begins with that needs no "for" or "with" before it.
const LINKS: [&str; 4] = ["for ", "with ", "against ", "like "];

/// A wish list and its words, before they stand in a sentence.
pub struct Draft {
    pub intent: Intent,
    pub words: Words,
}

pub struct Shopper<'a> {
    pub world: &'static World,
    pub catalogue: &'a Catalogue,
    pub dice: Dice,
    /// Speaks in ways that training never hears.
    pub unheard: bool,
    /// How often the usual one of several words is taken without a thought.
    usual: f64,
}

impl<'a> Shopper<'a> {
    pub fn new(catalogue: &'a Catalogue, dice: Dice, unheard: bool) -> Self {
        Self { world: world(), catalogue, dice, unheard, usual: 0.45 }
    }

    /// `None` where chance led to a category in which this cannot be asked.
    pub fn draft(&mut self, slice: Slice) -> Option<Draft> {
        let world = self.world;
        let at = self.dice.weighted(world.categories.iter().map(|category| category.weight.sqrt()));
        if slice == Slice::General {
            self.usual = 0.75;
        }
        match slice {
            Slice::General => self.general(at),
            Slice::LongTail => self.long_tail(at),
            Slice::Qa => self.question(at),
            Slice::Alternative => self.alternative(at),
            Slice::Negative => self.negative(at),
            Slice::Knowledge => self.knowledge(at),
        }
    }

    /// An empty wish for a category, by one of its names.
    fn start(&mut self, at: usize, own_word: f64) -> Draft {
        let category = &self.world.categories[at];
        let names = if self.dice.chance(own_word) { &category.asks } else { &category.names };
        let name = if self.dice.chance(self.usual) { &names[0] } else { self.dice.pick(names) };
        let several = self.world.functions[category.function].categories.len() > 1;
        let soft = if several { vec![Wish::Category(at)] } else { Vec::new() };
        let intent = Intent { function: category.function, hard: Vec::new(), soft };
        Draft { intent, words: Words { name: name.clone(), ..Words::default() } }
    }

    fn general(&mut self, at: usize) -> Option<Draft> {
        let category = &self.world.categories[at];
        let mut draft = self.start(at, 0.1);
        let mut places = self.places(category);
        if self.dice.chance(0.2) {
            let brand = self.dice.pick(&category.lines).brand;
            draft.intent.hard.push(Wish::Brand(brand));
            draft.words.brand = self.world.brands[brand].name.to_lowercase();
        } else {
            let slot = &category.slots[places.pop()?];
            let value = self.common(slot);
            draft.intent.hard.push(Wish::Has { attribute: slot.attribute, value });
            self.say(&mut draft.words, slot.attribute, value, 0.1);
        }
        if self.dice.chance(0.6) {
            let slot = &category.slots[places.pop()?];
            let value = self.common(slot);
            draft.intent.soft.push(Wish::Has { attribute: slot.attribute, value });
            self.say(&mut draft.words, slot.attribute, value, 0.1);
        }
        Some(draft)
    }

    /// A rare value first, then others; in the shopper's own words.
    fn long_tail(&mut self, at: usize) -> Option<Draft> {
        let category = &self.world.categories[at];
        let mut draft = self.start(at, 0.85);
        let mut places = self.places(category);
        let rare = |slot: &Slot, value: u8| slot.share(value) < 0.2;
        let first = places
            .iter()
            .position(|place| category.slots[*place].values.iter().any(|v| rare(&category.slots[*place], *v)))?;
        let slot = &category.slots[places.remove(first)];
        let values: Vec<u8> = slot.values.iter().copied().filter(|value| rare(slot, *value)).collect();
        let value = *self.dice.pick(&values);
        draft.intent.hard.push(Wish::Has { attribute: slot.attribute, value });
        self.say(&mut draft.words, slot.attribute, value, 0.85);
        for _ in 0..1 + self.dice.below(2) {
            let slot = &category.slots[places.pop()?];
            let value = *self.dice.pick(&slot.values);
            draft.intent.soft.push(Wish::Has { attribute: slot.attribute, value });
            self.say(&mut draft.words, slot.attribute, value, 0.85);
        }
        draft.words.slips = self.dice.chance(0.35);
        Some(draft)
    }

    /// "what makes hair black": a task, and nothing that names the thing.
    fn question(&mut self, at: usize) -> Option<Draft> {
        let function = self.world.categories[at].function;
        let task = self.dice.pick(&self.world.functions[function].tasks);
        let mut draft =
            Draft { intent: Intent { function, hard: Vec::new(), soft: Vec::new() }, words: Words::default() };
        draft.words.task = task.text.clone();
        let category = &self.world.categories[at];
        if let Some(attribute) = task.attribute {
            let slot = category.slots.iter().find(|slot| slot.attribute == attribute)?;
            let value = self.common(slot);
            let word = self.word(attribute, value, 0.6);
            draft.intent.hard.push(Wish::Has { attribute, value });
            let name = format!("{{{}}}", self.world.attributes[attribute].id);
            // some words bring their own "for"
            let linked = LINKS.iter().any(|link| word.starts_with(link));
            let links = [format!("with {name}"), format!("for {name}"), format!("a {name}")];
            let text = links.iter().filter(|_| linked).fold(task.text.clone(), |text, link| text.replace(link, &word));
            draft.words.task = text.replace(&name, &word);
        }
        if task.attribute.is_none() || self.dice.chance(0.25) {
            self.bound_price(&mut draft, function)?;
        }
        Some(draft)
    }

    /// "alternative to BRAND SERIES": the same function and much the same thing, from somebody else.
    fn alternative(&mut self, at: usize) -> Option<Draft> {
        let category = &self.world.categories[at];
        let mut draft = self.start(at, 0.3);
        let number = self.dice.below(category.lines.len());
        let line = &category.lines[number];
        draft.intent.hard.push(Wish::NotBrand(line.brand));
        for (slot, value) in category.slots.iter().zip(line.pins) {
            draft.intent.soft.push(Wish::Has { attribute: slot.attribute, value });
        }
        draft.words.reference = format!("{} {}", self.world.brands[line.brand].name, line.name).to_lowercase();
        if self.dice.chance(0.4) {
            let own = |item: &&Traits| usize::from(item.category) == at && usize::from(item.line) == number;
            let sample = self.catalogue.sample(category.function);
            let mut prices: Vec<u32> = sample.filter(own).map(|item| item.cents).collect();
            prices.sort_unstable();
            draft.intent.hard.push(Wish::Below(*prices.get(prices.len() / 2)?));
            draft.words.cheaper = true;
        }
        Some(draft)
    }

    /// Rules out something that many items of the kind have.
    fn negative(&mut self, at: usize) -> Option<Draft> {
        let category = &self.world.categories[at];
        let mut draft = self.start(at, 0.3);
        let mut places = self.places(category);
        if self.dice.chance(0.4) {
            let fact = self.implied(category, true, 0.12)?;
            draft.intent.hard.push(Wish::NoFact(fact));
            // nobody asks for what brings the drawback along
            places.retain(|place| !self.may_imply(&category.slots[*place], fact));
            draft.words.drawback = self.dice.pick(&self.world.facts[fact].asks).clone();
        } else {
            let values = |slot: &Slot| -> Vec<u8> {
                let refusable = |v: &u8| slot.share(*v) > 0.2 && !self.world.value(slot.attribute, *v).plain;
                slot.values.iter().copied().filter(refusable).collect()
            };
            let at = places.iter().position(|place| {
                let slot = &category.slots[*place];
                self.world.attributes[slot.attribute].refuse.len() > 1 && !values(slot).is_empty()
            })?;
            let slot = &category.slots[places.remove(at)];
            let values = values(slot);
            let value = *self.dice.pick(&values);
            draft.intent.hard.push(Wish::Lacks { attribute: slot.attribute, value });
            let word = self.word(slot.attribute, value, 0.15);
            let refuse = &self.world.attributes[slot.attribute].refuse;
            let (unheard, heard) = refuse.split_last()?;
            let pattern = if self.unheard { unheard } else { self.dice.pick(heard) };
            draft.words.refusal = pattern.replace("{}", &word);
        }
        if self.dice.chance(0.6) {
            let slot = &category.slots[places.pop()?];
            let value = self.common(slot);
            draft.intent.soft.push(Wish::Has { attribute: slot.attribute, value });
            self.say(&mut draft.words, slot.attribute, value, 0.3);
        }
        Some(draft)
    }

    /// Asks for what some values bring with them, in words that no seller uses.
    fn knowledge(&mut self, at: usize) -> Option<Draft> {
        let category = &self.world.categories[at];
        let mut draft = self.start(at, 0.4);
        let fact = self.implied(category, false, 0.04)?;
        draft.intent.hard.push(Wish::Fact(fact));
        draft.words.fact = self.dice.pick(&self.world.facts[fact].asks).clone();
        if self.dice.chance(0.5) {
            let places = self.places(category);
            let place = *places.iter().find(|place| !self.may_imply(&category.slots[**place], fact))?;
            let slot = &category.slots[place];
            let value = self.common(slot);
            draft.intent.soft.push(Wish::Has { attribute: slot.attribute, value });
            self.say(&mut draft.words, slot.attribute, value, 0.4);
        }
        Some(draft)
    }

    /// A fact that at least this share of the category's items has, but not most.
    fn implied(&mut self, category: &Category, drawback: bool, least: f32) -> Option<usize> {
        let mut shares = vec![0.0; self.world.facts.len()];
        for slot in &category.slots {
            let present = 1.0 - self.world.attributes[slot.attribute].absent;
            for value in &slot.values {
                let implied = self.world.value(slot.attribute, *value).implies.iter();
                implied.for_each(|fact| shares[fact] += present * slot.share(*value));
            }
        }
        let facts: Vec<usize> = (0..shares.len())
            .filter(|fact| {
                self.world.facts[*fact].drawback == drawback && shares[*fact] >= least && shares[*fact] <= 0.7
            })
            .collect();
        (!facts.is_empty()).then(|| *self.dice.pick(&facts))
    }

    /// Whether some value of the slot brings the fact.
    fn may_imply(&self, slot: &Slot, fact: usize) -> bool {
        slot.values.iter().any(|value| self.world.value(slot.attribute, *value).implies.has(fact))
    }

    fn bound_price(&mut self, draft: &mut Draft, function: usize) -> Option<()> {
        let mut prices: Vec<u32> = self.catalogue.sample(function).take(200).map(|item| item.cents).collect();
        prices.sort_unstable();
        let share = 25 + self.dice.below(40);
        let euros = prices.get(prices.len() * share / 100)? / 100;
        let euros = if euros > 30 { euros.div_ceil(5) * 5 } else { euros + 1 };
        draft.intent.hard.push(Wish::Below(euros * 100));
        draft.words.price = phrase::price(&mut self.dice, euros);
        Some(())
    }

    /// The slots of a category in some order, the first ones likelier.
    fn places(&mut self, category: &Category) -> Vec<usize> {
        let mut keyed: Vec<(u64, usize)> = (0..category.slots.len())
            .map(|place| ((self.dice.unit() * 1e6) as u64 / (place as u64 + 2), place))
            .collect();
        keyed.sort_unstable();
        keyed.into_iter().map(|(_, place)| place).collect()
    }

    fn common(&mut self, slot: &Slot) -> u8 {
        slot.values[self.dice.weighted(slot.weights.iter().copied())]
    }

    /// The shopper's own word with some probability, else a seller's.
    fn word(&mut self, attribute: usize, value: u8, own: f64) -> String {
        let value = self.world.value(attribute, value);
        let from = if self.dice.chance(own) { &value.asks } else { &value.says };
        let word = if self.dice.chance(self.usual) { &from[0] } else { self.dice.pick(from) };
        word.to_lowercase()
    }

    fn say(&mut self, words: &mut Words, attribute: usize, value: u8, own: f64) {
        let word = self.word(attribute, value, own);
        let attribute = &self.world.attributes[attribute];
        // some words bring their own "for"
        let linked = LINKS.iter().any(|link| word.starts_with(link));
        let asked = if linked { word.clone() } else { attribute.ask.replace("{}", &word) };
        match attribute.front && !linked {
            true => words.front.push(word),
            false if attribute.ask.starts_with("with") => words.back.push(word),
            false => words.back.push(asked.clone()),
        }
        words.asked.push(asked);
    }
}
