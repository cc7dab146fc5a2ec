//! Writes a market as a data folder: catalogue, queries, judgements, slices and search log, with the manifest that the
//! oracle loads. Streams everything to disk; only item traits and the lexical index are held in memory.

use std::path::Path;

use super::catalogue::MarketCatalogue;
use super::oracle::{MANIFEST, MarketSpec, Oracle};
use super::requests::{Split, query_id};
use super::rewrite::rewrite;
use super::seller::{self, item_id};
use super::sessions::Sessions;
use super::shop_search::{ShopHit, ShopSearch};
use souk_io::beir::{Counts, DataWriter};
use souk_io::cores::on_all_cores;
use souk_io::domain::{Item, Judgement, Level, Query};
use souk_io::error::Result;
use souk_io::item_text::ItemText;
use souk_lexical::{Lexical, LexicalOptions};

/// Step of writing a market, for progress reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteStep {
    Items,
    Judgements,
    LogLines,
}

/// Rewrites of `queries.jsonl` in sellers' words.
const REWRITES: &str = "rewrites.jsonl";
/// Judged hits per training query.
const JUDGED_TRAIN: usize = 40;
/// Hits of a test query that are judged if not Good; all Good items of the catalogue are judged as well.
const JUDGED_TEST: usize = 50;
/// Items written per batch, in parallel on all cores.
const BATCH: u32 = 16_384;

/// Writes the folder; calls `progress` with a step and the number of newly finished rows.
pub fn write(spec: &MarketSpec, out: &Path, progress: &dyn Fn(WriteStep, u64)) -> Result<Counts> {
    let mut writer = DataWriter::create(out)?;
    let oracle = Oracle::build(spec)?;
    writer.json(MANIFEST, &oracle.manifest(spec))?;
    let lexical = write_items(&mut writer, oracle.catalogue(), progress)?;
    let pools = ShopSearch::new(oracle.catalogue(), lexical).pools(oracle.requests())?;
    write_queries(&mut writer, &oracle, &pools, progress)?;
    let requests = oracle.requests();
    let train: Vec<usize> = (0..requests.len()).filter(|at| requests[*at].split == Split::Train).collect();
    let sessions = Sessions::new(oracle.catalogue(), requests, &pools, &train);
    sessions.write(spec.events, &mut |json| {
        progress(WriteStep::LogLines, 1);
        writer.log_line(json)
    })?;
    writer.finish()
}

/// Writes each item and adds its text to the lexical index.
fn write_items(
    writer: &mut DataWriter,
    catalogue: &MarketCatalogue,
    progress: &dyn Fn(WriteStep, u64),
) -> Result<Lexical> {
    let num_items = catalogue.len();
    let batches = (0..num_items).step_by(BATCH as usize).map(|from| (from..num_items.min(from + BATCH)).collect());
    let items = batches.flat_map(|rows: Vec<u32>| {
        progress(WriteStep::Items, rows.len() as u64);
        on_all_cores(rows.len(), |at| {
            let row = rows[at];
            let item: Option<Item> = catalogue.get(row).map(|traits| seller::item(catalogue.seed, row, traits));
            item.expect("every row of the catalogue has an item")
        })
    });
    let item_text = ItemText::default();
    // the shop's own search, which decides what shoppers see
    Lexical::build_with(
        LexicalOptions::LUCENE,
        items.map(|item| {
            writer.item(&item)?;
            Ok(item_text.render(&item))
        }),
    )
}

fn write_queries(
    writer: &mut DataWriter,
    oracle: &Oracle,
    pools: &[Vec<ShopHit>],
    progress: &dyn Fn(WriteStep, u64),
) -> Result<()> {
    for (at, (request, pool)) in oracle.requests().iter().zip(pools).enumerate() {
        let id = query_id(at);
        writer.query(&Query { id: id.clone(), text: request.text.clone() })?;
        writer.json(REWRITES, &Query { id: id.clone(), text: rewrite(&request.intent) })?;
        writer.slice(&id, request.slice.name())?;
        let top =
            |count: usize| pool.iter().take(count).filter_map(move |hit| Some((hit.row, oracle.judge(at, hit.row)?)));
        let judged: Vec<(u32, Level)> = match request.split {
            Split::Train => top(JUDGED_TRAIN).collect(),
            Split::Test => oracle.good(at).chain(top(JUDGED_TEST).filter(|(_, level)| !level.is_good())).collect(),
        };
        for (row, level) in judged {
            writer.judgement(request.split.name(), &Judgement { query: id.clone(), item: item_id(row), level })?;
        }
        progress(WriteStep::Judgements, 1);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap, HashSet};
    use std::fs;

    use super::*;
    use souk_io::beir::{DataFolder, lines};
    use souk_io::ubi::{Action, Record};

    const SPEC: MarketSpec = MarketSpec { seed: 5, items: 1500, queries: 160, events: 3000 };

    fn market(spec: &MarketSpec) -> (tempfile::TempDir, DataFolder) {
        let home = tempfile::tempdir().unwrap();
        let out = home.path().join("shop");
        write(spec, &out, &|_, _| {}).unwrap();
        let folder = DataFolder::open(&out).unwrap();
        (home, folder)
    }

    #[test]
    fn the_same_seed_writes_identical_bytes() {
        let ((_one, first), (_two, second)) = (market(&SPEC), market(&SPEC));
        let (_three, other) = market(&MarketSpec { seed: 6, ..SPEC });
        for name in [
            "corpus.jsonl",
            "queries.jsonl",
            REWRITES,
            "qrels/train.tsv",
            "qrels/test.tsv",
            "slices.tsv",
            "logs.ndjson",
            MANIFEST,
        ] {
            let [first, second, other] =
                [&first, &second, &other].map(|folder| fs::read(folder.path().join(name)).unwrap());
            assert!(first == second, "{name}");
            assert!(first != other || name == "slices.tsv", "{name}");
        }
    }

    #[test]
    fn judgements_reference_existing_rows_and_agree_with_the_oracle() {
        let (_home, folder) = market(&SPEC);
        let oracle = Oracle::load(folder.path()).unwrap();
        let items: HashSet<String> = folder.items().unwrap().map(|item| item.unwrap().1.id).collect();
        assert_eq!(items.len(), SPEC.items as usize);
        let slices = folder.slices().unwrap();
        let texts: BTreeMap<String, String> =
            folder.queries().unwrap().map(|q| q.unwrap()).map(|q| (q.id, q.text)).collect();
        assert_eq!((texts.len(), slices.len()), (SPEC.queries, SPEC.queries));
        let mut good: HashMap<String, usize> = HashMap::new();
        for split in ["train", "test"] {
            for judgement in folder.judgements(split).unwrap() {
                let Judgement { query, item, level } = judgement.unwrap();
                assert!(items.contains(&item) && texts.contains_key(&query));
                assert_eq!(oracle.judge_ids(&query, &item), Some(level));
                *good.entry(format!("{split} {query}")).or_default() += usize::from(level.is_good());
            }
        }
        for (at, request) in oracle.requests().iter().enumerate().filter(|(_, request)| request.split == Split::Test) {
            assert_eq!(good[&format!("test q{at}")], oracle.good(at).count(), "{}", request.text);
        }
    }

    #[test]
    fn the_log_is_in_order_and_references_shown_hits() {
        let (_home, folder) = market(&SPEC);
        let oracle = Oracle::load(folder.path()).unwrap();
        let typed: HashSet<&str> = oracle
            .requests()
            .iter()
            .filter(|request| request.split == Split::Train)
            .map(|request| request.text.as_str())
            .collect();
        let (mut shown, mut time, mut events) = (HashMap::new(), 0, BTreeMap::new());
        for line in lines(&folder.logs()).unwrap() {
            let (_, json) = line.unwrap();
            let now = match Record::parse(&json).unwrap() {
                Record::Query(query) => {
                    assert!(typed.contains(&*query.text), "{}", query.text);
                    let hits: Vec<String> = query.hits.iter().map(|hit| hit.to_string()).collect();
                    assert!(shown.insert(query.query_id.to_string(), hits).is_none());
                    query.time
                }
                Record::Event(event) => {
                    let place = event.position.unwrap() as usize;
                    assert_eq!(shown[&*event.query_id][place - 1], event.item);
                    *events.entry(event.action).or_insert(0) += 1;
                    event.time
                }
                other => panic!("{other:?}"),
            };
            assert!(now >= time);
            time = now;
        }
        assert_eq!(events.values().sum::<u64>(), SPEC.events);
        assert!(
            events[&Action::Impression] > 10 * events[&Action::Click]
                && events[&Action::Click] > events[&Action::AddToCart]
        );
    }
}
