//! Draws query intents, slice by slice, and the words of each constraint. Takes the world and the catalogue's prices; never
//! reads a title.

use super::catalogue::{MarketCatalogue, Traits};
use super::dice::Dice;
use super::intent::{Constraint, Intent};
use super::phrase::{self, Words};
use super::slice::QuerySlice;
use super::world::{Category, Slot, World, world};

/// Prefixes of values that need no "for" or "with" before them.
const LINKS: [&str; 4] = ["for ", "with ", "against ", "like "];

/// Intent and its words, before they are put in a sentence.
pub struct Draft {
    pub intent: Intent,
    pub words: Words,
}

pub struct Shopper<'a> {
    pub world: &'static World,
    pub catalogue: &'a MarketCatalogue,
    pub dice: Dice,
    /// Whether to use phrasings reserved for test queries.
    pub test_phrasing: bool,
    /// Probability of taking the most common of several words without drawing.
    usual_word: f64,
}

impl<'a> Shopper<'a> {
    pub fn new(catalogue: &'a MarketCatalogue, dice: Dice, test_phrasing: bool) -> Self {
        Self { world: world(), catalogue, dice, test_phrasing, usual_word: 0.45 }
    }

    /// Drafts a query; `None` if the drawn category does not support the slice.
    pub fn draft(&mut self, slice: QuerySlice) -> Option<Draft> {
        let world = self.world;
        let at = self.dice.weighted(world.categories.iter().map(|category| category.weight.sqrt()));
        if slice == QuerySlice::General {
            self.usual_word = 0.75;
        }
        match slice {
            QuerySlice::General => self.general(at),
            QuerySlice::LongTail => self.long_tail(at),
            QuerySlice::Qa => self.question(at),
            QuerySlice::Alternative => self.alternative(at),
            QuerySlice::Negative => self.negative(at),
            QuerySlice::Knowledge => self.knowledge(at),
        }
    }

    /// Starts a draft for a category, with one of its names.
    fn draft_category(&mut self, at: usize, own_word: f64) -> Draft {
        let category = &self.world.categories[at];
        let names = if self.dice.chance(own_word) { &category.asks } else { &category.names };
        let name = if self.dice.chance(self.usual_word) { &names[0] } else { self.dice.pick(names) };
        let several = self.world.functions[category.function].categories.len() > 1;
        let soft = if several { vec![Constraint::Category(at)] } else { Vec::new() };
        let intent = Intent { function: category.function, hard: Vec::new(), soft };
        Draft { intent, words: Words { name: name.clone(), ..Words::default() } }
    }

    fn general(&mut self, at: usize) -> Option<Draft> {
        let category = &self.world.categories[at];
        let mut draft = self.draft_category(at, 0.1);
        let mut slots = self.shuffled_slots(category);
        if self.dice.chance(0.2) {
            let brand = self.dice.pick(&category.series).brand;
            draft.intent.hard.push(Constraint::Brand(brand));
            draft.words.brand = self.world.brands[brand].name.to_lowercase();
        } else {
            let slot = &category.slots[slots.pop()?];
            let value = self.draw_value(slot);
            draft.intent.hard.push(Constraint::Has { attribute: slot.attribute, value });
            self.add_value(&mut draft.words, slot.attribute, value, 0.1);
        }
        if self.dice.chance(0.6) {
            let slot = &category.slots[slots.pop()?];
            let value = self.draw_value(slot);
            draft.intent.soft.push(Constraint::Has { attribute: slot.attribute, value });
            self.add_value(&mut draft.words, slot.attribute, value, 0.1);
        }
        Some(draft)
    }

    /// Requires a rare value, then prefers others; in the shopper's own words.
    fn long_tail(&mut self, at: usize) -> Option<Draft> {
        let category = &self.world.categories[at];
        let mut draft = self.draft_category(at, 0.85);
        let mut slots = self.shuffled_slots(category);
        let rare = |slot: &Slot, value: u8| slot.share(value) < 0.2;
        let first = slots
            .iter()
            .position(|place| category.slots[*place].values.iter().any(|v| rare(&category.slots[*place], *v)))?;
        let slot = &category.slots[slots.remove(first)];
        let values: Vec<u8> = slot.values.iter().copied().filter(|value| rare(slot, *value)).collect();
        let value = *self.dice.pick(&values);
        draft.intent.hard.push(Constraint::Has { attribute: slot.attribute, value });
        self.add_value(&mut draft.words, slot.attribute, value, 0.85);
        for _ in 0..1 + self.dice.below(2) {
            let slot = &category.slots[slots.pop()?];
            let value = *self.dice.pick(&slot.values);
            draft.intent.soft.push(Constraint::Has { attribute: slot.attribute, value });
            self.add_value(&mut draft.words, slot.attribute, value, 0.85);
        }
        draft.words.has_typo = self.dice.chance(0.35);
        Some(draft)
    }

    /// "what makes hair black": a task, without the name of a category.
    fn question(&mut self, at: usize) -> Option<Draft> {
        let function = self.world.categories[at].function;
        let task = self.dice.pick(&self.world.functions[function].tasks);
        let mut draft =
            Draft { intent: Intent { function, hard: Vec::new(), soft: Vec::new() }, words: Words::default() };
        draft.words.task = task.text.clone();
        let category = &self.world.categories[at];
        if let Some(attribute) = task.attribute {
            let slot = category.slots.iter().find(|slot| slot.attribute == attribute)?;
            let value = self.draw_value(slot);
            let word = self.word(attribute, value, 0.6);
            draft.intent.hard.push(Constraint::Has { attribute, value });
            let name = format!("{{{}}}", self.world.attributes[attribute].id);
            // some values already start with "for"
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

    /// "alternative to BRAND SERIES": the same function and similar attributes, from another brand.
    fn alternative(&mut self, at: usize) -> Option<Draft> {
        let category = &self.world.categories[at];
        let mut draft = self.draft_category(at, 0.3);
        let number = self.dice.below(category.series.len());
        let series = &category.series[number];
        draft.intent.hard.push(Constraint::NotBrand(series.brand));
        for (slot, value) in category.slots.iter().zip(series.pins) {
            draft.intent.soft.push(Constraint::Has { attribute: slot.attribute, value });
        }
        draft.words.reference = format!("{} {}", self.world.brands[series.brand].name, series.name).to_lowercase();
        if self.dice.chance(0.4) {
            let own = |item: &&Traits| usize::from(item.category) == at && usize::from(item.series) == number;
            let sample = self.catalogue.sample(category.function);
            let mut prices: Vec<u32> = sample.filter(own).map(|item| item.cents).collect();
            prices.sort_unstable();
            draft.intent.hard.push(Constraint::Below(*prices.get(prices.len() / 2)?));
            draft.words.cheaper = true;
        }
        Some(draft)
    }

    /// Excludes a value or drawback that many items of the category have.
    fn negative(&mut self, at: usize) -> Option<Draft> {
        let category = &self.world.categories[at];
        let mut draft = self.draft_category(at, 0.3);
        let mut slots = self.shuffled_slots(category);
        if self.dice.chance(0.4) {
            let fact = self.implied(category, true, 0.12)?;
            draft.intent.hard.push(Constraint::NoFact(fact));
            // no query asks for a value that implies the excluded drawback
            slots.retain(|place| !self.can_imply(&category.slots[*place], fact));
            draft.words.drawback = self.dice.pick(&self.world.facts[fact].asks).clone();
        } else {
            let values = |slot: &Slot| -> Vec<u8> {
                let refusable = |v: &u8| slot.share(*v) > 0.2 && !self.world.value(slot.attribute, *v).plain;
                slot.values.iter().copied().filter(refusable).collect()
            };
            let at = slots.iter().position(|place| {
                let slot = &category.slots[*place];
                self.world.attributes[slot.attribute].refuse.len() > 1 && !values(slot).is_empty()
            })?;
            let slot = &category.slots[slots.remove(at)];
            let values = values(slot);
            let value = *self.dice.pick(&values);
            draft.intent.hard.push(Constraint::Lacks { attribute: slot.attribute, value });
            let word = self.word(slot.attribute, value, 0.15);
            let refuse = &self.world.attributes[slot.attribute].refuse;
            let (test_phrasing, heard) = refuse.split_last()?;
            let pattern = if self.test_phrasing { test_phrasing } else { self.dice.pick(heard) };
            draft.words.refusal = pattern.replace("{}", &word);
        }
        if self.dice.chance(0.6) {
            let slot = &category.slots[slots.pop()?];
            let value = self.draw_value(slot);
            draft.intent.soft.push(Constraint::Has { attribute: slot.attribute, value });
            self.add_value(&mut draft.words, slot.attribute, value, 0.3);
        }
        Some(draft)
    }

    /// Requires a fact that some values imply, in words that no seller uses.
    fn knowledge(&mut self, at: usize) -> Option<Draft> {
        let category = &self.world.categories[at];
        let mut draft = self.draft_category(at, 0.4);
        let fact = self.implied(category, false, 0.04)?;
        draft.intent.hard.push(Constraint::Fact(fact));
        draft.words.fact = self.dice.pick(&self.world.facts[fact].asks).clone();
        if self.dice.chance(0.5) {
            let slots = self.shuffled_slots(category);
            let place = *slots.iter().find(|place| !self.can_imply(&category.slots[**place], fact))?;
            let slot = &category.slots[place];
            let value = self.draw_value(slot);
            draft.intent.soft.push(Constraint::Has { attribute: slot.attribute, value });
            self.add_value(&mut draft.words, slot.attribute, value, 0.4);
        }
        Some(draft)
    }

    /// Draws a fact that between `min_share` and 0.7 of the category's items have.
    fn implied(&mut self, category: &Category, drawback: bool, min_share: f32) -> Option<usize> {
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
                self.world.facts[*fact].drawback == drawback && shares[*fact] >= min_share && shares[*fact] <= 0.7
            })
            .collect();
        (!facts.is_empty()).then(|| *self.dice.pick(&facts))
    }

    /// Whether a value of the slot implies the fact.
    fn can_imply(&self, slot: &Slot, fact: usize) -> bool {
        slot.values.iter().any(|value| self.world.value(slot.attribute, *value).implies.has(fact))
    }

    fn bound_price(&mut self, draft: &mut Draft, function: usize) -> Option<()> {
        let mut prices: Vec<u32> = self.catalogue.sample(function).take(200).map(|item| item.cents).collect();
        prices.sort_unstable();
        let share = 25 + self.dice.below(40);
        let euros = prices.get(prices.len() * share / 100)? / 100;
        let euros = if euros > 30 { euros.div_ceil(5) * 5 } else { euros + 1 };
        draft.intent.hard.push(Constraint::Below(euros * 100));
        draft.words.price = phrase::price(&mut self.dice, euros);
        Some(())
    }

    /// Slots of a category in random order; earlier slots tend to be drawn first (the result is popped from its end).
    fn shuffled_slots(&mut self, category: &Category) -> Vec<usize> {
        let mut keyed: Vec<(u64, usize)> = (0..category.slots.len())
            .map(|place| ((self.dice.unit() * 1e6) as u64 / (place as u64 + 2), place))
            .collect();
        keyed.sort_unstable();
        keyed.into_iter().map(|(_, place)| place).collect()
    }

    fn draw_value(&mut self, slot: &Slot) -> u8 {
        slot.values[self.dice.weighted(slot.weights.iter().copied())]
    }

    /// Lowercase word for a value: a shopper's with probability `own`, else a seller's.
    fn word(&mut self, attribute: usize, value: u8, own: f64) -> String {
        let value = self.world.value(attribute, value);
        let from = if self.dice.chance(own) { &value.asks } else { &value.says };
        let word = if self.dice.chance(self.usual_word) { &from[0] } else { self.dice.pick(from) };
        word.to_lowercase()
    }

    fn add_value(&mut self, words: &mut Words, attribute: usize, value: u8, own: f64) {
        let word = self.word(attribute, value, own);
        let attribute = &self.world.attributes[attribute];
        // some values already start with "for"
        let linked = LINKS.iter().any(|link| word.starts_with(link));
        let asked = if linked { word.clone() } else { attribute.ask.replace("{}", &word) };
        if attribute.front && !linked {
            words.front.push(word);
        } else if attribute.ask.starts_with("with") {
            words.back.push(word);
        } else {
            words.back.push(asked.clone());
        }
        words.asked.push(asked);
    }
}
