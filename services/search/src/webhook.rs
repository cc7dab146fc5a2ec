//! Promotion webhook: takes the version that is about to be served, tells another engine, and waits until that engine is ready for it.
//! Never decides which version is served.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use souk::reward::{Failure, FailureKind, Http};
use souk::search::{GenerationRecord, PromotionWebhook};
use souk::{Error, Result};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

const SERVICE: &str = "search.promotion_webhook";
/// Timeout of one request.
const PATIENCE: Duration = Duration::from_secs(30);

pub struct Webhook {
    http: Arc<Http>,
    settings: PromotionWebhook,
}

#[derive(Clone, Copy)]
pub enum Event {
    /// A version will be served once the receiver is ready.
    Promoting,
    Promoted,
    RolledBack,
}

impl Event {
    fn name(self) -> &'static str {
        match self {
            Self::Promoting => "promoting",
            Self::Promoted => "promoted",
            Self::RolledBack => "rolled_back",
        }
    }
}

impl Webhook {
    pub fn open(settings: &PromotionWebhook) -> Result<Self> {
        let http = Http::open(&settings.url, "", settings.key_env.as_deref())?;
        Ok(Self { http: Arc::new(http), settings: settings.clone() })
    }

    /// Asks until the receiver is ready for the version. Fails if it refuses, or is not ready in time.
    pub async fn wait_until_ready(&self, next: &GenerationRecord, served: &str) -> Result<()> {
        let began = Instant::now();
        let timeout = Duration::from_secs(self.settings.timeout_seconds);
        let pause = Duration::from_secs(self.settings.retry_seconds);
        loop {
            let answer = self.post(body(Event::Promoting, next, Some(served))).await;
            let missing = match answer {
                Ok(answer) if answer["ready"] == true => return Ok(()),
                Ok(answer) if answer["ready"] == false => "it is not ready".to_owned(),
                Ok(answer) => {
                    return Err(upstream(format!("answered {answer}, not {{\"ready\": true}} or false"), false));
                }
                Err(Failure { kind: FailureKind::Passing, problem, .. }) => problem,
                Err(Failure { problem, .. }) => return Err(upstream(format!("refused: {problem}"), false)),
            };
            if began.elapsed() + pause > timeout {
                let seconds = self.settings.timeout_seconds;
                let problem = format!("not ready for `{}` within {seconds} s: {missing}", next.version);
                return Err(upstream(problem, true));
            }
            tracing::info!(version = next.version, missing, "waiting for the promotion webhook");
            sleep(pause).await;
        }
    }

    /// Tells what happened, once; nothing depends on the answer.
    pub async fn tell(&self, event: Event, served: &GenerationRecord) {
        if let Err(Failure { problem, .. }) = self.post(body(event, served, None)).await {
            tracing::warn!(
                event = event.name(),
                version = served.version,
                problem,
                "the promotion webhook was not told"
            );
        }
    }

    async fn post(&self, body: Value) -> std::result::Result<Value, Failure> {
        let http = self.http.clone();
        let sent = spawn_blocking(move || http.post(&body, PATIENCE)).await;
        sent.unwrap_or_else(|_| Err(Failure::passing("the request was interrupted")))
    }
}

fn body(event: Event, generation: &GenerationRecord, replaces: Option<&str>) -> Value {
    json!({
        "event": event.name(),
        "version": generation.version,
        "model": generation.model,
        "dimensions": generation.dimensions,
        "path": generation.path,
        "replaces": replaces,
    })
}

fn upstream(problem: String, retryable: bool) -> Error {
    Error::Upstream { service: SERVICE.into(), problem, retryable, source: None }
}
