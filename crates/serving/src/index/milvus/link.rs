//! One collection of one server: takes questions in the words of Milvus' client, gives answers within the time that is set.
//! A question whose connection broke is asked again within that time, for none here does anything else when it is asked twice;
//! a server that began anew is told to load the collection. Never shows a password.

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
use souk_io::error::{Error, Result};

/// Milvus' number of the error that says that a collection is not in memory.
const NOT_LOADED: i32 = 101;
/// Not ready, unavailable, too many at a time, too many a second, not in memory yet.
const PASSING: [i32; 5] = [1, 2, 4, 8, NOT_LOADED];
/// Codes of gRPC.
const CANCELLED: i32 = 1;
const UNKNOWN: i32 = 2;
const DEADLINE_EXCEEDED: i32 = 4;
const PERMISSION_DENIED: i32 = 7;
const OUT_OF_RANGE: i32 = 11;
const INTERNAL: i32 = 13;
const UNAVAILABLE: i32 = 14;
const UNAUTHENTICATED: i32 = 16;

/// Between tries to reach a server.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
const MAX_PAUSE: Duration = Duration::from_millis(500);
/// A server that is restarted is there again sooner; for one that is away nobody waits longer.
const RESTART: Duration = Duration::from_secs(4);

pub struct Link {
    client: ClientV2,
    server: String,
    patience: Duration,
    /// As the server calls the collection, or its alias.
    pub name: String,
}

/// What the client will answer; boxed, for the lifetimes within a call of the client are too many for the compiler.
pub type Call<T> = Pin<Box<dyn Future<Output = SdkResult<T>> + Send>>;

/// A method of the client as `Link::ask` takes it.
macro_rules! call {
    ($method:ident) => {
        |client: milvus::v2::ClientV2, request| -> $crate::index::milvus::link::Call<_> {
            Box::pin(async move { client.$method(request).await })
        }
    };
}

pub(super) use call;

/// Some rows of the collection.
pub struct Query<'a> {
    pub expression: String,
    pub fields: &'a [&'a str],
    /// In the order of their ids, so many at most.
    pub limit: Option<usize>,
}

impl Link {
    /// Connects to the server; whether it has the collection is not asked.
    pub async fn open(settings: &MilvusSettings, collection: &str) -> Result<Self> {
        settings.check()?;
        let (target, name) = (settings.target()?, settings.name(collection)?);
        let patience = Duration::from_secs(settings.timeout_seconds);
        let config = ConnectConfig::new()
            .uri(target.uri)
            .connect_timeout(patience)
            .rpc_timeout(patience)
            .retry(RetryConfig::new().max_attempts(1))
            .telemetry(TelemetryConfig::new().enabled(false));
        let config = match target.token {
            Some(token) => config.token(token),
            None => config,
        };
        let server = settings.address.server();
        let connected = within(patience, Box::pin(async move { ClientV2::new(&config).await })).await;
        match connected {
            Ok(client) => Ok(Self { client, server, patience, name }),
            Err(failure @ SdkError::Timeout(_)) => {
                let seconds = patience.as_secs();
                let problem = format!("cannot be reached in {seconds} s: is the server running, is the address right?");
                Err(upstream(&server, problem, true).because(failure))
            }
            Err(failure) => Err(failed(&server, "connect", failure)),
        }
    }

    /// As errors name it.
    pub fn place(&self) -> String {
        format!("{}, collection `{}`", self.server, self.name)
    }

    pub async fn describe(&self) -> Result<CollectionDesc> {
        let request = DescribeCollectionRequest::builder().collection_name(&self.name).build();
        let found = self.ask("describe the collection", request, call!(describe_collection)).await?;
        Ok(found.description().clone())
    }

    /// Has the server take the collection into memory, where searches find it.
    pub async fn load(&self) -> Result<()> {
        let call = |client, (name, patience)| -> Call<_> { Box::pin(load(client, name, patience)) };
        self.ask("load the collection", Ok((self.name.clone(), self.patience)), call).await
    }

    /// Nothing where the answer is longer than the client takes: ask for less.
    pub async fn query(&self, query: &Query<'_>) -> Result<Option<QueryResults>> {
        let request = QueryRequest::builder()
            .collection_name(&self.name)
            .filter(&query.expression)
            .output_fields(query.fields.iter().copied())
            .consistency_level(ConsistencyLevel::Strong);
        let request = match query.limit {
            // what sorts the rows
            Some(limit) => request.limit(limit as i64).extra_params(HashMap::from([
                ("iterator".into(), "True".into()),
                ("reduce_stop_for_best".into(), "True".into()),
            ])),
            None => request,
        };
        match self.answer(request.build(), call!(query)).await {
            Ok(answer) => Ok(Some(answer.results().clone())),
            Err(failure) if grpc_code(&failure) == Some(OUT_OF_RANGE) => Ok(None),
            Err(failure) => Err(self.failed("read items", failure)),
        }
    }

    /// What the server says to a request.
    pub async fn ask<R: Clone, T>(
        &self,
        action: &str,
        request: SdkResult<R>,
        call: fn(ClientV2, R) -> Call<T>,
    ) -> Result<T> {
        self.answer(request, call).await.map_err(|e| self.failed(action, e))
    }

    async fn answer<R: Clone, T>(&self, request: SdkResult<R>, call: fn(ClientV2, R) -> Call<T>) -> SdkResult<T> {
        let request = request?;
        let begun = Instant::now();
        let left = || self.patience.saturating_sub(begun.elapsed());
        let mut pause = SHORTEST_PAUSE;
        loop {
            match within(left(), call(self.client.clone(), request.clone())).await {
                // the client connects anew with the next call; a server that begins anew is there in seconds, and may then
                // take longer to load
                Err(failure) if is_passing(&failure) && begun.elapsed() + pause < self.worth(&failure) => {
                    if is_released(&failure) {
                        let load = Box::pin(load(self.client.clone(), self.name.clone(), left()));
                        // it may have gone away once more
                        within(left(), load).await.or_else(|e| if is_passing(&e) { Ok(()) } else { Err(e) })?;
                    }
                    tokio::time::sleep(pause).await;
                    pause = MAX_PAUSE.min(2 * pause);
                }
                answer => return answer,
            }
        }
    }

    /// How long it is tried again after such a failure.
    fn worth(&self, failure: &SdkError) -> Duration {
        if is_released(failure) { self.patience } else { RESTART.min(self.patience) }
    }

    pub fn failed(&self, action: &str, failure: SdkError) -> Error {
        failed(&self.server, action, failure)
    }

    /// The server gave what it was not asked for.
    pub fn strange(&self, problem: &str) -> Error {
        upstream(&self.server, problem.into(), false)
    }
}

/// Of a server that is restarted.
fn is_passing(failure: &SdkError) -> bool {
    is_lost(failure) || is_released(failure)
}

fn is_released(failure: &SdkError) -> bool {
    server_code(failure) == Some(NOT_LOADED)
}

async fn load(client: ClientV2, name: String, patience: Duration) -> SdkResult<()> {
    let millis = patience.as_millis().max(1) as i64;
    client.load_collection(LoadCollectionRequest::builder().collection_name(name).timeout_ms(millis).build()?).await
}

async fn within<T>(patience: Duration, call: Call<T>) -> SdkResult<T> {
    tokio::time::timeout(patience, call).await.unwrap_or_else(|_| Err(SdkError::Timeout("no answer".into())))
}

fn failed(server: &str, action: &str, failure: SdkError) -> Error {
    let error = match (grpc_code(&failure), root(&failure)) {
        _ if is_lost(&failure) => {
            upstream(server, "cannot be reached: is the server running, is the address right?".into(), true)
        }
        (Some(UNAUTHENTICATED | PERMISSION_DENIED), _) => {
            Error::config(server, "the user, the password or the token was refused: correct the address")
        }
        (Some(CANCELLED | DEADLINE_EXCEEDED), _) | (_, SdkError::Timeout(_)) => {
            upstream(server, format!("did not {action} in time"), true)
        }
        (_, SdkError::Server(said)) => upstream(server, format!("could not {action}"), PASSING.contains(&said.code())),
        _ => upstream(server, format!("could not {action}"), false),
    };
    error.because(failure)
}

fn upstream(server: &str, problem: String, retryable: bool) -> Error {
    Error::Upstream { service: server.into(), problem, retryable, source: None }
}

/// Whether there is no connection, or none any longer: what broke on the way has a cause, what a server says has none.
fn is_lost(failure: &SdkError) -> bool {
    match root(failure) {
        SdkError::Grpc(status) => match status.code() as i32 {
            UNAVAILABLE => true,
            UNKNOWN | INTERNAL => std::error::Error::source(status).is_some(),
            _ => false,
        },
        _ => false,
    }
}

fn grpc_code(failure: &SdkError) -> Option<i32> {
    match root(failure) {
        SdkError::Grpc(status) => Some(status.code() as i32),
        _ => None,
    }
}

fn server_code(failure: &SdkError) -> Option<i32> {
    match root(failure) {
        SdkError::Server(said) => Some(said.code()),
        _ => None,
    }
}

fn root(failure: &SdkError) -> &SdkError {
    match failure {
        SdkError::RetryExhausted { source, .. } => root(source),
        other => other,
    }
}
