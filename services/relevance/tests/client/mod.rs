//! A service on a real socket, and a client that sends exactly the bytes it is told to.

#![allow(dead_code, reason = "each test uses its part")]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use souk::backbone::Precision;
use souk::encoder::Placement;
use souk::relevance::{CrossEncoder, ServeSettings};
use souk_http::Keys;
use souk_relevance::{Judge, Service, run};
use tch::Device;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Longer than anything here takes.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub struct Running {
    pub address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    ended: JoinHandle<std::io::Result<()>>,
}

pub struct Answer {
    pub status: u16,
    pub headers: String,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    /// The nested error, checked for its shape.
    pub fn error(&self) -> Value {
        let error = self.json()["error"].clone();
        assert!(error["message"].is_string() && error["type"].is_string() && error["code"].is_string(), "{error}");
        assert!(error.get("param").is_some(), "{error}");
        error
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let line = |line: &'_ &str| line.split_once(':').is_some_and(|(key, _)| key.eq_ignore_ascii_case(name));
        self.headers.lines().find(line).and_then(|line| line.split_once(':')).map(|(_, value)| value.trim())
    }
}

pub fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/rel_bert")
}

pub fn model() -> CrossEncoder {
    let placement =
        Placement { device: Device::Cpu, precision: Precision::F32, adapter: None, ignore_fields: Vec::new() };
    CrossEncoder::open(&golden(), placement).unwrap().freeze().unwrap()
}

impl Running {
    pub async fn start(judge: Judge, keys: Keys, settings: ServeSettings) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, asked) = oneshot::channel();
        let service = Arc::new(Service::new(judge, keys, &settings).unwrap());
        let ended = tokio::spawn(run(listener, service, async move { drop(asked.await) }));
        Self { address, stop: Some(stop), ended }
    }

    pub async fn of_model(settings: ServeSettings) -> Self {
        let judge = Judge::of_model(model(), settings.worker).unwrap();
        Self::start(judge, Keys::default(), settings).await
    }

    pub async fn post(&self, path: &str, body: &[u8]) -> Answer {
        self.post_with(path, "", body).await
    }

    pub async fn post_with(&self, path: &str, headers: &str, body: &[u8]) -> Answer {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: souk\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n",
            body.len()
        );
        self.send(&[head.as_bytes(), body].concat()).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(format!("GET {path} HTTP/1.1\r\nHost: souk\r\nConnection: close\r\n\r\n").as_bytes()).await
    }

    pub async fn send(&self, bytes: &[u8]) -> Answer {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        // a refusal may come before everything was sent
        drop(stream.write_all(bytes).await);
        answer(&mut stream).await
    }

    pub async fn stop(mut self) {
        drop(self.stop.take());
        timeout(PATIENCE, &mut self.ended).await.unwrap().unwrap().unwrap();
    }
}

pub async fn answer(stream: &mut TcpStream) -> Answer {
    let mut bytes = Vec::new();
    // a connection that was reset after its answer has still given it
    drop(timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("an answer in time"));
    let text = String::from_utf8(bytes).unwrap();
    let (headers, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
    let status = headers.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap();
    Answer { status, headers: headers.into(), body: body.into() }
}
