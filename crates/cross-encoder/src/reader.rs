//! Tokenizes query and item as one sequence: for encoders, the tokenizer's pair format, with two token types for BERT; for decoders,
//! each text after a label.

use souk_io::error::{Error, Result};
use souk_nn::backbone::Architecture;
use souk_nn::backbone::tokenizer::{PairSegment, Tokenizer};

/// Prefixes for a decoder, whose tokenizer seldom has a separator token.
const QUERY: &str = "Query: ";
const ITEM: &str = "Item: ";

pub struct PairReader {
    tokenizer: Tokenizer,
    decoder: bool,
}

/// Tokenized pair.
#[derive(Clone, Debug, PartialEq)]
pub struct PairText {
    pub ids: Vec<u32>,
    /// Type of each token, 0 or 1: the text it belongs to.
    pub(super) types: Vec<i64>,
    /// Tokens of the query and its frame.
    pub(super) num_first: usize,
    /// True if a text was truncated.
    pub cut: bool,
}

/// One side of a pair, tokenized once and reused.
pub struct PairSide(PairSegment);

impl PairReader {
    /// Truncates pairs to `max_tokens` and frames them as the tokenizer's file says.
    pub(super) fn new(mut tokenizer: Tokenizer, architecture: &Architecture, max_tokens: usize) -> Result<Self> {
        let longest = architecture.max_tokens();
        if max_tokens > longest {
            let problem = format!("is {max_tokens}, but the model has positions for {longest}");
            return Err(Error::config("relevance.max_tokens", problem));
        }
        tokenizer.limit_ids(architecture.vocab())?;
        tokenizer.disable_truncation()?;
        let mut reader = Self { tokenizer, decoder: architecture.is_decoder() };
        reader.check_room(max_tokens)?;
        reader.tokenizer.set_truncation(max_tokens, false)?;
        Ok(reader)
    }

    /// Both texts need room.
    fn check_room(&self, max_tokens: usize) -> Result<()> {
        let mut taken = self.tokenizer.num_pair_specials()?;
        if self.decoder {
            taken += self.tokenizer.encode(QUERY)?.len() + self.tokenizer.encode(ITEM)?.len();
        }
        if taken + 2 > max_tokens {
            let problem = format!("is {max_tokens}, and what stands around every pair takes {taken}: use more");
            return Err(Error::config("relevance.max_tokens", problem));
        }
        Ok(())
    }

    pub fn query(&self, text: &str) -> Result<PairSide> {
        Ok(PairSide(if self.decoder {
            self.tokenizer.segment(&format!("{QUERY}{text}\n"))?
        } else {
            self.tokenizer.segment(text)?
        }))
    }

    pub fn item(&self, text: &str) -> Result<PairSide> {
        Ok(PairSide(if self.decoder {
            self.tokenizer.segment(&format!("{ITEM}{text}"))?
        } else {
            self.tokenizer.segment(text)?
        }))
    }

    pub fn join(&self, query: &PairSide, item: &PairSide) -> Result<PairText> {
        let pair = self.tokenizer.join(&query.0, &item.0)?;
        if pair.ids.is_empty() {
            return Err(Error::input("query and item are empty, and this model's tokenizer adds nothing to them"));
        }
        let types = pair.types.into_iter().map(i64::from).collect();
        Ok(PairText { ids: pair.ids, types, num_first: pair.num_first, cut: pair.cut })
    }

    pub fn read(&self, query: &str, item: &str) -> Result<PairText> {
        self.join(&self.query(query)?, &self.item(item)?)
    }

    /// Reads the query once for all items.
    pub fn read_all(&self, query: &str, items: &[&str]) -> Result<Vec<PairText>> {
        let query = self.query(query)?;
        items.iter().map(|item| self.join(&query, &self.item(item)?)).collect()
    }

    pub(super) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }
}
