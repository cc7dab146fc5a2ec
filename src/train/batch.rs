//! A batch: pairs in their drawn order, their items without duplicates, global negatives from the whole catalogue, and the items
//! that each query is known to have found. Every process computes the same batch; none is sent.

use std::collections::HashMap;
use std::ops::Range;

use tch::{Device, Kind, Tensor};

use souk_ingest::dataset::{Pairs, TrainingPair};
use souk_io::catalogue::Catalogue;
use souk_io::error::Result;
use souk_io::excerpt::excerpt;
use souk_io::splitmix::{SplitMix64, mix};
use souk_io::typo::mistype;

/// Items of the whole catalogue that join a batch, by the numbers of their draws.
pub struct Negatives {
    pub seed: u64,
    pub draws: Range<u64>,
}

/// Letters: m pairs and n items of all processes, b pairs of one.
pub struct Batch<'a> {
    /// The draws that its pairs are.
    pub draws: Range<u64>,
    /// Pairs in the order of their draws.
    pub pairs: Vec<TrainingPair<'a>>,
    /// Rows of the catalogue without duplicates: the items of the pairs, then the negatives.
    pub items: Vec<u32>,
    /// Place in `items` of each pair's item.
    pub chosen: Vec<i64>,
    /// Place in `items` of each row.
    places: HashMap<u32, i64>,
    /// For each pair, places in `items` of other items that its query is known to have found.
    known: Vec<Vec<i64>>,
    /// Queries that are read otherwise than their pair has them: excerpts, and queries with a typing error.
    written: HashMap<usize, String>,
}

impl<'a> Batch<'a> {
    /// The `rows` of `pairs` that `draws` are, and their negatives.
    pub fn gather(
        pairs: &'a Pairs,
        rows: &[u64],
        draws: Range<u64>,
        catalogue: &Catalogue,
        negatives: &Negatives,
    ) -> Self {
        let drawn: Vec<TrainingPair<'a>> = rows.iter().map(|row| pairs.row(*row)).collect();
        let (places, items) = (HashMap::with_capacity(rows.len()), Vec::with_capacity(rows.len()));
        let mut batch =
            Self { draws, pairs: drawn, items, chosen: Vec::new(), places, known: Vec::new(), written: HashMap::new() };
        for at in 0..batch.pairs.len() {
            let place = batch.add(batch.pairs[at].item);
            batch.chosen.push(place);
        }
        for draw in negatives.draws.clone() {
            batch.add(catalogue.negative(negatives.seed, draw));
        }
        batch.find_known(pairs);
        batch
    }

    /// Finds the items that each query is known to have found, again after items were added.
    pub fn find_known(&mut self, pairs: &Pairs) {
        let known = self.pairs.iter().zip(&self.chosen).map(|(pair, own)| {
            let found = pairs.positives(pair.query_number).iter().filter_map(|item| self.place(*item));
            found.filter(|place| place != own).collect()
        });
        self.known = known.collect();
    }

    /// Asks for each item by an excerpt of its text, another one in each visit. An item whose text is too short for one keeps its query.
    pub fn ask_by_excerpts(&mut self, catalogue: &Catalogue, seed: u64) -> Result<()> {
        // not the numbers that typing errors are drawn with
        for (at, pair) in self.pairs.iter().enumerate() {
            let text = catalogue.text_of(&catalogue.item(pair.item)?);
            if let Some(query) = excerpt(&mut self.random(at, !seed), &text) {
                self.written.insert(at, query);
            }
        }
        Ok(())
    }

    /// Adds a typing error to a share of the queries: to other ones, and another error, in each visit.
    pub fn mistype(&mut self, share: f64, seed: u64) {
        for at in 0..self.pairs.len() {
            let mut random = self.random(at, seed);
            if random.unit() < share {
                let mistyped = mistype(&mut random, self.query(at));
                self.written.insert(at, mistyped);
            }
        }
    }

    /// Random numbers of a pair, others in each visit.
    fn random(&self, pair: usize, seed: u64) -> SplitMix64 {
        SplitMix64::new(mix(seed ^ mix(self.draws.start + pair as u64)))
    }

    /// The query of a pair as the encoder reads it.
    pub fn query(&self, pair: usize) -> &str {
        self.written.get(&pair).map_or(self.pairs[pair].query, String::as_str)
    }

    /// The place of an item in `items`; adds it if it is not there yet.
    pub fn add(&mut self, row: u32) -> i64 {
        *self.places.entry(row).or_insert_with(|| {
            self.items.push(row);
            self.items.len() as i64 - 1
        })
    }

    /// The place of an item in `items`, if it is there.
    pub fn place(&self, row: u32) -> Option<i64> {
        self.places.get(&row).copied()
    }

    /// Items left out of some query's negatives.
    pub fn num_masked(&self) -> usize {
        self.known.iter().map(Vec::len).sum()
    }

    /// `[b, n]`: for each pair of the shard, the items that are no negatives.
    pub fn known(&self, shard: &Range<usize>, device: Device) -> Tensor {
        let width = self.items.len();
        let mut mask = vec![false; shard.len() * width];
        for (row, known) in self.known[shard.clone()].iter().enumerate() {
            known.iter().for_each(|place| mask[row * width + *place as usize] = true);
        }
        Tensor::from_slice(&mask).view([shard.len() as i64, width as i64]).to_device(device)
    }

    /// `[m, b]`: for each pair of the shard, the queries of other pairs that are known to have found its item.
    pub fn known_queries(&self, shard: &Range<usize>, device: Device) -> Tensor {
        let width = shard.len();
        let mut mask = vec![false; self.pairs.len() * width];
        for (row, known) in self.known.iter().enumerate() {
            for (column, pair) in shard.clone().enumerate() {
                let same = self.chosen[pair] == self.chosen[row];
                mask[row * width + column] = row != pair && (same || known.contains(&self.chosen[pair]));
            }
        }
        Tensor::from_slice(&mask).view([self.pairs.len() as i64, width as i64]).to_device(device)
    }

    /// `[m]`: the weight of each pair.
    pub fn weights(&self, by_strength: bool) -> Tensor {
        let weights: Vec<f32> = self.pairs.iter().map(|pair| if by_strength { pair.strength } else { 1.0 }).collect();
        Tensor::from_slice(&weights).to_kind(Kind::Float)
    }
}

/// The contiguous shard of `num` things that belongs to one of `size` processes; sizes differ by at most one.
pub fn shard_range(num: usize, rank: usize, size: usize) -> Range<usize> {
    let start = |rank: usize| rank * (num / size) + rank.min(num % size);
    start(rank)..start(rank + 1)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use souk_ingest::dataset::{PairSource, TrainingSplit};
    use souk_io::beir::DataFolder;

    #[test]
    fn shards_are_contiguous_and_cover_everything() {
        for (num, size) in [(10, 4), (3, 4), (0, 2), (8, 1)] {
            let all: Vec<usize> = (0..size).flat_map(|rank| shard_range(num, rank, size)).collect();
            assert_eq!(all, (0..num).collect::<Vec<_>>());
        }
    }

    #[test]
    fn items_come_once_and_what_a_query_found_is_masked() {
        let home = tempfile::tempdir().unwrap();
        let lines =
            |ids: &[&str]| ids.iter().map(|id| format!("{{\"_id\":\"{id}\",\"text\":\"{id}\"}}\n")).collect::<String>();
        fs::write(home.path().join("corpus.jsonl"), lines(&["a", "b", "c", "d"])).unwrap();
        fs::write(home.path().join("queries.jsonl"), lines(&["x", "y"])).unwrap();
        fs::create_dir(home.path().join("qrels")).unwrap();
        let qrels = "query-id\tcorpus-id\tscore\nx\ta\t4\nx\tb\t4\ny\tb\t3\ny\tc\t4\n";
        fs::write(home.path().join("qrels/train.tsv"), qrels).unwrap();
        let data = DataFolder::open(home.path()).unwrap();
        let catalogue = Catalogue::open(&data).unwrap();
        let pairs = Pairs::open(&data, &catalogue, PairSource::Qrels, TrainingSplit::whole("train"), None).unwrap();
        // x-a, y-b, x-b
        let mut batch = Batch::gather(&pairs, &[0, 2, 1], 0..3, &catalogue, &Negatives { seed: 3, draws: 0..50 });
        assert_eq!(batch.items[..2], [0, 1]);
        assert_eq!(batch.items.len(), 4, "fifty draws find the rest, each once");
        assert_eq!(batch.chosen, [0, 1, 1]);
        let c = batch.items.iter().position(|item| *item == 2).unwrap() as i64;
        assert_eq!(batch.known, [vec![1], vec![c], vec![0]]);
        assert_eq!(batch.num_masked(), 3);
        let mask = Vec::<Vec<bool>>::try_from(batch.known(&(1..3), Device::Cpu)).unwrap();
        assert!(mask[0][c as usize] && mask[1][0] && mask.iter().flatten().filter(|masked| **masked).count() == 2);
        let queries = Vec::<Vec<bool>>::try_from(batch.known_queries(&(0..3), Device::Cpu)).unwrap();
        // the item of the pair in each column, found by the query in each row
        assert_eq!(queries, [[false, true, true], [false, false, true], [true, true, false]]);
        batch.mistype(1.0, 3);
        assert_eq!(batch.query(0), "x", "too short for an error");
    }

    #[test]
    fn items_are_asked_for_by_excerpts() {
        let home = tempfile::tempdir().unwrap();
        let texts = ["kettle", "red oak chair 120 with arms", "steel garden bench"];
        let item = |(at, text): (usize, &&str)| format!("{{\"_id\":\"{at}\",\"title\":\"{text}\"}}\n");
        fs::write(home.path().join("corpus.jsonl"), texts.iter().enumerate().map(item).collect::<String>()).unwrap();
        let data = DataFolder::open(home.path()).unwrap();
        let catalogue = Catalogue::open(&data).unwrap();
        let items = Pairs::open(&data, &catalogue, PairSource::Excerpts, TrainingSplit::whole("train"), None).unwrap();
        let visit = |first: u64| {
            let none = Negatives { seed: 3, draws: 0..0 };
            let mut batch = Batch::gather(&items, &[0, 1, 2], first..first + 3, &catalogue, &none);
            batch.ask_by_excerpts(&catalogue, 3).unwrap();
            (0..3).map(|at| batch.query(at).to_owned()).collect::<Vec<_>>()
        };
        let (one, again) = (visit(0), visit(0));
        assert_eq!(one, again);
        assert_eq!((&*one[0], one[2].split(' ').count()), ("kettle", 2), "one word is too short for an excerpt");
        assert!(one[1].split(' ').all(|word| texts[1].contains(word)) && one[1] != texts[1], "{}", one[1]);
        assert!((1..9).any(|at| visit(3 * at)[1] != one[1]), "others in other visits");
    }

    #[test]
    fn another_share_of_the_queries_has_an_error_in_each_visit() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("corpus.jsonl"), "{\"_id\":\"a\",\"text\":\"a\"}\n").unwrap();
        let queries = (0..200).map(|at| format!("{{\"_id\":\"{at}\",\"text\":\"kettle {at}\"}}\n"));
        fs::write(home.path().join("queries.jsonl"), queries.collect::<String>()).unwrap();
        fs::create_dir(home.path().join("qrels")).unwrap();
        let lines = (0..200).map(|at| format!("{at}\ta\t4\n")).collect::<String>();
        fs::write(home.path().join("qrels/train.tsv"), format!("query-id\tcorpus-id\tscore\n{lines}")).unwrap();
        let data = DataFolder::open(home.path()).unwrap();
        let catalogue = Catalogue::open(&data).unwrap();
        let pairs = Pairs::open(&data, &catalogue, PairSource::Qrels, TrainingSplit::whole("train"), None).unwrap();
        let rows: Vec<u64> = (0..200).collect();
        let visit = |first: u64| {
            let mut batch =
                Batch::gather(&pairs, &rows, first..first + 200, &catalogue, &Negatives { seed: 3, draws: 0..0 });
            batch.mistype(0.25, 3);
            (0..200).map(|at| batch.query(at).to_owned()).collect::<Vec<_>>()
        };
        let (one, again, other) = (visit(0), visit(0), visit(200));
        assert_eq!(one, again);
        let is_mistyped = |at: &usize| one[*at] != format!("kettle {at}");
        let mistyped: Vec<usize> = (0..200).filter(is_mistyped).collect();
        assert!((30..70).contains(&mistyped.len()), "{}", mistyped.len());
        assert!(mistyped.iter().any(|at| one[*at] != other[*at]));
    }
}
