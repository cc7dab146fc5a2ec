//! Writes queries and events as JSON objects.

use std::borrow::Cow;

use serde::Serialize;

use super::{EventRecord, QueryRecord};
use crate::time;

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
