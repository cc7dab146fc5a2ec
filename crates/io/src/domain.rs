//! Domain types shared by all crates: items, queries, judgements and hits, and the two kinds of text an encoder reads.

use std::path::Path;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// Kind of text: a query or an item. Selects the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TextKind {
    Query,
    Item,
}

impl FromStr for TextKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "query" => Ok(Self::Query),
            "item" => Ok(Self::Item),
            other => Err(Error::input(format!("`{other}` is not a kind of text: use `query` or `item`"))),
        }
    }
}

/// Item of the shop, as a line of BEIR's `corpus.jsonl`; further keys are kept in `fields`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Item {
    #[serde(rename = "_id")]
    pub id: String,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub title: String,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub text: String,
    #[serde(flatten)]
    pub fields: Map<String, Value>,
}

fn null_is_empty<'de, D: serde::Deserializer<'de>>(value: D) -> std::result::Result<String, D::Error> {
    Ok(Option::deserialize(value)?.unwrap_or_default())
}

impl Item {
    /// Reads one line; `file` and `line` are for the error message.
    pub fn parse(json: &[u8], file: &Path, line: u64) -> Result<Self> {
        serde_json::from_slice(json).map_err(|e| {
            let problem = "not an item: expected {\"_id\": \"...\", \"title\": \"...\", \"text\": \"...\"}";
            Error::data(file, Some(line), problem).because(e)
        })
    }
}

/// Query of a shopper, as a line of BEIR's `queries.jsonl`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Query {
    #[serde(rename = "_id")]
    pub id: String,
    pub text: String,
}

/// Relevance level of an item for a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Level {
    /// Irrelevant.
    L1 = 1,
    /// Mismatch: the right kind of item, but not what the query asks for.
    L2,
    /// Related: serves the need, but misses one requirement.
    L3,
    /// Excellent.
    L4,
}

impl Level {
    pub const ALL: [Self; 4] = [Self::L1, Self::L2, Self::L3, Self::L4];

    /// Returns whether the level is L3 or L4.
    pub fn is_good(self) -> bool {
        self >= Self::L3
    }

    /// Number in files, 1 to 4.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// Gain in `ndcg@k` and in listwise losses: 0, 1, 3 and 7.
    pub fn gain(self) -> f64 {
        f64::from((1_u32 << (self.number() - 1)) - 1)
    }

    pub fn from_number(number: i64) -> Option<Self> {
        Self::ALL.into_iter().find(|level| i64::from(level.number()) == number)
    }
}

/// Judged pair of query and item, as a line of `qrels/SPLIT.tsv`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    pub query: String,
    pub item: String,
    pub level: Level,
}

/// Item returned by a search.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Hit {
    pub id: String,
    pub score: f32,
    pub rank: usize,
    pub title: String,
}

/// Normalized key of a query: lower case, single spaces.
pub fn normalized_query(query: &str) -> String {
    let mut normal = String::with_capacity(query.len());
    for word in query.split_whitespace() {
        if !normal.is_empty() {
            normal.push(' ');
        }
        normal.extend(word.chars().flat_map(char::to_lowercase));
    }
    normal
}

/// Place of a query in a random order of all queries, from 0 to 1. Depends on the normalised text only, so all spellings of a query
/// are held out together, and by all models of a shop.
pub fn query_place(query: &str) -> f64 {
    let digest = Sha256::digest(normalized_query(query));
    let bytes: [u8; 8] = std::array::from_fn(|at| digest[at]);
    u64::from_le_bytes(bytes) as f64 / 2.0_f64.powi(64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_keeps_its_extra_keys() {
        let null = Item::parse(br#"{"_id":"7","title":null}"#, Path::new("corpus.jsonl"), 1).unwrap();
        assert_eq!((null.title.as_str(), null.text.as_str()), ("", ""));
        let json = br#"{"_id":"7","title":"Oak desk","text":"120 cm","price":99.5}"#;
        let item = Item::parse(json, Path::new("corpus.jsonl"), 1).unwrap();
        assert_eq!((item.title.as_str(), item.text.as_str()), ("Oak desk", "120 cm"));
        assert_eq!(item.fields["price"], 99.5);
    }

    #[test]
    fn errors_name_the_line() {
        let error = Item::parse(b"{}", Path::new("corpus.jsonl"), 3).unwrap_err();
        assert!(error.to_string().starts_with("corpus.jsonl, line 3: not an item"), "{error}");
    }
}
