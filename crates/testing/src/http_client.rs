//! HTTP client for tests of services that sends exactly the given bytes.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Timeout of requests in tests, longer than any of them takes.
pub const TIMEOUT: Duration = Duration::from_secs(20);

pub struct HttpResponse {
    pub status: u16,
    /// Status line and header lines.
    pub headers: String,
    pub body: String,
}

impl HttpResponse {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    /// Error object of the body; asserts its shape.
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

/// Sends one request and reads its response; `method_and_path` is the start of the request line.
pub async fn ask(address: SocketAddr, method_and_path: &str, headers: &str, body: &[u8]) -> HttpResponse {
    send(address, &request_bytes(method_and_path, headers, body)).await
}

fn request_bytes(method_and_path: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "{method_and_path} HTTP/1.1\r\nHost: souk\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n"
    );
    [head.as_bytes(), body].concat()
}

/// Sends raw bytes and reads the response.
pub async fn send(address: SocketAddr, bytes: &[u8]) -> HttpResponse {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // the server may reject the request before all of it was sent
    drop(stream.write_all(bytes).await);
    answer(&mut stream).await
}

/// Reads a response up to the end of the connection.
pub async fn answer(stream: &mut TcpStream) -> HttpResponse {
    let text = read_all(stream).await;
    parse(&text).unwrap_or_else(|| panic!("no response: {text:?}"))
}

/// Like `ask`; `None` if the service closes the connection before it has answered.
pub async fn try_ask(address: SocketAddr, method_and_path: &str, body: &[u8]) -> Option<HttpResponse> {
    try_ask_with(address, method_and_path, "", body).await
}

/// Like `try_ask`, with further headers.
pub async fn try_ask_with(
    address: SocketAddr,
    method_and_path: &str,
    headers: &str,
    body: &[u8],
) -> Option<HttpResponse> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    stream.write_all(&request_bytes(method_and_path, headers, body)).await.ok()?;
    parse(&read_all(&mut stream).await)
}

async fn read_all(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    // a reset after the response is not an error
    drop(timeout(TIMEOUT, stream.read_to_end(&mut bytes)).await.expect("a response before the timeout"));
    String::from_utf8(bytes).unwrap()
}

fn parse(text: &str) -> Option<HttpResponse> {
    let (headers, body) = text.split_once("\r\n\r\n")?;
    let status = headers.split(' ').nth(1)?.parse().ok()?;
    Some(HttpResponse { status, headers: headers.into(), body: body.into() })
}
