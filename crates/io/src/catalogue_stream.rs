//! The ordered stream of catalogue changes that all processes of a shop share, and the mutations in it. The stream keeps
//! only the latest mutation of each key, as a compacted Kafka topic does: replayed from the start, it gives every item
//! its final state. Positions are the numbers of the mutations, from 1 on, with gaps where a later one took a key over.

use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::domain::Item;
use crate::error::{Answer, Error, Result};

const DELETED: &str = "_deleted";
const UPDATE: &str = "_update";

/// Requested change of an item.
#[derive(Clone, Debug, PartialEq)]
pub enum Mutation {
    /// Adds an item, or replaces the item with the same id.
    Put(Item),
    /// Replaces these fields of an item, or removes those that are null. Without that item, it changes nothing.
    Update(String, Map<String, Value>),
    Delete(String),
}

impl Mutation {
    pub fn id(&self) -> &str {
        match self {
            Self::Put(item) => &item.id,
            Self::Update(id, _) | Self::Delete(id) => id,
        }
    }

    /// Names of the fields that an update replaces; empty otherwise. The id and these names are the mutation's key.
    pub fn updated_fields(&self) -> String {
        match self {
            Self::Update(_, fields) => {
                let mut names: Vec<&String> = fields.keys().collect();
                names.sort_unstable();
                json!(names).to_string()
            }
            Self::Put(_) | Self::Delete(_) => String::new(),
        }
    }

    /// Item after this mutation of `before`; None if there is none.
    pub fn apply(&self, before: Option<Item>) -> Option<Item> {
        match self {
            Self::Put(item) => Some(item.clone()),
            Self::Update(_, fields) => before.map(|item| updated(item, fields)),
            Self::Delete(_) => None,
        }
    }

    /// Rejects names that `parse` would take for something else.
    pub fn check(&self) -> Result<()> {
        let (Self::Put(Item { fields, .. }) | Self::Update(_, fields)) = self else { return Ok(()) };
        let reserved = [DELETED, UPDATE].into_iter().find(|name| fields.contains_key(*name));
        let named = ["_id", "id"].into_iter().find(|name| fields.contains_key(*name));
        match (self, reserved, named) {
            (_, Some(name), _) => Err(Error::input(format!("`{name}` cannot be a field: choose another name"))),
            (Self::Update(..), None, Some(name)) => {
                Err(Error::input(format!("`{name}` cannot be updated: put a new item and delete the old one")))
            }
            _ => Ok(()),
        }
    }

    /// The mutation as a line of `corpus.jsonl`, or as `{"_id": ..., "_update": {...}}` or `{"_id": ..., "_deleted": true}`.
    pub fn to_json(&self) -> String {
        match self {
            Self::Put(item) => serde_json::to_string(item).expect("an item has a JSON form"),
            Self::Update(id, fields) => json!({"_id": id, UPDATE: fields}).to_string(),
            Self::Delete(id) => json!({"_id": id, DELETED: true}).to_string(),
        }
    }

    pub fn parse(json: &[u8], file: &Path, line: u64) -> Result<Self> {
        let malformed = |e| Error::data(file, Some(line), "not a catalogue change: expected an item").because(e);
        Self::from_fields(serde_json::from_slice(json).map_err(malformed)?)
            .map_err(|e| Error::data(file, Some(line), "not a catalogue change").because(e))
    }

    pub fn from_fields(fields: Map<String, Value>) -> Result<Self> {
        let wrong = |e| Error::input("not an item").because(e);
        let mut item: Item = serde_json::from_value(Value::Object(fields)).map_err(wrong)?;
        if item.id.is_empty() {
            return Err(Error::input("has an empty id"));
        }
        let is_deleted = item.fields.get(DELETED) == Some(&Value::Bool(true));
        match (is_deleted, item.fields.remove(UPDATE)) {
            (true, _) => Ok(Self::Delete(item.id)),
            (_, Some(Value::Object(fields))) => Ok(Self::Update(item.id, fields)),
            (_, Some(_)) => Err(Error::input(format!("`{UPDATE}` is not an object of fields"))),
            (_, None) => Ok(Self::Put(item)),
        }
    }
}

fn updated(mut item: Item, fields: &Map<String, Value>) -> Item {
    for (name, value) in fields {
        match (name.as_str(), value) {
            ("title" | "text", value) => {
                let new = value.as_str().unwrap_or_default().to_owned();
                *(if name == "title" { &mut item.title } else { &mut item.text }) = new;
            }
            (_, Value::Null) => drop(item.fields.remove(name)),
            (_, value) => drop(item.fields.insert(name.clone(), value.clone())),
        }
    }
    item
}

/// Mutations after a position, in order, each with its own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StreamPage {
    pub mutations: Vec<(u64, Mutation)>,
    /// The page has everything up to this position.
    pub reached: u64,
    /// Position of the stream's last mutation, as far as known.
    pub end: u64,
}

pub trait CatalogueStream: Send + Sync {
    /// Tells this stream from others. Positions of different streams have nothing to do with each other.
    fn id(&self) -> Answer<'_, String>;

    /// Appends mutations in order; returns the position of the last once all are durable. After an error, some or all may
    /// have been appended.
    fn append<'a>(&'a self, mutations: &'a [Mutation]) -> Answer<'a, u64>;

    /// Appends mutations if none of their items has changed after the position `unchanged_since`; returns none if one has.
    fn append_if<'a>(&'a self, _mutations: &'a [Mutation], _unchanged_since: u64) -> Answer<'a, Option<u64>> {
        let problem = "conditional writes need the catalogue's changes in the ledger, and here they are in a Kafka topic: leave out \
                       `if_position`";
        Box::pin(async move { Err(Error::input(problem)) })
    }

    /// Reads about `limit` mutations after a position. Waits up to `patience` for the first one.
    fn read(&self, after: u64, limit: usize, patience: Duration) -> Answer<'_, StreamPage>;
}

/// Error of a stream that cannot continue a copy of the catalogue: `position` is the copy's.
pub fn lost_stream(place: &str, position: u64, problem: &str) -> Error {
    let remedy =
        "restore the stream; or move the state folder away, which starts again from the data folder or a backup";
    Error::config(place, format!("{problem}, but this catalogue is at change {position}: {remedy}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Mutation> {
        Mutation::parse(text.as_bytes(), Path::new("stream"), 1)
    }

    #[test]
    fn mutations_survive_their_json_form() {
        let item = r#"{"_id":"a","title":"oak desk","text":"","price":3,"_deleted":false}"#;
        let Value::Object(fields) = json!({"price": 2, "stock": null}) else { unreachable!() };
        let put = parse(item).unwrap();
        assert!(matches!(&put, Mutation::Put(item) if item.title == "oak desk"));
        let update = Mutation::Update("a".into(), fields);
        assert_eq!(update.updated_fields(), r#"["price","stock"]"#);
        for mutation in [put, update, Mutation::Delete("a".into())] {
            assert_eq!(parse(&mutation.to_json()).unwrap(), mutation);
        }
        for wrong in [r#"{"title":"no id"}"#, r#"{"_id":""}"#, r#"{"_id":"a","_update":3}"#, "null", "{"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_update_replaces_and_removes_fields() {
        let item = |text: &str| serde_json::from_str::<Item>(text).unwrap();
        let update = parse(r#"{"_id":"a","_update":{"price":2,"stock":null,"title":"elm desk","new":[1]}}"#).unwrap();
        let before = item(r#"{"_id":"a","title":"oak desk","price":3,"stock":1,"brand":"x"}"#);
        let after = item(r#"{"_id":"a","title":"elm desk","price":2,"brand":"x","new":[1]}"#);
        assert_eq!(update.apply(Some(before.clone())), Some(after));
        assert_eq!(update.apply(None), None, "there is nothing to update");
        assert_eq!(Mutation::Delete("a".into()).apply(Some(before)), None);
    }

    #[test]
    fn reserved_names_are_rejected() {
        let fields = |name: &str| Map::from_iter([(name.to_owned(), json!(1))]);
        let put = |name| {
            Mutation::Put(Item { id: "a".into(), title: String::new(), text: String::new(), fields: fields(name) })
        };
        assert!(put("price").check().is_ok());
        assert!(put("_update").check().unwrap_err().to_string().contains("`_update` cannot be a field"));
        assert!(
            Mutation::Update("a".into(), fields("id")).check().unwrap_err().to_string().contains("cannot be updated")
        );
    }
}
