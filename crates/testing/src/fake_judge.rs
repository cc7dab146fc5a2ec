//! Fake judge for tests: a server on a real socket that answers, fails or hangs as the test decides, and records its
//! requests. Understands only the HTTP that Souk's own client writes.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::Value;

/// Recorded request.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    pub path: String,
    /// Headers in lower case, without the request line.
    pub headers: String,
    pub body: Value,
}

/// Reaction to a request.
pub enum JudgeReply {
    Json(Value),
    /// Status, further header lines (each with its line end) and body.
    Status(u16, &'static str, String),
    /// Sends nothing until the server is dropped.
    Hang,
    /// Sends the body byte by byte, and never finishes.
    Drip,
    /// Closes the connection without a response.
    Close,
    /// Sends less than its `content-length`.
    Cut(String),
    /// Sends JSON after a delay.
    Late(Duration, Value),
}

type Behaviour = dyn Fn(usize, &ReceivedRequest) -> JudgeReply + Send + Sync;

pub struct FakeJudge {
    address: std::net::SocketAddr,
    state: Arc<State>,
}

struct State {
    behaviour: Box<Behaviour>,
    seen: Mutex<Vec<ReceivedRequest>>,
    at_once: AtomicUsize,
    max_at_once: AtomicUsize,
    is_stopped: AtomicBool,
}

impl FakeJudge {
    /// Starts a server on a free port. `behaviour` gets the number of the request, from 0, and the request.
    pub fn start(behaviour: impl Fn(usize, &ReceivedRequest) -> JudgeReply + Send + Sync + 'static) -> Self {
        Self::at("127.0.0.1:0", behaviour)
    }

    /// Starts a server on the given address.
    pub fn at(place: &str, behaviour: impl Fn(usize, &ReceivedRequest) -> JudgeReply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(place).unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State {
            behaviour: Box::new(behaviour),
            seen: Mutex::default(),
            at_once: AtomicUsize::new(0),
            max_at_once: AtomicUsize::new(0),
            is_stopped: AtomicBool::new(false),
        });
        let server = state.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                if server.is_stopped.load(Ordering::SeqCst) {
                    break;
                }
                let (state, stream) = (server.clone(), stream.unwrap());
                // a client that disconnects does not fail the test
                thread::spawn(move || drop(state.serve(stream)));
            }
        });
        Self { address, state }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn seen(&self) -> Vec<ReceivedRequest> {
        self.state.seen.lock().unwrap().clone()
    }

    pub fn max_at_once(&self) -> usize {
        self.state.max_at_once.load(Ordering::SeqCst)
    }
}

impl Drop for FakeJudge {
    fn drop(&mut self) {
        self.state.is_stopped.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.address));
    }
}

impl State {
    fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        let mut input = BufReader::new(stream.try_clone()?);
        while let Some(request) = read_request(&mut input)? {
            // keep-alive connections end with the server
            if self.is_stopped.load(Ordering::SeqCst) {
                break;
            }
            let number = {
                let mut all = self.seen.lock().unwrap();
                all.push(request.clone());
                all.len() - 1
            };
            let at_once = self.at_once.fetch_add(1, Ordering::SeqCst) + 1;
            self.max_at_once.fetch_max(at_once, Ordering::SeqCst);
            let is_kept_alive = self.reply((self.behaviour)(number, &request), &stream);
            self.at_once.fetch_sub(1, Ordering::SeqCst);
            if !is_kept_alive? {
                return stream.shutdown(std::net::Shutdown::Both);
            }
        }
        Ok(())
    }

    /// Sends a reply; returns whether the connection stays open.
    fn reply(&self, reply: JudgeReply, mut stream: &TcpStream) -> std::io::Result<bool> {
        let json = "content-type: application/json\r\n";
        let (status, headers, body) = match reply {
            JudgeReply::Json(body) => (200, json, body.to_string()),
            JudgeReply::Status(status, headers, body) => (status, headers, body),
            JudgeReply::Late(delay, body) => {
                thread::sleep(delay);
                (200, json, body.to_string())
            }
            JudgeReply::Close => return Ok(false),
            JudgeReply::Hang => {
                while !self.is_stopped.load(Ordering::SeqCst) {
                    thread::sleep(Duration::from_millis(5));
                }
                return Ok(false);
            }
            JudgeReply::Drip => {
                write!(stream, "HTTP/1.1 200 OK\r\n{json}content-length: 1000000\r\n\r\n")?;
                while !self.is_stopped.load(Ordering::SeqCst) {
                    stream.write_all(b" ")?;
                    thread::sleep(Duration::from_millis(5));
                }
                return Ok(false);
            }
            JudgeReply::Cut(body) => {
                write!(stream, "HTTP/1.1 200 OK\r\n{json}content-length: {}\r\n\r\n{body}", body.len() + 100)?;
                return Ok(false);
            }
        };
        write!(stream, "HTTP/1.1 {status} Said\r\n{headers}content-length: {}\r\n\r\n{body}", body.len())?;
        Ok(true)
    }
}

/// Reads one request; `None` at the end of the connection.
fn read_request(input: &mut impl BufRead) -> std::io::Result<Option<ReceivedRequest>> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if input.read_line(&mut head)? == 0 {
            return Ok(None);
        }
    }
    let (first, headers) = head.split_once("\r\n").unwrap();
    let length = headers.to_lowercase().split_once("content-length:").map_or(0, |(_, rest)| {
        let line = rest.lines().next().unwrap_or_default();
        line.trim().parse().unwrap()
    });
    let mut body = vec![0; length];
    input.read_exact(&mut body)?;
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    Ok(Some(ReceivedRequest {
        path,
        headers: headers.to_lowercase(),
        body: serde_json::from_slice(&body).unwrap_or_default(),
    }))
}
