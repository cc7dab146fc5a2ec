//! A client that sends exactly the bytes it is told to, for the tests of all services.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Longer than anything here takes.
pub const PATIENCE: Duration = Duration::from_secs(20);

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

/// One request and its answer; `method_and_path` begins the head.
pub async fn ask(address: SocketAddr, method_and_path: &str, headers: &str, body: &[u8]) -> Answer {
    send(address, &bytes_of(method_and_path, headers, body)).await
}

fn bytes_of(method_and_path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "{method_and_path} HTTP/1.1\r\nHost: souk\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n"
    );
    [head.as_bytes(), body].concat()
}

pub async fn send(address: SocketAddr, bytes: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // a refusal may come before everything was sent
    drop(stream.write_all(bytes).await);
    answer(&mut stream).await
}

pub async fn answer(stream: &mut TcpStream) -> Answer {
    let text = received(stream).await;
    parsed(&text).unwrap_or_else(|| panic!("no answer: {text:?}"))
}

/// As `ask`; nothing where the service went away before it had answered.
pub async fn try_ask(address: SocketAddr, method_and_path: &str, body: &[u8]) -> Option<Answer> {
    try_ask_with(address, method_and_path, "", body).await
}

pub async fn try_ask_with(address: SocketAddr, method_and_path: &str, headers: &str, body: &[u8]) -> Option<Answer> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    stream.write_all(&bytes_of(method_and_path, headers, body)).await.ok()?;
    parsed(&received(&mut stream).await)
}

async fn received(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    // a connection that was reset after its answer has still given it
    drop(timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("an answer in time"));
    String::from_utf8(bytes).unwrap()
}

fn parsed(text: &str) -> Option<Answer> {
    let (headers, body) = text.split_once("\r\n\r\n")?;
    let status = headers.split(' ').nth(1)?.parse().ok()?;
    Some(Answer { status, headers: headers.into(), body: body.into() })
}
