//! Runs the lexical channel for `benches/lexical.py` and `tests/golden/make_bm25.py`, which compare it with bm25s.
//!
//!     lexical terms                      a text a line on standard input, its terms as a JSON array on standard output
//!     lexical search DATA SPLIT K OUT    OUT/hits.jsonl: the rows of the K best items of each query that SPLIT judges,
//!                                        OUT/speed.json: seconds to build; queries a second of one thread's processor
//!                                        time, which others on the machine do not change, and of the clock on all;
//!                                        of the former also with typos, with typos and details, and with the fusion of 100 hits
//!                                        of each channel, without details and with them.
//!                                        Translations are learned from the judgements of `train`
#![expect(clippy::unwrap_used, reason = "a bench that cannot go on stops")]

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{BufRead, BufWriter, Write, stdin, stdout};
use std::path::Path;
use std::time::Instant;

use serde_json::json;
use souk::beir::DataFolder;
use souk::domain::{Item, Level};
use souk::item_text::ItemText;
use souk::lexical::{
    ChannelHit, FeatureWeights, Fusion, Lexical, LexicalHit, LexicalOptions, ModelFusion, Passage, TranslationPairs,
    Translations, fuse, fusion_depth, terms,
};

const MEASURED_SECONDS: f64 = 2.0;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["terms"] => print_terms(),
        ["search", data, split, k, out] => search(Path::new(data), split, k.parse().unwrap(), Path::new(out)),
        _ => panic!("expected `terms` or `search DATA SPLIT K OUT`, got {arguments:?}"),
    }
}

fn print_terms() {
    let mut output = BufWriter::new(stdout().lock());
    for line in stdin().lock().lines() {
        serde_json::to_writer(&mut output, &terms(&line.unwrap())).unwrap();
        output.write_all(b"\n").unwrap();
    }
    output.flush().unwrap();
}

fn search(data: &Path, split: &str, k: usize, out: &Path) {
    let folder = DataFolder::open(data).unwrap();
    let start = Instant::now();
    let texts = || folder.items().unwrap().map(|item| Ok(ItemText::default().render(&item?.1)));
    let lexical = Lexical::build_with(LexicalOptions::LUCENE, texts()).unwrap();
    let build_s = start.elapsed().as_secs_f64();
    let judged: HashSet<String> = folder.judgements(split).unwrap().map(|row| row.unwrap().query).collect();
    let queries = folder.queries().unwrap().map(Result::unwrap).filter(|query| judged.contains(&query.id));
    let queries: Vec<_> = queries.collect();
    let asked: Vec<&str> = queries.iter().map(|query| query.text.as_str()).collect();

    let hits = lexical.search_many(&asked, k).unwrap();
    fs::create_dir_all(out).unwrap();
    write_hits(&out.join("hits.jsonl"), &queries, &hits);
    let one = |lexical: &Lexical| asked.iter().for_each(|query| drop(lexical.search(query, k).unwrap()));
    let one_thread = rate(asked.len(), thread_seconds, || one(&lexical));
    let clock = || start.elapsed().as_secs_f64();
    let all_threads = rate(asked.len(), clock, || drop(lexical.search_many(&asked, k).unwrap()));
    let typos = LexicalOptions { typos: true, ..LexicalOptions::LUCENE };
    let forgiving = Lexical::build_with(typos, texts()).unwrap();
    write_hits(&out.join("typos.jsonl"), &queries, &forgiving.search_many(&asked, k).unwrap());
    let typos_one_thread = rate(asked.len(), thread_seconds, || one(&forgiving));
    let template = ItemText::default();
    let passage = |item: &Item| Passage { text: template.render(item), details: template.details(item) };
    let passages: Vec<Passage> = folder.items().unwrap().map(|item| passage(&item.unwrap().1)).collect();
    let details = LexicalOptions { details: LexicalOptions::default().details, ..typos };
    let detailed = Lexical::build_with(details, passages.iter().cloned().map(Ok)).unwrap();
    let details_one_thread = rate(asked.len(), thread_seconds, || one(&detailed));
    let shop = Shop { passages: &passages, lexical: forgiving };
    let detailed = Shop { passages: &passages, lexical: detailed };
    let mut speed = json!({
        "items": lexical.num_items(), "build_s": build_s, "one_thread": one_thread, "all_threads": all_threads,
        "typos_one_thread": typos_one_thread, "details_one_thread": details_one_thread,
        "fused_one_thread": shop.fused_rate(&asked, &Fusion::default()),
        "details_fused_one_thread": detailed.fused_rate(&asked, &Fusion::default()),
    });
    if let Some(translations) = shop.learn(&folder) {
        // their sizes do not change the work
        let weights =
            FeatureWeights { dense: 4.0, lexical: 0.3, overlap: 2.0, trigrams: 4.0, ..FeatureWeights::default() };
        let weights = FeatureWeights { translation: 0.6, ..weights };
        for (name, translations) in [("fitted", Translations::default()), ("translated", translations)] {
            let fusion = Fusion::Fitted(ModelFusion { weights, translations });
            speed[format!("{name}_one_thread")] = json!(shop.fused_rate(&asked, &fusion));
        }
    }
    fs::write(out.join("speed.json"), speed.to_string()).unwrap();
}

struct Shop<'a> {
    passages: &'a [Passage],
    lexical: Lexical,
}

impl Shop<'_> {
    /// None without judgements of `train`.
    fn learn(&self, folder: &DataFolder) -> Option<Translations> {
        let judgements = folder.judgements("train").ok()?;
        let rows: HashMap<String, usize> =
            folder.items().unwrap().enumerate().map(|(row, item)| (item.unwrap().1.id, row)).collect();
        let queries: HashMap<String, String> =
            folder.queries().unwrap().map(|query| query.map(|query| (query.id, query.text)).unwrap()).collect();
        let mut pairs = TranslationPairs::default();
        for judgement in judgements.map(Result::unwrap).filter(|judgement| judgement.level >= Level::L3) {
            pairs.add(&queries[&judgement.query], &self.passages[rows[&judgement.item]].text, 1.0);
        }
        Some(pairs.learn(|_| true))
    }

    /// Queries per second of BM25 and of its fusion with the hits of another query, which stand for those of the vectors: as few items
    /// as possible are in both lists.
    fn fused_rate(&self, asked: &[&str], fusion: &Fusion) -> f64 {
        let depth = fusion_depth(10);
        let translations = fusion.translations();
        let channel = |hits: Vec<LexicalHit>| -> Vec<ChannelHit<u32>> {
            hits.into_iter().map(|hit| ChannelHit { key: hit.row, score: hit.score }).collect()
        };
        let other = Cell::new(Vec::new());
        rate(asked.len(), thread_seconds, || {
            for query in asked {
                let found = channel(self.lexical.search(query, depth).unwrap());
                let mut matcher = self.lexical.matcher(query).with_translations(&translations);
                let dense = other.replace(found.clone());
                let compare = |row: u32| {
                    let Passage { text, details } = &self.passages[row as usize];
                    matcher.compare(text, details)
                };
                drop(fuse(&dense, &found, fusion, 10, compare));
            }
        })
    }
}

fn write_hits(path: &Path, queries: &[souk::domain::Query], hits: &[Vec<LexicalHit>]) {
    let mut file = BufWriter::new(File::create(path).unwrap());
    for (query, hits) in queries.iter().zip(hits) {
        let rows: Vec<u32> = hits.iter().map(|hit| hit.row).collect();
        writeln!(file, "{}", json!({ "query": query.id, "rows": rows })).unwrap();
    }
    file.flush().unwrap();
}

/// Queries per second, over enough rounds to fill the time.
fn rate(num_queries: usize, seconds: impl Fn() -> f64, round: impl Fn()) -> f64 {
    let (start, mut rounds) = (seconds(), 0);
    while rounds == 0 || seconds() - start < MEASURED_SECONDS {
        round();
        rounds += 1;
    }
    (rounds * num_queries) as f64 / (seconds() - start)
}

/// Processor time of this thread.
fn thread_seconds() -> f64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e9
}
