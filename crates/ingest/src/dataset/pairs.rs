//! Training pairs: queries with relevant items, from the search log, from judgements or from the catalogue itself. Also
//! gives the known positives of each query, which a loss must not use as negatives.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::EXAMPLES_FOLDER;
use super::examples::{Examples, Span};
use super::positives::Positives;
use crate::log::Position;
use souk_io::beir::DataFolder;
use souk_io::catalogue::Catalogue;
use souk_io::domain::{normalized_query, query_place};
use souk_io::error::{Error, Result};
use souk_io::held_out::HeldOut;
use souk_io::shuffle::Order;

/// Source of the training pairs of a data folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PairSource {
    /// Examples if `souk ingest` wrote some, else judgements.
    #[default]
    Auto,
    /// Examples that `souk ingest` wrote.
    Examples,
    /// The Good pairs of `qrels/SPLIT.tsv`.
    Qrels,
    /// Every item of the catalogue paired with itself, for objectives that learn from texts.
    Items,
    /// Every item of the catalogue, asked for by an excerpt: two to five words of its own text, others in each visit. For InfoNCE.
    Excerpts,
}

/// Judgements that pairs come from.
#[derive(Clone, Copy, Debug)]
pub struct TrainingSplit<'a> {
    pub name: &'a str,
    /// Share of the queries, by `query_place`, that give no pairs.
    pub held_out: f64,
}

impl<'a> TrainingSplit<'a> {
    /// All queries of a split.
    pub fn whole(name: &'a str) -> Self {
        Self { name, held_out: 0.0 }
    }
}

/// Query with a relevant item.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainingPair<'a> {
    pub query: &'a str,
    /// Number of the query; queries that differ only in case and spaces share it.
    pub query_number: u32,
    /// Row in the catalogue.
    pub item: u32,
    pub strength: f32,
}

pub enum Pairs {
    Examples(Examples),
    Judged(JudgedPairs),
    Items(ItemPairs),
}

/// Every item of the catalogue, paired with itself.
pub struct ItemPairs {
    texts: Vec<String>,
    rows: Vec<u32>,
    crc32: u32,
}

/// Good pairs of one split.
pub struct JudgedPairs {
    /// Text and number of each query.
    queries: Vec<(String, u32)>,
    /// Index in `queries`, and the item's row.
    pairs: Vec<(u32, u32)>,
    positives: Positives,
    unknown_items: u64,
    crc32: u32,
}

impl Pairs {
    /// Opens the pairs of a data folder; `span` selects a range of its examples.
    pub fn open(
        data: &DataFolder,
        catalogue: &Catalogue,
        source: PairSource,
        split: TrainingSplit<'_>,
        span: Option<&Span>,
    ) -> Result<Self> {
        let pairs = Self::find(data, catalogue, source, split, span)?;
        if pairs.is_empty() {
            let problem = "has no training pairs: no example and no Good judgement has an item of the catalogue";
            return Err(Error::data(data.path(), None, problem));
        }
        Ok(pairs)
    }

    /// The same, but there may be none.
    pub fn find(
        data: &DataFolder,
        catalogue: &Catalogue,
        source: PairSource,
        split: TrainingSplit<'_>,
        span: Option<&Span>,
    ) -> Result<Self> {
        if matches!(source, PairSource::Items | PairSource::Excerpts) {
            return Ok(Self::Items(ItemPairs::load(catalogue)?));
        }
        let examples = data.path().join(EXAMPLES_FOLDER);
        let mut pairs = None;
        if source == PairSource::Examples || source == PairSource::Auto && examples.exists() {
            let found = Examples::open_without(&examples, catalogue, span, &HeldOut::times(data)?)?;
            // `souk ingest` may not have committed anything yet
            pairs = (source == PairSource::Examples || !found.is_empty()).then_some(Self::Examples(found));
        }
        match pairs {
            Some(_) if split.held_out > 0.0 => {
                let problem = "holds out judged queries, and these pairs come from the log: remove it, or set train.pairs to qrels";
                Err(Error::config("train.held_out", problem))
            }
            Some(pairs) => Ok(pairs),
            None => Ok(Self::Judged(JudgedPairs::load(data, catalogue, split)?)),
        }
    }

    /// Kind of the pairs, in words.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Examples(_) => "examples from the search log",
            Self::Judged(_) => "judged pairs",
            Self::Items(_) => "items without queries",
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn len(&self) -> u64 {
        match self {
            Self::Examples(examples) => examples.len(),
            Self::Judged(judged) => judged.pairs.len() as u64,
            Self::Items(items) => items.rows.len() as u64,
        }
    }

    /// Number of pairs dropped because their item is missing from the catalogue.
    pub fn num_unknown_items(&self) -> u64 {
        match self {
            Self::Examples(examples) => examples.num_unknown_items(),
            Self::Judged(judged) => judged.unknown_items,
            Self::Items(_) => 0,
        }
    }

    /// Number of examples that are not drawn because judgements were derived from their time of the log.
    pub fn num_held_out(&self) -> u64 {
        match self {
            Self::Examples(examples) => examples.num_held_out(),
            Self::Judged(_) | Self::Items(_) => 0,
        }
    }

    /// Returns a pair; `row` must be below `len`.
    pub fn row(&self, row: u64) -> TrainingPair<'_> {
        match self {
            Self::Examples(examples) => {
                let example = examples.row(row);
                let (query_number, item) = (example.query_number, example.item);
                TrainingPair { query: example.query, query_number, item, strength: example.strength }
            }
            Self::Judged(judged) => {
                let (query, item) = judged.pairs[row as usize];
                let (text, number) = &judged.queries[query as usize];
                TrainingPair { query: text, query_number: *number, item, strength: 1.0 }
            }
            Self::Items(items) => {
                let number = row as u32;
                TrainingPair { query: &items.texts[row as usize], query_number: number, item: number, strength: 1.0 }
            }
        }
    }

    /// Known positives of a query, ascending.
    pub fn positives(&self, query_number: u32) -> &[u32] {
        match self {
            Self::Examples(examples) => examples.positives(query_number),
            Self::Judged(judged) => judged.positives.items(query_number),
            Self::Items(items) => &items.rows[query_number as usize..=query_number as usize],
        }
    }

    /// Low-water mark of each lane after training on the first `drawn` draws; empty for other sources than examples.
    pub fn low_water(&self, order: Order, drawn: u64) -> BTreeMap<String, Position> {
        match self {
            Self::Examples(examples) => examples.low_water(order, drawn),
            Self::Judged(_) | Self::Items(_) => BTreeMap::new(),
        }
    }

    /// Commits that the examples come from; `None` for other sources.
    pub fn span(&self) -> Option<&Span> {
        match self {
            Self::Examples(examples) => Some(examples.span()),
            Self::Judged(_) | Self::Items(_) => None,
        }
    }

    /// Checksum of the pairs and their order.
    pub fn crc32(&self) -> u32 {
        match self {
            Self::Examples(examples) => examples.crc32(),
            Self::Judged(judged) => judged.crc32,
            Self::Items(items) => items.crc32,
        }
    }
}

impl ItemPairs {
    fn load(catalogue: &Catalogue) -> Result<Self> {
        let rows: Vec<u32> = (0..catalogue.len()).collect();
        let texts = rows.iter().map(|row| Ok(catalogue.text_of(&catalogue.item(*row)?))).collect::<Result<_>>()?;
        Ok(Self { texts, rows, crc32: catalogue.crc32() })
    }
}

impl JudgedPairs {
    fn load(data: &DataFolder, catalogue: &Catalogue, split: TrainingSplit<'_>) -> Result<Self> {
        let mut texts: HashMap<String, String> = HashMap::new();
        for query in data.queries()? {
            let query = query?;
            texts.insert(query.id, query.text);
        }
        let (mut queries, mut indices, mut numbers) = (Vec::new(), HashMap::new(), HashMap::new());
        let (mut pairs, mut unknown_items, mut held_out) = (Vec::new(), 0, HashSet::new());
        for judgement in data.judgements(split.name)? {
            let judgement = judgement?;
            if !judgement.level.is_good() || held_out.contains(&judgement.query) {
                continue;
            }
            let Some(item) = catalogue.row(&judgement.item) else {
                unknown_items += 1;
                continue;
            };
            if let Some(index) = indices.get(&judgement.query) {
                pairs.push((*index, item));
                continue;
            }
            let Some(text) = texts.remove(&judgement.query) else {
                let problem = format!("judges the query `{}`, which is missing from queries.jsonl", judgement.query);
                return Err(Error::data(&data.qrels(split.name), None, problem));
            };
            if query_place(&text) < split.held_out {
                held_out.insert(judgement.query);
                continue;
            }
            let next = numbers.len() as u32;
            let number = *numbers.entry(normalized_query(&text)).or_insert(next);
            let index = queries.len() as u32;
            queries.push((text, number));
            indices.insert(judgement.query, index);
            pairs.push((index, item));
        }
        let known = pairs.iter().map(|(query, item)| (queries[*query as usize].1, *item));
        let positives = Positives::new(known, numbers.len() as u32);
        let crc32 = crc_of(&[&data.qrels(split.name), &data.queries_file()])?;
        Ok(Self { queries, pairs, positives, unknown_items, crc32 })
    }
}

fn crc_of(files: &[&Path]) -> Result<u32> {
    let mut crc = crc32fast::Hasher::new();
    for file in files {
        crc.update(&fs::read(file).map_err(Error::store(file, "read it"))?);
    }
    Ok(crc.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn judgements_become_pairs_and_spellings_share_positives() {
        let home = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(home.path().join(name), text).unwrap();
        write("corpus.jsonl", "{\"_id\":\"a\"}\n{\"_id\":\"b\"}\n{\"_id\":\"c\"}\n");
        write("queries.jsonl", "{\"_id\":\"1\",\"text\":\"Oak  Desk\"}\n{\"_id\":\"2\",\"text\":\"oak desk\"}\n");
        fs::create_dir(home.path().join("qrels")).unwrap();
        write("qrels/train.tsv", "query-id\tcorpus-id\tscore\n1\ta\t4\n1\tb\t2\n2\tc\t3\n2\tgone\t4\n");
        let data = DataFolder::open(home.path()).unwrap();
        let catalogue = Catalogue::open(&data).unwrap();
        let open = |source| Pairs::open(&data, &catalogue, source, TrainingSplit::whole("train"), None);
        let pairs = open(PairSource::Auto).unwrap();
        assert_eq!((pairs.len(), pairs.num_unknown_items()), (2, 1));
        let rows: Vec<_> = (0..2).map(|row| (pairs.row(row).query, pairs.row(row).item)).collect();
        assert_eq!(rows, [("Oak  Desk", 0), ("oak desk", 2)]);
        assert_eq!(pairs.positives(pairs.row(0).query_number), [0, 2]);
        // both spellings are held out, or none
        let held_out = |held_out| TrainingSplit { name: "train", held_out };
        let place = query_place("oak desk");
        let open_part = |share| Pairs::open(&data, &catalogue, PairSource::Qrels, held_out(share), None);
        assert_eq!(open_part(place - 1e-9).unwrap().len(), 2);
        assert!(open_part(place + 1e-9).err().unwrap().to_string().contains("no training pairs"));
        fs::create_dir(home.path().join(EXAMPLES_FOLDER)).unwrap();
        assert_eq!(open(PairSource::Auto).unwrap().len(), 2, "no commits yet");
        fs::remove_dir(home.path().join(EXAMPLES_FOLDER)).unwrap();
        assert!(open(PairSource::Examples).err().unwrap().to_string().contains("examples"));
        write("qrels/train.tsv", "1\tb\t2\n2\tc\t4\n1\tb\t3\n2\tc\t1\n");
        let judged_twice = open(PairSource::Auto).unwrap();
        let rows: Vec<_> = (0..judged_twice.len()).map(|row| judged_twice.row(row).item).collect();
        assert_eq!(rows, [1, 2], "the highest level counts, once");
        write("qrels/train.tsv", "query-id\tcorpus-id\tscore\n1\ta\t1\n");
        assert!(open(PairSource::Auto).err().unwrap().to_string().contains("no training pairs"));
        write("qrels/train.tsv", "query-id\tcorpus-id\tscore\n9\ta\t4\n");
        assert!(open(PairSource::Auto).err().unwrap().to_string().contains("the query `9`"));
    }
}
