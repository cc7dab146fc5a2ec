//! Conformance test of `Cache`, and failures of Redis: down, slow, rejecting commands, back again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::Client;
use souk_cache::{Cache, MAX_KEY, MAX_VALUE, MemoryCache, RedisCache, Value, open_cache};
use souk_io::address::Address;
use souk_io::error::Error;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use souk_testing::databases::{runtime, server_url, unique};

fn keys(keys: &[&[u8]]) -> Vec<Vec<u8>> {
    keys.iter().map(|key| key.to_vec()).collect()
}

fn entry(key: &[u8], value: &[u8]) -> (Vec<u8>, Value) {
    (key.to_vec(), value.into())
}

async fn conform(cache: &dyn Cache) {
    assert_eq!(cache.get_many(&[]).await.unwrap(), []);
    cache.put_many(&[]).await.unwrap();
    let odd: &[u8] = b"\0\r\n$5\xff";
    let entries = [entry(b"a", b"1"), entry(b"empty", b""), entry(odd, odd), entry(b"a", b"2")];
    cache.put_many(&entries).await.unwrap();
    let found = cache.get_many(&keys(&[odd, b"none", b"a", b"empty", b"a"])).await.unwrap();
    let found: Vec<Option<&[u8]>> = found.iter().map(|value| value.as_deref()).collect();
    assert_eq!(found, [Some(odd), None, Some(b"2"), Some(b""), Some(b"2")]);

    let many: Vec<_> = (0..2500u32).map(|n| entry(&n.to_le_bytes(), &[n as u8; 3000])).collect();
    cache.put_many(&many).await.unwrap();
    let requested: Vec<Vec<u8>> = many.iter().rev().map(|(key, _)| key.clone()).collect();
    let found = cache.get_many(&requested).await.unwrap();
    assert!(found.iter().zip(many.iter().rev()).all(|(found, (_, put))| found.as_ref() == Some(put)));

    for wrong in [vec![], vec![0; MAX_KEY + 1]] {
        assert!(matches!(cache.get_many(std::slice::from_ref(&wrong)).await, Err(Error::Input { .. })));
        assert!(matches!(cache.put_many(&[(wrong, b"1".as_slice().into())]).await, Err(Error::Input { .. })));
    }
    let large = vec![0; MAX_VALUE + 1].into();
    assert!(matches!(cache.put_many(&[(b"large".to_vec(), large)]).await, Err(Error::Input { .. })));
    let largest: Vec<_> = (0..40).map(|n| entry(&[n; MAX_KEY], &vec![n; MAX_VALUE])).collect();
    cache.put_many(&largest).await.unwrap();
    let requested: Vec<Vec<u8>> = largest.iter().map(|(key, _)| key.clone()).collect();
    let found = cache.get_many(&requested).await.unwrap();
    assert!(found.iter().zip(&largest).all(|(found, (_, put))| found.as_ref() == Some(put)));
}

#[test]
fn memory_conforms() {
    runtime().block_on(async {
        let cache = MemoryCache::new(32 << 20);
        conform(&cache).await;
        assert!(cache.num_bytes() > 17 << 20);
        conform(&*open_cache(&Address::new("memory"), 32 << 20, None).unwrap()).await;
    });
}

#[test]
fn rejects_invalid_addresses() {
    for url in ["memcached://a", "redis://:secret@host:port/x", "valkey://:secret@cache/0"] {
        let error = open_cache(&Address::new(url), 0, None).err().unwrap();
        assert!(matches!(error, Error::Config { .. }) && !format!("{error:?}").contains("secret"), "{error:?}");
    }
}

/// Runs a test on the server in REDIS_URL with a unique prefix, and deletes its keys afterwards.
fn on_redis(name: &str, test: impl AsyncFn(String, String)) {
    let Some(url) = server_url("REDIS_URL", name, |url| url.starts_with("redis")) else { return };
    let prefix = unique("souk-test") + ":";
    runtime().block_on(test(url.clone(), prefix.clone()));
    let mut connection = Client::open(url).unwrap().get_connection().unwrap();
    let left: Vec<Vec<u8>> = redis::cmd("KEYS").arg(format!("{prefix}*")).query(&mut connection).unwrap();
    for key in left {
        let _: () = redis::cmd("DEL").arg(key).query(&mut connection).unwrap();
    }
}

#[test]
fn redis_conforms() {
    on_redis("redis_conforms", async |url, prefix| {
        let address = Address::new(url);
        conform(&RedisCache::open(&address, &prefix, Some(Duration::from_secs(60))).unwrap()).await;
        conform(&RedisCache::open(&address, &prefix, None).unwrap()).await;
        let other = RedisCache::open(&address, &format!("{prefix}other:"), None).unwrap();
        assert_eq!(other.get_many(&keys(&[b"a"])).await.unwrap(), [None], "prefixes separate keys");
    });
}

#[test]
fn redis_entries_expire() {
    on_redis("redis_entries_expire", async |url, prefix| {
        let cache = RedisCache::open(&Address::new(url), &prefix, Some(Duration::from_millis(20))).unwrap();
        cache.put_many(&[entry(b"a", b"1")]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(cache.get_many(&keys(&[b"a"])).await.unwrap(), [None]);
    });
}

#[test]
fn redis_outage_is_an_error_until_it_is_back() {
    on_redis("redis_outage_is_an_error_until_it_is_back", async |url, prefix| {
        let server = Client::open(url.as_str()).unwrap().get_connection_info().addr().to_string();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        assert!(url.contains(&server), "REDIS_URL names host and port");
        let address = Address::new(url.replace(&server, &at.to_string()));
        let cache = RedisCache::open(&address, &prefix, None).unwrap();
        let mut proxy = Proxy::start(listener, &server);
        cache.put_many(&[entry(b"a", b"1")]).await.unwrap();
        for _ in 0..2 {
            proxy.stop().await;
            for _ in 0..3 {
                let error = cache.get_many(&keys(&[b"a"])).await.unwrap_err();
                assert!(matches!(error, Error::Upstream { retryable: true, .. }), "{error:?}");
                assert!(error.to_string().contains(&at.to_string()), "{error}");
            }
            proxy = Proxy::start(TcpListener::bind(at).await.unwrap(), &server);
            let mut found = cache.get_many(&keys(&[b"a"])).await;
            for _ in 0..100 {
                if found.is_ok() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
                found = cache.get_many(&keys(&[b"a"])).await;
            }
            assert_eq!(found.unwrap(), [Some(b"1".as_slice().into())]);
        }
        proxy.stop().await;
    });
}

#[test]
fn rejected_commands_keep_the_connection() {
    runtime().block_on(async {
        let (address, connections, longest) = rejecting_server().await;
        let cache = RedisCache::open(&address, "", None).unwrap();
        let requested: Vec<Vec<u8>> = (0..3000u32).map(|n| n.to_le_bytes().to_vec()).collect();
        for round in 0..3 {
            assert!(cache.get_many(&requested).await.unwrap().iter().all(Option::is_none));
            for (key, retryable) in [("LOADING", true), ("READONLY", true), ("OOM", false)] {
                let error = cache.put_many(&[entry(key.as_bytes(), b"1")]).await.unwrap_err();
                let is_expected = matches!(error, Error::Upstream { retryable: found, .. } if found == retryable);
                assert!(is_expected && format!("{error:?}").contains("not now"), "{round}: {error:?}");
            }
        }
        assert_eq!(connections.load(Ordering::Relaxed), 1);
        assert!(longest.load(Ordering::Relaxed) * MAX_VALUE <= 64 << 20, "the size of a response is bounded");

        let (address, connections, _) = rejecting_server().await;
        let cache = RedisCache::open(&address, "", None).unwrap();
        cache.put_many(&[entry(b"OOM", b"1")]).await.unwrap_err();
        assert_eq!(cache.get_many(&keys(&[b"a"])).await.unwrap(), [None], "no cooldown after a rejected command");
        assert_eq!(connections.load(Ordering::Relaxed), 2, "the first may have been rejected while connecting");
    });
}

/// Starts a server that has no keys and answers `SET X` with the error `X`. Returns its address, the number of
/// connections, and the largest number of keys in one request.
async fn rejecting_server() -> (Address, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = Address::new(format!("redis://{}", listener.local_addr().unwrap()));
    let (connections, longest) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let counters = (connections.clone(), longest.clone());
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            connections.fetch_add(1, Ordering::Relaxed);
            let longest = longest.clone();
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                while let Some(command) = read_command(&mut stream).await {
                    let answer = match command[0].as_slice() {
                        b"MGET" => {
                            longest.fetch_max(command.len() - 1, Ordering::Relaxed);
                            format!("*{}\r\n{}", command.len() - 1, "$-1\r\n".repeat(command.len() - 1))
                        }
                        b"SET" => format!("-{} not now\r\n", String::from_utf8_lossy(&command[1])),
                        _ => "+OK\r\n".into(),
                    };
                    stream.get_mut().write_all(answer.as_bytes()).await.unwrap();
                }
            });
        }
    });
    (address, counters.0, counters.1)
}

async fn read_command(stream: &mut BufReader<TcpStream>) -> Option<Vec<Vec<u8>>> {
    let mut command = Vec::new();
    for _ in 0..read_number(stream).await? {
        let mut text = vec![0; read_number(stream).await? + 2];
        stream.read_exact(&mut text).await.ok()?;
        text.truncate(text.len() - 2);
        command.push(text);
    }
    Some(command)
}

/// Reads the number of a line such as `*2` or `$5`.
async fn read_number(stream: &mut BufReader<TcpStream>) -> Option<usize> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok()?;
    line.get(1..)?.trim().parse().ok()
}

#[test]
fn unresponsive_redis_costs_one_timeout() {
    let unresponsive = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://:secret@{}/0", unresponsive.local_addr().unwrap());
    runtime().block_on(async {
        let cache = RedisCache::open(&Address::new(url), "", None).unwrap();
        for expected in ["", "a moment ago"] {
            let error = cache.get_many(&keys(&[b"a"])).await.unwrap_err();
            assert!(matches!(error, Error::Upstream { retryable: true, .. }), "{error:?}");
            assert!(error.to_string().contains(expected) && !format!("{error:?}").contains("secret"), "{error:?}");
        }
    });
}

/// TCP proxy. When stopped, it closes all connections.
struct Proxy {
    accepting: JoinHandle<()>,
}

impl Proxy {
    fn start(listener: TcpListener, server: &str) -> Self {
        let server = server.to_owned();
        let accepting = tokio::spawn(async move {
            let mut passing = tokio::task::JoinSet::new();
            while let Ok((mut inside, _)) = listener.accept().await {
                let server = server.clone();
                passing.spawn(async move {
                    if let Ok(mut outside) = TcpStream::connect(server).await {
                        drop(tokio::io::copy_bidirectional(&mut inside, &mut outside).await);
                    }
                });
            }
        });
        Self { accepting }
    }

    async fn stop(self) {
        self.accepting.abort();
        drop(self.accepting.await);
    }
}

#[test]
fn concurrent_use_of_one_cache() {
    let cache = Arc::new(MemoryCache::new(1 << 16));
    runtime().block_on(async {
        let mut running = tokio::task::JoinSet::new();
        for user in 0..8u8 {
            let cache = cache.clone();
            running.spawn(async move {
                for n in 0..2000u32 {
                    let key = vec![(n % 50) as u8, user % 2];
                    cache.put_many(&[(key.clone(), key.as_slice().into())]).await.unwrap();
                    let found = cache.get_many(std::slice::from_ref(&key)).await.unwrap().remove(0);
                    assert!(found.is_none_or(|found| *found == *key));
                }
            });
        }
        running.join_all().await;
    });
    assert!(cache.num_bytes() <= 1 << 16);
}
