//! Engines under evaluation. An engine answers queries with catalogue rows, best first. Vectors are compared by brute force, a
//! block of queries at a time, on all cores. A TREC run is ranked like trec_eval. The first hits of any of them can be reranked by
//! a judge.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use tch::Tensor;

use super::run_file::{RunLine, read_run};
use super::task::{Task, TaskQuery};
use souk_cross_encoder::{PairScorer, Reordered, reorder};
use souk_io::beir::lines;
use souk_io::cores::on_all_cores;
use souk_io::domain::{Query, TextKind};
use souk_io::error::{Error, Result};
use souk_lexical::{ChannelHit, FusedHit, Fusion, Lexical, LexicalHit, Translations, fuse, fusion_depth};
use souk_nn::encoder::{EncoderWorker, encode};
use souk_reward::{Question, RewardSource};

/// Limit on the scores of one block: 64 MB.
const BLOCK_SCORES: usize = 1 << 24;
/// Maximum queries per block.
const BLOCK_QUERIES: usize = 256;
pub(super) const RERANKED_QUERIES: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineHit {
    pub row: u32,
    pub score: f32,
}

pub enum Engine {
    /// Vectors `[items, d]` and `[queries, d]` in task order, compared by dot product.
    Dense { items: Tensor, queries: Tensor },
    /// Both channels, fused like hybrid searches of the search service. Each query with its translations.
    Hybrid { items: Tensor, queries: Tensor, asked: Vec<(String, Translations)>, fusion: Fusion },
    /// Lexical channel, queried with these texts.
    Lexical(Vec<String>),
    /// Hits by query.
    Run(Vec<Vec<EngineHit>>),
    /// The first `depth` hits of an engine, ordered again.
    Reranked { first: Box<Engine>, by: Reranking, depth: usize },
}

/// A way to order the first hits again.
pub enum Reranking {
    /// A judge's scores.
    Judge(Arc<dyn RewardSource>),
    /// The relevance model of a version, as in `/search`: the weighted sum of the hit's score and the model's output.
    Version { scorer: Box<PairScorer>, weight: f32 },
}

impl Reranking {
    /// The pipeline `first` with its first `depth` hits reranked, in words.
    pub fn pipeline(&self, first: &str, depth: usize) -> String {
        match self {
            Self::Judge(judge) => format!("{first}, first {depth} reranked by {}", judge.id()),
            Self::Version { scorer, weight } => {
                format!("{first}, first {depth} reranked by {} with weight {weight}", scorer.id())
            }
        }
    }
}

impl Engine {
    /// From vectors in the order of the task's items and queries.
    pub fn dense(task: &Task, items: &[f32], queries: &[f32]) -> Result<Self> {
        let matrix = |flat: &[f32], rows: usize, what: &str| -> Result<Tensor> {
            if rows == 0 || flat.is_empty() || !flat.len().is_multiple_of(rows) {
                return Err(Error::input(format!("{} numbers are not vectors for {rows} {what}", flat.len())));
            }
            if flat.iter().any(|number| !number.is_finite()) {
                return Err(Error::input(format!(
                    "the vectors of the {what} hold what is no number: the model is broken"
                )));
            }
            Ok(Tensor::from_slice(flat).view([rows as i64, (flat.len() / rows) as i64]))
        };
        let items = matrix(items, task.items.len(), "items")?;
        let queries = matrix(queries, task.queries.len(), "queries")?;
        if items.size()[1] != queries.size()[1] {
            return Err(Error::input("the vectors of items and queries differ in length"));
        }
        Ok(Self::Dense { items, queries })
    }

    /// Encodes the task's items and queries with a model. `progress` is called for each text and can stop.
    pub fn encode(task: &Task, worker: &EncoderWorker, mut progress: impl FnMut() -> Result<()>) -> Result<Self> {
        let items = Self::encode_items(task, worker, &mut progress)?;
        Self::encode_queries(task, worker, &items, progress)
    }

    /// Vectors of the task's items.
    pub fn encode_items(task: &Task, worker: &EncoderWorker, progress: impl FnMut() -> Result<()>) -> Result<Vec<f32>> {
        let texts = task.items.iter().map(|item| (item.id.as_str(), item.text.as_str()));
        vectors(task, worker, TextKind::Item, texts, progress)
    }

    /// From the items' vectors.
    pub fn encode_queries(
        task: &Task,
        worker: &EncoderWorker,
        items: &[f32],
        progress: impl FnMut() -> Result<()>,
    ) -> Result<Self> {
        let texts = task.queries.iter().map(|query| (query.id.as_str(), query.text.as_str()));
        let queries = vectors(task, worker, TextKind::Query, texts, progress)?;
        Self::dense(task, items, &queries)
    }

    /// Adds the lexical channel to vectors.
    pub fn hybrid(self, task: &Task, fusion: Fusion) -> Result<Self> {
        let translations = fusion.translations();
        self.hybrid_with(task, fusion, |_| translations.clone())
    }

    /// Adds the lexical channel to vectors, with translations that depend on the query.
    pub fn hybrid_with(
        self,
        task: &Task,
        fusion: Fusion,
        translations: impl Fn(&TaskQuery) -> Translations,
    ) -> Result<Self> {
        fusion.check()?;
        let asked = task.queries.iter().map(|query| (query.text.clone(), translations(query))).collect();
        match self {
            Self::Dense { items, queries } => Ok(Self::Hybrid { items, queries, asked, fusion }),
            _ => Err(Error::input("hybrid search needs the vectors of a model")),
        }
    }

    /// Orders the first `depth` hits again.
    pub fn reranked(self, by: Reranking, depth: usize) -> Self {
        Self::Reranked { first: Box::new(self), by, depth }
    }

    /// Channels that answer the queries, in words.
    pub fn pipeline(&self) -> String {
        match self {
            Self::Reranked { first, by, depth } => by.pipeline(&first.pipeline(), *depth),
            Self::Dense { .. } => pipeline_of(None),
            Self::Hybrid { fusion, .. } => pipeline_of(Some(fusion)),
            Self::Lexical(_) => "lexical".into(),
            Self::Run(_) => "run file".into(),
        }
    }

    /// Queries with their own texts, or with rewritten ones from a file of `_id` and `text`.
    pub fn lexical(task: &Task, rewrites: Option<&Path>) -> Result<Self> {
        let mut texts: HashMap<String, String> = HashMap::new();
        for line in rewrites.map(lines).transpose()?.into_iter().flatten() {
            let (number, line) = line?;
            let query: Query = serde_json::from_slice(&line).map_err(|e| {
                let file = rewrites.unwrap_or(Path::new(""));
                Error::data(file, Some(number), "not a query: expected {\"_id\", \"text\"}").because(e)
            })?;
            texts.insert(query.id, query.text);
        }
        let text = |query: &TaskQuery| texts.remove(&query.id).unwrap_or_else(|| query.text.clone());
        Ok(Self::Lexical(task.queries.iter().map(text).collect()))
    }

    /// Loads a TREC run. Lines for queries of other splits are ignored.
    pub fn run(task: &Task, file: &Path) -> Result<Self> {
        let places: HashMap<&str, usize> =
            task.queries.iter().zip(0..).map(|(query, at)| (query.id.as_str(), at)).collect();
        let mut answers = vec![Vec::new(); task.queries.len()];
        for line in read_run(file)? {
            let RunLine { line, query, item, score } = line?;
            let Some(at) = places.get(query.as_str()) else { continue };
            let unknown = || format!("lists item `{item}`, which is not in the catalogue of {}", task.data);
            let row = task.row(&item).ok_or_else(|| Error::data(file, Some(line), unknown()))?;
            answers[*at].push(EngineHit { row, score });
            if answers[*at].len() > task.items.len() {
                let problem = format!("lists more items for query `{query}` than the catalogue has");
                return Err(Error::data(file, Some(line), problem));
            }
        }
        if answers.iter().all(Vec::is_empty) {
            let problem = format!("answers none of the {} queries of split `{}`", task.queries.len(), task.split);
            return Err(Error::data(file, None, problem));
        }
        let unanswered = answers.iter().filter(|hits| hits.is_empty()).count();
        if unanswered > 0 {
            tracing::warn!("{} has no hits for {unanswered} queries: they count as misses", file.display());
        }
        for (query, hits) in task.queries.iter().zip(&mut answers) {
            hits.sort_unstable_by_key(|hit| hit.row);
            if let Some(pair) = hits.windows(2).find(|pair| pair[0].row == pair[1].row) {
                let item = &task.item(pair[0].row).id;
                return Err(Error::data(file, None, format!("lists item `{item}` twice for query `{}`", query.id)));
            }
            let id = |hit: &EngineHit| &task.item(hit.row).id;
            hits.sort_unstable_by(|a, b| b.score.total_cmp(&a.score).then_with(|| id(b).cmp(id(a))));
        }
        Ok(Self::Run(answers))
    }

    /// Queries per block.
    pub fn block(&self, task: &Task) -> usize {
        match self {
            Self::Dense { .. } | Self::Hybrid { .. } => (BLOCK_SCORES / task.items.len()).clamp(1, BLOCK_QUERIES),
            Self::Lexical(_) | Self::Run(_) => BLOCK_QUERIES,
            // progress is shown by block
            Self::Reranked { first, .. } => first.block(task).min(RERANKED_QUERIES),
        }
    }

    /// First `depth` hits for a block of queries.
    pub fn hits(
        &self,
        task: &Task,
        lexical: &Lexical,
        block: Range<usize>,
        depth: usize,
    ) -> Result<Vec<Vec<EngineHit>>> {
        match self {
            Self::Reranked { first, by, depth: num } => {
                let mut answers = first.hits(task, lexical, block.clone(), depth.max(*num))?;
                match by {
                    Reranking::Judge(judge) => {
                        judge_first(&task.queries[block], &mut answers, judge.as_ref(), task, *num)?
                    }
                    Reranking::Version { scorer, weight } => {
                        let scorer = WeightedScorer { scorer, weight: *weight, depth: *num };
                        let mut answered = task.queries[block].iter().zip(&mut answers);
                        answered.try_for_each(|(query, hits)| scorer.reorder(task, query, hits))?;
                    }
                }
                answers.iter_mut().for_each(|hits| hits.truncate(depth));
                Ok(answers)
            }
            Self::Dense { items, queries } => nearest(items, queries, block, depth),
            Self::Hybrid { items, queries, asked, fusion } => {
                let dense = nearest(items, queries, block.clone(), fusion_depth(depth))?;
                let asked = &asked[block];
                let texts: Vec<&str> = asked.iter().map(|(text, _)| text.as_str()).collect();
                let found = lexical.search_many(&texts, fusion_depth(depth))?;
                Ok(on_all_cores(texts.len(), |at| {
                    let mut matcher = lexical.matcher(texts[at]).with_translations(&asked[at].1);
                    let (dense, lexical) = (of_vectors(&dense[at]), of_terms(&found[at]));
                    let hits = fuse(&dense, &lexical, fusion, depth, |row| task.item(row).compare(&mut matcher));
                    let row = |hit: &FusedHit| {
                        hit.dense.map(|part| dense[part.place].key).or(hit.lexical.map(|part| lexical[part.place].key))
                    };
                    hits.iter().filter_map(|hit| Some(EngineHit { row: row(hit)?, score: hit.score })).collect()
                }))
            }
            Self::Lexical(texts) => {
                let texts: Vec<&str> = texts[block].iter().map(String::as_str).collect();
                let answers = lexical.search_many(&texts, depth)?;
                let found = |hits: Vec<_>| hits.into_iter().map(found).collect();
                Ok(answers.into_iter().map(found).collect())
            }
            Self::Run(answers) => {
                Ok(answers[block].iter().map(|hits| hits[..hits.len().min(depth)].to_vec()).collect())
            }
        }
    }
}

/// The pipeline of a model, alone or with the lexical channel, in words.
pub fn pipeline_of(hybrid: Option<&Fusion>) -> String {
    hybrid.map_or("dense".into(), |fusion| format!("hybrid ({})", fusion.describe()))
}

pub(super) fn of_vectors(hits: &[EngineHit]) -> Vec<ChannelHit<u32>> {
    hits.iter().map(|hit| ChannelHit { key: hit.row, score: hit.score }).collect()
}

pub(super) fn of_terms(hits: &[LexicalHit]) -> Vec<ChannelHit<u32>> {
    hits.iter().map(|hit| ChannelHit { key: hit.row, score: hit.score }).collect()
}

/// Vectors of texts, given with the ids that errors name.
fn vectors<'a>(
    task: &Task,
    worker: &EncoderWorker,
    kind: TextKind,
    texts: impl Iterator<Item = (&'a str, &'a str)>,
    mut progress: impl FnMut() -> Result<()>,
) -> Result<Vec<f32>> {
    let mut flat = Vec::new();
    let text_of = |named: &(&str, &str)| named.1.to_owned();
    let location_of = |named: &(&str, &str)| format!("`{}` of {}", named.0, task.data);
    encode(worker, Some(kind), texts.map(Ok), (text_of, location_of), |_, vector| {
        flat.extend(vector);
        progress()
    })?;
    Ok(flat)
}

/// Orders the first `num` hits of each query by the judge's scores; equal ones keep their order. A hit's score becomes the judge's, and
/// those of the rest are moved below.
fn judge_first(
    queries: &[TaskQuery],
    answers: &mut [Vec<EngineHit>],
    judge: &dyn RewardSource,
    task: &Task,
    num: usize,
) -> Result<()> {
    let asked = queries.iter().zip(&*answers).flat_map(|(query, hits)| {
        hits.iter().take(num).map(|hit| {
            let item = task.item(hit.row);
            Question { query_id: &query.id, query: &query.text, item_id: &item.id, item: &item.text }
        })
    });
    let mut verdicts = judge.judge(&asked.collect::<Vec<_>>())?.into_iter();
    for (query, hits) in queries.iter().zip(answers) {
        let num = num.min(hits.len());
        let (first, rest) = hits.split_at_mut(num);
        for hit in &mut *first {
            let missing = || Error::input(format!("the judge `{}` has no verdict on query `{}`", judge.id(), query.id));
            hit.score = verdicts.next().flatten().ok_or_else(missing)?.score;
        }
        first.sort_by(|a, b| b.score.total_cmp(&a.score));
        let (last, next) = (first.last().map_or(0.0, |hit| hit.score), rest.first().map_or(0.0, |hit| hit.score));
        rest.iter_mut().for_each(|hit| hit.score += last - next - 1.0);
    }
    Ok(())
}

/// A relevance model that reads the first `depth` hits, and the weight of its output.
struct WeightedScorer<'a> {
    scorer: &'a PairScorer,
    weight: f32,
    depth: usize,
}

impl WeightedScorer<'_> {
    /// Orders the first hits of a query by the weighted sum.
    fn reorder(&self, task: &Task, query: &TaskQuery, hits: &mut [EngineHit]) -> Result<()> {
        let (first, rest) = hits.split_at_mut(self.depth.min(hits.len()));
        let texts: Vec<&str> = first.iter().map(|hit| task.item(hit.row).text.as_str()).collect();
        let outputs = self.scorer.outputs(&query.text, &texts)?;
        let (rows, fused): (Vec<u32>, Vec<f32>) = first.iter().map(|hit| (hit.row, hit.score)).unzip();
        let next = rest.first().map(|hit| hit.score);
        let Reordered { hits: order, shift } = reorder(&fused, &outputs, self.weight, next);
        for (hit, (place, score)) in first.iter_mut().zip(order) {
            *hit = EngineHit { row: rows[place], score };
        }
        rest.iter_mut().for_each(|hit| hit.score += shift);
        Ok(())
    }
}

fn found(hit: LexicalHit) -> EngineHit {
    EngineHit { row: hit.row, score: hit.score }
}

fn nearest(items: &Tensor, queries: &Tensor, block: Range<usize>, depth: usize) -> Result<Vec<Vec<EngineHit>>> {
    let _guard = tch::no_grad_guard();
    let num_items = items.size()[0] as usize;
    let asked = queries.narrow(0, block.start as i64, block.len() as i64);
    let mut scores = vec![0_f32; block.len() * num_items];
    asked.matmul(&items.tr()).f_copy_data(&mut scores, block.len() * num_items)?;
    Ok(on_all_cores(block.len(), |at| best(&scores[at * num_items..(at + 1) * num_items], depth)))
}

/// First `depth` rows; ties go to the lower row.
fn best(scores: &[f32], depth: usize) -> Vec<EngineHit> {
    let mut hits: Vec<EngineHit> =
        scores.iter().zip(0..).map(|(score, row)| EngineHit { row, score: *score }).collect();
    let better = |a: &EngineHit, b: &EngineHit| b.score.total_cmp(&a.score).then(a.row.cmp(&b.row));
    if depth < hits.len() {
        hits.select_nth_unstable_by(depth, better);
        hits.truncate(depth);
    }
    hits.sort_unstable_by(better);
    hits
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use souk_io::beir::DataFolder;
    use souk_io::domain::Level;
    use souk_io::item_text::ItemText;
    use souk_lexical::Weights;
    use souk_reward::Verdict;

    fn task(folder: &Path) -> Task {
        fs::create_dir(folder.join("qrels")).unwrap();
        fs::write(folder.join("corpus.jsonl"), "{\"_id\":\"a\"}\n{\"_id\":\"b\"}\n{\"_id\":\"c\"}\n").unwrap();
        fs::write(folder.join("queries.jsonl"), "{\"_id\":\"q1\",\"text\":\"x\"}\n{\"_id\":\"q2\",\"text\":\"y\"}\n")
            .unwrap();
        fs::write(folder.join("qrels/test.tsv"), "q1\ta\t4\nq2\ta\t4\n").unwrap();
        Task::load(&DataFolder::open(folder).unwrap(), "test", &ItemText::default()).unwrap()
    }

    fn rows(hits: &[EngineHit]) -> Vec<u32> {
        hits.iter().map(|hit| hit.row).collect()
    }

    #[test]
    fn vectors_answer_in_blocks_as_alone() {
        let home = tempfile::tempdir().unwrap();
        let task = task(home.path());
        let lexical = Lexical::build(std::iter::empty::<Result<String>>()).unwrap();
        let engine = Engine::dense(&task, &[1.0, 0.0, 0.6, 0.8, 1.0, 0.0], &[1.0, 0.0, 0.0, 1.0]).unwrap();
        let both = engine.hits(&task, &lexical, 0..2, 10).unwrap();
        assert_eq!((rows(&both[0]), rows(&both[1])), (vec![0, 2, 1], vec![1, 0, 2]));
        assert_eq!(both[1][0].score, 0.8);
        assert_eq!(engine.hits(&task, &lexical, 1..2, 10).unwrap()[0], both[1]);
        assert_eq!(engine.hits(&task, &lexical, 0..1, 2).unwrap()[0], both[0][..2]);
        assert!(Engine::dense(&task, &[f32::NAN; 6], &[1.0; 4]).is_err());
        assert!(Engine::dense(&task, &[1.0; 6], &[1.0; 6]).is_err(), "2 and 3 dimensions");
        assert!(Engine::dense(&task, &[1.0; 5], &[1.0; 4]).is_err());
    }

    #[test]
    fn hybrid_hits_come_from_both_channels() {
        let home = tempfile::tempdir().unwrap();
        let task = task(home.path());
        let texts = ["lamp", "x", "y x"];
        let lexical = Lexical::build(texts.iter().map(|text| Ok((*text).to_owned()))).unwrap();
        let dense = Engine::dense(&task, &[1.0, 0.0, 0.6, 0.8, 0.8, 0.6], &[1.0, 0.0, 0.0, 1.0]).unwrap();
        let ranks = Weights { lexical: 2.0, constant: Some(60.0), ..Weights::default() };
        let engine = dense.hybrid(&task, Fusion::Weights(ranks)).unwrap();
        // query `x`: rows 0, 2, 1 by vectors; 1, 2 by terms
        let hits = &engine.hits(&task, &lexical, 0..1, 10).unwrap()[0];
        assert_eq!(rows(hits), [1, 2, 0]);
        let score = |dense: f32, lexical: f32| 1.0 / (60.0 + dense) + 2.0 / (60.0 + lexical);
        assert_eq!((hits[0].score, hits[1].score, hits[2].score), (score(3.0, 1.0), score(2.0, 2.0), 1.0 / 61.0));
        assert_eq!(engine.hits(&task, &lexical, 0..2, 2).unwrap()[0], hits[..2]);
        assert_eq!(engine.pipeline(), "hybrid (weights: dense 1, lexical 2; ranks with constant 60)");
        assert!(Engine::lexical(&task, None).unwrap().hybrid(&task, Fusion::default()).is_err());
    }

    /// Prefers items whose id is late in the alphabet.
    struct ByName;

    impl RewardSource for ByName {
        fn id(&self) -> &str {
            "by name"
        }

        fn judge(&self, questions: &[Question<'_>]) -> Result<Vec<Option<Verdict>>> {
            let score = |question: &Question<'_>| f32::from(question.item_id.as_bytes()[0] - b'a') / 26.0;
            Ok(questions.iter().map(|asked| Some(Verdict { score: score(asked), level: Level::L3 })).collect())
        }
    }

    #[test]
    fn a_judge_orders_the_first_hits_and_no_others() {
        let home = tempfile::tempdir().unwrap();
        let task = task(home.path());
        let lexical = Lexical::build(std::iter::empty::<Result<String>>()).unwrap();
        let dense = || Engine::dense(&task, &[1.0, 0.0, 0.6, 0.8, 0.8, 0.6], &[1.0, 0.0, 0.0, 1.0]).unwrap();
        let hits = |engine: Engine| engine.hits(&task, &lexical, 0..2, 3).unwrap();
        assert_eq!(hits(dense()).iter().map(|hits| rows(hits)).collect::<Vec<_>>(), [[0, 2, 1], [1, 2, 0]]);
        let reranked = hits(dense().reranked(Reranking::Judge(Arc::new(ByName)), 2));
        assert_eq!(reranked.iter().map(|hits| rows(hits)).collect::<Vec<_>>(), [[2, 0, 1], [2, 1, 0]]);
        assert_eq!(reranked[0][0].score, 2.0 / 26.0);
        assert!(reranked.iter().all(|hits| hits.is_sorted_by(|a, b| a.score >= b.score)), "{reranked:?}");
        assert_eq!(rows(&hits(dense().reranked(Reranking::Judge(Arc::new(ByName)), 9))[0]), [2, 1, 0]);
        assert_eq!(
            dense().reranked(Reranking::Judge(Arc::new(ByName)), 2).pipeline(),
            "dense, first 2 reranked by by name"
        );
    }

    #[test]
    fn a_run_is_ranked_as_trec_eval_does_and_its_strangers_are_refused() {
        let home = tempfile::tempdir().unwrap();
        let task = task(home.path());
        let file = home.path().join("run.trec");
        let run = |text: &str| {
            fs::write(&file, text).unwrap();
            Engine::run(&task, &file)
        };
        // equal scores are ordered by falling id, whatever the rank says; unknown queries are ignored
        let text = "q2 Q0 a 1 0.5 t\nq2 Q0 b 2 0.5 t\nq2 Q0 c 3 0.9 t\nq7 Q0 zzz 1 1 t\n";
        let Engine::Run(answers) = run(text).unwrap() else { panic!("a run") };
        assert_eq!((rows(&answers[0]), rows(&answers[1])), (vec![], vec![2, 1, 0]));
        for (text, expected) in [
            ("q1 Q0 a 1 0.5 t\nq1 Q0 x 2 0.4 t\n", "line 2: lists item `x`, which is not in the catalogue"),
            ("q1 Q0 a 1 0.5 t\nq1 Q0 a 2 0.4 t\n", "lists item `a` twice for query `q1`"),
            ("q9 Q0 a 1 0.5 t\n", "answers none of the 2 queries of split `test`"),
        ] {
            let error = run(text).err().unwrap().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
