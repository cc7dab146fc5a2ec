//! Shape of a line: its text without the values. Lines of one producer share a few shapes, and a line of a known shape is
//! read by comparing what lies between its values.
//!
//! A line that has the same text outside of its values, and values of the same kinds, has the same fields at the same
//! places. Learns only from lines that `scan` reads, and gives the fields that `scan` gives, or `None`.

use std::ops::Range;

use souk_native::QuoteMap;

use super::line::{Attributes, Line, Object, Position, Text, Time};
use super::scan;
use crate::time;

/// Meaning of a value.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Field {
    ActionName,
    QueryId,
    ClientId,
    UserQuery,
    TimeText,
    TimeNumber,
    Item,
    Ordinal,
    Ignored,
}

const NUM_FIELDS: usize = Field::Ignored as usize + 1;

/// String or number of a line.
#[derive(Debug)]
struct Value {
    /// Length of `Shape::between` up to the value.
    before: usize,
    field: Field,
    is_number: bool,
}

/// Text of a line around its values, and what the values mean.
#[derive(Debug)]
pub struct Shape {
    /// Text before, between and after the values; has the quotes of strings.
    between: Vec<u8>,
    values: Vec<Value>,
    has_attributes: bool,
    has_object: bool,
    has_position: bool,
    has_hits: bool,
}

impl Shape {
    /// Learns from a line that `scan` has read. `None` if the line has a list of hits, whose length varies.
    pub fn learn(text: &str, quotes: &QuoteMap, line: &Line<'_>) -> Option<Self> {
        let attributes = line.event_attributes.as_ref();
        let mut shape = Self {
            between: Vec::with_capacity(text.len()),
            values: Vec::new(),
            has_attributes: attributes.is_some(),
            has_object: attributes.is_some_and(|attributes| attributes.object.is_some()),
            has_position: attributes.is_some_and(|attributes| attributes.position.is_some()),
            has_hits: line.query_response_hit_ids.is_some(),
        };
        let mut copied = 0;
        for (place, field) in values(text, quotes)? {
            shape.between.extend_from_slice(&text.as_bytes()[copied..place.start]);
            let is_number = text.as_bytes()[place.start.saturating_sub(1)] != b'"';
            shape.values.push(Value { before: shape.between.len(), field, is_number });
            copied = place.end;
        }
        shape.between.extend_from_slice(&text.as_bytes()[copied..]);
        (shape.read(text, quotes).as_ref() == Some(line)).then_some(shape)
    }

    /// Reads a line of this shape.
    #[inline]
    pub fn read<'a>(&self, text: &'a str, quotes: &QuoteMap) -> Option<Line<'a>> {
        let mut places = [None; NUM_FIELDS];
        let (mut at, mut passed) = (0, 0);
        for value in &self.values {
            let between = &self.between[passed..value.before];
            if !has_at(text.as_bytes(), at, between) {
                return None;
            }
            let start = at + between.len();
            at = match (value.is_number, value.field) {
                (false, _) => quotes.next(start)?,
                (true, Field::Ignored) => scan::after_number(text, start)?,
                (true, _) => scan::after_digits(text, start)?,
            };
            places[value.field as usize] = Some((start, at));
            passed = value.before;
        }
        if text.as_bytes().get(at..)? != &self.between[passed..] {
            return None;
        }
        let found = |field: Field| places[field as usize].and_then(|(start, end)| text.get(start..end));
        self.line(found)
    }

    /// Makes the line of the fields' texts.
    #[inline(always)]
    fn line<'a>(&self, found: impl Fn(Field) -> Option<&'a str>) -> Option<Line<'a>> {
        let text = |field| found(field).map(Text::borrowed);
        let timestamp = match (found(Field::TimeText), found(Field::TimeNumber)) {
            (Some(text), _) => Some(Time(time::parse(text)?)),
            (None, Some(digits)) => Some(Time(digits.parse().ok().filter(|time| time::is_writable(*time))?)),
            (None, None) => None,
        };
        let ordinal = match found(Field::Ordinal) {
            Some(digits) => Some(digits.parse::<u64>().ok()? as f64),
            None => None,
        };
        let attributes = Attributes {
            object: self.has_object.then(|| Object { object_id: text(Field::Item) }),
            position: self.has_position.then_some(Position { ordinal }),
        };
        Some(Line {
            action_name: text(Field::ActionName),
            query_id: text(Field::QueryId),
            client_id: text(Field::ClientId),
            user_query: text(Field::UserQuery),
            timestamp,
            event_attributes: self.has_attributes.then_some(attributes),
            query_response_hit_ids: self.has_hits.then(Vec::new),
            index: None,
            create: None,
        })
    }
}

/// Whether `text` goes on with `expected`. Compares words, because a call of `memcmp` takes longer than these short texts.
#[inline(always)]
fn has_at(text: &[u8], at: usize, expected: &[u8]) -> bool {
    let Some(found) = text.get(at..at + expected.len()) else { return false };
    let (Some(found_last), Some(expected_last)) = (found.last_chunk::<8>(), expected.last_chunk()) else {
        return found.iter().zip(expected).all(|(found, expected)| found == expected);
    };
    let word = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes);
    let words = found.as_chunks().0.iter().zip(expected.as_chunks().0);
    let differing = words.fold(0, |all, (found, expected)| all | (word(found) ^ word(expected)));
    differing | (word(found_last) ^ word(expected_last)) == 0
}

/// Places and meanings of the strings and numbers of a line, without the names of fields.
fn values(text: &str, quotes: &QuoteMap) -> Option<Vec<(Range<usize>, Field)>> {
    // the current field of each object around this place; an array has none
    let mut path = Vec::new();
    let (mut values, mut at) = (Vec::new(), 0);
    while let Some(byte) = text.as_bytes().get(at) {
        let mut end = at + 1;
        match byte {
            b'{' | b'[' => path.push(""),
            b'}' | b']' => drop(path.pop()),
            b'"' => {
                let place = end..quotes.next(end)?;
                end = place.end + 1;
                if text[end..].trim_start().starts_with(':') {
                    *path.last_mut()? = &text[place];
                } else {
                    values.push((place, field(&path, false)?));
                }
            }
            b'-' | b'0'..=b'9' => {
                end = scan::after_number(text, at)?;
                values.push((at..end, field(&path, true)?));
            }
            _ => {}
        }
        at = end;
    }
    Some(values)
}

fn field(path: &[&str], is_number: bool) -> Option<Field> {
    Some(match path {
        ["action_name"] => Field::ActionName,
        ["query_id"] => Field::QueryId,
        ["client_id"] => Field::ClientId,
        ["user_query"] => Field::UserQuery,
        ["timestamp"] if is_number => Field::TimeNumber,
        ["timestamp"] => Field::TimeText,
        ["event_attributes", "object", "object_id"] => Field::Item,
        ["event_attributes", "position", "ordinal"] => Field::Ordinal,
        ["query_response_hit_ids", ..] => return None,
        _ => Field::Ignored,
    })
}
