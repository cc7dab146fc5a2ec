//! User Behavior Insights 1.3: each JSON object is a query or an event. Parses them without copying, and writes them.
//!
//! Accepts what real logs contain: nulls instead of objects, numbers as identifiers, three time formats, and bulk lines
//! of OpenSearch between the records. What a line gives never depends on other lines.

mod line;
mod reader;
mod scan;
mod shape;
mod write;

use std::borrow::Cow;

use self::line::Line;
pub use self::reader::RecordReader;

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

/// Reason why a line is not a record, for the dead letter.
pub type Refusal = Cow<'static, str>;

impl<'a> Record<'a> {
    pub fn parse(json: &'a [u8]) -> Result<Self, Refusal> {
        match str::from_utf8(json).ok().and_then(scan::line) {
            Some(line) => line.record(),
            None => Line::parse(json)?.record(),
        }
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
