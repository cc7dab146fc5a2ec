//! The reader agrees with serde on every line, whatever it read before.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::*;

const QUERY: &str = r#"{"application":"shop","query_id":"q-1","client_id":"c","user_query":"grünes Kleid","timestamp":"2026-01-31T10:00:00.123Z","query_response_hit_ids":[],"price":-1.5}"#;
const EVENT: &str = r#"{"application":"shop","action_name":"add_to_cart","query_id":17,"client_id":"c","timestamp":1769853601000,"user_query":null,"event_attributes":{"object":{"object_id":"9","object_id_field":"_id"},"position":{"ordinal":2,"xy":[0.5,{"object_id":"x","ordinal":true}]},"tags":["a",""]},"extra":{"query_id":"other"}}"#;
const SHORT: &str = r#"{ "action_name" : "click", "user_query":"tv" ,"timestamp":"2026-01-31","event_attributes":{"object":{"object_id":7}}}"#;
const HITS: &str = r#"{"query_id":"a","user_query":"b","timestamp":1,"query_response_hit_ids":["7",9]}"#;
const OTHERS: [&str; 8] = [
    r#"{"index":{"_index":"ubi_events"}}"#,
    r#"{"action_name":"page_exit","event_attributes":null}"#,
    r#"{"query_id":"a","user_query":"b","timestamp":"yesterday"}"#,
    r#"{"query_id":"a","query_id":"b","user_query":"c","timestamp":1}"#,
    r#"{"event_attributes":{"position":{"ordinal":1.5}}}"#,
    r#"{"query_id":"a\"","user_query":"\u00e9","timestamp":1}"#,
    "{}",
    "not JSON",
];

fn assert_agrees(reader: &mut RecordReader, text: &str) {
    assert_eq!(reader.read(text.as_bytes()), Line::parse(text.as_bytes()).and_then(Line::record), "{text}");
}

/// Whether the reader knows the line's shape.
fn knows(reader: &mut RecordReader, text: &str) -> bool {
    let text = reader.quotes.read(text.as_bytes()).unwrap();
    reader.shapes.iter().any(|known| known.shape.read(text, &reader.quotes).is_some())
}

#[test]
fn lines_with_other_values_have_the_same_shape() {
    let mut reader = RecordReader::default();
    for text in [QUERY, EVENT, SHORT] {
        assert!(!knows(&mut reader, text));
        assert_agrees(&mut reader, text);
        assert!(knows(&mut reader, text), "{text}");
    }
    for (text, old, new) in [
        (QUERY, "grünes Kleid", "a {b}:[1,"),
        (QUERY, "q-1", ""),
        (QUERY, "-1.5", "0"),
        (QUERY, "2026-01-31T10:00:00.123Z", "2024-12-10"),
        (EVENT, "add_to_cart", "page_exit"),
        (EVENT, "1769853601000", "1"),
        (EVENT, "17,", "18,"),
        (EVENT, "ordinal\":2", "ordinal\":999"),
        (EVENT, "0.5", "-7.25"),
    ] {
        let text = text.replace(old, new);
        assert!(knows(&mut reader, &text), "{text}");
        assert_agrees(&mut reader, &text);
    }
}

#[test]
fn lines_with_other_text_around_their_values_do_not() {
    for (text, old, new) in [
        (QUERY, "2026-01-31T10:00:00.123Z", "yesterday"),
        (QUERY, "query_id", "query_ix"),
        (QUERY, "q-1", "q-1\",\"x\":\""),
        (QUERY, "\"q-1\"", "17"),
        (QUERY, "-1.5", "-01.5"),
        (QUERY, "-1.5", "1e3"),
        (QUERY, "[]", "[\"7\"]"),
        (QUERY, "[]", "null"),
        (EVENT, "null", "\"tv\""),
        (EVENT, "17,", "17.0,"),
        (EVENT, "17,", "017,"),
        (EVENT, "17,", "1234567890123456,"),
        (EVENT, "1769853601000", "999999999999999"),
        (EVENT, "ordinal\":2", "ordinal\":-2"),
        (EVENT, "r\"}}", "r\"}} "),
        (EVENT, "r\"}}", "r\"}"),
        (EVENT, "r\"}}", "r"),
    ] {
        let mut reader = RecordReader::default();
        assert_agrees(&mut reader, text);
        assert!(knows(&mut reader, text) && text.contains(old));
        let text = text.replace(old, new);
        assert!(!knows(&mut reader, &text), "{text}");
        assert_agrees(&mut reader, &text);
    }
}

#[test]
fn learning_that_does_not_pay_stops_until_it_does() {
    let mut reader = RecordReader::default();
    for number in 0..100 {
        assert_agrees(&mut reader, &format!(r#"{{"x{number}":1,"query_id":"a","user_query":"b","timestamp":1}}"#));
    }
    assert_eq!((reader.credit, reader.shapes.len()), (0, MAX_SHAPES));
    let known = r#"{"x15":1,"query_id":"c","user_query":"d","timestamp":2}"#;
    (0..COST).for_each(|_| assert_agrees(&mut reader, known));
    assert_agrees(&mut reader, QUERY);
    assert!(knows(&mut reader, QUERY) && knows(&mut reader, known));
}

#[test]
fn long_lines_lists_of_hits_and_refusals_are_not_learned() {
    let mut reader = RecordReader::default();
    let long = QUERY.replace("shop", &"x".repeat(2000));
    for text in OTHERS.into_iter().skip(2).filter(|text| *text != "{}").chain([HITS, long.as_str()]) {
        assert_agrees(&mut reader, text);
        assert!(reader.shapes.is_empty(), "{text}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn agrees_on_damaged_lines_of_known_shapes(
        lines in vec((
            select([&[QUERY, EVENT, SHORT, HITS][..], &OTHERS].concat()),
            vec((any::<Index>(), select(" \"\\{}[]:,0179-.entf\té".chars().collect::<Vec<_>>()), 0..3), 0..3),
        ), 1..8),
    ) {
        let mut reader = RecordReader::default();
        for text in [QUERY, EVENT, SHORT] {
            assert_agrees(&mut reader, text);
        }
        for (text, edits) in lines {
            let mut letters: Vec<char> = text.chars().collect();
            for (place, letter, edit) in edits {
                let place = place.index(letters.len());
                match edit {
                    0 => letters[place] = letter,
                    1 => letters.insert(place, letter),
                    _ if letters.len() > 1 => drop(letters.remove(place)),
                    _ => {}
                }
            }
            assert_agrees(&mut reader, &letters.into_iter().collect::<String>());
        }
    }

    #[test]
    fn agrees_on_any_bytes(lines in vec(vec(any::<u8>(), 0..80), 0..4)) {
        let mut reader = RecordReader::default();
        for line in lines {
            prop_assert_eq!(reader.read(&line), Line::parse(&line).and_then(Line::record));
        }
    }
}
