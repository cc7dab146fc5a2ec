//! Generates an item's texts as a seller would: a title in varying order with omissions, keyword stuffing and typing errors,
//! and a description with most of what the title omits. Takes the item's traits; the oracle never reads the texts.

use serde_json::{Map, Value, json};

use super::catalogue::Traits;
use super::dice::{Dice, STREAM_SALES, STREAM_TEXT, hash};
use super::quality::{Maker, Sales};
use super::world::{Category, NONE, World, world};
use souk_io::domain::Item;
use souk_io::typo::mistype;

/// Identifier of a row.
pub fn item_id(row: u32) -> String {
    format!("i{row}")
}

/// Row of an identifier.
pub fn item_row(id: &str) -> Option<u32> {
    id.strip_prefix('i').and_then(|digits| digits.parse().ok())
}

/// Probability of taking the most common of several words without drawing.
const USUAL_WORD: f64 = 0.65;

/// Attribute value of the item, and whether the title mentions it.
struct MentionedValue {
    attribute: usize,
    value: u8,
    in_title: bool,
}

struct Seller<'a> {
    world: &'a World,
    category: &'a Category,
    traits: &'a Traits,
    dice: Dice,
}

pub fn item(seed: u64, row: u32, traits: &Traits) -> Item {
    let world = world();
    let category = &world.categories[usize::from(traits.category)];
    let mut seller = Seller { world, category, traits, dice: Dice::new(&[seed, STREAM_TEXT, u64::from(row)]) };
    let mentioned = seller.choose();
    let title = seller.title(&mentioned);
    let text = seller.text(&mentioned, row);
    Item { id: item_id(row), title, text, fields: fields(seed, row, traits) }
}

fn fields(seed: u64, row: u32, traits: &Traits) -> Map<String, Value> {
    let world = world();
    let category = &world.categories[usize::from(traits.category)];
    let Traits { brand, category: of, series, popularity, .. } = *traits;
    let sales = Sales::draw(seed, row, popularity, Maker { brand, category: of, series });
    let mut attributes = Map::new();
    for (slot, value) in category.slots.iter().zip(traits.values).filter(|(_, value)| *value != NONE) {
        let attribute = &world.attributes[slot.attribute];
        attributes.insert(attribute.id.clone(), attribute.values[usize::from(value)].id.clone().into());
    }
    let mut fields = Map::new();
    fields.insert("brand".into(), world.brands[usize::from(traits.brand)].name.clone().into());
    fields.insert("department".into(), world.departments[category.department].name.clone().into());
    fields.insert("category".into(), category.id.clone().into());
    fields.insert("price".into(), json!(f64::from(traits.cents) / 100.0));
    fields.insert("attributes".into(), attributes.into());
    fields.insert("quality".into(), json!(f64::from(traits.quality) / 4.0));
    fields.insert("units".into(), sales.units.into());
    fields.insert("returns".into(), sales.returns.into());
    fields.insert("num_ratings".into(), sales.num_ratings.into());
    if let Some(rating) = sales.rating() {
        fields.insert("rating".into(), json!((rating * 100.0).round() / 100.0));
    }
    fields
}

impl Seller<'_> {
    fn choose(&mut self) -> Vec<MentionedValue> {
        let mut mentioned = Vec::new();
        for (place, slot) in self.category.slots.iter().enumerate() {
            let value = self.traits.values[place];
            if value == NONE {
                continue;
            }
            let likely = [0.85, 0.7, 0.55, 0.5].get(place).copied().unwrap_or(0.4);
            mentioned.push(MentionedValue { attribute: slot.attribute, value, in_title: self.dice.chance(likely) });
        }
        mentioned
    }

    fn words_of(&mut self, mentioned: &MentionedValue) -> String {
        let says = &self.world.value(mentioned.attribute, mentioned.value).says;
        // the first word is the most common one
        if self.dice.chance(USUAL_WORD) { says[0].clone() } else { self.dice.pick(says).clone() }
    }

    fn title(&mut self, mentioned: &[MentionedValue]) -> String {
        let (world, category) = (self.world, self.category);
        let (mut front, mut back) = (Vec::new(), Vec::new());
        for value in mentioned.iter().filter(|value| value.in_title) {
            let words = self.words_of(value);
            let attribute = &world.attributes[value.attribute];
            if attribute.front {
                front.push(words);
            } else if attribute.ask.starts_with("for") {
                // sellers write "for" before an audience, but not before sizes
                back.push(format!("for {words}"));
            } else {
                back.push(words);
            }
        }
        self.dice.shuffle(&mut front);
        let name = if self.dice.chance(USUAL_WORD) { &category.names[0] } else { self.dice.pick(&category.names) };
        let series = category.series.get(usize::from(self.traits.series)).map(|series| series.name.clone());
        let mut brand = vec![world.brands[usize::from(self.traits.brand)].name.clone()];
        brand.extend(series);
        let brand = brand.join(" ");
        let (front, back) = (front.join(" "), back.join(if self.dice.chance(0.5) { ", " } else { " " }));
        let title = match self.dice.below(20) {
            0..9 => format!("{brand} {front} {name} {back}"),
            9..12 => format!("{name} {front}, {back} - {brand}"),
            12..14 => format!("{front} {name} by {brand} | {back}"),
            14..16 => format!("{brand} {name}, {front}, {back}"),
            16..18 => format!("{brand} | {name} {back} {front}{}", self.stuffing()),
            18 => format!("{front} {name} {back}"),
            _ => format!("{brand} {name}{}", self.stuffing()),
        };
        self.finish(title)
    }

    /// Keyword stuffing: words to be found by, true or not.
    fn stuffing(&mut self) -> String {
        let category = self.category;
        let slot = self.dice.pick(&category.slots);
        let other = self.world.value(slot.attribute, *self.dice.pick(&slot.values));
        let neighbour = self.dice.pick(&self.world.categories);
        let (name, word) = (self.dice.pick(&neighbour.names), self.dice.pick(&other.says));
        match self.dice.below(6) {
            0 => format!(", gift idea, {}, {}", self.dice.pick(&category.names), self.dice.pick(&category.names)),
            1 => format!(" not {word}"),
            2 => format!(" {word} look"),
            3 => format!(" matches {name}"),
            4 => format!(" - better than {word}"),
            _ => format!(" {} {} bestseller 2026", self.dice.pick(&category.names), self.dice.pick(&category.asks)),
        }
    }

    fn finish(&mut self, title: String) -> String {
        let mut title = tidy(&title);
        if self.dice.chance(0.06) {
            title = mistype(self.dice.stream(), &title);
        }
        match self.dice.below(20) {
            0 => title.to_uppercase(),
            1..4 => title.to_lowercase(),
            4..12 => title_case(&title),
            _ => capitalize(&title),
        }
    }

    fn text(&mut self, mentioned: &[MentionedValue], row: u32) -> String {
        let (world, category) = (self.world, self.category);
        let mut sentences = Vec::new();
        for value in mentioned {
            let likely = if value.in_title { 0.35 } else { 0.9 };
            if self.dice.chance(likely) {
                let words = self.words_of(value);
                sentences.push(self.dice.pick(&world.attributes[value.attribute].tell).replace("{}", &words));
            }
        }
        for fact in self.traits.facts.iter() {
            if self.dice.chance(0.7) {
                sentences.push(self.dice.pick(&world.facts[fact].says).clone());
            }
        }
        let department = &world.departments[category.department];
        if self.dice.chance(0.5) {
            sentences.push(self.dice.pick(&department.fluff).clone());
        }
        if self.dice.chance(0.15) {
            sentences.push(format!("Goes well with our {}", self.dice.pick(&world.categories).names[0]));
        }
        if self.dice.chance(0.3) {
            let number = hash(&[STREAM_SALES, u64::from(row), u64::from(self.traits.brand)]) % 90_000 + 10_000;
            sentences.push(format!("Model {}{number}", &world.brands[usize::from(self.traits.brand)].name[..1]));
        }
        self.dice.shuffle(&mut sentences);
        let name = self.dice.pick(&category.names).clone();
        let opening = match self.dice.below(4) {
            0 => format!("{} from {}", capitalize(&name), world.brands[usize::from(self.traits.brand)].name),
            1 => format!("New in: {name}"),
            2 => format!("Our {name} for you"),
            _ => String::new(),
        };
        let all = std::iter::once(opening).filter(|opening| !opening.is_empty()).chain(sentences);
        all.map(|sentence| format!("{}.", capitalize(sentence.trim_end_matches('.')))).collect::<Vec<_>>().join(" ")
    }
}

/// Normalises spaces, commas and separators left by empty parts.
fn tidy(text: &str) -> String {
    let mut tidy: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match (word, tidy.last_mut()) {
            ("," | ",,", Some(last)) if !last.ends_with(',') => last.push(','),
            ("," | ",," | "|" | "-", None) => {}
            ("|" | "-", Some(last)) => {
                last.truncate(last.trim_end_matches(',').len());
                tidy.push(word.into());
            }
            (",", _) => {}
            (word, _) => tidy.push(word.into()),
        }
    }
    while tidy.last().is_some_and(|last| ["|", "-", ","].contains(&last.as_str())) {
        tidy.pop();
    }
    tidy.join(" ").trim_end_matches(',').to_owned()
}

/// Title case, except for units and short words.
fn title_case(text: &str) -> String {
    let small = ["for", "with", "of", "by", "and", "ml", "cm", "kg", "l", "mm", "g", "pcs", "not", "in"];
    let word = |word: &str| if small.contains(&word) { word.to_owned() } else { capitalize(word) };
    text.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

fn capitalize(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::super::catalogue::MarketCatalogue;
    use super::*;
    use souk_io::item_text::ItemText;

    #[test]
    fn titles_are_tidy() {
        assert_eq!(tidy("  black  kettle ,  - Brenholt"), "black kettle - Brenholt");
        assert_eq!(tidy(" kettle , , 1.7 l |"), "kettle, 1.7 l");
        assert_eq!(tidy("| kettle"), "kettle");
        assert_eq!(title_case("kettle with keep warm 500 ml"), "Kettle with Keep Warm 500 ml");
        assert_eq!(item_row(&item_id(12)), Some(12));
        assert_eq!(item_row("12"), None);
        assert_eq!(capitalize("élan vital"), "Élan vital");
    }

    #[test]
    fn titles_omit_values_and_descriptions_add_most_of_them() {
        let (catalogue, world) = (MarketCatalogue::build(5, 1000), world());
        let (mut values, mut in_title, mut in_text) = (0, 0, 0);
        for (row, traits) in catalogue.iter() {
            let item = item(5, row, traits);
            assert!(!item.title.is_empty() && item.title.trim() == item.title, "{item:?}");
            let category = &world.categories[usize::from(traits.category)];
            for (slot, value) in category.slots.iter().zip(traits.values).filter(|(_, value)| *value != NONE) {
                let is_in = |text: &str| {
                    let text = text.to_lowercase();
                    world.value(slot.attribute, value).says.iter().any(|says| text.contains(&says.to_lowercase()))
                };
                values += 1;
                in_title += usize::from(is_in(&item.title));
                in_text += usize::from(is_in(&ItemText::default().render(&item)));
            }
        }
        assert!((0.45..0.75).contains(&(f64::from(in_title as u32) / f64::from(values))), "{in_title} of {values}");
        assert!((0.85..0.99).contains(&(f64::from(in_text as u32) / f64::from(values))), "{in_text} of {values}");
    }
}
