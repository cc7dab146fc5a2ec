//! The lexical channel compared with bm25s (`tests/golden/bm25`, or the folder in `SOUK_GOLDEN`), properties for random
//! texts, and recall on the Home Depot data in the folder SOUK_DATA (docs/evaluation.md).

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use serde::Deserialize;
use souk_io::beir::DataFolder;
use souk_io::item_text::ItemText;
use souk_lexical::{Language, Lexical, LexicalHit, LexicalOptions, Passage, TermFeatures, UnindexedTexts, terms};

#[derive(Deserialize)]
struct Expected {
    query: String,
    terms: Vec<String>,
    hits: Vec<(u32, f32)>,
}

fn root() -> PathBuf {
    souk_testing::repository()
}

fn built(data: &Path, options: LexicalOptions) -> Lexical {
    let folder = DataFolder::open(data).unwrap();
    Lexical::build_with(options, folder.items().unwrap().map(|item| Ok(ItemText::default().render(&item?.1)))).unwrap()
}

#[test]
fn scores_and_order_equal_bm25s() {
    let golden = std::env::var_os("SOUK_GOLDEN").map_or(root().join("tests/golden"), PathBuf::from);
    let expected: Vec<Expected> =
        serde_json::from_slice(&fs::read(golden.join("bm25/expected.json")).unwrap()).unwrap();
    let shop = built(&root().join("docs/demo"), LexicalOptions::LUCENE);
    for Expected { query, terms: expected_terms, hits } in &expected {
        assert_eq!(&terms(query), expected_terms, "{query}");
        let found = shop.search(query, 1000).unwrap();
        assert_eq!(found.len(), hits.len(), "{query}");
        // scores that differ only by rounding may be in either order
        for (hit, (_, score)) in found.iter().zip(hits) {
            assert!((hit.score - score).abs() < 2e-5, "{query}: {hit:?} is not {score}");
        }
        for (row, score) in hits {
            let hit = found.iter().find(|hit| hit.row == *row).unwrap();
            assert!((hit.score - score).abs() < 2e-5, "{query}: {hit:?} is not {score}");
        }
    }
    assert!(expected.iter().filter(|expected| expected.hits.len() > 1).count() > 40);
}

fn texts() -> impl Strategy<Value = Vec<String>> {
    let word = prop_oneof!["[a-e]{1,3}", "[0-9]{1,2}", Just("in.".to_owned()), "\\PC{0,4}"];
    let text = prop::collection::vec(word, 0..12).prop_map(|words| words.join(" "));
    prop::collection::vec(text, 1..30)
}

proptest! {
    #[test]
    fn top_k_is_a_prefix_of_all_hits(texts in texts(), details in texts(), k in 0_usize..10) {
        let passages: Vec<Passage> = texts.iter().zip(details.iter().cycle())
            .map(|(text, details)| Passage { text: text.clone(), details: details.clone() }).collect();
        let options = LexicalOptions { details: 0.3, ..LexicalOptions::LUCENE };
        let shop = Lexical::build_with(options, passages.iter().cloned().map(Ok)).unwrap();
        for query in texts.iter().chain(&details) {
            let all = shop.search(query, texts.len()).unwrap();
            prop_assert_eq!(&shop.search(query, k).unwrap()[..], &all[..k.min(all.len())]);
            let ordered = |a: &LexicalHit, b: &LexicalHit| a.score > b.score || a.score == b.score && a.row < b.row;
            prop_assert!(all.windows(2).all(|pair| ordered(&pair[0], &pair[1])));
            // a row is found if and only if its text or its details share a term
            let query_terms: HashSet<String> = terms(query).into_iter().collect();
            let sharing = |text: &String| terms(text).iter().any(|term| query_terms.contains(term));
            let found: HashSet<u32> = all.iter().map(|hit| hit.row).collect();
            let expected = (0..).zip(&passages).filter(|(_, passage)| sharing(&passage.text) || sharing(&passage.details));
            let expected = expected.map(|(row, _)| row);
            prop_assert_eq!(found, expected.collect::<HashSet<u32>>());
        }
    }

    #[test]
    fn features_are_in_their_ranges(texts in texts(), query in "\\PC{0,30}", typos in any::<bool>()) {
        let options = LexicalOptions { typos, ..LexicalOptions::default() };
        let shop = Lexical::build_with(options, texts.iter().cloned().map(Ok)).unwrap();
        for text in &texts {
            let TermFeatures { overlap, trigrams, .. } = shop.matcher(&query).compare(text, "");
            prop_assert!((0.0..=1.0).contains(&overlap) && (0.0..=1.0).contains(&trigrams), "{} {}", overlap, trigrams);
            let own = shop.matcher(text).compare(text, "");
            prop_assert_eq!(own.overlap, if terms(text).is_empty() { 0.0 } else { 1.0 });
            prop_assert_eq!(own.missing_numbers, 0.0);
            prop_assert_eq!(shop.matcher(text).compare("", "").overlap, 0.0);
        }
    }
}

#[test]
fn a_saved_index_keeps_its_language() {
    let home = tempfile::tempdir().unwrap();
    let items = ["Lampe aus Messing", "Stühle für die Küche", "洗濯機 白色"].map(|item| Ok(item.to_owned()));
    let options = LexicalOptions { language: Language::German, typos: false, ..LexicalOptions::default() };
    Lexical::build_in(&home.path().join("lexical"), options, items.into_iter()).unwrap();
    let shop = Lexical::load(&home.path().join("lexical")).unwrap();
    assert_eq!(shop.language(), Language::German);
    let found = |query: &str| shop.search(query, 9).unwrap().into_iter().map(|hit| hit.row).collect::<Vec<_>>();
    assert_eq!((found("Lampen"), found("Stuhl"), found("die"), found("濯機")), (vec![0], vec![1], vec![], vec![2]));
    // texts that are not in the index are read in its language too
    let mut texts = UnindexedTexts::new(shop.language());
    texts.push("rote Lampen");
    assert_eq!(shop.search_unindexed("Lampe", &texts).unwrap().len(), 1);
    assert_eq!(shop.matcher("Lampe").compare("rote Lampen", "").overlap, 1.0);
}

#[test]
fn very_long_queries_are_searched() {
    let shop = Lexical::build(["oak desk".to_owned(), "lamp".to_owned()].into_iter().map(Ok)).unwrap();
    let long = "desk qwertz ".repeat(100_000);
    assert_eq!(shop.search(&long, usize::MAX).unwrap().len(), 1);
    assert!(shop.matcher(&long).compare("desk", "").overlap < 1.0);
}

#[test]
fn real_queries_reach_recall_and_typo_correction_raises_it() {
    // relative to the repository, as in the scripts
    let folder = std::env::var_os("SOUK_DATA").filter(|folder| !folder.is_empty());
    let data = folder.map(|folder| root().join(folder).join("home_depot"));
    let Some(data) = data.filter(|data| data.exists()) else {
        skip("real_queries_reach_recall_and_typo_correction_raises_it");
        return;
    };
    let folder = DataFolder::open(&data).unwrap();
    let judgements: Vec<_> = folder.judgements("dev").unwrap().map(Result::unwrap).collect();
    let good: HashSet<_> =
        judgements.iter().filter(|row| row.level.is_good()).map(|row| (&row.query, &row.item)).collect();
    let judged: HashSet<_> = good.iter().map(|(query, _)| *query).collect();
    let ids: Vec<String> = folder.items().unwrap().map(|item| item.unwrap().1.id).collect();
    let queries: Vec<_> =
        folder.queries().unwrap().map(Result::unwrap).filter(|row| judged.contains(&row.id)).collect();
    let texts: Vec<&str> = queries.iter().map(|query| query.text.as_str()).collect();
    // recall of Good items at 100
    let recall = |typos: bool| {
        let shop = built(&data, LexicalOptions { typos, ..LexicalOptions::LUCENE });
        let hits = shop.search_many(&texts, 100).unwrap();
        let pairs = queries.iter().zip(&hits).flat_map(|(query, hits)| hits.iter().map(move |hit| (&query.id, hit)));
        let found = pairs.filter(|(query, hit)| good.contains(&(*query, &ids[hit.row as usize]))).count();
        found as f64 / good.len() as f64
    };
    let (strict, corrected) = (recall(false), recall(true));
    assert!(strict > 0.70, "{strict}");
    assert!(corrected > strict + 0.01, "{corrected} with typos, {strict} without");
}

fn skip(name: &str) {
    use std::io::Write;
    if let Some(path) = std::env::var_os("SOUK_SKIPPED") {
        let mut file = fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
        writeln!(file, "{name}: no shared data: SOUK_DATA has no folder home_depot").unwrap();
    }
}
