//! Rerankers: TEI's `/rerank`, and Cohere's format, which vLLM and Jina also use. Scores must be from 0 to 1; levels come from
//! thresholds. Every row must name its item.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Failure, Http, JudgeClient, JudgeResult, MAX_CHARS, Thresholds, begin};
use crate::Question;

/// Format of requests and answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RerankShape {
    /// `/rerank` of Hugging Face's text-embeddings-inference.
    Tei,
    /// `/rerank` of Cohere's API, version 2.
    Cohere,
}

pub struct Rerank {
    http: Http,
    shape: RerankShape,
    model: String,
    thresholds: Thresholds,
    id: String,
}

#[derive(Deserialize)]
struct Row {
    index: usize,
    #[serde(default)]
    score: Value,
    #[serde(default)]
    relevance_score: Value,
}

#[derive(Deserialize)]
struct Rows {
    results: Vec<Row>,
}

impl Rerank {
    pub const ROUTE: &'static str = "rerank";

    pub fn new(http: Http, shape: RerankShape, model: &str, thresholds: Thresholds) -> Self {
        let [second, third, fourth] = thresholds.0;
        // levels are cached with scores, so the thresholds are part of the id
        let id = format!("rerank {model} at {} (levels from {second}, {third}, {fourth})", http.url());
        Self { http, shape, model: model.into(), thresholds, id }
    }

    fn question(&self, asked: &[Question<'_>]) -> Value {
        let query = asked.first().map_or("", |one| begin(one.query, MAX_CHARS));
        let texts: Vec<&str> = asked.iter().map(|one| begin(one.item, MAX_CHARS)).collect();
        match self.shape {
            RerankShape::Tei => json!({ "query": query, "texts": texts, "raw_scores": false, "truncate": true }),
            RerankShape::Cohere => {
                json!({ "model": self.model, "query": query, "documents": texts, "top_n": texts.len() })
            }
        }
    }

    fn rows(&self, answer: Value) -> Result<Vec<(usize, Value)>, Failure> {
        let shape = |e| Failure::broken(format!("did not answer in a reranker's format: {e}"));
        Ok(match self.shape {
            RerankShape::Tei => {
                Vec::<Row>::deserialize(answer).map_err(shape)?.into_iter().map(|row| (row.index, row.score)).collect()
            }
            RerankShape::Cohere => {
                let rows = Rows::deserialize(answer).map_err(shape)?.results;
                rows.into_iter().map(|row| (row.index, row.relevance_score)).collect()
            }
        })
    }
}

impl JudgeClient for Rerank {
    fn id(&self) -> &str {
        &self.id
    }

    fn place(&self) -> &str {
        self.http.url()
    }

    fn ask(&self, asked: &[Question<'_>], patience: Duration) -> JudgeResult {
        let rows = self.rows(self.http.post(&self.question(asked), patience)?)?;
        if rows.len() != asked.len() {
            return Err(Failure::broken(format!("returned {} scores for {} items", rows.len(), asked.len())));
        }
        let mut scores: Vec<Option<Value>> = vec![None; asked.len()];
        for (index, score) in rows {
            match scores.get_mut(index) {
                Some(place @ None) => *place = Some(score),
                Some(Some(_)) => return Err(Failure::broken(format!("scored item {index} twice"))),
                None => return Err(Failure::broken(format!("scored item {index} of {}", asked.len()))),
            }
        }
        let verdict = |score: Option<Value>| self.thresholds.verdict(score?.as_f64()?);
        Ok(scores.into_iter().map(verdict).collect())
    }
}
