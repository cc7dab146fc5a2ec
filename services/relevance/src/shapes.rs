//! Requests and responses: Souk's `/score`, TEI's `/rerank`, and the rerank route of Cohere and Jina. Unknown fields are
//! ignored, as in those services; unsupported fields that would change the answer are errors.

use serde::{Deserialize, Serialize};
use souk::reward::Verdict;
use souk_http::Fault;

#[derive(Deserialize)]
pub struct ScoreRequest {
    pub query: String,
    /// For a judge that uses ids; default: the query is found by its text.
    pub query_id: Option<String>,
    pub items: Vec<ScoreItem>,
}

#[derive(Deserialize)]
pub struct ScoreItem {
    pub id: Option<String>,
    pub text: Option<String>,
}

/// In item order; null for missing verdicts.
#[derive(Serialize)]
pub struct ScoreAnswer<'a> {
    pub model: &'a str,
    pub scores: Vec<Option<f32>>,
    pub levels: Vec<Option<u8>>,
}

#[derive(Deserialize)]
pub struct RerankRequest {
    pub query: String,
    pub texts: Vec<String>,
    #[serde(default)]
    pub raw_scores: bool,
    #[serde(default)]
    pub return_text: bool,
    #[serde(default = "yes")]
    pub truncate: bool,
    pub truncation_direction: Option<String>,
}

fn yes() -> bool {
    true
}

#[derive(Serialize)]
pub struct RankedText<'a> {
    pub index: usize,
    pub score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<&'a str>,
}

#[derive(Deserialize)]
pub struct DocumentsRequest {
    pub query: String,
    pub documents: Vec<Document>,
    pub top_n: Option<usize>,
    #[serde(default)]
    pub return_documents: bool,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a text, or an object with one: {\"text\": \"...\"}")]
pub enum Document {
    Text(String),
    Fields { text: String },
}

impl Document {
    pub fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Fields { text } => text,
        }
    }
}

#[derive(Serialize)]
pub struct DocumentsAnswer<'a> {
    pub id: &'a str,
    pub model: &'a str,
    pub results: Vec<RankedDocument<'a>>,
}

#[derive(Serialize)]
pub struct RankedDocument<'a> {
    pub index: usize,
    pub relevance_score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub document: Option<DocumentText<'a>>,
}

#[derive(Serialize)]
pub struct DocumentText<'a> {
    pub text: &'a str,
}

impl RerankRequest {
    pub fn check(&self) -> Result<(), Fault> {
        match &self.truncation_direction {
            Some(side) if !side.eq_ignore_ascii_case("right") => Err(Fault::unprocessable(
                "truncation_direction",
                format!("is `{side}`: texts are cut on the right only"),
            )),
            _ => Ok(()),
        }
    }
}

/// Indices and scores, best first; ties in request order.
pub fn ranked(verdicts: &[Verdict]) -> Vec<(usize, f32)> {
    let mut ranked: Vec<(usize, f32)> = verdicts.iter().map(|verdict| verdict.score).enumerate().collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    ranked
}

/// Inverse sigmoid of the score. The ends of the scale are moved inward by a millionth.
pub fn raw(score: f32) -> f32 {
    let score = f64::from(score).clamp(1e-6, 1.0 - 1e-6);
    (score / (1.0 - score)).ln() as f32
}

#[cfg(test)]
mod tests {
    use souk::domain::Level;

    use super::*;

    #[test]
    fn the_best_comes_first_and_raw_scores_keep_the_order() {
        let verdict = |score| Verdict { score, level: Level::L1 };
        let order = ranked(&[verdict(0.2), verdict(0.9), verdict(0.2), verdict(1.0)]);
        assert_eq!(order, [(3, 1.0), (1, 0.9), (0, 0.2), (2, 0.2)]);
        assert!((raw(0.9) - 9.0_f32.ln()).abs() < 1e-5 && raw(0.5) == 0.0);
        assert!(raw(1.0).is_finite() && raw(0.0).is_finite() && raw(1.0) > raw(0.9999));
    }
}
