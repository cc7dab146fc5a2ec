//! A cache that many processes share, in Redis. Many keys are one round trip. A server that does not answer costs a
//! caller [`PATIENCE`] once; for a moment after that everybody is told at once, and then it is tried again.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, ErrorKind, FromRedisValue, Pipeline, RedisError, RetryMethod};

use super::memory::{Cache, MAX_VALUE, Value, checked_entries, checked_keys};
use souk_io::address::Address;
use souk_io::error::{Answer, Error, Result};

const PATIENCE: Duration = Duration::from_secs(2);
const QUIET: Duration = Duration::from_millis(250);
/// Of one round trip: the server does nothing else meanwhile.
const CHUNK: usize = 1000;
const CHUNK_BYTES: usize = 4 << 20;
/// Of one round trip the other way: every value may be of the longest.
const ANSWER_BYTES: usize = 64 << 20;
const ANSWER_CHUNK: usize = ANSWER_BYTES / MAX_VALUE;

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
    /// Counts connections, so that a late failure of an old one does not close its successor.
    number: u64,
    /// The number of the last connection that is known to work.
    proven: u64,
    quiet_until: Option<Instant>,
}

impl RedisCache {
    /// Makes no connection yet: a shop opens while its cache is away. Keys begin with `prefix` on the server; entries
    /// without a lifetime stay until the server needs the room.
    pub fn open(address: &Address, prefix: &str, lifetime: Option<Duration>) -> Result<Self> {
        let wrong = |e: RedisError| {
            Error::config(address, "is no URL that Redis understands: say redis://USER@HOST:PORT/N").because(e)
        };
        if lifetime.is_some_and(|lifetime| lifetime.as_millis() == 0) {
            return Err(Error::config(address, "entries live for less than a millisecond: give a longer time"));
        }
        let client = Client::open(address.secret()).map_err(wrong)?;
        let (server, prefix) = (address.server(), prefix.to_owned());
        Ok(Self { client, server, prefix, lifetime, link: Mutex::default() })
    }

    fn key(&self, key: &[u8]) -> Vec<u8> {
        [self.prefix.as_bytes(), key].concat()
    }

    async fn get(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Value>>> {
        checked_keys(keys.iter())?;
        let mut found = Vec::with_capacity(keys.len());
        for chunk in keys.chunks(ANSWER_CHUNK) {
            let mut command = redis::cmd("MGET");
            command.arg(chunk.iter().map(|key| self.key(key)).collect::<Vec<_>>());
            let values: Vec<Option<Vec<u8>>> =
                self.ask(async |mut connection: ConnectionManager| command.query_async(&mut connection).await).await?;
            if values.len() != chunk.len() {
                return Err(self.upstream("gave another number of values than it was asked for", false));
            }
            found.extend(values.into_iter().map(|value| value.map(Value::from)));
        }
        Ok(found)
    }

    async fn put(&self, entries: &[(Vec<u8>, Value)]) -> Result<()> {
        checked_entries(entries)?;
        let mut rest = entries;
        while !rest.is_empty() {
            let mut num_bytes = 0;
            let fits = |(_, value): &&(Vec<u8>, Value)| {
                num_bytes += value.len();
                num_bytes <= CHUNK_BYTES
            };
            // one that is too large goes alone
            let num = rest.iter().take(CHUNK).take_while(fits).count().max(1);
            let (chunk, after) = rest.split_at(num);
            let mut pipeline = Pipeline::with_capacity(num);
            for (key, value) in chunk {
                let command = pipeline.cmd("SET").arg(self.key(key)).arg(&value[..]);
                if let Some(lifetime) = self.lifetime {
                    command.arg("PX").arg(lifetime.as_millis() as u64);
                }
                command.ignore();
            }
            let () =
                self.ask(async |mut connection: ConnectionManager| pipeline.query_async(&mut connection).await).await?;
            rest = after;
        }
        Ok(())
    }

    /// One round trip.
    async fn ask<T: FromRedisValue>(
        &self,
        question: impl AsyncFnOnce(ConnectionManager) -> std::result::Result<T, RedisError>,
    ) -> Result<T> {
        let (connection, number) = self.connection()?;
        let (failure, refused) = match tokio::time::timeout(PATIENCE, question(connection)).await {
            Ok(Ok(answer)) => {
                self.link().proven = number;
                return Ok(answer);
            }
            Ok(Err(e)) => {
                // a login that fails is unrecoverable, too
                let refused = !e.is_io_error() && !e.is_unrecoverable_error();
                (self.failed(e), refused)
            }
            Err(_) => (self.upstream(&format!("no answer in {} s", PATIENCE.as_secs()), true), false),
        };
        let mut link = self.link();
        // a server that refuses a command is there, for this one and for others
        if link.number == number && !(refused && link.proven == number) {
            // the manager heals broken connections, but not silent ones, nor one that was refused as it was made
            link.connection = None;
            link.quiet_until = (!refused).then(|| Instant::now() + QUIET);
        }
        Err(failure)
    }

    fn connection(&self) -> Result<(ConnectionManager, u64)> {
        let mut link = self.link();
        if link.quiet_until.is_some_and(|until| Instant::now() < until) {
            return Err(self.upstream("did not answer a moment ago", true));
        }
        link.quiet_until = None;
        if let Some(connection) = &link.connection {
            return Ok((connection.clone(), link.number));
        }
        let config = ConnectionManagerConfig::new()
            .set_number_of_retries(0)
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE));
        let connection =
            ConnectionManager::new_lazy_with_config(self.client.clone(), config).map_err(|e| self.failed(e))?;
        link.number += 1;
        link.connection = Some(connection.clone());
        Ok((connection, link.number))
    }

    fn link(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn failed(&self, failure: RedisError) -> Error {
        match failure.kind() {
            ErrorKind::AuthenticationFailed => {
                let problem = "the user or the password was refused: correct the URL";
                Error::config(&self.server, problem).because(failure)
            }
            _ if failure.is_io_error() => {
                let problem = "cannot be reached: is the server running, is the address right?";
                self.upstream(problem, true).because(failure)
            }
            _ => {
                // LOADING and READONLY pass
                let passing =
                    matches!(failure.retry_method(), RetryMethod::WaitAndRetry | RetryMethod::RefreshSlotsAndRetry);
                let retryable = failure.is_unrecoverable_error() || passing;
                self.upstream("refused", retryable).because(failure)
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
