//! Client of one Milvus collection: takes requests, returns answers within the timeout. Every request here is
//! idempotent, so it is retried within that time if the connection breaks; after a server restart, the collection is
//! loaded again. Never shows a password.

#![expect(clippy::result_large_err, reason = "the client has such errors")]

use std::collections::HashMap;
use std::pin::Pin;
use std::time::{Duration, Instant};

use milvus::v2::ClientV2;
use milvus::v2::error::{Error as SdkError, Result as SdkResult};
use milvus::v2::prelude::{
    CollectionDesc, ConnectConfig, ConsistencyLevel, DescribeCollectionRequest, LoadCollectionRequest, QueryRequest,
    QueryResults, RetryConfig, TelemetryConfig,
};

use super::settings::MilvusSettings;
use souk_io::backoff::Backoff;
use souk_io::error::{Error, Result};

/// Milvus error code: the collection is not loaded.
const NOT_LOADED: i32 = 101;
/// Milvus error codes worth a retry: not ready, unavailable, too many concurrent requests, rate limit, not loaded.
const TRANSIENT: [i32; 5] = [1, 2, 4, 8, NOT_LOADED];
/// gRPC status codes.
const CANCELLED: i32 = 1;
const UNKNOWN: i32 = 2;
const DEADLINE_EXCEEDED: i32 = 4;
const PERMISSION_DENIED: i32 = 7;
const OUT_OF_RANGE: i32 = 11;
const INTERNAL: i32 = 13;
const UNAVAILABLE: i32 = 14;
const UNAUTHENTICATED: i32 = 16;

/// Pause between retries.
const MIN_PAUSE: Duration = Duration::from_millis(20);
const MAX_PAUSE: Duration = Duration::from_millis(500);
/// Retry time for a lost connection: a restarting server is back sooner.
const RESTART: Duration = Duration::from_secs(4);

pub struct MilvusClient {
    client: ClientV2,
    server: String,
    timeout: Duration,
    /// Collection or alias as named on the server.
    pub name: String,
}

/// Boxed future of a client call: the compiler cannot infer the client's nested lifetimes.
pub type Call<T> = Pin<Box<dyn Future<Output = SdkResult<T>> + Send>>;

/// Client method in the form that `MilvusClient::request` takes.
macro_rules! call {
    ($method:ident) => {
        |client: milvus::v2::ClientV2, request| -> $crate::index::milvus::client::Call<_> {
            Box::pin(async move { client.$method(request).await })
        }
    };
}

pub(super) use call;

/// Query for rows of the collection.
pub struct RowQuery<'a> {
    pub expression: String,
    pub fields: &'a [&'a str],
    /// Maximum number of rows, in id order.
    pub limit: Option<usize>,
}

impl MilvusClient {
    /// Connects to the server; does not check that the collection exists.
    pub async fn open(settings: &MilvusSettings, collection: &str) -> Result<Self> {
        settings.check()?;
        let (target, name) = (settings.target()?, settings.name(collection)?);
        let timeout = Duration::from_secs(settings.timeout_seconds);
        let config = ConnectConfig::new()
            .uri(target.uri)
            .connect_timeout(timeout)
            .rpc_timeout(timeout)
            .retry(RetryConfig::new().max_attempts(1))
            .telemetry(TelemetryConfig::new().enabled(false));
        let config = match target.token {
            Some(token) => config.token(token),
            None => config,
        };
        let server = settings.address.server();
        let connected = within(timeout, Box::pin(async move { ClientV2::new(&config).await })).await;
        match connected {
            Ok(client) => Ok(Self { client, server, timeout, name }),
            Err(failure @ SdkError::Timeout(_)) => {
                let seconds = timeout.as_secs();
                let problem =
                    format!("cannot be reached in {seconds} s: check that the server runs and the address is right");
                Err(upstream(&server, problem, true).because(failure))
            }
            Err(failure) => Err(failed(&server, "connect", failure)),
        }
    }

    /// Server and collection, for error messages.
    pub fn location(&self) -> String {
        format!("{}, collection `{}`", self.server, self.name)
    }

    pub async fn describe(&self) -> Result<CollectionDesc> {
        let request = DescribeCollectionRequest::builder().collection_name(&self.name).build();
        let found = self.request("describe the collection", request, call!(describe_collection)).await?;
        Ok(found.description().clone())
    }

    /// Loads the collection into the server's memory, where searches find it.
    pub async fn load(&self) -> Result<()> {
        let call = |client, (name, timeout)| -> Call<_> { Box::pin(load(client, name, timeout)) };
        self.request("load the collection", Ok((self.name.clone(), self.timeout)), call).await
    }

    /// Rows that match; None if the answer exceeds the client's limit (then ask for fewer).
    pub async fn query(&self, query: &RowQuery<'_>) -> Result<Option<QueryResults>> {
        let request = QueryRequest::builder()
            .collection_name(&self.name)
            .filter(&query.expression)
            .output_fields(query.fields.iter().copied())
            .consistency_level(ConsistencyLevel::Strong);
        let request = match query.limit {
            // these make the server sort rows by id
            Some(limit) => request.limit(limit as i64).extra_params(HashMap::from([
                ("iterator".into(), "True".into()),
                ("reduce_stop_for_best".into(), "True".into()),
            ])),
            None => request,
        };
        match self.send(request.build(), call!(query)).await {
            Ok(answer) => Ok(Some(answer.results().clone())),
            Err(failure) if grpc_code(&failure) == Some(OUT_OF_RANGE) => Ok(None),
            Err(failure) => Err(self.failed("read items", failure)),
        }
    }

    /// Sends a request, with retries.
    pub async fn request<R: Clone, T>(
        &self,
        action: &str,
        request: SdkResult<R>,
        call: fn(ClientV2, R) -> Call<T>,
    ) -> Result<T> {
        self.send(request, call).await.map_err(|e| self.failed(action, e))
    }

    async fn send<R: Clone, T>(&self, request: SdkResult<R>, call: fn(ClientV2, R) -> Call<T>) -> SdkResult<T> {
        let request = request?;
        let begun = Instant::now();
        let left = || self.timeout.saturating_sub(begun.elapsed());
        let mut backoff = Backoff::new(MIN_PAUSE, MAX_PAUSE);
        loop {
            let pause = backoff.next_pause();
            match within(left(), call(self.client.clone(), request.clone())).await {
                // the client reconnects on the next call; a restarted server is back in seconds, and may then need
                // longer to load
                Err(failure) if is_transient(&failure) && begun.elapsed() + pause < self.retry_time(&failure) => {
                    if is_unloaded(&failure) {
                        let load = Box::pin(load(self.client.clone(), self.name.clone(), left()));
                        // the server may be gone again
                        within(left(), load).await.or_else(|e| if is_transient(&e) { Ok(()) } else { Err(e) })?;
                    }
                    tokio::time::sleep(pause).await;
                }
                answer => return answer,
            }
        }
    }

    /// How long a failure of this kind is retried.
    fn retry_time(&self, failure: &SdkError) -> Duration {
        if is_unloaded(failure) { self.timeout } else { RESTART.min(self.timeout) }
    }

    pub fn failed(&self, action: &str, failure: SdkError) -> Error {
        failed(&self.server, action, failure)
    }

    /// Error for an answer that does not fit the request.
    pub fn unexpected(&self, problem: &str) -> Error {
        upstream(&self.server, problem.into(), false)
    }
}

/// Whether a retry can help.
fn is_transient(failure: &SdkError) -> bool {
    is_lost(failure) || is_unloaded(failure)
}

fn is_unloaded(failure: &SdkError) -> bool {
    server_code(failure) == Some(NOT_LOADED)
}

async fn load(client: ClientV2, name: String, timeout: Duration) -> SdkResult<()> {
    let millis = timeout.as_millis().max(1) as i64;
    client.load_collection(LoadCollectionRequest::builder().collection_name(name).timeout_ms(millis).build()?).await
}

async fn within<T>(timeout: Duration, call: Call<T>) -> SdkResult<T> {
    tokio::time::timeout(timeout, call).await.unwrap_or_else(|_| Err(SdkError::Timeout("no answer".into())))
}

fn failed(server: &str, action: &str, failure: SdkError) -> Error {
    let error = match (grpc_code(&failure), root_cause(&failure)) {
        _ if is_lost(&failure) => {
            upstream(server, "cannot be reached: check that the server runs and the address is right".into(), true)
        }
        (Some(UNAUTHENTICATED | PERMISSION_DENIED), _) => {
            Error::config(server, "the server rejected the user, password or token: correct the address")
        }
        (Some(CANCELLED | DEADLINE_EXCEEDED), _) | (_, SdkError::Timeout(_)) => {
            upstream(server, format!("did not {action} in time"), true)
        }
        (_, SdkError::Server(answer)) => {
            upstream(server, format!("could not {action}"), TRANSIENT.contains(&answer.code()))
        }
        _ => upstream(server, format!("could not {action}"), false),
    };
    error.because(failure)
}

fn upstream(server: &str, problem: String, retryable: bool) -> Error {
    Error::Upstream { service: server.into(), problem, retryable, source: None }
}

/// Whether the connection is down. Transport errors have a source; errors from the server have none.
fn is_lost(failure: &SdkError) -> bool {
    match root_cause(failure) {
        SdkError::Grpc(status) => match status.code() as i32 {
            UNAVAILABLE => true,
            UNKNOWN | INTERNAL => std::error::Error::source(status).is_some(),
            _ => false,
        },
        _ => false,
    }
}

fn grpc_code(failure: &SdkError) -> Option<i32> {
    match root_cause(failure) {
        SdkError::Grpc(status) => Some(status.code() as i32),
        _ => None,
    }
}

fn server_code(failure: &SdkError) -> Option<i32> {
    match root_cause(failure) {
        SdkError::Server(answer) => Some(answer.code()),
        _ => None,
    }
}

fn root_cause(failure: &SdkError) -> &SdkError {
    match failure {
        SdkError::RetryExhausted { source, .. } => root_cause(source),
        other => other,
    }
}
