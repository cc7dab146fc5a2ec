//! Reranks the first hits of hybrid search with the version's relevance model, if there is time. A reranker that is late, busy or
//! broken never fails a search: the hits keep their fused order.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::generation::{OpenGeneration, worker_lost};
use super::query::{RankedHit, TermScore};
use souk_cross_encoder::{Reordered, Reranker, reorder};
use souk_io::error::{Error, Result};

/// Hits, and how many of them were reranked: 0 if that was late or failed.
pub struct RerankedHits {
    pub hits: Vec<RankedHit>,
    pub num: usize,
}

/// How the hits of a generation are reranked.
pub struct Reranking<'a> {
    pub generation: &'a OpenGeneration,
    pub reranker: &'a Arc<Reranker>,
    /// Number of hits that it reads.
    pub depth: usize,
    /// After this, hits keep their fused order.
    pub time: Duration,
}

impl Reranking<'_> {
    #[tracing::instrument(level = "info", name = "rerank", skip_all, fields(depth = self.depth))]
    pub async fn apply(&self, query: &str, hits: Vec<RankedHit>) -> RerankedHits {
        let depth = self.depth.min(hits.len());
        let texts: Result<Vec<String>> =
            hits[..depth].iter().map(|hit| Ok(self.generation.text_of(&*hit.item.load()?))).collect();
        let outputs = async { outputs(self.reranker, query.to_owned(), texts?).await };
        let problem = match timeout(self.time, outputs).await {
            Ok(Ok(outputs)) => {
                self.generation.log_reranker_state(None);
                return RerankedHits { hits: reordered(hits, &outputs, self.reranker.fit().weight), num: depth };
            }
            Ok(Err(error)) => error,
            Err(_) => Error::device(format!("reranking took more than {} ms", self.time.as_millis())),
        };
        self.generation.log_reranker_state(Some(&problem));
        RerankedHits { hits, num: 0 }
    }
}

async fn outputs(reranker: &Arc<Reranker>, query: String, texts: Vec<String>) -> Result<Vec<f32>> {
    let reader = reranker.clone();
    let read = move || reader.read(&query, &texts.iter().map(String::as_str).collect::<Vec<_>>());
    let pairs = spawn_blocking(read).await.map_err(worker_lost)??;
    reranker.submit(pairs)?.await.map_err(worker_lost)?
}

fn reordered(hits: Vec<RankedHit>, outputs: &[f32], weight: f32) -> Vec<RankedHit> {
    let fused: Vec<f32> = hits[..outputs.len()].iter().map(|hit| hit.score).collect();
    let next = hits.get(outputs.len()).map(|hit| hit.score);
    let Reordered { hits: order, shift } = reorder(&fused, outputs, weight, next);
    let of_reranker = |output: f32| TermScore { value: output, weight, part: weight * output };
    let first = order.into_iter().map(|(place, score)| {
        let hit = hits[place].clone();
        RankedHit { score, reranker: Some(of_reranker(outputs[place])), ..hit }
    });
    let rest = hits[outputs.len()..].iter().cloned().map(|hit| RankedHit { score: hit.score + shift, ..hit });
    first.chain(rest).collect()
}
