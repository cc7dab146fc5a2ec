//! HTTP handlers: parse the request, ask the judge, format the response.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::from_fn_with_state;
use axum::response::Response;
use axum::routing::{get, post};
use serde_json::json;
use souk::reward::Verdict;
use souk_http::{Fault, Role, admit, json_body, metrics, read, record};
use tokio::time::timeout;

use crate::Service;
use crate::judge::{JudgeItem, JudgeRequest};
use crate::shapes::{
    DocumentText, DocumentsAnswer, DocumentsRequest, RankedDocument, RankedText, RerankRequest, ScoreAnswer,
    ScoreRequest, ranked, raw,
};

const ROUTES: &str = "there is POST /score, /rerank and /v1/rerank, GET /healthz, /readyz and /metrics";
/// Timeout of the readiness check's two words.
const PROBE: Duration = Duration::from_secs(5);

pub fn router(service: Arc<Service>) -> Router {
    let mut routes = Router::new()
        .route("/score", post(score))
        .route("/rerank", post(rerank))
        .route("/v1/rerank", post(documents))
        .route_layer(from_fn_with_state((service.front.clone(), Role::Search), admit));
    if service.has_metrics {
        routes = routes.route("/metrics", get(metrics));
    }
    routes
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .fallback(async || Fault::no_route(ROUTES))
        .method_not_allowed_fallback(async || Fault::wrong_method())
        .layer(from_fn_with_state(service.front.clone(), record))
        .with_state(service)
}

async fn score(State(service): State<Arc<Service>>, request: Request) -> Result<Response, Fault> {
    let ScoreRequest { query, query_id, items } = read(request).await?;
    check_number(&service, "items", items.len())?;
    let items = items.into_iter().map(|item| JudgeItem { id: item.id, text: item.text }).collect();
    let asked = JudgeRequest { query, query_id, items, truncate: true, list: "items" };
    let verdicts = service.judge.judge(asked).await?;
    let answer = ScoreAnswer {
        model: service.judge.id(),
        scores: verdicts.iter().map(|verdict| verdict.map(|verdict| verdict.score)).collect(),
        levels: verdicts.iter().map(|verdict| verdict.map(|verdict| verdict.level.number())).collect(),
    };
    Ok(json_body(&answer))
}

async fn rerank(State(service): State<Arc<Service>>, request: Request) -> Result<Response, Fault> {
    let asked: RerankRequest = read(request).await?;
    asked.check()?;
    let RerankRequest { query, texts, raw_scores, return_text, truncate, .. } = asked;
    let verdicts = judge_texts(&service, query, &texts, "texts", truncate).await?;
    let ranked = ranked(&verdicts).into_iter().map(|(index, score)| RankedText {
        index,
        score: if raw_scores { raw(score) } else { score },
        text: return_text.then(|| texts[index].as_str()),
    });
    Ok(json_body(&ranked.collect::<Vec<_>>()))
}

async fn documents(State(service): State<Arc<Service>>, request: Request) -> Result<Response, Fault> {
    let DocumentsRequest { query, documents, top_n, return_documents } = read(request).await?;
    let texts: Vec<String> = documents.iter().map(|document| document.text().to_owned()).collect();
    let verdicts = judge_texts(&service, query, &texts, "documents", true).await?;
    let results = ranked(&verdicts).into_iter().take(top_n.unwrap_or(usize::MAX)).map(|(index, score)| {
        let document = return_documents.then(|| DocumentText { text: &texts[index] });
        RankedDocument { index, relevance_score: score, document }
    });
    let model = service.judge.id();
    Ok(json_body(&DocumentsAnswer { id: model, model, results: results.collect() }))
}

/// Requires all verdicts, for routes that cannot express a missing one.
async fn judge_texts(
    service: &Service,
    query: String,
    texts: &[String],
    list: &'static str,
    truncate: bool,
) -> Result<Vec<Verdict>, Fault> {
    check_number(service, list, texts.len())?;
    let items = texts.iter().map(|text| JudgeItem { id: None, text: Some(text.clone()) }).collect();
    let asked = JudgeRequest { query, query_id: None, items, truncate, list };
    let verdicts = service.judge.judge(asked).await?;
    let unknown = |at: usize| {
        let problem = "this judge knows no such pair, and this route has no way to leave it out: use /score";
        Fault::unprocessable(format!("{list}[{at}]"), problem)
    };
    verdicts.into_iter().enumerate().map(|(at, verdict)| verdict.ok_or_else(|| unknown(at))).collect()
}

fn check_number(service: &Service, list: &str, num: usize) -> Result<(), Fault> {
    let most = service.max_items;
    if num > most {
        Err(Fault::unprocessable(list, format!("holds {num}, and one request may have {most}: send several")))
    } else {
        Ok(())
    }
}

async fn ready(State(service): State<Arc<Service>>) -> Result<Response, Fault> {
    let look = async {
        match timeout(PROBE, service.judge.is_ready()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err("the model does not answer; the log says why"),
            Err(_) => Err("the model does not answer in time"),
        }
    };
    service.probe.get(look).await.map_err(Fault::not_ready)?;
    Ok(json_body(&json!({"ready": true, "model": service.judge.id()})))
}
