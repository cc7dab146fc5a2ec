//! Rewrites queries by a chat model behind OpenAI's `/chat/completions`, as query rewriting does before lexical search (CSA-QR in the
//! Retrieval-GRPO paper).

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use super::{Failure, FailureKind, Http, Openai, Prompt, answer};
use souk_io::address::Address;
use souk_io::backoff::Backoff;
use souk_io::error::{Error, Result};

const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// Longest pause between attempts.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// Address of a model that rewrites queries, and how it is asked.
#[derive(Clone, Debug)]
pub struct RewriterSettings {
    /// For example `http://127.0.0.1:8000/v1`.
    pub url: Address,
    /// Name of the model on that server.
    pub model: String,
    /// Environment variable with the key.
    pub key_env: Option<String>,
    /// Prompt; none: the built-in one.
    pub prompt: Option<PathBuf>,
    /// Maximum tokens of an answer, with those of its thinking; 0: the server's default.
    pub max_tokens: u32,
    /// Timeout of a request.
    pub timeout: Duration,
    /// Time to retry a server that does not answer.
    pub patience: Duration,
}

pub struct Rewriter {
    http: Http,
    settings: RewriterSettings,
    prompt: Prompt,
    /// Whether an outage has been reported since the last answer.
    is_reported: AtomicBool,
}

impl Rewriter {
    pub fn open(settings: RewriterSettings) -> Result<Self> {
        let http = Http::open(&settings.url, Openai::ROUTE, settings.key_env.as_deref())?;
        let prompt = Prompt::open_rewriting(settings.prompt.as_deref())?;
        Ok(Self { http, settings, prompt, is_reported: AtomicBool::new(false) })
    }

    /// All that a rewrite depends on, besides the query.
    pub fn id(&self) -> String {
        format!("{} at {} (prompt {})", self.settings.model, self.http.url(), self.prompt.fingerprint())
    }

    /// The query in other words, or why the model refuses it. Blocks until there is an answer; an outage that lasts is an error.
    pub fn rewrite(&self, query: &str) -> Result<std::result::Result<String, String>> {
        let mut question = json!({
            "model": self.settings.model, "messages": self.prompt.messages_of_query(query), "temperature": 0,
        });
        if self.settings.max_tokens > 0 {
            question["max_tokens"] = json!(self.settings.max_tokens);
        }
        let (begun, mut backoff) = (Instant::now(), Backoff::new(FIRST_PAUSE, MAX_PAUSE));
        loop {
            let answered = self.http.post(&question, self.settings.timeout).and_then(answer::read_text);
            let Failure { kind, problem, retry_after } = match answered {
                Ok(text) => {
                    self.is_reported.store(false, Ordering::Relaxed);
                    return Ok(Ok(text));
                }
                Err(failure) => failure,
            };
            let left = self.settings.patience.saturating_sub(begun.elapsed());
            match kind {
                FailureKind::Refused => return Ok(Err(problem)),
                FailureKind::Passing if !left.is_zero() => {
                    if !self.is_reported.swap(true, Ordering::Relaxed) {
                        tracing::warn!("waiting for the model that rewrites queries: {}: {problem}", self.http.url());
                    }
                    thread::sleep(retry_after.unwrap_or(backoff.next_pause()).min(left));
                }
                FailureKind::Fatal => return Err(Error::config(self.http.url(), problem)),
                FailureKind::Passing | FailureKind::Broken => {
                    let retryable = kind == FailureKind::Passing;
                    return Err(Error::Upstream { service: self.http.url().into(), problem, retryable, source: None });
                }
            }
        }
    }
}
