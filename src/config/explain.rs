//! The configuration's documentation, made of the types, defaults and doc comments in the code: a JSON Schema, a list of all settings, and
//! the values in effect with their source. Reads no model and no data.

use std::collections::HashSet;
use std::fmt::Write;

use serde_json::{Map, Value};
use toml::Table;

use super::Config;
use souk_io::address::masked;
use souk_io::error::{Error, Result};

/// A table of the configuration file.
#[derive(Clone, Debug)]
pub struct Section {
    /// Such as `train.optimizer`; the top level has no name.
    pub name: String,
    /// Value of `type` for which it has these settings.
    pub variant: Option<String>,
    /// A table that the file may have several times.
    pub repeats: bool,
    /// Its doc comment, in one line.
    pub meaning: String,
    /// Its settings, without those of the tables in it.
    pub settings: Vec<Setting>,
    /// Whether a running trainer reads it again.
    pub is_reloaded: bool,
}

/// A value in a configuration file.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Such as `train.optimizer.clip`.
    pub name: String,
    /// Such as `number` or `text`.
    pub kind: String,
    /// As in TOML; none if nothing is set.
    pub default: Option<String>,
    /// Whether the section needs a value.
    pub is_required: bool,
    /// Its doc comment, in one line.
    pub meaning: String,
    /// Its values with their meaning, if there are only a few.
    pub choices: Vec<(String, String)>,
    /// Whether a running trainer reads it again.
    pub is_reloaded: bool,
}

impl Section {
    /// Heading as in a configuration file.
    pub fn heading(&self) -> String {
        let heading = if self.repeats { format!("[[{}]]", self.name) } else { format!("[{}]", self.name) };
        self.variant.as_ref().map_or(heading.clone(), |variant| format!("{heading} type = \"{variant}\""))
    }
}

/// JSON Schema (2020-12) of a configuration file.
pub fn schema() -> Value {
    schemars::schema_for!(Config).to_value()
}

/// Every section of a configuration file, in alphabetical order of the settings' full names.
pub fn sections() -> Vec<Section> {
    let schema = schema();
    let walk = Walk { definitions: &schema["$defs"] };
    let mut sections = Vec::new();
    walk.properties(&schema, "", &mut sections);
    // all kinds of judges have the same limits; a section of the same name with other settings stays
    let mut seen = HashSet::new();
    sections.retain(|section| {
        let names: Vec<String> = section.settings.iter().map(|setting| setting.name.clone()).collect();
        seen.insert((section.heading(), names))
    });
    sections
}

struct Walk<'a> {
    definitions: &'a Value,
}

impl Walk<'_> {
    /// The settings of an object; a property that is an object becomes a section.
    fn properties(&self, object: &Value, name: &str, sections: &mut Vec<Section>) -> Vec<Setting> {
        let mut settings = Vec::new();
        let properties = object["properties"].as_object().into_iter().flatten();
        for (key, property) in properties.filter(|(_, property)| property.get("const").is_none()) {
            let full = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
            let shape = self.resolve(property);
            let meaning = text(property, "description").or_else(|| text(shape, "description")).unwrap_or_default();
            let is_reloaded = property["x-reloaded"] == true;
            let begin = sections.len();
            let is_table = self.tables(&full, &meaning, shape, sections);
            for section in &mut sections[begin..] {
                section.is_reloaded |= is_reloaded;
                section.settings.iter_mut().for_each(|setting| setting.is_reloaded |= is_reloaded);
            }
            if is_table {
                continue;
            }
            let default = property.get("default").and_then(|value| in_toml(value, shape));
            let mut required = object["required"].as_array().into_iter().flatten();
            settings.push(Setting {
                name: full,
                kind: self.kind(shape),
                default,
                is_required: required.any(|name| name == key.as_str()),
                meaning,
                choices: choices(shape),
                is_reloaded,
            });
        }
        settings
    }

    /// Adds the sections of a property, and says whether it is nothing but a table.
    fn tables(&self, name: &str, meaning: &str, shape: &Value, sections: &mut Vec<Section>) -> bool {
        let repeats = shape["type"] == "array";
        let table = if repeats { self.resolve(&shape["items"]) } else { shape };
        let mut add = |object: &Value, variant: Option<String>, meaning: String| {
            let place = sections.len();
            sections.push(Section {
                name: name.into(),
                variant,
                repeats,
                meaning,
                settings: Vec::new(),
                is_reloaded: false,
            });
            let settings = self.properties(object, name, sections);
            sections[place].settings = settings;
        };
        if table.get("properties").is_some() {
            add(table, None, meaning.into());
            return true;
        }
        let kinds = ["oneOf", "anyOf"].iter().find_map(|word| table[*word].as_array());
        let objects = kinds.into_iter().flatten().filter(|kind| self.resolve(kind).get("properties").is_some());
        let (mut num_tagged, mut num_objects) = (0, 0);
        for kind in objects {
            num_objects += 1;
            let tag = kind["properties"]["type"]["const"].as_str().map(str::to_owned);
            num_tagged += usize::from(tag.is_some());
            let own = text(kind, "description").unwrap_or_default();
            let meaning = if tag.is_some() { format!("{meaning} {own}").trim().to_owned() } else { meaning.to_owned() };
            // a variant's settings are in the type that it refers to
            add(self.resolve(kind), tag, meaning);
        }
        num_objects > 0 && num_tagged == num_objects
    }

    /// Follows references, and leaves out that a value may be missing.
    fn resolve<'v>(&'v self, schema: &'v Value) -> &'v Value {
        if let Some(name) = schema["$ref"].as_str().and_then(|path| path.strip_prefix("#/$defs/")) {
            return self.resolve(&self.definitions[name]);
        }
        let given: Vec<&Value> =
            schema["anyOf"].as_array().into_iter().flatten().filter(|kind| kind["type"] != "null").collect();
        match given.as_slice() {
            [one] => self.resolve(one),
            _ => schema,
        }
    }

    fn kind(&self, shape: &Value) -> String {
        let names = match &shape["type"] {
            Value::Array(names) => names.iter().filter_map(Value::as_str).filter(|name| *name != "null").collect(),
            Value::String(name) => vec![name.as_str()],
            _ => Vec::new(),
        };
        match names.as_slice() {
            ["string"] => "text".into(),
            ["array"] if shape.get("items").is_some() => {
                format!("list of {}", self.kind(self.resolve(&shape["items"])))
            }
            ["array"] => "list".into(),
            ["object"] => "table".into(),
            ["boolean"] => "true or false".into(),
            [one] => (*one).into(),
            _ if !choices(shape).is_empty() => "choice".into(),
            _ if shape.get("anyOf").is_none() => "any value".into(),
            _ => {
                let kinds = shape["anyOf"].as_array().into_iter().flatten().map(|kind| self.kind(self.resolve(kind)));
                kinds.collect::<Vec<_>>().join(" or ")
            }
        }
    }
}

/// The values of an enumeration, with their meaning.
fn choices(shape: &Value) -> Vec<(String, String)> {
    let plain = shape["enum"].as_array().into_iter().flatten().map(|name| (name, String::new()));
    let told = shape["oneOf"].as_array().into_iter().flatten().flat_map(|kind| {
        let meaning = text(kind, "description").unwrap_or_default();
        let names = kind["enum"].as_array().into_iter().flatten().chain(kind.get("const"));
        names.map(move |name| (name, meaning.clone()))
    });
    plain.chain(told).filter_map(|(name, meaning)| Some((name.as_str()?.to_owned(), meaning))).collect()
}

/// A text in one line, without the name of its section: "`[train]`: the loop" becomes "The loop".
fn text(schema: &Value, name: &str) -> Option<String> {
    let line = schema[name].as_str()?.split_whitespace().collect::<Vec<_>>().join(" ");
    let Some((_, meaning)) = line.strip_prefix("`[").and_then(|rest| rest.split_once("]`: ")) else {
        return Some(line);
    };
    let mut letters = meaning.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect())
}

/// A default as it would stand in a file.
fn in_toml(value: &Value, shape: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        // an f32 that was written as an f64
        Value::Number(number) if shape["format"] == "float" => Some((number.as_f64()? as f32).to_string()),
        Value::Array(values) => {
            let values = values.iter().filter_map(|value| in_toml(value, &shape["items"])).collect::<Vec<_>>();
            Some(format!("[{}]", values.join(", ")))
        }
        Value::Object(fields) if fields.is_empty() => None,
        Value::Object(fields) => Some(inline(fields)),
        other => Some(other.to_string()),
    }
}

fn inline(fields: &Map<String, Value>) -> String {
    let fields = fields.iter().filter_map(|(name, value)| Some(format!("{name} = {}", in_toml(value, &Value::Null)?)));
    format!("{{ {} }}", fields.collect::<Vec<_>>().join(", "))
}

impl Config {
    /// Every value in effect as TOML, with its source as a comment if it is not the default.
    pub fn in_effect(&self) -> Result<String> {
        let unwritable = |e| Error::config("configuration", "cannot be written as TOML").because(e);
        let table = Table::try_from(self).map_err(unwritable)?;
        let mut given = Table::new();
        for file in &self.origin.files {
            super::change::overlay(&mut given, super::load_toml(file)?);
        }
        for change in &self.origin.changes {
            change.apply(&mut given)?;
        }
        let mut text = String::new();
        self.write_table(&table, Some(&given), "", &mut text);
        Ok(text.trim_start().to_owned())
    }

    fn write_table(&self, table: &Table, given: Option<&Table>, name: &str, text: &mut String) {
        let (tables, values): (Vec<_>, Vec<_>) = table.iter().partition(|(_, value)| value.is_table());
        if !name.is_empty() && !values.is_empty() {
            let _ = write!(text, "\n[{name}]\n");
        }
        let full = |key: &str| if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") };
        for (key, value) in values {
            let source = given.filter(|given| given.contains_key(key)).map(|_| self.origin.place_of(&full(key)));
            let source = source.map(|source| format!("    # {}", masked(&source))).unwrap_or_default();
            let _ = writeln!(text, "{key} = {value}{source}");
        }
        for (key, value) in tables {
            let given = given.and_then(|given| given.get(key)?.as_table());
            if let Some(table) = value.as_table() {
                self.write_table(table, given, &full(key), text);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Change, StageSettings, TrainerSettings};
    use serde_json::json;
    use souk_io::address::Address;
    use souk_lexical::Hybrid;
    use souk_serving::search::{Rerank, SearchSettings};

    fn section<'a>(sections: &'a [Section], heading: &str) -> &'a Section {
        let found = sections.iter().find(|section| section.heading() == heading);
        found.unwrap_or_else(|| {
            panic!("no {heading} among {:?}", sections.iter().map(Section::heading).collect::<Vec<_>>())
        })
    }

    fn setting<'a>(section: &'a Section, name: &str) -> &'a Setting {
        section.settings.iter().find(|setting| setting.name == name).unwrap()
    }

    #[test]
    fn settings_have_types_defaults_and_meanings() {
        let sections = sections();
        let rate = setting(section(&sections, "[train.optimizer]"), "train.optimizer.learning_rate");
        assert_eq!((rate.kind.as_str(), rate.default.as_deref()), ("number", Some("0.00001")));
        assert!(rate.meaning.starts_with("Peak learning rate"), "{}", rate.meaning);
        let beta = setting(section(&sections, "[objective] type = \"r_grpo\""), "objective.beta");
        assert_eq!(beta.kind, "number");
        let precision = setting(section(&sections, "[model]"), "model.precision");
        assert_eq!(
            precision.choices.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
            ["f32", "bf16", "int8"]
        );
        assert!(section(&sections, "[[trainer.stage]]").settings.len() > 1);
        let hybrid = setting(section(&sections, "[search]"), "search.hybrid");
        assert_eq!((hybrid.kind.as_str(), hybrid.default.as_deref()), ("true or false or table", Some("false")));
        assert_eq!(setting(section(&sections, "[search.hybrid]"), "search.hybrid.dense").default.as_deref(), Some("1"));
    }

    #[test]
    fn everything_has_a_meaning() {
        for section in sections() {
            assert!(!section.meaning.is_empty(), "{} has no doc comment", section.heading());
            for setting in section.settings {
                assert!(!setting.meaning.is_empty(), "{} has no doc comment", setting.name);
                assert!(!setting.kind.is_empty(), "{} has no type", setting.name);
            }
        }
    }

    #[test]
    fn the_settings_marked_as_reloaded_are_those_that_a_running_trainer_takes_over() {
        let (old, mut new) = (TrainerSettings::default(), TrainerSettings::default());
        new.stage.push(StageSettings::default());
        new.pace.seconds += 1;
        new.gate.depth += 1;
        (new.keep, new.keep_days, new.adopt_seconds) = (new.keep + 1, new.keep_days + 1.0, new.adopt_seconds + 1);
        let taken = serde_json::to_value(old.reloaded(&new)).unwrap();
        let old = serde_json::to_value(old).unwrap();
        let changed = |name: &&String| taken[name.as_str()] != old[name.as_str()];
        let changed: Vec<&String> = old.as_object().unwrap().keys().filter(changed).collect();
        let schema = schema();
        let properties = schema["$defs"]["TrainerSettings"]["properties"].as_object().unwrap();
        let marked: Vec<&String> = properties.keys().filter(|name| properties[*name]["x-reloaded"] == true).collect();
        assert_eq!(changed, marked);
        let sections = sections();
        assert_search_settings_are_marked(&schema);
        assert!(
            section(&sections, "[trainer.gate]").is_reloaded && !section(&sections, "[trainer.alarms]").is_reloaded
        );
        assert!(setting(section(&sections, "[trainer]"), "trainer.keep").is_reloaded);
    }

    fn assert_search_settings_are_marked(schema: &Value) {
        let mut new = SearchSettings { promote_unmeasured: true, max_behind_seconds: 1, ..Default::default() };
        (new.hybrid, new.rerank) = (Hybrid::Enabled(true), Rerank::Enabled(false));
        (new.training, new.training_key_env) = (Some(Address::new("run")), Some("KEY".into()));
        new.experiments.push(
            serde_json::from_value(json!({"name": "a", "type": "ab", "left": "dense", "right": "hybrid"})).unwrap(),
        );
        (new.bounds.deadline_ms, new.bounds.rerank_ms) = (1, 1);
        let old = SearchSettings::default();
        assert_eq!(old.reloaded(&new), new);
        new.bounds.max_hits = 7;
        assert_eq!(old.reloaded(&new).bounds.max_hits, old.bounds.max_hits);
        let marked = |name: &str| {
            let properties = schema["$defs"][name]["properties"].as_object().unwrap();
            properties.keys().filter(|name| properties[*name]["x-reloaded"] == true).cloned().collect::<Vec<_>>()
        };
        assert_eq!(marked("Bounds"), ["deadline_ms", "rerank_ms"]);
        let settings = "experiments hybrid max_behind_seconds promote_unmeasured rerank training training_key_env";
        assert_eq!(marked("SearchSettings").join(" "), settings);
    }

    #[test]
    fn values_in_effect_name_their_source() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("souk.toml");
        std::fs::write(&file, "[train]\nbatch = 7\n[train.optimizer]\nclip = 2.0\n").unwrap();
        let changes = [Change::parse("train.optimizer.clip=3").unwrap()];
        let text = Config::load(Some(&file), &changes).unwrap().in_effect().unwrap();
        assert!(text.contains(&format!("batch = 7    # {}\n", file.display())), "{text}");
        assert!(text.contains("clip = 3.0    # --set train.optimizer.clip=3\n"), "{text}");
        assert!(text.contains("\n[train.optimizer]\n") && text.contains("learning_rate = 0.00001\n"), "{text}");
        let again = text.parse::<Table>().unwrap();
        assert_eq!(again["train"]["batch"].as_integer(), Some(7));
    }
}
