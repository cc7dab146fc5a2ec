//! Template of an item's text, such as `{title} {brand} {category}`: what the encoder, the lexical index and the judge read of an
//! item.

use std::collections::BTreeSet;
use std::fmt;
use std::mem;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::beir::DataFolder;
use crate::domain::Item;
use crate::error::Error;
use crate::names::{NameList, did_you_mean};

/// Fewest digits of a bar code (EAN-8); shorter numbers say how many or how much.
const MIN_CODE_DIGITS: usize = 8;
const IMAGES: [&str; 6] = [".jpg", ".jpeg", ".png", ".gif", ".webp", ".svg"];

/// Words separated by white space, of letters and `{field}`s. A field is `title`, `text`, `_id` or any other key of an item; `a.b` is
/// a field inside an object, as in filters. Lists and objects are shown as their values, separated by spaces. A word whose fields are
/// all missing or empty is left out, with the letters in it: `by:{brand}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct ItemText {
    words: Vec<Vec<Part>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Literal(String),
    Field(String),
}

impl ItemText {
    /// Text of an item.
    pub fn render(&self, item: &Item) -> String {
        let mut text = String::new();
        for word in &self.words {
            let mut shown = String::new();
            let (mut num_fields, mut num_empty) = (0, 0);
            for part in word {
                match part {
                    Part::Literal(letters) => shown.push_str(letters),
                    Part::Field(name) => {
                        let before = shown.len();
                        push_field(&mut shown, item, name);
                        num_fields += 1;
                        num_empty += usize::from(shown.len() == before);
                    }
                }
            }
            if num_fields > 0 && num_empty == num_fields {
                continue;
            }
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str(&shown);
        }
        text
    }

    /// Texts in the fields that the template does not name, separated by spaces. Numbers, dates and addresses of pages and images are
    /// left out, as numbers or as text: searched for by words, they would be noise.
    pub fn details(&self, item: &Item) -> String {
        let mut values = Vec::new();
        for (name, value) in [("title", &item.title), ("text", &item.text)] {
            if !self.names(name) && is_words(value) {
                values.push(value.as_str());
            }
        }
        item.fields.iter().for_each(|(name, value)| self.add_details(name, value, &mut values));
        values.join(" ")
    }

    /// Adds the texts of a field and of those inside it.
    fn add_details<'a>(&self, name: &str, value: &'a Value, values: &mut Vec<&'a str>) {
        if self.names(name) {
            return;
        }
        match value {
            Value::String(text) if is_words(text) => values.push(text),
            Value::Array(list) => list.iter().for_each(|value| self.add_details(name, value, values)),
            Value::Object(fields) => {
                fields.iter().for_each(|(key, value)| self.add_details(&format!("{name}.{key}"), value, values));
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    /// Whether the template names a field.
    fn names(&self, field: &str) -> bool {
        self.words.iter().flatten().any(|part| matches!(part, Part::Field(name) if name == field))
    }

    /// Fails if no item of the catalogue has a named field, unless it has no item at all. Reads items until each field was found.
    pub fn check(&self, data: &DataFolder) -> Result<(), Error> {
        let named = self.words.iter().flatten().filter_map(|part| match part {
            Part::Field(name) if !["title", "text", "_id"].contains(&name.as_str()) => Some(name.as_str()),
            _ => None,
        });
        let (mut missing, mut known): (BTreeSet<&str>, BTreeSet<String>) = (named.collect(), BTreeSet::new());
        if missing.is_empty() {
            return Ok(());
        }
        let mut is_empty = true;
        for item in data.items()? {
            let (_, item) = item?;
            is_empty = false;
            missing.retain(|name| field(&item.fields, name).is_none());
            if missing.is_empty() {
                return Ok(());
            }
            item.fields.iter().for_each(|(name, value)| add_names(name, value, &mut known));
        }
        if is_empty {
            return Ok(());
        }
        known.extend(["title", "text"].map(String::from));
        let names = || known.iter().map(String::as_str);
        let wrong = |name: &str| format!("`{name}`{}", did_you_mean(name, names()));
        let problem = format!(
            "names {}, which no item of {} has; fields: {}",
            missing.into_iter().map(wrong).collect::<Vec<_>>().join(", "),
            data.path().display(),
            NameList::of(names()).text
        );
        Err(Error::config("encoder.item_text", problem))
    }

    /// Whether this is the text of a model that names no template.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Title and text, joined as in BEIR.
impl Default for ItemText {
    fn default() -> Self {
        Self { words: ["title", "text"].map(|name| vec![Part::Field(name.into())]).into() }
    }
}

impl FromStr for ItemText {
    type Err = String;

    fn from_str(template: &str) -> Result<Self, String> {
        let wrong = |problem: &str| format!("`{template}` {problem}, for example \"{{title}} {{brand}}\"");
        let (mut words, mut word, mut rest) = (Vec::new(), Vec::new(), template);
        while let Some(first) = rest.chars().next() {
            if let Some(field) = rest.strip_prefix('{') {
                let (name, after) = field.split_once('}').ok_or_else(|| wrong("has a `{` without `}`: close it"))?;
                match name.trim() {
                    "" => return Err(wrong("has a field without a name: name a key of the items")),
                    name if name.contains('{') => return Err(wrong("has a `{` without `}`: close it")),
                    name => word.push(Part::Field(name.into())),
                }
                rest = after;
            } else if first == '}' {
                return Err(wrong("has a `}` without `{`: remove it, or open it before a field's name"));
            } else if first.is_whitespace() {
                words.push(mem::take(&mut word));
                rest = rest.trim_start();
            } else {
                let end = rest.find(|c: char| c.is_whitespace() || "{}".contains(c)).unwrap_or(rest.len());
                word.push(Part::Literal(rest[..end].into()));
                rest = &rest[end..];
            }
        }
        words.push(word);
        words.retain(|word| !word.is_empty());
        if !words.iter().flatten().any(|part| matches!(part, Part::Field(_))) {
            return Err(wrong("names no field, so that all items would have one text: name fields in braces"));
        }
        Ok(Self { words })
    }
}

impl fmt::Display for ItemText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, word) in self.words.iter().enumerate() {
            f.write_str(if at > 0 { " " } else { "" })?;
            for part in word {
                match part {
                    Part::Literal(letters) => f.write_str(letters)?,
                    Part::Field(name) => write!(f, "{{{name}}}")?,
                }
            }
        }
        Ok(())
    }
}

impl TryFrom<String> for ItemText {
    type Error = String;

    fn try_from(template: String) -> Result<Self, String> {
        template.parse()
    }
}

impl From<ItemText> for String {
    fn from(template: ItemText) -> Self {
        template.to_string()
    }
}

fn push_field(text: &mut String, item: &Item, name: &str) {
    match name {
        "title" => text.push_str(&item.title),
        "text" => text.push_str(&item.text),
        "_id" => text.push_str(&item.id),
        name => {
            let mut values = Vec::new();
            field(&item.fields, name).into_iter().for_each(|value| add_values(value, &mut values));
            text.push_str(&values.join(" "));
        }
    }
}

fn field<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    fields.get(name).or_else(|| {
        let (object, rest) = name.split_once('.')?;
        field(fields.get(object)?.as_object()?, rest)
    })
}

/// Adds the name of a field, and those of the fields inside it.
fn add_names(name: &str, value: &Value, names: &mut BTreeSet<String>) {
    names.insert(name.into());
    if let Value::Object(fields) = value {
        fields.iter().for_each(|(key, value)| add_names(&format!("{name}.{key}"), value, names));
    }
}

/// Whether shoppers may search for a text by its words: it has letters or is as long as a bar code, and is no date or address.
fn is_words(text: &str) -> bool {
    let text = text.trim();
    let is_code = || {
        let digits = text.bytes().filter(u8::is_ascii_digit).count();
        digits >= MIN_CODE_DIGITS && text.bytes().all(|byte| byte.is_ascii_digit() || b"- ".contains(&byte))
    };
    (text.contains(char::is_alphabetic) || is_code()) && !is_date(text) && !is_address(text)
}

/// Whether a text is a date, as in `2009-12-10`, or one with a time, as in `2009-12-10T00:00:00Z`.
fn is_date(text: &str) -> bool {
    let mut bytes = text.bytes();
    let day = bytes.by_ref().take(10).enumerate();
    let starts = day.filter(|(at, byte)| if [4, 7].contains(at) { *byte == b'-' } else { byte.is_ascii_digit() });
    let is_day = starts.count() == 10 && bytes.next().is_none_or(|next| next == b'T' || next == b' ');
    is_day && bytes.all(|byte| byte.is_ascii_digit() || b":.+-Z ".contains(&byte))
}

/// Whether a text is the address of a page, or the name of an image's file.
fn is_address(text: &str) -> bool {
    let is_image = || IMAGES.iter().any(|ending| text.to_ascii_lowercase().ends_with(ending));
    text.contains("://")
        || !text.contains(char::is_whitespace) && (text.starts_with("//") || text.starts_with("www.") || is_image())
}

fn add_values(value: &Value, values: &mut Vec<String>) {
    match value {
        Value::Null => {}
        Value::String(text) if text.is_empty() => {}
        Value::String(text) => values.push(text.clone()),
        Value::Array(list) => list.iter().for_each(|value| add_values(value, values)),
        Value::Object(fields) => fields.values().for_each(|value| add_values(value, values)),
        Value::Bool(_) | Value::Number(_) => values.push(value.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn item(json: &Value) -> Item {
        serde_json::from_value(json.clone()).unwrap()
    }

    fn text(template: &str, fields: &Value) -> String {
        template.parse::<ItemText>().unwrap().render(&item(fields))
    }

    #[test]
    fn the_default_joins_title_and_text() {
        for (title, body, expected) in [
            (json!("Oak desk"), "120 cm", "Oak desk 120 cm"),
            (json!(" Oak  desk\n"), " 120 cm ", " Oak  desk\n  120 cm "),
            (json!("Oak desk"), "", "Oak desk"),
            (json!(null), "120 cm", "120 cm"),
            (json!(""), "", ""),
        ] {
            let item = item(&json!({"_id": "7", "title": title, "text": body, "brand": "Acme"}));
            assert_eq!(ItemText::default().render(&item), expected);
        }
        assert!("  {title}\t{ text } ".parse::<ItemText>().unwrap().is_default());
    }

    #[test]
    fn a_template_shows_any_fields() {
        let desk = json!({
            "_id": "7", "title": "Oak desk", "text": "", "brand": "Acme", "price": 99.5, "stock": 3, "sale": true, "empty": "",
            "null": null, "none": [], "colours": ["red", "", null, 2], "attributes": {"size": {"cm": 120}, "wood": "oak"},
            "a.b": "dotted",
        });
        for (template, expected) in [
            ("{brand} {title}", "Acme Oak desk"),
            ("{_id}/{stock} {price} {sale}", "7/3 99.5 true"),
            ("{title}  {text} {empty} {null} {none} {absent}\t{brand}", "Oak desk Acme"),
            ("{text} {title} {null}", "Oak desk"),
            ("{colours} {attributes}", "red 2 120 oak"),
            (
                "{attributes.wood} {title} {attributes.size.cm} {attributes.none} {title.wood} {a.b}",
                "oak Oak desk 120 dotted",
            ),
            ("{title}, by:{brand} from:{country} {empty}{brand}{null}!", "Oak desk, by:Acme Acme!"),
            ("{title} by {empty}", "Oak desk by"),
            ("{absent}", ""),
        ] {
            assert_eq!(text(template, &desk), expected, "{template}");
        }
    }

    #[test]
    fn details_are_texts_of_fields_that_the_template_does_not_name() {
        let desk = json!({
            "_id": "7", "title": "Oak desk", "text": "Sturdy",
            "attributes": {"size": {"cm": 120, "word": "large"}, "wood": "oak"}, "brand": "Acme", "day": "2009-12-10",
            "ean": ["0095205603217", ""], "empty": "", "image": "https://shop.example/7.jpg", "model": "2009-12-100",
            "null": null, "price": 99.5, "released": "2009-12-10T00:00:00Z", "sale": true,
        });
        // a table's columns are texts
        let table = json!({
            "_id": "7", "added": "2009-12-10 08:30:00", "day": "10.12.2009", "edition": "2009-12-10 reprint",
            "file": "img/7.JPG", "isbn": "978-3-16-148410-0", "page": "www.shop.example/7", "price": "$1,999.00", "ratio": "16:10",
            "size": "12 in", "stock": " 15 ", "thumb": "//cdn.example/7", "wood": "Eiche",
        });
        assert_eq!(ItemText::default().details(&item(&table)), "2009-12-10 reprint 978-3-16-148410-0 12 in Eiche");
        let details = |template: &str| template.parse::<ItemText>().unwrap().details(&item(&desk));
        assert_eq!(details("{title} {text}"), "large oak Acme 0095205603217 2009-12-100");
        assert_eq!(details("{title} {brand} {attributes}"), "Sturdy 0095205603217 2009-12-100");
        assert_eq!(details("{text} {attributes.size} {ean}{model}"), "Oak desk oak Acme");
        assert_eq!(details("{text} {attributes.size.word} {ean} {model} {brand} {title}"), "oak");
    }

    #[test]
    fn a_field_that_no_item_has_is_named() {
        let home = tempfile::tempdir().unwrap();
        let items = ["{\"_id\":\"1\",\"colour\":\"red\",\"size\":{\"cm\":7}}", "{\"_id\":\"2\",\"brand\":\"Acme\"}"];
        std::fs::write(home.path().join("corpus.jsonl"), items.join("\n")).unwrap();
        let data = DataFolder::open(home.path()).unwrap();
        let check = |template: &str| template.parse::<ItemText>().unwrap().check(&data);
        check("{title} {brand} {colour} {size} {size.cm} {_id}").unwrap();
        let problem = |template: &str| check(template).unwrap_err().to_string();
        let error = problem("{titel} {brnad} {colour} {size.m}");
        let named = "`brnad` (did you mean `brand`?), `size.m` (did you mean `size.cm`?), `titel` (did you mean `title`?), which";
        assert!(
            error.contains(named) && error.contains("fields: brand, colour, size, size.cm, text, title"),
            "{error}"
        );
        assert!(problem("{title} {siz}").contains("`siz` (did you mean `size`?)"));
        std::fs::write(home.path().join("corpus.jsonl"), "").unwrap();
        check("{title} {brnad}").unwrap();
    }

    #[test]
    fn a_template_is_written_as_it_was_read() {
        let template: ItemText = serde_json::from_value(json!(" {title},  by:{brand name}\n")).unwrap();
        assert_eq!(serde_json::to_value(&template).unwrap(), json!("{title}, by:{brand name}"));
        assert_eq!(template.to_string().parse(), Ok(template));
    }

    #[test]
    fn errors_say_what_to_do() {
        for (template, expected) in [
            ("{title} {brand", "close it"),
            ("{title {brand}", "close it"),
            ("{title} brand}", "remove it"),
            ("{title} { }", "name a key"),
            ("title", "in braces"),
            ("", "in braces"),
        ] {
            let error = template.parse::<ItemText>().unwrap_err();
            assert!(error.contains(expected) && error.contains(template), "{template}: {error}");
        }
    }
}
