//! Evaluation task: the catalogue and one split's queries, judgements and slices. Duplicate items or queries, and judgements of
//! unknown queries, are errors. Judged items missing from the catalogue count as not found.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::run_file::one_word;
use souk_io::beir::DataFolder;
use souk_io::domain::{Item, Level};
use souk_io::error::{Error, Result};
use souk_io::held_out::HeldOut;
use souk_io::item_text::ItemText;
use souk_lexical::{Lexical, LexicalOptions, Passage, TermFeatures, TermMatcher};
use souk_reward::Judgements;

pub struct Task {
    pub data: String,
    pub split: String,
    /// Kind of the judgements, if they were derived from the search log.
    pub note: Option<String>,
    pub items: Vec<TaskItem>,
    rows: HashMap<String, u32>,
    pub queries: Vec<TaskQuery>,
    pub digests: Digests,
}

pub struct TaskItem {
    pub id: String,
    pub title: String,
    /// Text that encoder, lexical channel and judge read.
    pub text: String,
    /// Texts of other fields, which the lexical channel reads too.
    pub details: String,
    /// 0 to 1.
    pub quality: Option<f32>,
}

pub struct TaskQuery {
    pub id: String,
    pub text: String,
    pub slice: Option<String>,
    /// Judged items, by id.
    pub judged: BTreeMap<String, Level>,
    /// Judged items in the catalogue, by row.
    pub levels: HashMap<u32, Level>,
}

/// Content hashes of a task's parts. Results on equal hashes are comparable, wherever the files are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digests {
    pub catalogue: String,
    pub queries: String,
    pub judgements: String,
}

impl Task {
    /// Loads a split; `item_text` is the template of the items' texts.
    pub fn load(data: &DataFolder, split: &str, item_text: &ItemText) -> Result<Self> {
        let judgements = Judgements::gather("qrels", data.judgements(split)?)?;
        if judgements.num_queries() == 0 {
            return Err(Error::data(&data.qrels(split), None, "has no judgements: nothing to evaluate"));
        }
        let (items, rows, catalogue) = load_items(data, item_text)?;
        let queries = load_queries(data, split, &judgements, &rows)?;
        let digests = Digests { catalogue, queries: digest_queries(&queries), judgements: digest_judgements(&queries) };
        let note = HeldOut::load(data)?.and_then(|held_out| held_out.note(split));
        Ok(Self { data: data.path().display().to_string(), split: split.into(), note, items, rows, queries, digests })
    }

    pub fn row(&self, item: &str) -> Option<u32> {
        self.rows.get(item).copied()
    }

    /// BM25 over the items.
    pub fn lexical(&self, options: LexicalOptions) -> Result<Lexical> {
        let passage =
            |TaskItem { text, details, .. }: &TaskItem| Passage { text: text.clone(), details: details.clone() };
        Lexical::build_with(options, self.items.iter().map(|item| Ok(passage(item))))
    }

    pub fn item(&self, row: u32) -> &TaskItem {
        &self.items[row as usize]
    }
}

impl TaskItem {
    /// How well the item matches a query.
    pub fn compare(&self, matcher: &mut TermMatcher) -> TermFeatures {
        matcher.compare(&self.text, &self.details)
    }
}

impl TaskQuery {
    pub fn num_good(&self) -> usize {
        self.judged.values().filter(|level| level.is_good()).count()
    }
}

type Items = (Vec<TaskItem>, HashMap<String, u32>, String);

fn load_items(data: &DataFolder, item_text: &ItemText) -> Result<Items> {
    let file = data.corpus();
    let (mut items, mut rows, mut hash) = (Vec::new(), HashMap::new(), Fed::default());
    let title_and_text = ItemText::default();
    for item in data.items()? {
        let (line, item) = item?;
        let problem = |problem: String| Error::data(&file, Some(line), problem);
        one_word(&item.id).map_err(|e| problem("cannot be written to a run".into()).because(e))?;
        let quality = quality(&item, &file, line)?;
        let row = u32::try_from(items.len()).map_err(|e| problem("too many items".into()).because(e))?;
        if rows.insert(item.id.clone(), row).is_some() {
            return Err(problem(format!("two items have the id `{}`: ids must be unique", item.id)));
        }
        [&item.id, &item.title, &item.text, &format!("{quality:?}")].iter().for_each(|part| hash.feed(part));
        // whatever the template, and as before for items without other fields
        Some(title_and_text.details(&item)).filter(|others| !others.is_empty()).iter().for_each(|part| hash.feed(part));
        let (text, details) = (item_text.render(&item), item_text.details(&item));
        items.push(TaskItem { id: item.id, title: item.title, text, details, quality });
    }
    Ok((items, rows, hash.finish()))
}

fn quality(item: &Item, file: &Path, line: u64) -> Result<Option<f32>> {
    match item.fields.get("quality") {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_f64() {
            Some(quality) if (0.0..=1.0).contains(&quality) => Ok(Some(quality as f32)),
            _ => Err(Error::data(file, Some(line), format!("`quality` is {value}: use 0 to 1, or omit it"))),
        },
    }
}

/// Queries of the split, in the order of `queries.jsonl`.
fn load_queries(
    data: &DataFolder,
    split: &str,
    judgements: &Judgements,
    rows: &HashMap<String, u32>,
) -> Result<Vec<TaskQuery>> {
    let file = data.queries_file();
    let mut slices = data.slices()?;
    let mut missing: HashSet<&str> = judgements.queries().collect();
    let mut queries: Vec<TaskQuery> = Vec::with_capacity(missing.len());
    for query in data.queries()? {
        let query = query?;
        let judged: BTreeMap<String, Level> =
            judgements.of(&query.id).map(|(item, level)| (item.to_owned(), level)).collect();
        if judged.is_empty() {
            continue;
        }
        if !missing.remove(query.id.as_str()) {
            return Err(Error::data(
                &file,
                None,
                format!("two queries have the id `{}`: ids must be unique", query.id),
            ));
        }
        one_word(&query.id).map_err(|e| Error::data(&file, None, "cannot be written to a run").because(e))?;
        let levels = judged.iter().filter_map(|(item, level)| Some((*rows.get(item)?, *level))).collect();
        let slice = slices.remove(&query.id);
        queries.push(TaskQuery { id: query.id, text: query.text, slice, judged, levels });
    }
    match missing.iter().min() {
        Some(query) => {
            let problem = format!("judges {} queries that are not in queries.jsonl, such as `{query}`", missing.len());
            Err(Error::data(&data.qrels(split), None, problem))
        }
        None => Ok(queries),
    }
}

fn digest_queries(queries: &[TaskQuery]) -> String {
    let mut hash = Fed::default();
    for query in queries {
        [&query.id, &query.text, query.slice.as_deref().unwrap_or_default()].iter().for_each(|part| hash.feed(part));
    }
    hash.finish()
}

fn digest_judgements(queries: &[TaskQuery]) -> String {
    let mut hash = Fed::default();
    for query in queries {
        for (item, level) in &query.judged {
            [&query.id, item.as_str(), &level.number().to_string()].iter().for_each(|part| hash.feed(part));
        }
    }
    hash.finish()
}

/// Hash of texts that keeps their boundaries.
#[derive(Default)]
struct Fed(Sha256);

impl Fed {
    fn feed(&mut self, text: &str) {
        self.0.update((text.len() as u64).to_le_bytes());
        self.0.update(text.as_bytes());
    }

    fn finish(self) -> String {
        self.0.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn load(files: &[(&str, &str)]) -> Result<Task> {
        load_with(&ItemText::default(), files)
    }

    fn load_with(item_text: &ItemText, files: &[(&str, &str)]) -> Result<Task> {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("qrels")).unwrap();
        for (name, text) in files {
            fs::write(home.path().join(name), text).unwrap();
        }
        Task::load(&DataFolder::open(home.path()).unwrap(), "test", item_text)
    }

    const CORPUS: &str = "{\"_id\":\"a\",\"title\":\"Oak\",\"quality\":0.5}\n{\"_id\":\"b\",\"text\":\"desk\"}\n";
    const QUERIES: &str =
        "{\"_id\":\"q2\",\"text\":\"x\"}\n{\"_id\":\"q1\",\"text\":\"oak\"}\n{\"_id\":\"q3\",\"text\":\"y\"}\n";

    #[test]
    fn a_split_has_its_queries_in_order_with_what_is_judged() {
        let qrels = "q1\tb\t4\nq2\tgone\t3\nq1\ta\t1\nq2\ta\t2\n";
        let files = [("corpus.jsonl", CORPUS), ("queries.jsonl", QUERIES), ("qrels/test.tsv", qrels)];
        let task = load(&[&files[..], &[("slices.tsv", "q1\tknowledge\n")]].concat()).unwrap();
        let asked: Vec<_> = task.queries.iter().map(|q| (q.id.as_str(), q.num_good(), q.levels.len())).collect();
        assert_eq!(asked, [("q2", 1, 1), ("q1", 1, 2)], "what the catalogue lacks is Good all the same");
        assert_eq!((task.queries[1].slice.as_deref(), task.queries[0].slice.as_deref()), (Some("knowledge"), None));
        assert_eq!((task.items[0].quality, task.items[1].quality, task.row("b")), (Some(0.5), None, Some(1)));
        let again = load(&files).unwrap();
        assert_eq!(again.digests.catalogue, task.digests.catalogue);
        assert_eq!(again.digests.judgements, task.digests.judgements);
        assert_ne!(again.digests.queries, task.digests.queries, "slices are part of the queries");
    }

    #[test]
    fn details_count_in_the_digest_whatever_the_template() {
        let digest = |template: &str, corpus: &str| {
            let files = [("corpus.jsonl", corpus), ("queries.jsonl", QUERIES), ("qrels/test.tsv", "q1\tb\t4\n")];
            load_with(&template.parse().unwrap(), &files).unwrap().digests.catalogue
        };
        let branded = |brand: &str| CORPUS.replace("\"desk\"", &format!("\"desk\",\"brand\":\"{brand}\""));
        let plain = "{title} {text}";
        assert_eq!(digest(plain, &branded("Acme")), digest("{title} {brand}", &branded("Acme")));
        assert_ne!(digest(plain, &branded("Acme")), digest(plain, &branded("Zenith")));
        assert_eq!(digest(plain, &branded("")), digest(plain, CORPUS));
    }

    #[test]
    fn of_two_levels_of_a_pair_the_highest_counts() {
        let digest = |qrels: &str| {
            let task = load(&[("corpus.jsonl", CORPUS), ("queries.jsonl", QUERIES), ("qrels/test.tsv", qrels)]);
            task.unwrap().digests.judgements
        };
        let highest = digest("q1\tb\t4\nq1\ta\t2\n");
        assert_eq!(digest("q1\tb\t4\nq1\ta\t2\nq1\tb\t1\n"), highest);
        assert_eq!(digest("q1\tb\t1\nq1\ta\t2\nq1\tb\t4\n"), highest);
        assert_ne!(digest("q1\tb\t1\nq1\ta\t2\n"), highest);
    }

    #[test]
    fn what_would_make_a_number_wrong_is_refused() {
        let qrels = "q1\tb\t4\n";
        for (corpus, queries, qrels, expected) in [
            (&CORPUS.repeat(2)[..], QUERIES, qrels, "line 3: two items have the id `a`"),
            (CORPUS, &QUERIES.repeat(2)[..], qrels, "two queries have the id `q1`"),
            (CORPUS, QUERIES, "q9\tb\t4\nq1\ta\t1\n", "judges 1 queries that are not in queries.jsonl, such as `q9`"),
            (CORPUS, QUERIES, "\n", "has no judgements"),
            ("{\"_id\":\"a\",\"quality\":7}", QUERIES, qrels, "line 1: `quality` is 7: use 0 to 1"),
            ("{\"_id\":\"a b\"}", QUERIES, qrels, "line 1: cannot be written to a run"),
        ] {
            let found = load(&[("corpus.jsonl", corpus), ("queries.jsonl", queries), ("qrels/test.tsv", qrels)]);
            let error = found.err().unwrap().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
