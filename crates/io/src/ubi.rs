//! User Behavior Insights 1.3: each JSON object is a query or an event. Parses them without copying, and writes them.
//!
//! Accepts what real logs contain: nulls instead of objects, numbers as identifiers, three time formats, and bulk lines
//! of OpenSearch between the records. Keeps no state.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, Deserializer, IgnoredAny, Visitor};
use serde::{Deserialize, Serialize};

use super::time;

/// Action of a shopper on an item, in the order of a purchase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    Impression,
    Click,
    AddToCart,
    Purchase,
}

impl Action {
    pub const ALL: [Self; 4] = [Self::Impression, Self::Click, Self::AddToCart, Self::Purchase];

    pub fn name(self) -> &'static str {
        match self {
            Self::Impression => "impression",
            Self::Click => "click",
            Self::AddToCart => "add_to_cart",
            Self::Purchase => "purchase",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.name() == name)
    }
}

/// Search: query text and the items that were returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryRecord<'a> {
    pub query_id: Cow<'a, str>,
    pub client_id: Cow<'a, str>,
    pub text: Cow<'a, str>,
    /// Milliseconds since 1970.
    pub time: i64,
    /// Item ids in the order shown, if logged.
    pub hits: Vec<Cow<'a, str>>,
}

/// Event: an action of a shopper after a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRecord<'a> {
    pub action: Action,
    pub query_id: Cow<'a, str>,
    pub client_id: Cow<'a, str>,
    pub item: Cow<'a, str>,
    /// Position as logged; shops count from 0 or from 1.
    pub position: Option<u32>,
    /// Milliseconds since 1970.
    pub time: i64,
    /// Query text, if the event has it.
    pub text: Option<Cow<'a, str>>,
}

/// Parsed line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record<'a> {
    Query(QueryRecord<'a>),
    Event(EventRecord<'a>),
    /// Event without an item action, such as `page_exit`.
    Other,
    /// Action line of OpenSearch's bulk format; the record follows on the next line.
    Bulk,
}

/// Longest query text, in bytes.
const MAX_TEXT: usize = 8 << 10;
/// Longest identifier, in bytes.
const MAX_ID: usize = 1 << 10;

/// Reason why a line is not a record, for the dead letter.
pub type Refusal = Cow<'static, str>;

impl<'a> Record<'a> {
    pub fn parse(json: &'a [u8]) -> Result<Self, Refusal> {
        // checks the whole text once; invalid UTF-8 is accepted in fields that are not read
        let line = str::from_utf8(json).map_or_else(|_| serde_json::from_slice(json), serde_json::from_str);
        let line: Line<'a> = line.map_err(|e| format!("not a UBI object: {e}"))?;
        match &line.action_name {
            Some(Text(name)) => match Action::from_name(name) {
                Some(action) => line.event(action).map(Self::Event),
                None => Ok(Self::Other),
            },
            None if line.user_query.is_some() => line.query().map(Self::Query),
            None if line.index.is_some() || line.create.is_some() => Ok(Self::Bulk),
            None => Err("neither an event (no `action_name`) nor a query (no `user_query`)".into()),
        }
    }
}

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow, default)]
    action_name: Option<Text<'a>>,
    #[serde(borrow, default)]
    query_id: Option<Text<'a>>,
    #[serde(borrow, default)]
    client_id: Option<Text<'a>>,
    #[serde(borrow, default)]
    user_query: Option<Text<'a>>,
    #[serde(default)]
    timestamp: Option<Time>,
    #[serde(borrow, default)]
    event_attributes: Option<Attributes<'a>>,
    #[serde(borrow, default)]
    query_response_hit_ids: Option<Vec<Text<'a>>>,
    #[serde(default)]
    index: Option<IgnoredAny>,
    #[serde(default)]
    create: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Attributes<'a> {
    #[serde(borrow, default)]
    object: Option<Object<'a>>,
    #[serde(default)]
    position: Option<Position>,
}

#[derive(Deserialize)]
struct Object<'a> {
    #[serde(borrow, default)]
    object_id: Option<Text<'a>>,
}

#[derive(Deserialize)]
struct Position {
    #[serde(default)]
    ordinal: Option<f64>,
}

impl<'a> Line<'a> {
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
        Some(Text(text)) if !text.trim().is_empty() => Ok(Some(text)),
        _ => Ok(None),
    }
}

/// String, borrowed if it has no escapes. Numbers are accepted as strings.
#[derive(Debug)]
struct Text<'a>(Cow<'a, str>);

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

struct Time(i64);

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

#[derive(Serialize)]
struct QueryOut<'a> {
    application: &'a str,
    query_id: &'a str,
    client_id: &'a str,
    user_query: &'a str,
    timestamp: String,
    query_response_hit_ids: &'a [Cow<'a, str>],
}

#[derive(Serialize)]
struct EventOut<'a> {
    application: &'a str,
    action_name: &'a str,
    query_id: &'a str,
    client_id: &'a str,
    timestamp: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_query: Option<&'a str>,
    event_attributes: AttributesOut<'a>,
}

#[derive(Serialize)]
struct AttributesOut<'a> {
    object: ObjectOut<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    position: Option<PositionOut>,
}

#[derive(Serialize)]
struct ObjectOut<'a> {
    object_id: &'a str,
    object_id_field: &'a str,
}

#[derive(Serialize)]
struct PositionOut {
    ordinal: u32,
}

impl QueryRecord<'_> {
    /// Writes the JSON object, without a line end.
    pub fn write(&self, application: &str, out: &mut Vec<u8>) {
        let object = QueryOut {
            application,
            query_id: &self.query_id,
            client_id: &self.client_id,
            user_query: &self.text,
            timestamp: time::format(self.time),
            query_response_hit_ids: &self.hits,
        };
        serde_json::to_writer(out, &object).expect("strings and numbers always serialize to JSON");
    }
}

impl EventRecord<'_> {
    /// Writes the JSON object, without a line end.
    pub fn write(&self, application: &str, out: &mut Vec<u8>) {
        let object = EventOut {
            application,
            action_name: self.action.name(),
            query_id: &self.query_id,
            client_id: &self.client_id,
            timestamp: time::format(self.time),
            user_query: self.text.as_deref(),
            event_attributes: AttributesOut {
                object: ObjectOut { object_id: &self.item, object_id_field: "_id" },
                position: self.position.map(|ordinal| PositionOut { ordinal }),
            },
        };
        serde_json::to_writer(out, &object).expect("strings and numbers always serialize to JSON");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_back_written_records() {
        let query = QueryRecord {
            query_id: "q-1".into(),
            client_id: "c".into(),
            text: "3/4\" pipe".into(),
            time: 1_769_853_600_123,
            hits: vec!["7".into(), "9".into()],
        };
        let event = EventRecord {
            action: Action::AddToCart,
            query_id: "q-1".into(),
            client_id: "c".into(),
            item: "9".into(),
            position: Some(2),
            time: 1_769_853_601_000,
            text: None,
        };
        let (mut first, mut second) = (Vec::new(), Vec::new());
        query.write("shop", &mut first);
        event.write("shop", &mut second);
        assert_eq!(Record::parse(&first), Ok(Record::Query(query)));
        assert_eq!(Record::parse(&second), Ok(Record::Event(event)));
    }

    #[test]
    fn reads_real_log_formats() {
        let event = br#"{"action_name":"click","query_id":7,"user_query":null,"timestamp":1733788889378,
            "event_attributes":{"object":{"object_id":42},"position":{"ordinal":3}},"message":{"x":[1]}}"#;
        let Ok(Record::Event(event)) = Record::parse(event) else { panic!("an event") };
        assert_eq!((&*event.query_id, &*event.item, event.position), ("7", "42", Some(3)));
        assert_eq!(event.time, 1_733_788_889_378);
        let chorus = br#"{"query_id":"a","user_query":"tv","timestamp":"2024-12-10T00:01:29.378+0000"}"#;
        assert!(matches!(Record::parse(chorus), Ok(Record::Query(query)) if query.time == 1_733_788_889_378));
        let other = br#"{"action_name":"page_exit","event_attributes":null}"#;
        assert_eq!(Record::parse(other), Ok(Record::Other));
        assert_eq!(Record::parse(br#"{"index":{"_index":"ubi_events"}}"#), Ok(Record::Bulk));
    }

    #[test]
    fn refusals_name_what_is_missing() {
        for (json, expected) in [
            (&br#"{"action_name":"click","query_id":"q","timestamp":1}"#[..], "object_id"),
            (br#"{"action_name":"click","timestamp":1,"event_attributes":{"object":{"object_id":"1"}}}"#, "query_id"),
            (br#"{"query_id":"q","user_query":" ","timestamp":1}"#, "is empty"),
            (br#"{"query_id":"q","user_query":"tv","timestamp":"yesterday"}"#, "a time such as"),
            (br#"{"query_id":"q","user_query":"tv"}"#, "timestamp"),
            (br#"{"a":1}"#, "neither an event"),
            (br#"{"query_id":"q","user_query":7,"timestamp":[]}"#, "a time such as"),
            // microseconds
            (br#"{"query_id":"q","user_query":"tv","timestamp":1733788889378000}"#, "or milliseconds since 1970"),
            (br#"{"query_id":"q","user_query":"tv","timestamp":-62167219200001}"#, "or milliseconds since 1970"),
            (b"{\"a\":", "not a UBI object"),
            (b"\xff\xfe", "not a UBI object"),
        ] {
            let refusal = Record::parse(json).unwrap_err();
            assert!(refusal.contains(expected), "{refusal}");
        }
    }
}
