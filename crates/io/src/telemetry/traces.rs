//! Spans to whoever collects them, by OTLP over HTTP. `OTEL_EXPORTER_OTLP_ENDPOINT` names the collector; without it nothing is
//! kept or sent. The other variables of OpenTelemetry's specification count as well. A collector that is away costs spans, and
//! nobody waits for it.

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
/// For one batch of spans.
const PATIENCE: Duration = Duration::from_secs(10);
/// For what waits when the process ends.
const LAST_PATIENCE: Duration = Duration::from_secs(3);
/// Of an answer, which says little.
const MAX_ANSWER: u64 = 64 << 10;

/// Sends what waits when it is dropped.
pub struct Traces {
    provider: SdkTracerProvider,
}

impl Drop for Traces {
    fn drop(&mut self) {
        if let Err(error) = self.provider.shutdown_with_timeout(LAST_PATIENCE) {
            tracing::warn!(%error, "the last spans were not collected");
        }
    }
}

/// The layer that makes spans of this program's spans, where a collector is named.
pub fn layer<S>() -> Option<(impl Layer<S>, Traces)>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    ENDPOINTS.iter().find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))?;
    let exporter = SpanExporter::builder().with_http().with_http_client(Client::new()).build();
    let exporter = exporter.inspect_err(|error| {
        // there is no log yet
        let problem = format!("souk: the collector of spans is not usable, and none are sent: {error}\n");
        drop(std::io::Write::write_all(&mut std::io::stderr(), problem.as_bytes()));
    });
    let resource = match std::env::var(SERVICE_NAME) {
        Ok(_) => Resource::builder().build(),
        Err(_) => Resource::builder().with_service_name("souk").build(),
    };
    let provider = SdkTracerProvider::builder().with_resource(resource).with_batch_exporter(exporter.ok()?).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("souk"));
    // its own HTTP client would tell of itself without end
    let ours = filter_fn(|metadata| metadata.target().starts_with("souk") && *metadata.level() <= Level::INFO);
    Some((layer.with_filter(ours), Traces { provider }))
}

/// Makes a span part of what the caller traces; `header` gives the caller's headers.
pub fn join(span: &Span, header: impl Fn(&str) -> Option<String>) {
    let said: HashMap<String, String> =
        HEADERS.iter().filter_map(|name| Some(((*name).to_owned(), header(name)?))).collect();
    if !said.is_empty() {
        // where nothing is collected there is nothing to be part of
        drop(span.set_parent(TraceContextPropagator::new().extract(&said)));
    }
}

#[derive(Debug)]
struct Client {
    agent: Agent,
}

impl Client {
    fn new() -> Self {
        let config = Agent::config_builder().http_status_as_error(false).timeout_global(Some(PATIENCE));
        Self { agent: config.build().new_agent() }
    }

    fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (head, body) = request.into_parts();
        let (head, mut body) = self.agent.run(Request::from_parts(head, body.to_vec()))?.into_parts();
        let body = body.with_config().limit(MAX_ANSWER).read_to_vec()?;
        Ok(Response::from_parts(head, body.into()))
    }
}

type Sent<'a> = Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'a>>;

impl HttpClient for Client {
    /// Blocks: whoever collects spans has a thread of its own.
    fn send_bytes<'a, 'b>(&'a self, request: Request<Bytes>) -> Sent<'b>
    where
        'a: 'b,
    {
        Box::pin(async move { self.send(request) })
    }
}
