//! Reads a folder written by `souk market` and prints the tables of docs/market.md.
//!
//! cargo bench --bench market -- DIR

#![expect(clippy::print_stdout, reason = "this is what the program is for")]
#![expect(clippy::unwrap_used, reason = "a measurement stops at the first thing that is wrong")]

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::time::Instant;

use souk::beir::{DataFolder, lines};
use souk::domain::Level;
use souk::item_text::ItemText;
use souk::lexical::{Lexical, LexicalOptions};
use souk::market::{Oracle, QuerySlice, Split};
use souk::ubi::{Action, Record};

/// Impressions and clicks by query-item pair.
type Pairs = HashMap<(usize, u32), (u32, u32)>;

fn main() {
    // cargo adds `--bench`
    let Some(dir) = std::env::args().skip(1).find(|word| !word.starts_with("--")).map(PathBuf::from) else {
        println!("say which folder: cargo bench --bench market -- DIR");
        return;
    };
    let folder = DataFolder::open(&dir).unwrap();
    let oracle = Oracle::load(&dir).unwrap();
    let num_items = oracle.catalogue().len();
    println!("{num_items} items, {} queries\n", oracle.requests().len());
    let texts = folder.items().unwrap().map(|item| item.map(|(_, item)| ItemText::default().render(&item)));
    let lexical = Lexical::build_with(LexicalOptions::LUCENE, texts).unwrap();
    slices(&oracle, &lexical);
    let pairs = log(&folder, &oracle);
    clicks(&oracle, &pairs);
    speed(&oracle);
}

/// BM25 and the best possible result, by slice.
fn slices(oracle: &Oracle, lexical: &Lexical) {
    println!(
        "| slice | Good items (median) | BM25 Goodrate@10 | BM25 Goodrate@100 | reachable | share of reachable | BM25 Hitrate@100 |"
    );
    println!("|---|---|---|---|---|---|---|");
    for slice in QuerySlice::ALL {
        let (mut first, mut rate, mut reachable, mut hit, mut counts) = (vec![], vec![], vec![], vec![], vec![]);
        for (at, request) in oracle.requests().iter().enumerate() {
            if request.split != Split::Test || request.slice != slice {
                continue;
            }
            let num_good = oracle.good(at).count();
            let hits = lexical.search(&request.text, 100).unwrap();
            let good: Vec<bool> =
                hits.iter().map(|hit| oracle.judge(at, hit.row).is_some_and(Level::is_good)).collect();
            let found = good.iter().filter(|good| **good).count();
            first.push(10.0 * good.iter().take(10).filter(|good| **good).count() as f64);
            rate.push(found as f64);
            reachable.push(num_good.min(100) as f64);
            hit.push(100.0 * found as f64 / num_good as f64);
            counts.push(num_good);
        }
        counts.sort_unstable();
        let (first, rate, reachable, hit) = (mean(&first), mean(&rate), mean(&reachable), mean(&hit));
        let (name, median, share) = (slice.name(), counts[counts.len() / 2], 100.0 * rate / reachable);
        println!("| {name} | {median} | {first:.1} | {rate:.1} | {reachable:.1} | {share:.0} % | {hit:.1} |");
    }
    println!();
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Reads the search log.
fn log(folder: &DataFolder, oracle: &Oracle) -> Pairs {
    let places: HashMap<&str, usize> =
        oracle.requests().iter().enumerate().map(|(at, request)| (request.text.as_str(), at)).collect();
    let (mut searches, mut pairs) = (HashMap::new(), Pairs::new());
    let (mut actions, mut shown) = (BTreeMap::new(), HashSet::new());
    for line in lines(&folder.logs()).unwrap() {
        match Record::parse(&line.unwrap().1).unwrap() {
            Record::Query(query) => drop(searches.insert(query.query_id.to_string(), places[&*query.text])),
            Record::Event(event) => {
                *actions.entry(event.action).or_insert(0_u64) += 1;
                let row: u32 = event.item[1..].parse().unwrap();
                let pair = pairs.entry((searches[&*event.query_id], row)).or_default();
                match event.action {
                    Action::Impression => pair.0 += 1,
                    Action::Click => pair.1 += 1,
                    _ => {}
                }
                shown.insert(row);
            }
            _ => {}
        }
    }
    let typed: HashSet<usize> = searches.values().copied().collect();
    println!("{} searches with {} different queries", searches.len(), typed.len());
    actions.iter().for_each(|(action, count)| println!("- {}: {count}", action.name()));
    let never = oracle.catalogue().len() as usize - shown.len();
    println!("- items never shown: {:.1} %\n", 100.0 * never as f64 / f64::from(oracle.catalogue().len()));
    pairs
}

fn clicks(oracle: &Oracle, pairs: &Pairs) {
    let mut levels = [(0_u32, 0_u32); 4];
    let mut best: HashMap<usize, (u32, u32)> = HashMap::new();
    let (mut rates, mut graded) = (Vec::new(), Vec::new());
    for ((query, row), (shown, clicked)) in pairs {
        let level = oracle.judge(*query, *row).unwrap();
        let sum = &mut levels[usize::from(level.number()) - 1];
        (sum.0, sum.1) = (sum.0 + shown, sum.1 + clicked);
        let most = best.entry(*query).or_default();
        // ties go to the lower row, so that every run prints the same figure
        if (*clicked, std::cmp::Reverse(*row)) > (most.1, std::cmp::Reverse(most.0)) {
            *most = (*row, *clicked);
        }
        if *shown >= 5 {
            rates.push(f64::from(*clicked) / f64::from(*shown));
            graded.push(f64::from(level.number()));
        }
    }
    let (all_shown, all_clicked) = levels.iter().fold((0, 0), |sum, level| (sum.0 + level.0, sum.1 + level.1));
    println!("| level | of impressions | of clicks | click-through |");
    println!("|---|---|---|---|");
    for (level, (shown, clicked)) in Level::ALL.iter().zip(levels) {
        let share = |part: u32, whole: u32| 100.0 * f64::from(part) / f64::from(whole.max(1));
        println!(
            "| {level:?} | {:.1} % | {:.1} % | {:.2} % |",
            share(shown, all_shown),
            share(clicked, all_clicked),
            share(clicked, shown)
        );
    }
    let correlation = spearman(&rates, &graded);
    println!(
        "\n- Spearman of click-through and level, pairs shown 5 times or more ({}): {correlation:.3}",
        rates.len()
    );
    println!("- the most clicked item is Good, by slice:");
    for slice in QuerySlice::ALL {
        let of_slice: Vec<bool> = best
            .iter()
            .filter(|(query, (_, clicks))| oracle.requests()[**query].slice == slice && *clicks > 0)
            .map(|(query, (row, _))| oracle.judge(*query, *row).is_some_and(Level::is_good))
            .collect();
        let good = of_slice.iter().filter(|good| **good).count();
        println!(
            "  - {}: {:.0} % of {} queries",
            slice.name(),
            100.0 * good as f64 / of_slice.len().max(1) as f64,
            of_slice.len()
        );
    }
}

/// Spearman's rank correlation; ties have their mean rank.
fn spearman(a: &[f64], b: &[f64]) -> f64 {
    let (a, b) = (ranks(a), ranks(b));
    let (mean_a, mean_b) = (mean(&a), mean(&b));
    let product =
        |x: &[f64], mx: f64, y: &[f64], my: f64| x.iter().zip(y).map(|(x, y)| (x - mx) * (y - my)).sum::<f64>();
    product(&a, mean_a, &b, mean_b) / (product(&a, mean_a, &a, mean_a) * product(&b, mean_b, &b, mean_b)).sqrt()
}

fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0.0; values.len()];
    let mut from = 0;
    while from < order.len() {
        let end = (from..order.len()).find(|at| values[order[*at]] != values[order[from]]).unwrap_or(order.len());
        order[from..end].iter().for_each(|at| ranks[*at] = (from + end - 1) as f64 / 2.0);
        from = end;
    }
    ranks
}

/// Time per oracle call: whole queries, and random pairs.
fn speed(oracle: &Oracle) {
    let begin = Instant::now();
    let (num_queries, num_items) = (oracle.requests().len(), u64::from(oracle.catalogue().len()));
    let mut good = 0_u64;
    let total = 10_000_000_u64;
    for number in 0..total {
        // a stride that visits all pairs, far from each other
        let (query, row) = ((number * 7919) as usize % num_queries, (number * 104_729) % num_items);
        good += u64::from(oracle.judge(query, row as u32).is_some_and(Level::is_good));
    }
    let pairs = total as f64 / begin.elapsed().as_secs_f64() / 1e6;
    let begin = Instant::now();
    let (mut scanned, mut found) = (0_usize, 0_usize);
    for (at, request) in oracle.requests().iter().enumerate() {
        scanned += oracle.catalogue().of_function(request.intent.function).len();
        found += oracle.good(at).count();
    }
    let scans = scanned as f64 / begin.elapsed().as_secs_f64() / 1e6;
    println!(
        "\n- judgements, million a second, one thread: {pairs:.1} at random ({good} Good), {scans:.1} in scans ({found} Good)"
    );
}
