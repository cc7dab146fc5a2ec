//! Remote models. Judges (Souk's service, chat models and rerankers) send one request with a few items of one query and return a
//! verdict per item or a failure; retries and concurrency are in `resilient`. A chat model can also rewrite queries.

mod answer;
mod http;
mod openai;
mod prompt;
mod rerank;
mod rewriter;
mod souk;
#[cfg(test)]
pub(super) mod tests;

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use http::Http;
pub(super) use openai::{ChatSettings, Openai};
pub(super) use prompt::Prompt;
pub(super) use rerank::Rerank;
pub use rerank::RerankShape;
pub use rewriter::{Rewriter, RewriterSettings};
pub(super) use souk::Souk;

use super::{Question, Verdict};
use souk_io::domain::Level;
use souk_io::error::{Error, Result};

/// Maximum bytes of a text that are sent; no judge reads more.
const MAX_CHARS: usize = 8192;

/// Client of a remote judge; makes single requests.
pub(super) trait JudgeClient: Send + Sync {
    /// Names the model and the address.
    fn id(&self) -> &str;

    /// Address, for messages.
    fn place(&self) -> &str;

    /// All of `asked` must have the same query. Returns within `patience`.
    fn ask(&self, asked: &[Question<'_>], patience: Duration) -> JudgeResult;
}

/// One entry per question, in order.
pub(super) type JudgeResult = std::result::Result<Vec<Option<Verdict>>, Failure>;

/// Why a request returned no verdicts.
#[derive(Debug)]
pub struct Failure {
    pub kind: FailureKind,
    pub problem: String,
    /// The judge's `Retry-After`.
    pub retry_after: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// Unreachable, busy or cut off: a retry may help.
    Passing,
    /// The answer has the wrong format; a retry would not help.
    Broken,
    /// The judge works but rejects this question.
    Refused,
    /// Needs a person to change something.
    Fatal,
}

impl Failure {
    pub fn passing(problem: impl Into<String>) -> Self {
        Self { kind: FailureKind::Passing, problem: problem.into(), retry_after: None }
    }

    pub fn broken(problem: impl Into<String>) -> Self {
        Self { kind: FailureKind::Broken, problem: problem.into(), retry_after: None }
    }

    pub fn refused(problem: impl Into<String>) -> Self {
        Self { kind: FailureKind::Refused, problem: problem.into(), retry_after: None }
    }

    pub fn fatal(problem: impl Into<String>) -> Self {
        Self { kind: FailureKind::Fatal, problem: problem.into(), retry_after: None }
    }
}

/// Minimum scores of L2, L3 and L4.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Thresholds(pub [f32; 3]);

impl Thresholds {
    /// Each score gets the nearest level, with L1 at 0, L2 at 1/3, L3 at 2/3 and L4 at 1.
    pub const NEAREST: Self = Self([1.0 / 6.0, 0.5, 5.0 / 6.0]);
    pub const QUARTERS: Self = Self([0.25, 0.5, 0.75]);

    /// `place` is where they are configured, for the message.
    pub(super) fn check(self, place: &str) -> Result<()> {
        let [second, third, fourth] = self.0;
        if 0.0 < second && second < third && third < fourth && fourth <= 1.0 {
            return Ok(());
        }
        let problem = format!(
            "is [{second}, {third}, {fourth}]: give the least scores of L2, L3 and L4, three ascending numbers above 0 and \
             up to 1"
        );
        Err(Error::config(place, problem))
    }

    /// `None` if `score` is not a valid score.
    fn verdict(self, score: f64) -> Option<Verdict> {
        let score = checked(score)?;
        let level = Level::ALL[self.0.iter().filter(|least| score >= **least).count()];
        Some(Verdict { score, level })
    }
}

/// True for a number from 0 to 1.
fn checked(score: f64) -> Option<f32> {
    (0.0..=1.0).contains(&score).then_some(score as f32)
}

/// Prefix of a text in whole characters.
fn begin(text: &str, max_chars: usize) -> &str {
    text.char_indices().nth(max_chars).map_or(text, |(at, _)| &text[..at])
}

/// Quotes foreign text for a message: one line, no control characters, truncated.
fn shown(text: &str) -> String {
    let line: String = begin(text.trim(), 200).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.len() < text.trim().len() { line + " ..." } else { line }
}
