//! Replaces `traces` in builds without the feature `otlp`. Collects no spans; warns if a collector is configured.

use tracing::{Span, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Identity;
use tracing_subscriber::registry::LookupSpan;

const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];

pub struct Traces;

/// Always `None`.
pub fn layer<S>() -> Option<(impl Layer<S>, Traces)>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    if let Some(name) = ENDPOINTS.iter().find(|name| std::env::var(name).is_ok_and(|value| !value.is_empty())) {
        // logging has not started yet
        let problem = format!("souk: {name} has no effect: build with `--features souk-cli/full` to send traces\n");
        drop(std::io::Write::write_all(&mut std::io::stderr(), problem.as_bytes()));
    }
    None::<(Identity, Traces)>
}

/// No-op.
pub fn join(_span: &Span, _header: impl Fn(&str) -> Option<String>) {}
