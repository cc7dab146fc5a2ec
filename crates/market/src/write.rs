//! A market as a data folder: catalogue, queries, judgements, slices and the search log, beside the manifest that makes
//! the oracle. Everything is written as it is made; in memory are only what items are and the lexical index.

use std::path::Path;

use super::catalogue::{Catalogue, in_order};
use super::channel::{Candidate, Channel};
use super::oracle::{MANIFEST, Oracle, Plan};
use super::requests::{Split, query_id};
use super::rewrite::rewrite;
use super::seller::{self, item_id};
use super::sessions::Sessions;
use souk_io::beir::{Counts, DataWriter};
use souk_io::domain::{Item, Judgement, Level, Query};
use souk_io::error::Result;
use souk_lexical::Lexical;

/// What is being made, for those who wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Items,
    Judgements,
    LogLines,
}

/// Beside `queries.jsonl`: what each would be in sellers' words.
const REWRITES: &str = "rewrites.jsonl";
/// Of what the shop shows for a training query, so many are judged, as a panel of raters would.
const JUDGED_TRAIN: usize = 40;
/// For a test query all Good items are judged, and those that are not among so many that the shop shows.
const JUDGED_TEST: usize = 50;
/// Items that are written at once on all cores.
const PIECE: u32 = 16_384;

/// Writes the folder; `progress` hears how many more of something are done.
pub fn write(plan: &Plan, out: &Path, progress: &dyn Fn(Step, u64)) -> Result<Counts> {
    let mut writer = DataWriter::create(out)?;
    let oracle = Oracle::build(plan)?;
    writer.json(MANIFEST, &oracle.manifest(plan))?;
    let lexical = write_items(&mut writer, oracle.catalogue(), progress)?;
    let pools = Channel::new(oracle.catalogue(), lexical).pools(oracle.requests())?;
    write_queries(&mut writer, &oracle, &pools, progress)?;
    let requests = oracle.requests();
    let asked: Vec<usize> = (0..requests.len()).filter(|at| requests[*at].split == Split::Train).collect();
    let sessions = Sessions::new(oracle.catalogue(), requests, &pools, &asked);
    sessions.write(plan.events, &mut |json| {
        progress(Step::LogLines, 1);
        writer.log_line(json)
    })?;
    writer.finish()
}

/// Writes each item once, and hands its text to the lexical index on the way.
fn write_items(writer: &mut DataWriter, catalogue: &Catalogue, progress: &dyn Fn(Step, u64)) -> Result<Lexical> {
    let num_items = catalogue.len();
    let pieces = (0..num_items).step_by(PIECE as usize).map(|from| (from..num_items.min(from + PIECE)).collect());
    let items = pieces.flat_map(|rows: Vec<u32>| {
        progress(Step::Items, rows.len() as u64);
        in_order(&rows, |row| {
            let item: Option<Item> = catalogue.get(*row).map(|traits| seller::item(catalogue.seed, *row, traits));
            item.expect("the rows of a catalogue have items")
        })
    });
    Lexical::build(items.map(|item| {
        writer.item(&item)?;
        Ok(item.passage())
    }))
}

fn write_queries(
    writer: &mut DataWriter,
    oracle: &Oracle,
    pools: &[Vec<Candidate>],
    progress: &dyn Fn(Step, u64),
) -> Result<()> {
    for (at, (request, pool)) in oracle.requests().iter().zip(pools).enumerate() {
        let id = query_id(at);
        writer.query(&Query { id: id.clone(), text: request.text.clone() })?;
        writer.json(REWRITES, &Query { id: id.clone(), text: rewrite(&request.intent) })?;
        writer.slice(&id, request.slice.name())?;
        let shown = |most: usize| {
            pool.iter().take(most).filter_map(move |shown| Some((shown.row, oracle.judge(at, shown.row)?)))
        };
        let judged: Vec<(u32, Level)> = match request.split {
            Split::Train => shown(JUDGED_TRAIN).collect(),
            Split::Test => oracle.good(at).chain(shown(JUDGED_TEST).filter(|(_, level)| !level.is_good())).collect(),
        };
        for (row, level) in judged {
            writer.judgement(request.split.name(), &Judgement { query: id.clone(), item: item_id(row), level })?;
        }
        progress(Step::Judgements, 1);
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

    const PLAN: Plan = Plan { seed: 5, items: 1500, queries: 160, events: 3000 };

    fn market(plan: &Plan) -> (tempfile::TempDir, DataFolder) {
        let home = tempfile::tempdir().unwrap();
        let out = home.path().join("shop");
        write(plan, &out, &|_, _| {}).unwrap();
        let folder = DataFolder::open(&out).unwrap();
        (home, folder)
    }

    #[test]
    fn the_same_seed_is_the_same_folder_to_the_byte() {
        let ((_one, first), (_two, second)) = (market(&PLAN), market(&PLAN));
        let (_three, other) = market(&Plan { seed: 6, ..PLAN });
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
    fn judgements_name_what_is_there_and_agree_with_the_oracle() {
        let (_home, folder) = market(&PLAN);
        let oracle = Oracle::load(folder.path()).unwrap();
        let items: HashSet<String> = folder.items().unwrap().map(|item| item.unwrap().1.id).collect();
        assert_eq!(items.len(), PLAN.items as usize);
        let slices = folder.slices().unwrap();
        let texts: BTreeMap<String, String> =
            folder.queries().unwrap().map(|q| q.unwrap()).map(|q| (q.id, q.text)).collect();
        assert_eq!((texts.len(), slices.len()), (PLAN.queries, PLAN.queries));
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
    fn the_log_is_in_order_and_refers_to_what_was_shown() {
        let (_home, folder) = market(&PLAN);
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
        assert_eq!(events.values().sum::<u64>(), PLAN.events);
        assert!(
            events[&Action::Impression] > 10 * events[&Action::Click]
                && events[&Action::Click] > events[&Action::AddToCart]
        );
    }
}
