//! Reads a line of the usual shape in one pass, several times as fast as serde.
//!
//! Gives the same fields as `Line::parse`, or `None` for anything unusual: escapes, control characters, numbers with an
//! exponent, deep nesting, repeated fields, bulk lines and every error. `Line::parse` decides about those.

use souk_native::plain_quotes;

use super::line::{Attributes, Line, Object, Position, Text, Time};
use crate::time;

/// Values nested deeper than this are left to serde.
const MAX_DEPTH: usize = 16;
/// Digits of a whole number that always fits an i64, and whose double is exact.
const MAX_DIGITS: usize = 15;
const BLOCK: usize = 64;

pub fn line(text: &str) -> Option<Line<'_>> {
    let mut scan = Scan::new(text);
    let mut known = Known::default();
    let [mut action_name, mut query_id, mut client_id, mut user_query] = [None; 4];
    let (mut timestamp, mut event_attributes, mut query_response_hit_ids) = (None, None, None);
    scan.object(|scan, name| {
        match name {
            "action_name" if known.is_first(0) => action_name = scan.text()?,
            "query_id" if known.is_first(1) => query_id = scan.text()?,
            "client_id" if known.is_first(2) => client_id = scan.text()?,
            "user_query" if known.is_first(3) => user_query = scan.text()?,
            "timestamp" if known.is_first(4) => timestamp = scan.time()?,
            "event_attributes" if known.is_first(5) => event_attributes = scan.optional(Scan::attributes)?,
            "query_response_hit_ids" if known.is_first(6) => query_response_hit_ids = scan.optional(Scan::texts)?,
            "action_name"
            | "query_id"
            | "client_id"
            | "user_query"
            | "timestamp"
            | "event_attributes"
            | "query_response_hit_ids"
            | "index"
            | "create" => return None,
            _ => scan.skip(0)?,
        }
        Some(())
    })?;
    let [action_name, query_id, client_id, user_query] =
        [action_name, query_id, client_id, user_query].map(|text| text.map(Text::borrowed));
    let (index, create) = (None, None);
    scan.is_at_end().then_some(Line {
        action_name,
        query_id,
        client_id,
        user_query,
        timestamp,
        event_attributes,
        query_response_hit_ids,
        index,
        create,
    })
}

/// End of the number at `start`, which has no exponent.
pub fn after_number(text: &str, start: usize) -> Option<usize> {
    let mut scan = Scan { position: start, ..Scan::new(text) };
    scan.number()?;
    Some(scan.position)
}

/// End of the whole number at `start`, which has no sign.
#[inline]
pub fn after_digits(text: &str, start: usize) -> Option<usize> {
    let mut scan = Scan { position: start, ..Scan::new(text) };
    scan.digits()?;
    Some(scan.position)
}

/// Fields read so far, because serde rejects a field that comes twice.
#[derive(Default)]
struct Known(u8);

impl Known {
    fn is_first(&mut self, field: u8) -> bool {
        let bit = 1 << field;
        let is_first = self.0 & bit == 0;
        self.0 |= bit;
        is_first
    }
}

/// Position in a text, and the quotes after it. The text has no escapes, so quotes always begin or end a string.
///
/// Lives in registers: what most records need is inlined, and the rest takes a copy.
#[derive(Clone, Copy)]
struct Scan<'a> {
    text: &'a str,
    position: usize,
    /// Start of the block after the one that `quotes` describes.
    next_block: usize,
    /// Bit N is set for a quote in byte N of the block, unless the quote was passed.
    quotes: u64,
}

impl<'a> Scan<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, position: 0, next_block: 0, quotes: 0 }
    }

    /// Position of the next quote; `None` also for a block with an escape or a control character.
    #[inline(always)]
    fn next_quote(&mut self) -> Option<usize> {
        while self.quotes == 0 {
            self.quotes = quotes_of_block(self.text.as_bytes(), self.next_block)?;
            self.next_block += BLOCK;
        }
        let bit = self.quotes.trailing_zeros() as usize;
        self.quotes &= self.quotes - 1;
        Some(self.next_block - BLOCK + bit)
    }

    #[inline(always)]
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.position).copied()
    }

    /// Next byte that is not a space.
    #[inline(always)]
    fn peek_token(&mut self) -> Option<u8> {
        if self.peek()? == b' ' {
            self.position = end_of_spaces(self.text.as_bytes(), self.position);
        }
        self.peek()
    }

    /// Passes a byte, if it comes next.
    #[inline(always)]
    fn accept(&mut self, byte: u8) -> bool {
        let is_next = self.peek_token() == Some(byte);
        self.position += usize::from(is_next);
        is_next
    }

    #[inline(always)]
    fn is_at_end(&mut self) -> bool {
        self.peek_token().is_none()
    }

    #[inline(always)]
    fn literal(&mut self, literal: &str) -> Option<()> {
        self.text.as_bytes()[self.position..].starts_with(literal.as_bytes()).then(|| self.position += literal.len())
    }

    #[inline(always)]
    fn string(&mut self) -> Option<&'a str> {
        if self.peek_token()? != b'"' {
            return None;
        }
        let (start, end) = (self.next_quote()? + 1, self.next_quote()?);
        debug_assert_eq!(start, self.position + 1);
        self.position = end + 1;
        self.text.get(start..end)
    }

    /// Calls `field` with each name; it passes the value.
    #[inline(always)]
    fn object(&mut self, mut field: impl FnMut(&mut Self, &'a str) -> Option<()>) -> Option<()> {
        if !self.accept(b'{') {
            return None;
        }
        if self.accept(b'}') {
            return Some(());
        }
        loop {
            let name = self.string()?;
            if !self.accept(b':') {
                return None;
            }
            field(self, name)?;
            if !self.accept(b',') {
                return self.accept(b'}').then_some(());
            }
        }
    }

    /// Calls `element` to pass each element.
    fn array(&mut self, mut element: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        if !self.accept(b'[') {
            return None;
        }
        if self.accept(b']') {
            return Some(());
        }
        loop {
            element(self)?;
            if !self.accept(b',') {
                return self.accept(b']').then_some(());
            }
        }
    }

    /// Digits of a whole number without sign.
    #[inline(always)]
    fn digits(&mut self) -> Option<&'a str> {
        let start = self.position;
        let has_zero = self.peek()? == b'0';
        let num_digits = self.pass_digits();
        let is_usual = (1..=MAX_DIGITS).contains(&num_digits) && !(has_zero && num_digits > 1);
        // a fraction or an exponent ends the object where none can end
        if is_usual { self.text.get(start..self.position) } else { None }
    }

    #[inline(always)]
    fn optional<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<Option<T>> {
        match self.peek_token()? {
            b'n' => self.literal("null").map(|()| None),
            _ => read(self).map(Some),
        }
    }

    #[inline(always)]
    fn text(&mut self) -> Option<Option<&'a str>> {
        match self.peek_token()? {
            b'n' => self.literal("null").map(|()| None),
            _ => self.plain_text().map(Some),
        }
    }

    /// String or whole number.
    #[inline(always)]
    fn plain_text(&mut self) -> Option<&'a str> {
        if self.peek_token()? == b'"' { self.string() } else { self.digits() }
    }

    #[inline(always)]
    fn texts(&mut self) -> Option<Vec<Text<'a>>> {
        let mut texts = Vec::new();
        *self = self.after_texts(&mut texts)?;
        Some(texts)
    }

    fn after_texts(mut self, texts: &mut Vec<Text<'a>>) -> Option<Self> {
        self.array(|scan| scan.plain_text().map(|text| texts.push(Text::borrowed(text))))?;
        Some(self)
    }

    #[inline(always)]
    fn time(&mut self) -> Option<Option<Time>> {
        self.optional(|scan| {
            if scan.peek_token()? == b'"' {
                return time::parse(scan.string()?).map(Time);
            }
            scan.digits()?.parse().ok().filter(|time| time::is_writable(*time)).map(Time)
        })
    }

    #[inline(always)]
    fn attributes(&mut self) -> Option<Attributes<'a>> {
        let (mut object, mut position, mut known) = (None, None, Known::default());
        self.object(|scan, name| {
            match name {
                "object" if known.is_first(0) => object = scan.optional(Self::item)?,
                "position" if known.is_first(1) => position = scan.optional(Self::rank)?,
                "object" | "position" => return None,
                _ => scan.skip(0)?,
            }
            Some(())
        })?;
        let object = object.map(|id: Option<&str>| Object { object_id: id.map(Text::borrowed) });
        Some(Attributes { object, position })
    }

    #[inline(always)]
    fn item(&mut self) -> Option<Option<&'a str>> {
        let (mut object_id, mut known) = (None, Known::default());
        self.object(|scan, name| match name {
            "object_id" if known.is_first(0) => scan.text().map(|id| object_id = id),
            "object_id" => None,
            _ => scan.skip(0),
        })?;
        Some(object_id)
    }

    #[inline(always)]
    fn rank(&mut self) -> Option<Position> {
        let (mut ordinal, mut known) = (None, Known::default());
        self.object(|scan, name| match name {
            "ordinal" if known.is_first(0) => {
                let digits = scan.optional(|scan| scan.digits()?.parse::<u64>().ok())?;
                ordinal = digits.map(|ordinal| ordinal as f64);
                Some(())
            }
            "ordinal" => None,
            _ => scan.skip(0),
        })?;
        Some(Position { ordinal })
    }

    /// Passes a value of any kind.
    #[inline(always)]
    fn skip(&mut self, depth: usize) -> Option<()> {
        if self.peek_token()? == b'"' {
            return self.string().map(|_| ());
        }
        *self = self.after_value(depth)?;
        Some(())
    }

    fn after_value(mut self, depth: usize) -> Option<Self> {
        self.skip_nested(depth)?;
        Some(self)
    }

    fn skip_nested(&mut self, depth: usize) -> Option<()> {
        match self.peek_token()? {
            b'{' if depth < MAX_DEPTH => self.object(|scan, _| scan.skip(depth + 1)),
            b'[' if depth < MAX_DEPTH => self.array(|scan| scan.skip(depth + 1)),
            b'n' => self.literal("null"),
            b't' => self.literal("true"),
            b'f' => self.literal("false"),
            _ => self.number(),
        }
    }

    /// Passes a number without exponent.
    fn number(&mut self) -> Option<()> {
        self.position += usize::from(self.peek()? == b'-');
        let has_zero = self.peek()? == b'0';
        let num_digits = self.pass_digits();
        if num_digits == 0 || has_zero && num_digits > 1 {
            return None;
        }
        if self.peek() == Some(b'.') {
            self.position += 1;
            return (self.pass_digits() > 0).then_some(());
        }
        Some(())
    }

    #[inline(always)]
    fn pass_digits(&mut self) -> usize {
        let rest = &self.text.as_bytes()[self.position..];
        let num_digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.position += num_digits;
        num_digits
    }
}

/// Quotes of the block at `start`; `None` at the end of the text, too.
#[inline(always)]
fn quotes_of_block(text: &[u8], start: usize) -> Option<u64> {
    let rest = text.get(start..)?;
    match rest.first_chunk() {
        Some(block) => plain_quotes(block),
        None => quotes_of_rest(rest),
    }
}

fn quotes_of_rest(rest: &[u8]) -> Option<u64> {
    let mut block = [b' '; BLOCK];
    block.get_mut(..rest.len()).filter(|_| !rest.is_empty())?.copy_from_slice(rest);
    plain_quotes(&block)
}

#[cold]
fn end_of_spaces(text: &[u8], start: usize) -> usize {
    start + text.iter().skip(start).take_while(|byte| **byte == b' ').count()
}

#[cfg(test)]
mod tests;
