//! Judges behind a wire, each a shape of question and answer: Souk's own service, chat models, rerankers. Takes a few items
//! of one query and a time to wait, gives a verdict for each or why there are none. Never asks twice: patience, retries and
//! concurrency are the guard's.

mod answer;
mod http;
mod openai;
mod prompt;
mod rerank;
mod souk;
#[cfg(test)]
pub(super) mod tests;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use http::Http;
pub(super) use openai::{Openai, Recipe};
pub(super) use prompt::Prompt;
pub(super) use rerank::Rerank;
pub use rerank::Shape;
pub(super) use souk::Souk;

use super::{Question, Verdict};
use souk_io::domain::Level;
use souk_io::error::{Error, Result};

/// No judge reads more of a text; what is longer would only fill the wire.
const MAX_CHARS: usize = 8192;

/// A judge that can be asked once.
pub(super) trait Asker: Send + Sync {
    /// Names the model and the address.
    fn id(&self) -> &str;

    /// The address that is asked, for messages.
    fn place(&self) -> &str;

    /// All of `asked` have one query. The answer is there within `patience`, or a failure is.
    fn ask(&self, asked: &[Question<'_>], patience: Duration) -> Answered;
}

/// One place for each question, in their order.
pub(super) type Answered = std::result::Result<Vec<Option<Verdict>>, Failure>;

/// Why a request gave no verdicts.
#[derive(Debug)]
pub struct Failure {
    pub kind: FailureKind,
    pub problem: String,
    /// How long the judge asked to be left alone.
    pub retry_after: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// Nobody there, too busy, cut short: the same question may be answered later.
    Passing,
    /// An answer that is none of the agreed shape. To ask again would give it again.
    Broken,
    /// The judge is well and does not answer this question.
    Refused,
    /// A person has to correct something.
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

/// The least scores of L2, L3 and L4.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Thresholds(pub [f32; 3]);

impl Thresholds {
    /// A score belongs to the level whose own score is nearest: L1 at 0, L2 at 1/3, L3 at 2/3, L4 at 1.
    pub const NEAREST: Self = Self([1.0 / 6.0, 0.5, 5.0 / 6.0]);
    pub const QUARTERS: Self = Self([0.25, 0.5, 0.75]);

    /// `place` is what holds them, for the message.
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

    /// `None` for what is no score.
    fn verdict(self, score: f64) -> Option<Verdict> {
        let score = checked(score)?;
        let level = Level::ALL[self.0.iter().filter(|least| score >= **least).count()];
        Some(Verdict { score, level })
    }
}

/// A score is a number from 0 to 1.
fn checked(score: f64) -> Option<f32> {
    (0.0..=1.0).contains(&score).then_some(score as f32)
}

/// The beginning of a text, whole characters.
fn begin(text: &str, max_chars: usize) -> &str {
    text.char_indices().nth(max_chars).map_or(text, |(at, _)| &text[..at])
}

/// A stranger's text as part of a message: on one line, nothing that a terminal would obey, not long.
fn shown(text: &str) -> String {
    let line: String = begin(text.trim(), 200).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    if line.len() < text.trim().len() { line + " ..." } else { line }
}
