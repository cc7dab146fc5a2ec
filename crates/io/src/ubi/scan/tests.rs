//! The scanner agrees with serde on handmade, generated and damaged lines.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::*;

const QUERY: &str = r#"{"application":"shop","query_id":"q-1","client_id":"c","user_query":"grünes Kleid",
    "timestamp":"2026-01-31T10:00:00.123Z","query_response_hit_ids":["7","9", 4],"price":-1.5}"#;
const EVENT: &str = r#"{"application":"shop","action_name":"add_to_cart","query_id":"q-1","client_id":"c",
    "timestamp":1769853601000,"user_query":null,"event_attributes":{"object":{"object_id":"9","object_id_field":"_id"},
    "position":{"ordinal":2,"xy":[0.5,{"x":[true,false,null]}]},"tags":[]},"extra":{}}"#;

/// Fields of `text`, which must be those that serde reads, if the scanner reads it at all.
fn agreed(text: &str) -> Option<Line<'_>> {
    let scanned = line(text);
    if let Some(line) = &scanned {
        assert_eq!(Ok(line), Line::parse(text.as_bytes()).as_ref(), "{text}");
    }
    scanned
}

/// Without the line breaks, which the scanner leaves to serde.
fn on_one_line(text: &str) -> String {
    text.lines().map(str::trim_start).collect()
}

#[test]
fn reads_the_usual_shapes_itself() {
    for text in [QUERY, EVENT] {
        assert!(agreed(&on_one_line(text)).is_some(), "{text}");
        assert!(agreed(text).is_none(), "has line breaks: {text}");
        let spaced = on_one_line(text).replace(':', " : ").replace(',', " , ");
        assert_eq!(agreed(&format!("  {spaced} ")).is_some(), !text.contains("T10"), "{spaced}");
    }
    for text in ["{}", " { } ", r#"{"a":[]}"#, r#"{"a":[[],{}],"b":-0.5}"#, r#"{"timestamp":null,"query_id":17}"#] {
        assert!(agreed(text).is_some(), "{text}");
    }
}

#[test]
fn leaves_everything_else_to_serde() {
    for text in [
        "",
        "{",
        "[]",
        "null",
        "{}x",
        r#"{"a"}"#,
        r#"{"a":}"#,
        r#"{"a":1,}"#,
        r#"{"a":01}"#,
        r#"{"a":-}"#,
        r#"{"a":1.}"#,
        r#"{"a":1e3}"#,
        r#"{"a":nul}"#,
        r#"{"a":"b"#,
        r#"{"query_id":"a","query_id":"b"}"#,
        r#"{"query_id":null,"query_id":"b"}"#,
        r#"{"query_id":1.0}"#,
        r#"{"query_id":007}"#,
        r#"{"query_id":1234567890123456789}"#,
        r#"{"query_id":["b"]}"#,
        r#"{"query_id":"a\u0062"}"#,
        r#"{"index":{}}"#,
        r#"{"timestamp":"yesterday"}"#,
        r#"{"timestamp":999999999999999}"#,
        r#"{"event_attributes":[]}"#,
        r#"{"event_attributes":{"position":{"ordinal":1.5}}}"#,
        r#"{"event_attributes":{"object":{},"object":{}}}"#,
        r#"{"event_attributes":{"object":{"object_id":1,"object_id":2}}}"#,
        r#"{"event_attributes":{"position":{"ordinal":1,"ordinal":2}}}"#,
    ] {
        assert!(agreed(text).is_none(), "{text}");
    }
    let deep = format!(r#"{{"a":{}{}}}"#, "[".repeat(200), "]".repeat(200));
    assert!(agreed(&deep).is_none());
}

fn value() -> impl Strategy<Value = String> {
    let scalar = prop_oneof![
        select(vec![
            "null",
            "true",
            "7",
            "0",
            "-3",
            "1.5",
            "-0",
            "2e3",
            "01",
            "\"\"",
            "\"click\"",
            "\"a\\\"b\"",
            "\"é\""
        ])
        .prop_map(str::to_owned),
        select(vec!["1769853601000", "\"2026-01-31T10:00:00.000Z\"", "\"2026-01-31\"", "999999999999999999999"])
            .prop_map(str::to_owned),
        "[a-z\"\\\\ {}:,\\[\\]]{0,12}".prop_map(|text| format!("\"{text}\"")),
    ];
    scalar.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![vec(inner.clone(), 0..4).prop_map(|all| format!("[{}]", all.join(","))), object(inner)]
    })
}

fn object(value: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
    let names = vec![
        "action_name",
        "query_id",
        "client_id",
        "user_query",
        "timestamp",
        "event_attributes",
        "query_response_hit_ids",
        "object",
        "object_id",
        "position",
        "ordinal",
        "index",
        "message",
    ];
    let field = (select(names), value, select(vec!["", " "]));
    let field = field.prop_map(|(name, value, space)| format!("\"{name}\"{space}:{space}{value}"));
    vec(field, 0..6).prop_map(|fields| format!("{{{}}}", fields.join(",")))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn agrees_on_generated_lines(text in object(value())) {
        agreed(&text);
    }

    #[test]
    fn agrees_on_damaged_lines(
        text in select(vec![QUERY, EVENT]),
        edits in vec((any::<Index>(), select(" \"\\{}[]:,0179-.entf\té".chars().collect::<Vec<_>>()), 0..3), 1..4),
    ) {
        let mut letters: Vec<char> = on_one_line(text).chars().collect();
        for (place, letter, edit) in edits {
            let place = place.index(letters.len());
            match edit {
                0 => letters[place] = letter,
                1 => letters.insert(place, letter),
                _ => drop(letters.remove(place)),
            }
        }
        let text: String = letters.into_iter().collect();
        agreed(&text);
        let by_scan = crate::ubi::Record::parse(text.as_bytes());
        prop_assert_eq!(by_scan, Line::parse(text.as_bytes()).and_then(Line::record));
    }
}
