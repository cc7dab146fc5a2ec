//! One JSON object of the log as serde reads it, and the record that it makes.
//!
//! Says why a line is not a record. `scan` reads the usual shape faster and must agree with this in everything.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, Visitor};

use super::{Action, EventRecord, QueryRecord, Record, Refusal};
use crate::time;

/// Longest query text, in bytes.
const MAX_TEXT: usize = 8 << 10;
/// Longest identifier, in bytes.
const MAX_ID: usize = 1 << 10;

/// Fields of a query or an event.
#[derive(Debug, PartialEq, Deserialize)]
pub struct Line<'a> {
    #[serde(borrow, default)]
    pub action_name: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub query_id: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub client_id: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub user_query: Option<Text<'a>>,
    #[serde(default)]
    pub timestamp: Option<Time>,
    #[serde(borrow, default)]
    pub event_attributes: Option<Attributes<'a>>,
    #[serde(borrow, default)]
    pub query_response_hit_ids: Option<Vec<Text<'a>>>,
    #[serde(default)]
    pub index: Option<IgnoredAny>,
    #[serde(default)]
    pub create: Option<IgnoredAny>,
}

#[derive(Debug, PartialEq, Deserialize)]
pub struct Attributes<'a> {
    #[serde(borrow, default)]
    pub object: Option<Object<'a>>,
    #[serde(default)]
    pub position: Option<Position>,
}

#[derive(Debug, PartialEq, Deserialize)]
pub struct Object<'a> {
    #[serde(borrow, default)]
    pub object_id: Option<Text<'a>>,
}

#[derive(Debug, PartialEq, Deserialize)]
pub struct Position {
    #[serde(default)]
    pub ordinal: Option<f64>,
}

impl<'a> Line<'a> {
    /// Reads a line of any shape.
    pub fn parse(json: &'a [u8]) -> Result<Self, Refusal> {
        // checks the whole text once; invalid UTF-8 is accepted in fields that are not read
        let line = str::from_utf8(json).map_or_else(|_| serde_json::from_slice(json), serde_json::from_str);
        line.map_err(|e| format!("not a UBI object: {e}").into())
    }

    /// Makes the record, or says why there is none.
    pub fn record(self) -> Result<Record<'a>, Refusal> {
        match &self.action_name {
            Some(Text(name)) => match Action::from_name(name) {
                Some(action) => self.event(action).map(Record::Event),
                None => Ok(Record::Other),
            },
            None if self.user_query.is_some() => self.query().map(Record::Query),
            None if self.index.is_some() || self.create.is_some() => Ok(Record::Bulk),
            None => Err("neither an event (no `action_name`) nor a query (no `user_query`)".into()),
        }
    }

    fn event(self, action: Action) -> Result<EventRecord<'a>, Refusal> {
        let (object, position) = match self.event_attributes {
            Some(attributes) => (attributes.object, attributes.position),
            None => (None, None),
        };
        let (query_id, text) = (non_blank(self.query_id, MAX_ID)?, non_blank(self.user_query, MAX_TEXT)?);
        if query_id.is_none() && text.is_none() {
            return Err("an event with neither `query_id` nor `user_query`".into());
        }
        let item = non_blank(object.and_then(|object| object.object_id), MAX_ID)?;
        let ordinal = position.and_then(|position| position.ordinal);
        Ok(EventRecord {
            action,
            query_id: query_id.unwrap_or_default(),
            client_id: non_blank(self.client_id, MAX_ID)?.unwrap_or_default(),
            item: item.ok_or_else(|| format!("a {} without `event_attributes.object.object_id`", action.name()))?,
            // the cast saturates, so an absurd position stays far from the first
            position: ordinal.filter(|ordinal| *ordinal >= 0.0).map(|ordinal| ordinal as u32),
            time: self.timestamp.ok_or("an event without `timestamp`")?.0,
            text,
        })
    }

    fn query(self) -> Result<QueryRecord<'a>, Refusal> {
        Ok(QueryRecord {
            query_id: non_blank(self.query_id, MAX_ID)?.ok_or("a query without `query_id`")?,
            client_id: non_blank(self.client_id, MAX_ID)?.unwrap_or_default(),
            text: non_blank(self.user_query, MAX_TEXT)?.ok_or("a query whose `user_query` is empty")?,
            time: self.timestamp.ok_or("a query without `timestamp`")?.0,
            hits: self.query_response_hit_ids.unwrap_or_default().into_iter().map(|Text(id)| id).collect(),
        })
    }
}

/// Non-blank text. Text over the limit is an error, because it would be kept in memory.
fn non_blank(text: Option<Text<'_>>, max_bytes: usize) -> Result<Option<Cow<'_, str>>, Refusal> {
    match text {
        Some(Text(text)) if text.len() > max_bytes => {
            Err(format!("a text has {} bytes: at most {max_bytes} are allowed", text.len()).into())
        }
        Some(Text(text)) if text.starts_with(|first: char| first.is_ascii_graphic()) => Ok(Some(text)),
        Some(Text(text)) if !text.trim().is_empty() => Ok(Some(text)),
        _ => Ok(None),
    }
}

/// String, borrowed if it has no escapes. Numbers are accepted as strings.
#[derive(Debug, PartialEq)]
pub struct Text<'a>(pub Cow<'a, str>);

impl<'a> Text<'a> {
    pub fn borrowed(text: &'a str) -> Self {
        Self(Cow::Borrowed(text))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;

            fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
                out.write_str("a string or a number")
            }

            fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(text.into())))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(number.to_string())))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(number.to_string())))
            }
        }
        deserializer.deserialize_any(TextVisitor)
    }
}

/// Milliseconds since 1970, in the years that can be written.
#[derive(Debug, PartialEq)]
pub struct Time(pub i64);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TimeVisitor;
        impl Visitor<'_> for TimeVisitor {
            type Value = Time;

            fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
                out.write_str(
                    "a time such as \"2026-01-31T10:00:00.000Z\", or milliseconds since 1970, in the years 0 to 9999",
                )
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Time, E> {
                time::parse(text).map(Time).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Time, E> {
                let time = i64::try_from(number).ok().filter(|time| time::is_writable(*time));
                time.map(Time).ok_or_else(|| E::invalid_value(de::Unexpected::Unsigned(number), &self))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Time, E> {
                let time = Some(number).filter(|time| time::is_writable(*time));
                time.map(Time).ok_or_else(|| E::invalid_value(de::Unexpected::Signed(number), &self))
            }
        }
        deserializer.deserialize_any(TimeVisitor)
    }
}
