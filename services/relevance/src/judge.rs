//! The judge behind the service: a cross-encoder with a queue, or the oracle. Returns one verdict or none per item, whatever
//! the route.

use std::sync::Arc;

use souk::Error;
use souk::cross_encoder::{CrossEncoder, PairReader, PairText};
use souk::reward::Verdict;
use souk::worker::{Limits, Urgency, Worker};
use souk_http::Fault;
use tokio::task::spawn_blocking;

use crate::oracle::OracleJudge;

pub enum JudgeBackend {
    Model(QueuedModel),
    Oracle(Box<OracleJudge>),
}

pub struct QueuedModel {
    id: String,
    reader: Arc<PairReader>,
    worker: Worker<CrossEncoder>,
}

/// Judging request, common to all routes.
pub struct JudgeRequest {
    pub query: String,
    pub query_id: Option<String>,
    pub items: Vec<JudgeItem>,
    /// True if texts that are too long may be truncated.
    pub truncate: bool,
    /// Name of the item list in the route's request.
    pub list: &'static str,
}

#[derive(Default)]
pub struct JudgeItem {
    pub id: Option<String>,
    pub text: Option<String>,
}

impl JudgeBackend {
    /// Starts the model's thread.
    pub fn of_model(model: CrossEncoder, limits: Limits) -> souk::Result<Self> {
        let (id, reader) = (model.id().to_owned(), model.reader());
        if !model.is_calibrated() {
            tracing::warn!(
                model = id,
                "the model can rerank, but the levels of /score mean nothing: it is not calibrated"
            );
        }
        Ok(Self::Model(QueuedModel { id, reader, worker: Worker::start(model, limits)? }))
    }

    pub fn id(&self) -> &str {
        match self {
            Self::Model(judge) => &judge.id,
            Self::Oracle(oracle) => oracle.id(),
        }
    }

    pub async fn judge(&self, asked: JudgeRequest) -> Result<Vec<Option<Verdict>>, Fault> {
        if asked.query.trim().is_empty() {
            return Err(Fault::unprocessable("query", "is empty: nothing answers it well or badly"));
        }
        match self {
            Self::Model(judge) => judge.judge(asked).await,
            Self::Oracle(oracle) => by_identifiers(oracle, &asked),
        }
    }

    /// Readiness check. A full queue counts as ready, because it drains.
    pub async fn is_ready(&self) -> Result<(), Fault> {
        let Self::Model(judge) = self else { return Ok(()) };
        let probe = judge.reader.read("probe", "probe")?;
        let reply = match judge.worker.submit(vec![probe]) {
            Ok(reply) => reply,
            Err(Error::Busy { .. }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        reply.await.map_err(gone)??;
        Ok(())
    }
}

impl QueuedModel {
    async fn judge(&self, asked: JudgeRequest) -> Result<Vec<Option<Verdict>>, Fault> {
        let JudgeRequest { query, items, truncate, list, .. } = asked;
        let missing =
            |at: usize| Fault::unprocessable(format!("{list}[{at}].text"), "is missing: this judge reads texts");
        let texts = items.into_iter().enumerate().map(|(at, item)| item.text.ok_or_else(|| missing(at)));
        let texts = texts.collect::<Result<Vec<String>, Fault>>()?;
        // reserve a place first, so that nothing is tokenized for a full queue
        let places = self.worker.reserve(texts.len())?;
        let reader = self.reader.clone();
        let read = move || -> souk::Result<Vec<PairText>> {
            let query = reader.query(&query)?;
            texts.iter().map(|text| reader.join(&query, &reader.item(text)?)).collect()
        };
        let pairs = spawn_blocking(read).await.map_err(gone)??;
        if let Some(at) = pairs.iter().position(|pair| pair.cut).filter(|_| !truncate) {
            let problem = "does not fit with the query, and `truncate` is false";
            return Err(Fault::unprocessable(format!("{list}[{at}]"), problem));
        }
        let verdicts = self.worker.submit_into(places, pairs, Urgency::Urgent)?.await.map_err(gone)??;
        Ok(verdicts.into_iter().map(Some).collect())
    }
}

/// Error for a thread that ended without an answer.
fn gone(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::device("the relevance model's thread has ended").because(error)
}

fn by_identifiers(oracle: &OracleJudge, asked: &JudgeRequest) -> Result<Vec<Option<Verdict>>, Fault> {
    let found = asked.query_id.as_deref().or_else(|| oracle.query(&asked.query));
    let Some(query) = found else { return Ok(vec![None; asked.items.len()]) };
    let item = |item: &'_ JudgeItem| match (&item.id, &item.text) {
        (Some(id), _) => Some(id.clone()),
        (None, Some(text)) => oracle.item(text).map(str::to_owned),
        (None, None) => None,
    };
    let items: Vec<Option<String>> = asked.items.iter().map(item).collect();
    let items: Vec<Option<&str>> = items.iter().map(Option::as_deref).collect();
    Ok(oracle.judge(query, &items)?)
}
