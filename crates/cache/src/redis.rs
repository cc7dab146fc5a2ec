//! Redis cache, shared by many processes. Batches of keys take one round trip. If the server does not answer, one
//! caller waits for [`TIMEOUT`]; calls within [`COOLDOWN`] after that fail immediately, and then the server is tried
//! again.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, ErrorKind, FromRedisValue, Pipeline, RedisError, RetryMethod};

use super::memory::{Cache, MAX_VALUE, Value, check_entries, check_keys};
use souk_io::address::Address;
use souk_io::error::{Answer, Error, Result};

const TIMEOUT: Duration = Duration::from_secs(2);
const COOLDOWN: Duration = Duration::from_millis(250);
/// Entries written in one round trip; the server is blocked meanwhile.
const CHUNK_ENTRIES: usize = 1000;
/// Bytes written in one round trip.
const CHUNK_BYTES: usize = 4 << 20;
/// Upper bound of the bytes read in one round trip.
const RESPONSE_BYTES: usize = 64 << 20;
/// Keys read in one round trip; every value may have the maximum length.
const RESPONSE_KEYS: usize = RESPONSE_BYTES / MAX_VALUE;

pub struct RedisCache {
    client: Client,
    server: String,
    prefix: String,
    lifetime: Option<Duration>,
    link: Mutex<Link>,
}

#[derive(Default)]
struct Link {
    connection: Option<ConnectionManager>,
    /// Number of the current connection. A late failure of an older one does not close it.
    number: u64,
    /// Number of the last connection that worked.
    last_working: u64,
    cooldown_until: Option<Instant>,
}

impl RedisCache {
    /// Does not connect yet, so a service starts while Redis is down. Prepends `prefix` to keys on the server. Entries
    /// without a lifetime stay until the server evicts them.
    pub fn open(address: &Address, prefix: &str, lifetime: Option<Duration>) -> Result<Self> {
        let invalid =
            |e: RedisError| Error::config(address, "is not a valid Redis URL: use redis://USER@HOST:PORT/N").because(e);
        if lifetime.is_some_and(|lifetime| lifetime.as_millis() == 0) {
            return Err(Error::config(address, "the lifetime of entries is below 1 ms: set a longer one"));
        }
        let client = Client::open(address.secret()).map_err(invalid)?;
        let (server, prefix) = (address.server(), prefix.to_owned());
        Ok(Self { client, server, prefix, lifetime, link: Mutex::default() })
    }

    fn key(&self, key: &[u8]) -> Vec<u8> {
        [self.prefix.as_bytes(), key].concat()
    }

    async fn get(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Value>>> {
        check_keys(keys.iter())?;
        let mut found = Vec::with_capacity(keys.len());
        for chunk in keys.chunks(RESPONSE_KEYS) {
            let mut command = redis::cmd("MGET");
            command.arg(chunk.iter().map(|key| self.key(key)).collect::<Vec<_>>());
            let values: Vec<Option<Vec<u8>>> = self
                .round_trip(async |mut connection: ConnectionManager| command.query_async(&mut connection).await)
                .await?;
            if values.len() != chunk.len() {
                return Err(self.upstream("returned a different number of values than requested", false));
            }
            found.extend(values.into_iter().map(|value| value.map(Value::from)));
        }
        Ok(found)
    }

    async fn put(&self, entries: &[(Vec<u8>, Value)]) -> Result<()> {
        check_entries(entries)?;
        let mut rest = entries;
        while !rest.is_empty() {
            let mut num_bytes = 0;
            let fits = |(_, value): &&(Vec<u8>, Value)| {
                num_bytes += value.len();
                num_bytes <= CHUNK_BYTES
            };
            // an entry larger than the limit is sent alone
            let num = rest.iter().take(CHUNK_ENTRIES).take_while(fits).count().max(1);
            let (chunk, after) = rest.split_at(num);
            let mut pipeline = Pipeline::with_capacity(num);
            for (key, value) in chunk {
                let command = pipeline.cmd("SET").arg(self.key(key)).arg(&value[..]);
                if let Some(lifetime) = self.lifetime {
                    command.arg("PX").arg(lifetime.as_millis() as u64);
                }
                command.ignore();
            }
            let () = self
                .round_trip(async |mut connection: ConnectionManager| pipeline.query_async(&mut connection).await)
                .await?;
            rest = after;
        }
        Ok(())
    }

    /// Runs one round trip and tracks whether the connection works.
    async fn round_trip<T: FromRedisValue>(
        &self,
        request: impl AsyncFnOnce(ConnectionManager) -> std::result::Result<T, RedisError>,
    ) -> Result<T> {
        let (connection, number) = self.connection()?;
        let (failure, is_rejected) = match tokio::time::timeout(TIMEOUT, request(connection)).await {
            Ok(Ok(response)) => {
                self.link().last_working = number;
                return Ok(response);
            }
            Ok(Err(e)) => {
                // a failed login is unrecoverable, too
                let is_rejected = !e.is_io_error() && !e.is_unrecoverable_error();
                (self.error(e), is_rejected)
            }
            Err(_) => (self.upstream(&format!("no answer in {} s", TIMEOUT.as_secs()), true), false),
        };
        let mut link = self.link();
        // a server that rejects a command is up
        if link.number == number && !(is_rejected && link.last_working == number) {
            // the manager reconnects broken connections, but neither unresponsive ones nor those rejected while
            // connecting
            link.connection = None;
            link.cooldown_until = (!is_rejected).then(|| Instant::now() + COOLDOWN);
        }
        Err(failure)
    }

    fn connection(&self) -> Result<(ConnectionManager, u64)> {
        let mut link = self.link();
        if link.cooldown_until.is_some_and(|until| Instant::now() < until) {
            return Err(self.upstream("did not answer a moment ago", true));
        }
        link.cooldown_until = None;
        if let Some(connection) = &link.connection {
            return Ok((connection.clone(), link.number));
        }
        let config = ConnectionManagerConfig::new()
            .set_number_of_retries(0)
            .set_connection_timeout(Some(TIMEOUT))
            .set_response_timeout(Some(TIMEOUT));
        let connection =
            ConnectionManager::new_lazy_with_config(self.client.clone(), config).map_err(|e| self.error(e))?;
        link.number += 1;
        link.connection = Some(connection.clone());
        Ok((connection, link.number))
    }

    fn link(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn error(&self, failure: RedisError) -> Error {
        match failure.kind() {
            ErrorKind::AuthenticationFailed => {
                let problem = "user or password rejected: correct the URL";
                Error::config(&self.server, problem).because(failure)
            }
            _ if failure.is_io_error() => {
                let problem = "cannot be reached: check the address, and that the server is running";
                self.upstream(problem, true).because(failure)
            }
            _ => {
                // LOADING and READONLY are temporary
                let is_temporary =
                    matches!(failure.retry_method(), RetryMethod::WaitAndRetry | RetryMethod::RefreshSlotsAndRetry);
                let retryable = failure.is_unrecoverable_error() || is_temporary;
                self.upstream("rejected a command", retryable).because(failure)
            }
        }
    }

    fn upstream(&self, problem: &str, retryable: bool) -> Error {
        Error::Upstream { service: self.server.clone(), problem: problem.into(), retryable, source: None }
    }
}

impl Cache for RedisCache {
    fn get_many<'a>(&'a self, keys: &'a [Vec<u8>]) -> Answer<'a, Vec<Option<Value>>> {
        Box::pin(self.get(keys))
    }

    fn put_many<'a>(&'a self, entries: &'a [(Vec<u8>, Value)]) -> Answer<'a, ()> {
        Box::pin(self.put(entries))
    }
}
