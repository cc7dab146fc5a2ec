//! Evaluates an engine on a task: runs all queries, judges the hits, and writes the run, the judgements and per-query values as
//! it goes. Memory holds one block of hits, plus each query's values and first hits.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::Path;

use super::engine::{Engine, EngineHit};
use super::metrics::{self, HitGrades, QueryGrades, TOP, WIDE};
use super::run::{EvaluationRun, METRICS, Metrics, QUERIES, QueryRow, RunSettings, TopHit};
use super::run_file::{RunWriter, write_qrels};
use super::task::{Task, TaskQuery};
use souk_io::domain::Level;
use souk_io::error::{Error, Result};
use souk_lexical::{Lexical, LexicalHit};
use souk_reward::{Question, RewardSource};

/// Hits of a measurement, in its folder.
pub const RUN: &str = "run.trec";
const QRELS: &str = "qrels.trec";

pub struct Measurement<'a> {
    /// Display name of the engine.
    pub name: &'a str,
    pub task: &'a Task,
    pub engine: &'a Engine,
    /// Lexical channel over the task's items.
    pub lexical: &'a Lexical,
    /// Judge for hits without a judgement.
    pub judge: &'a dyn RewardSource,
    /// Hits per query.
    pub depth: usize,
    /// Perplexity of the engine's model on held-out texts, if measured.
    pub perplexity: Option<f64>,
}

impl Measurement<'_> {
    /// Writes the folder `out`. `progress` receives the number of additional queries done.
    pub fn write(&self, out: &Path, progress: &dyn Fn(u64)) -> Result<EvaluationRun> {
        self.check()?;
        let task = self.task;
        let judged = task
            .queries
            .iter()
            .flat_map(|query| query.judged.iter().map(|(item, level)| (query.id.as_str(), item.as_str(), *level)));
        write_qrels(&out.join(QRELS), judged)?;
        let mut run = RunWriter::create(&out.join(RUN), self.name)?;
        let (size, num) = (self.engine.block(task), task.queries.len());
        let mut queries = Vec::with_capacity(num);
        for start in (0..num).step_by(size) {
            let block = start..num.min(start + size);
            let answers = self.engine.hits(task, self.lexical, block.clone(), self.depth)?;
            for (query, hits) in task.queries[block.clone()].iter().zip(&answers) {
                run.query(&query.id, hits.iter().map(|hit| (task.item(hit.row).id.as_str(), hit.score)))?;
            }
            queries.extend(self.rows(block.clone(), &answers)?);
            progress(block.len() as u64);
        }
        run.finish()?;
        let asked = RunSettings::of(task, self.judge, self.depth);
        let metrics = Metrics::of(self.name, self.engine.pipeline(), asked, self.perplexity, &queries);
        write_rows(&out.join(QUERIES), &queries, self.depth)?;
        let text = serde_json::to_string_pretty(&metrics).expect("the names of metrics are text");
        let file = out.join(METRICS);
        fs::write(&file, text + "\n").map_err(Error::store(&file, "write it"))?;
        Ok(EvaluationRun { metrics, queries })
    }

    fn check(&self) -> Result<()> {
        if self.depth <= WIDE {
            let problem = format!("a depth of {} is too small: use more than {WIDE}", self.depth);
            return Err(Error::input(problem));
        }
        let (known, sold) = (self.lexical.num_items() as usize, self.task.items.len());
        if known == sold {
            Ok(())
        } else {
            Err(Error::input(format!(
                "the lexical channel has {known} items, but the catalogue has {sold}: rebuild it"
            )))
        }
    }

    fn rows(&self, block: Range<usize>, answers: &[Vec<EngineHit>]) -> Result<Vec<QueryRow>> {
        let queries = &self.task.queries[block];
        let texts: Vec<&str> = queries.iter().map(|query| query.text.as_str()).collect();
        let lexical = self.lexical.search_many(&texts, self.depth)?;
        let graded = self.grade(queries, answers)?;
        let rows = queries.iter().zip(answers).zip(graded).zip(&lexical);
        Ok(rows.map(|(((query, hits), graded), lexical)| self.row(query, hits, &graded, lexical)).collect())
    }

    /// Levels of each query's first hits: from the judgements, else from the judge.
    fn grade(&self, queries: &[TaskQuery], answers: &[Vec<EngineHit>]) -> Result<Vec<Vec<Option<Level>>>> {
        let wide = |hits: &[EngineHit]| hits[..hits.len().min(WIDE)].to_vec();
        let mut graded: Vec<Vec<Option<Level>>> = Vec::with_capacity(queries.len());
        let mut places = Vec::new();
        for (at, (query, hits)) in queries.iter().zip(answers).enumerate() {
            graded.push(wide(hits).iter().map(|hit| query.levels.get(&hit.row).copied()).collect());
            for (rank, hit) in wide(hits).iter().enumerate().filter(|(rank, _)| graded[at][*rank].is_none()) {
                places.push((at, rank, hit.row));
            }
        }
        let asked: Vec<Question<'_>> = places
            .iter()
            .map(|(at, _, row)| {
                let (query, item) = (&queries[*at], self.task.item(*row));
                Question { query_id: &query.id, query: &query.text, item_id: &item.id, item: &item.text }
            })
            .collect();
        let verdicts = self.judge.judge(&asked)?;
        if verdicts.len() != asked.len() {
            let problem = format!(
                "the judge `{}` returned {} verdicts for {} questions",
                self.judge.id(),
                verdicts.len(),
                asked.len()
            );
            return Err(Error::input(problem));
        }
        for ((at, rank, _), verdict) in places.into_iter().zip(verdicts) {
            graded[at][rank] = verdict.map(|verdict| verdict.level);
        }
        Ok(graded)
    }

    fn row(&self, query: &TaskQuery, hits: &[EngineHit], graded: &[Option<Level>], lexical: &[LexicalHit]) -> QueryRow {
        let places: HashMap<u32, usize> = lexical.iter().zip(0..).map(|(hit, place)| (hit.row, place)).collect();
        let seen: Vec<HitGrades> = hits
            .iter()
            .enumerate()
            .map(|(rank, hit)| HitGrades {
                judged: query.levels.get(&hit.row).copied(),
                graded: graded.get(rank).copied().flatten(),
                quality: self.task.item(hit.row).quality,
                lexical: places.get(&hit.row).copied(),
            })
            .collect();
        let judged: Vec<Level> = query.judged.values().copied().collect();
        let good = query.levels.iter().filter(|(_, level)| level.is_good());
        let num_good_lexical = good.filter(|(row, _)| places.contains_key(row)).count();
        let grades = QueryGrades { judged: &judged, num_good_lexical };
        let top = hits.iter().zip(graded).take(TOP).map(|(hit, level)| {
            let item = self.task.item(hit.row);
            TopHit { id: item.id.clone(), title: shown(&item.title, &item.text), score: hit.score, level: *level }
        });
        QueryRow {
            id: query.id.clone(),
            text: query.text.clone(),
            slice: query.slice.clone(),
            num_good: query.num_good(),
            values: metrics::measure(&seen, &grades),
            top: top.collect(),
        }
    }
}

/// Short description of an item.
fn shown(title: &str, text: &str) -> String {
    let whole = if title.is_empty() { text } else { title };
    whole.chars().take(160).collect()
}

fn write_rows(file: &Path, queries: &[QueryRow], depth: usize) -> Result<()> {
    let made = File::create(file).map_err(Error::store(file, "create it"))?;
    let mut out = BufWriter::with_capacity(1 << 18, made);
    for query in queries {
        writeln!(out, "{}", query.json(depth)).map_err(Error::store(file, "write it"))?;
    }
    out.flush().map_err(Error::store(file, "write it"))
}
