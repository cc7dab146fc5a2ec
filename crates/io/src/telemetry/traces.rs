//! Exports spans by OTLP over HTTP to the collector in `OTEL_EXPORTER_OTLP_ENDPOINT`; without it, spans are neither
//! kept nor sent. Follows the other variables of OpenTelemetry's specification. If the collector is unreachable, spans
//! are dropped; nothing blocks on it.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::TracerProvider;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::{Level, Span, Subscriber};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::registry::LookupSpan;
use ureq::Agent;

const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];
const HEADERS: [&str; 2] = ["traceparent", "tracestate"];
const SERVICE_NAME: &str = "OTEL_SERVICE_NAME";
/// Timeout of one batch of spans.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of the last batch at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);
/// Bytes read of a response.
const MAX_RESPONSE: u64 = 64 << 10;

/// Exporter; sends the remaining spans when dropped.
pub struct Traces {
    provider: SdkTracerProvider,
}

impl Drop for Traces {
    fn drop(&mut self) {
        if let Err(error) = self.provider.shutdown_with_timeout(SHUTDOWN_TIMEOUT) {
            tracing::warn!(%error, "the last spans were not sent");
        }
    }
}

/// Layer that exports spans, if a collector is configured.
pub fn layer<S>() -> Option<(impl Layer<S>, Traces)>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    ENDPOINTS.iter().find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))?;
    let exporter = SpanExporter::builder().with_http().with_http_client(Client::new()).build();
    let exporter = exporter.inspect_err(|error| {
        // logging has not started yet
        let problem = format!("souk: invalid span collector, no spans are sent: {error}\n");
        drop(std::io::Write::write_all(&mut std::io::stderr(), problem.as_bytes()));
    });
    let resource = match std::env::var(SERVICE_NAME) {
        Ok(_) => Resource::builder().build(),
        Err(_) => Resource::builder().with_service_name("souk").build(),
    };
    let provider = SdkTracerProvider::builder().with_resource(resource).with_batch_exporter(exporter.ok()?).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("souk"));
    // spans of the exporter's own HTTP client would cause more spans
    let ours = filter_fn(|metadata| metadata.target().starts_with("souk") && *metadata.level() <= Level::INFO);
    Some((layer.with_filter(ours), Traces { provider }))
}

/// Makes a span a child of the caller's trace; `header` returns a request header by name.
pub fn join(span: &Span, header: impl Fn(&str) -> Option<String>) {
    let context: HashMap<String, String> =
        HEADERS.iter().filter_map(|name| Some(((*name).to_owned(), header(name)?))).collect();
    if !context.is_empty() {
        // fails if spans are not collected
        drop(span.set_parent(TraceContextPropagator::new().extract(&context)));
    }
}

#[derive(Debug)]
struct Client {
    agent: Agent,
}

impl Client {
    fn new() -> Self {
        let config = Agent::config_builder().http_status_as_error(false).timeout_global(Some(TIMEOUT));
        Self { agent: config.build().new_agent() }
    }

    fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (head, body) = request.into_parts();
        let (head, mut body) = self.agent.run(Request::from_parts(head, body.to_vec()))?.into_parts();
        let body = body.with_config().limit(MAX_RESPONSE).read_to_vec()?;
        Ok(Response::from_parts(head, body.into()))
    }
}

type SendFuture<'a> = Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'a>>;

impl HttpClient for Client {
    /// Blocks; the exporter has its own thread.
    fn send_bytes<'a, 'b>(&'a self, request: Request<Bytes>) -> SendFuture<'b>
    where
        'a: 'b,
    {
        Box::pin(async move { self.send(request) })
    }
}
