//! Translations of words: the probability T(t | x) that a query has the term t if an item that answers it has the term x. `duplex` and
//! `leviton` translate to `outlet`. `learn` takes them from pairs of a query and an item; they are in `translations.tsv` in the model's
//! folder.

mod learn;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;
use std::sync::Arc;

use souk_io::atomic_dir::write_atomic;
use souk_io::beir::lines;
use souk_io::error::{Error, Result};
use souk_io::fnv::hash_text;

pub use learn::TranslationPairs;

/// File in a model's folder.
pub const TRANSLATIONS: &str = "translations.tsv";
const HEADER: &str = "query\titem\tprobability";

/// Terms of items and the terms of queries that they translate to; empty by default.
#[derive(Clone, Debug, Default)]
pub struct Translations {
    by_query: Arc<HashMap<Box<str>, QueryTranslations>>,
}

/// The terms of items that translate to one term of a query, by hash, because search looks up thousands.
pub type QueryTranslations = Arc<[Translation]>;

#[derive(Clone, Debug, PartialEq)]
pub struct Translation {
    hash: u64,
    item: Box<str>,
    /// T(query term | item term).
    probability: f32,
}

/// T of an item's term, whose hash is `hash`.
pub fn probability(translations: &[Translation], item: &str, hash: u64) -> Option<f32> {
    let at = translations.partition_point(|known| known.hash < hash);
    let same = translations[at..].iter().take_while(|known| known.hash == hash);
    same.filter(|known| &*known.item == item).map(|known| known.probability).next()
}

impl PartialEq for Translations {
    fn eq(&self, other: &Self) -> bool {
        // quick for two requests to one version
        Arc::ptr_eq(&self.by_query, &other.by_query) || self.by_query == other.by_query
    }
}

impl Translations {
    /// From terms of queries, terms of items and T. A pair of terms must not occur twice.
    fn new(entries: impl Iterator<Item = (Box<str>, Box<str>, f32)>) -> Self {
        let mut by_query: HashMap<Box<str>, Vec<Translation>> = HashMap::new();
        for (query, item, probability) in entries {
            by_query.entry(query).or_default().push(Translation { hash: hash_text(&item), item, probability });
        }
        let sorted = by_query.into_iter().map(|(query, mut of_query)| {
            of_query.sort_by(|a, b| a.hash.cmp(&b.hash).then_with(|| a.item.cmp(&b.item)));
            (query, of_query.into())
        });
        Self { by_query: Arc::new(sorted.collect()) }
    }

    /// Number of pairs of terms.
    pub fn len(&self) -> usize {
        self.by_query.values().map(|of_query| of_query.len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.by_query.is_empty()
    }

    /// Terms of items that translate to a term of a query.
    pub fn of(&self, query_term: &str) -> QueryTranslations {
        self.by_query.get(query_term).cloned().unwrap_or_default()
    }

    /// Empty if the model in a folder has none.
    pub fn load(dir: &Path) -> Result<Self> {
        let path = dir.join(TRANSLATIONS);
        if !path.exists() {
            return Ok(Self::default());
        }
        let problem = |line, problem: &str| {
            let remedy = "fit the model's weights again with `souk fit-fusion`";
            Error::data(&path, Some(line), format!("{problem}: {remedy}"))
        };
        let mut entries: BTreeMap<(Box<str>, Box<str>), f32> = BTreeMap::new();
        for line in lines(&path)? {
            let (number, line) = line?;
            let line = str::from_utf8(&line).map_err(|e| problem(number, "is not UTF-8").because(e))?;
            if number == 1 {
                if line != HEADER {
                    return Err(problem(1, "is not the header `query item probability` with tabs between"));
                }
                continue;
            }
            let columns: Vec<&str> = line.split('\t').collect();
            let [query, item, probability] = columns[..] else {
                return Err(problem(number, "has not three columns with tabs between"));
            };
            let probability: f32 =
                probability.parse().map_err(|e| problem(number, "has no number in its last column").because(e))?;
            if !(0.0..=1.0).contains(&probability) {
                return Err(problem(number, "has a probability that is not between 0 and 1"));
            }
            if entries.insert((query.into(), item.into()), probability).is_some() {
                return Err(problem(number, "repeats a pair of terms"));
            }
        }
        Ok(Self::new(entries.into_iter().map(|((query, item), probability)| (query, item, probability))))
    }

    /// Writes the file; removes it if there are none.
    pub fn save(&self, dir: &Path) -> Result<()> {
        let path = dir.join(TRANSLATIONS);
        if self.is_empty() {
            return if path.exists() {
                fs::remove_file(&path).map_err(Error::store(&path, "remove it"))
            } else {
                Ok(())
            };
        }
        let mut text = format!("{HEADER}\n");
        for (query, of_query) in self.by_query.iter().collect::<BTreeMap<_, _>>() {
            let by_item: BTreeMap<&str, f32> = of_query.iter().map(|of| (&*of.item, of.probability)).collect();
            for (item, probability) in by_item {
                text += &format!("{query}\t{item}\t{probability}\n");
            }
        }
        write_atomic(&path, text.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translations(entries: &[(&str, &str, f32)]) -> Translations {
        Translations::new(entries.iter().map(|(query, item, t)| ((*query).into(), (*item).into(), *t)))
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let home = tempfile::tempdir().unwrap();
        assert!(Translations::load(home.path()).unwrap().is_empty());
        let all =
            translations(&[("outlet", "leviton", 0.125), ("outlet", "duplex", 1.0 / 3.0), ("3/8", "wrench", 0.5)]);
        all.save(home.path()).unwrap();
        let text = fs::read_to_string(home.path().join(TRANSLATIONS)).unwrap();
        assert_eq!(
            text,
            "query\titem\tprobability\n3/8\twrench\t0.5\noutlet\tduplex\t0.33333334\noutlet\tleviton\t0.125\n"
        );
        assert_eq!(Translations::load(home.path()).unwrap(), all);
        assert_eq!((all.len(), all.of("outlet").len(), all.of("oak").len()), (3, 2, 0));
        Translations::default().save(home.path()).unwrap();
        assert!(!home.path().join(TRANSLATIONS).exists());
    }

    #[test]
    fn a_broken_line_is_an_error_that_names_it() {
        let home = tempfile::tempdir().unwrap();
        for (text, expected) in [
            ("outlet\tduplex\t0.5\n", "line 1: is not the header"),
            ("query\titem\tprobability\noutlet\t0.5\n", "line 2: has not three columns"),
            ("query\titem\tprobability\noutlet\tduplex\thalf\n", "line 2: has no number in its last column"),
            (
                "query\titem\tprobability\noutlet\tduplex\tNaN\n",
                "line 2: has a probability that is not between 0 and 1",
            ),
            (
                "query\titem\tprobability\noutlet\tduplex\t0.5\noutlet\tduplex\t0.5\n",
                "line 3: repeats a pair of terms: fit the model's weights again with `souk fit-fusion`",
            ),
        ] {
            fs::write(home.path().join(TRANSLATIONS), text).unwrap();
            let error = Translations::load(home.path()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
