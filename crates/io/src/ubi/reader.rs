//! Reads the records of one log. Remembers the shapes of its lines, so that it reads most lines without parsing JSON.
//!
//! Gives for each line what `Record::parse` gives, whatever was read before.

use souk_native::QuoteMap;

use super::line::Line;
use super::shape::Shape;
use super::{Record, Refusal, scan};

/// Most shapes remembered: those of queries and of a few kinds of events.
const MAX_SHAPES: usize = 4;
/// Cost of learning a shape, in lines of known shapes: learning stops if it does not pay.
const COST: u32 = 16;
const MAX_CREDIT: u32 = 16 * COST;

/// Reader of one log.
#[derive(Debug)]
pub struct RecordReader {
    quotes: QuoteMap,
    shapes: Vec<KnownShape>,
    credit: u32,
}

#[derive(Debug)]
struct KnownShape {
    shape: Shape,
    /// Lines read since a shape was last learned.
    num_lines: u32,
}

impl Default for RecordReader {
    fn default() -> Self {
        Self { quotes: QuoteMap::default(), shapes: Vec::with_capacity(MAX_SHAPES), credit: MAX_CREDIT }
    }
}

impl RecordReader {
    /// Reads a line, as `Record::parse` does.
    #[inline]
    pub fn read<'a>(&mut self, json: &'a [u8]) -> Result<Record<'a>, Refusal> {
        let Some(text) = self.quotes.read(json) else { return Record::parse(json) };
        for known in &mut self.shapes {
            if let Some(line) = known.shape.read(text, &self.quotes) {
                known.num_lines = known.num_lines.saturating_add(1);
                self.credit = MAX_CREDIT.min(self.credit + 1);
                return line.record();
            }
        }
        self.read_new(text)
    }

    #[cold]
    fn read_new<'a>(&mut self, text: &'a str) -> Result<Record<'a>, Refusal> {
        let Some(line) = scan::line(text) else { return Line::parse(text.as_bytes())?.record() };
        if self.credit >= COST {
            self.credit -= COST;
            if let Some(shape) = Shape::learn(text, &self.quotes, &line) {
                self.remember(shape);
            }
        }
        line.record()
    }

    /// Remembers a shape instead of the one that fewest of the latest lines have.
    fn remember(&mut self, shape: Shape) {
        let known = KnownShape { shape, num_lines: 0 };
        if self.shapes.len() < MAX_SHAPES {
            self.shapes.push(known);
        } else if let Some(rarest) = self.shapes.iter_mut().min_by_key(|known| known.num_lines) {
            *rarest = known;
        }
        self.shapes.iter_mut().for_each(|known| known.num_lines = 0);
    }
}

#[cfg(test)]
mod tests;
