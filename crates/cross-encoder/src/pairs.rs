//! Graded pairs from a data folder, split into training and held-out queries. The split depends on the normalised text, so all
//! spellings of a query are on one side. Random catalogue items, and unjudged hits of BM25, are added as L1.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::PathBuf;

use super::RelevanceSettings;
use souk_io::beir::DataFolder;
use souk_io::catalogue::Catalogue;
use souk_io::domain::Level;
use souk_io::domain::{normalized_query, query_place};
use souk_io::error::{Error, Result};
use souk_io::shuffle::Permutation;
use souk_lexical::Lexical;
use souk_nn::encoder::digest_files;

/// Hits of BM25 that lexical negatives are drawn from.
const LEXICAL_DEPTH: usize = 100;

/// Purpose of a query's pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPart {
    Learn,
    Calibrate,
    Measure,
}

/// Query, item and level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GradedPair {
    /// Index in the list of queries.
    pub query: u32,
    /// Row in the catalogue.
    pub item: u32,
    pub level: Level,
    /// True if judged, false if an unjudged item taken as irrelevant.
    pub judged: bool,
}

pub struct GradedPairs {
    pub catalogue: Catalogue,
    pub queries: Vec<String>,
    pub learn: Vec<GradedPair>,
    pub calibrate: Vec<GradedPair>,
    pub measure: Vec<GradedPair>,
    /// Judgements of items missing from the catalogue.
    pub num_unknown_items: usize,
    /// Content hash of judgements, queries and items.
    pub hash: String,
}

impl GradedPairs {
    pub fn load(data: &DataFolder, settings: &RelevanceSettings) -> Result<Self> {
        let catalogue = Catalogue::open(data)?;
        let split = settings.split.as_str();
        let files: Vec<PathBuf> = vec![data.queries_file(), data.qrels(split)];
        let hash = format!("{:08x}{}", catalogue.crc32(), digest_files(data.path(), files)?);
        let mut graded = Self {
            catalogue,
            queries: Vec::new(),
            learn: Vec::new(),
            calibrate: Vec::new(),
            measure: Vec::new(),
            num_unknown_items: 0,
            hash,
        };
        graded.add_judged(data, settings)?;
        graded.draw_negatives(settings)?;
        graded.check(data, split)?;
        Ok(graded)
    }

    fn part(&mut self, part: DataPart) -> &mut Vec<GradedPair> {
        match part {
            DataPart::Learn => &mut self.learn,
            DataPart::Calibrate => &mut self.calibrate,
            DataPart::Measure => &mut self.measure,
        }
    }

    fn add_judged(&mut self, data: &DataFolder, settings: &RelevanceSettings) -> Result<()> {
        let mut texts: HashMap<String, String> = HashMap::new();
        for query in data.queries()? {
            let query = query?;
            texts.insert(query.id, query.text);
        }
        let mut places: HashMap<String, u32> = HashMap::new();
        for judgement in data.judgements(&settings.split)? {
            let judgement = judgement?;
            let Some(item) = self.catalogue.row(&judgement.item) else {
                self.num_unknown_items += 1;
                continue;
            };
            let query = match places.get(&judgement.query) {
                Some(place) => *place,
                None => {
                    let Some(text) = texts.remove(&judgement.query) else {
                        let problem =
                            format!("judges the query `{}`, which queries.jsonl does not have", judgement.query);
                        return Err(Error::data(&data.qrels(&settings.split), None, problem));
                    };
                    let place = self.queries.len() as u32;
                    self.queries.push(text);
                    places.insert(judgement.query, place);
                    place
                }
            };
            let part = part_of(&self.queries[query as usize], settings.held_out);
            self.part(part).push(GradedPair { query, item, level: judgement.level, judged: true });
        }
        Ok(())
    }

    /// Adds random items and random lexical hits per query, skipping items that are judged for it or for another spelling.
    fn draw_negatives(&mut self, settings: &RelevanceSettings) -> Result<()> {
        let normals: Vec<String> = self.queries.iter().map(|text| normalized_query(text)).collect();
        let all = [&self.learn, &self.calibrate, &self.measure];
        let known: HashSet<(&str, u32)> =
            all.into_iter().flatten().map(|pair| (normals[pair.query as usize].as_str(), pair.item)).collect();
        let lexical = self.lexical_hits(settings)?;
        let each = settings.random_negatives as u64;
        let mut drawn: Vec<(DataPart, GradedPair)> = Vec::new();
        for (query, text) in (0_u32..).zip(&normals) {
            let part = part_of(text, settings.held_out);
            let is_unknown = |item: &u32| !known.contains(&(text.as_str(), *item));
            let draws = u64::from(query) * each..(u64::from(query) + 1) * each;
            let random = draws.map(|draw| self.catalogue.negative(settings.seed, draw)).filter(is_unknown);
            let near: Vec<u32> =
                lexical.get(query as usize).into_iter().flatten().copied().filter(is_unknown).collect();
            let order = Permutation::new(near.len() as u64, settings.seed ^ (u64::from(query) << 1));
            let num_near = settings.lexical_negatives.min(near.len()) as u64;
            let near = (0..num_near).map(|at| near[order.at(at) as usize]);
            let items: BTreeSet<u32> = random.chain(near).collect();
            let pair = |item| GradedPair { query, item, level: Level::L1, judged: false };
            drawn.extend(items.into_iter().map(|item| (part, pair(item))));
        }
        for (part, pair) in drawn {
            self.part(part).push(pair);
        }
        Ok(())
    }

    /// Rows of BM25's first hits for each query; empty if no lexical negatives are asked for.
    fn lexical_hits(&self, settings: &RelevanceSettings) -> Result<Vec<Vec<u32>>> {
        if settings.lexical_negatives == 0 {
            return Ok(Vec::new());
        }
        let texts = (0..self.catalogue.len()).map(|row| Ok(self.catalogue.text_of(&self.catalogue.item(row)?)));
        let queries: Vec<&str> = self.queries.iter().map(String::as_str).collect();
        let hits = Lexical::build(texts)?.search_many(&queries, LEXICAL_DEPTH)?;
        Ok(hits.into_iter().map(|hits| hits.into_iter().map(|hit| hit.row).collect()).collect())
    }

    fn check(&self, data: &DataFolder, split: &str) -> Result<()> {
        if self.learn.is_empty() {
            return Err(Error::data(
                &data.qrels(split),
                None,
                "judges no item of the catalogue: nothing can be learned",
            ));
        }
        if self.calibrate.is_empty() || self.measure.is_empty() {
            let problem = "leaves no query to calibrate with, or none to measure with: use more";
            return Err(Error::config("relevance.held_out", problem));
        }
        Ok(())
    }
}

/// Part that a query's pairs are in; all models of a shop hold out the same queries.
pub fn part_of(query: &str, held_out: f64) -> DataPart {
    match query_place(query) {
        place if place < held_out / 2.0 => DataPart::Calibrate,
        place if place < held_out => DataPart::Measure,
        _ => DataPart::Learn,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn spellings_fall_together_and_shares_are_as_asked() {
        assert_eq!(part_of("Oak  Desk ", 0.5), part_of("oak desk", 0.5));
        let parts: Vec<DataPart> = (0..4000).map(|n| part_of(&format!("query {n}"), 0.2)).collect();
        let share = |part| parts.iter().filter(|of| **of == part).count() as f64 / 4000.0;
        assert!((share(DataPart::Calibrate) - 0.1).abs() < 0.02 && (share(DataPart::Measure) - 0.1).abs() < 0.02);
    }

    fn load(held_out: f64, qrels: &str) -> Result<GradedPairs> {
        load_with(RelevanceSettings { held_out, random_negatives: 3, ..RelevanceSettings::default() }, qrels)
    }

    fn load_with(settings: RelevanceSettings, qrels: &str) -> Result<GradedPairs> {
        let home = tempfile::tempdir().unwrap();
        let lines = |letter: char, num: usize| -> String {
            (0..num).map(|n| format!("{{\"_id\":\"{letter}{n}\",\"text\":\"text {n}\"}}\n")).collect()
        };
        fs::create_dir(home.path().join("qrels")).unwrap();
        for (name, text) in
            [("corpus.jsonl", lines('d', 20)), ("queries.jsonl", lines('q', 40)), ("qrels/train.tsv", qrels.into())]
        {
            fs::write(home.path().join(name), text).unwrap();
        }
        GradedPairs::load(&DataFolder::open(home.path()).unwrap(), &settings)
    }

    #[test]
    fn queries_are_on_one_side_and_negatives_are_not_judged() {
        let qrels: String = (0..40).map(|n| format!("q{n}\td{}\t4\nq{n}\tgone\t1\n", n % 20)).collect();
        let graded = load(0.5, &qrels).unwrap();
        assert_eq!((graded.queries.len(), graded.num_unknown_items), (40, 40));
        let of = |pairs: &[GradedPair]| pairs.iter().map(|pair| pair.query).collect::<HashSet<u32>>();
        let sides = [of(&graded.learn), of(&graded.calibrate), of(&graded.measure)];
        assert_eq!(sides.iter().map(HashSet::len).sum::<usize>(), 40);
        for pair in [&graded.learn, &graded.calibrate, &graded.measure].into_iter().flatten() {
            assert_eq!(pair.judged, pair.item == pair.query % 20, "{pair:?}");
            assert_eq!(pair.level, if pair.judged { Level::L4 } else { Level::L1 });
        }
    }

    #[test]
    fn lexical_negatives_are_unjudged_hits_of_bm25() {
        let settings = RelevanceSettings {
            held_out: 0.5,
            random_negatives: 0,
            lexical_negatives: 1,
            ..RelevanceSettings::default()
        };
        // `text n` finds every item; the first hit, item n, is judged for the first twenty queries
        let qrels: String = (0..40).map(|n| format!("q{n}\td{}\t4\n", n % 20)).collect();
        let load = || load_with(settings.clone(), &qrels).unwrap();
        let graded = load();
        let all = [graded.learn.clone(), graded.calibrate.clone(), graded.measure.clone()].concat();
        let negatives: Vec<GradedPair> = all.into_iter().filter(|pair| !pair.judged).collect();
        assert_eq!(negatives.len(), 40, "one for each query");
        assert!(negatives.iter().all(|pair| pair.level == Level::L1 && pair.item != pair.query % 20));
        assert!(negatives.iter().map(|pair| pair.item).collect::<HashSet<u32>>().len() > 5, "drawn, not the first");
        assert_eq!(load().learn, graded.learn);
    }

    #[test]
    fn a_pair_with_two_levels_is_learned_once_with_the_highest() {
        let judged = |qrels: String| {
            let graded = load(0.5, &qrels).unwrap();
            [graded.learn, graded.calibrate, graded.measure].concat().into_iter().filter(|pair| pair.judged).collect()
        };
        let once: Vec<GradedPair> = judged((0..40).map(|n| format!("q{n}\td0\t3\n")).collect());
        let twice: Vec<GradedPair> = judged((0..40).map(|n| format!("q{n}\td0\t1\nq{n}\td0\t3\n")).collect());
        assert_eq!((once.len(), twice), (40, once));
    }

    #[test]
    fn what_cannot_be_learned_or_measured_is_refused() {
        let error = |held_out, qrels: &str| load(held_out, qrels).err().unwrap().to_string();
        assert!(error(0.5, "q0\tgone\t1\n").contains("nothing can be learned"));
        assert!(error(1e-9, "q0\td1\t1\n").starts_with("relevance.held_out"));
        assert!(error(0.5, "q99\td1\t1\n").contains("the query `q99`"));
    }
}
