//! A judge for tests: a server on a real socket that answers, fails and hangs as it is told, and remembers what it was
//! asked. It reads HTTP as far as our own client writes it.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::Value;

/// One request.
#[derive(Clone, Debug)]
pub struct JudgeRequest {
    pub path: String,
    /// As they came, without the first line.
    pub headers: String,
    pub body: Value,
}

pub enum Reply {
    Json(Value),
    /// Status, further header lines (each with its end) and body.
    Status(u16, &'static str, String),
    /// Says nothing, until the server is dropped.
    Hang,
    /// Sends its answer a byte at a time, and never the last one.
    Drip,
    /// Closes without a word.
    Close,
    /// Announces more than it sends.
    Cut(String),
    Late(Duration, Value),
}

type Behaviour = dyn Fn(usize, &JudgeRequest) -> Reply + Send + Sync;

pub struct FakeJudge {
    address: std::net::SocketAddr,
    state: Arc<State>,
}

struct State {
    behaviour: Box<Behaviour>,
    seen: Mutex<Vec<JudgeRequest>>,
    at_once: AtomicUsize,
    max_at_once: AtomicUsize,
    is_over: AtomicBool,
}

impl FakeJudge {
    /// `behaviour` is told the number of the request, from 0, and the request.
    pub fn start(behaviour: impl Fn(usize, &JudgeRequest) -> Reply + Send + Sync + 'static) -> Self {
        Self::at("127.0.0.1:0", behaviour)
    }

    pub fn at(place: &str, behaviour: impl Fn(usize, &JudgeRequest) -> Reply + Send + Sync + 'static) -> Self {
        let door = TcpListener::bind(place).unwrap();
        let address = door.local_addr().unwrap();
        let state = Arc::new(State {
            behaviour: Box::new(behaviour),
            seen: Mutex::default(),
            at_once: AtomicUsize::new(0),
            max_at_once: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
        });
        let served = state.clone();
        thread::spawn(move || {
            for stream in door.incoming() {
                if served.is_over.load(Ordering::SeqCst) {
                    break;
                }
                let (state, stream) = (served.clone(), stream.unwrap());
                // a client that has left is no failure of the test
                thread::spawn(move || drop(state.serve(stream)));
            }
        });
        Self { address, state }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn seen(&self) -> Vec<JudgeRequest> {
        self.state.seen.lock().unwrap().clone()
    }

    pub fn max_at_once(&self) -> usize {
        self.state.max_at_once.load(Ordering::SeqCst)
    }
}

impl Drop for FakeJudge {
    fn drop(&mut self) {
        self.state.is_over.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.address));
    }
}

impl State {
    fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        let mut input = BufReader::new(stream.try_clone()?);
        while let Some(seen) = read(&mut input)? {
            // a kept connection ends with the server, too
            if self.is_over.load(Ordering::SeqCst) {
                break;
            }
            let number = {
                let mut all = self.seen.lock().unwrap();
                all.push(seen.clone());
                all.len() - 1
            };
            let at_once = self.at_once.fetch_add(1, Ordering::SeqCst) + 1;
            self.max_at_once.fetch_max(at_once, Ordering::SeqCst);
            let is_kept = self.reply((self.behaviour)(number, &seen), &stream);
            self.at_once.fetch_sub(1, Ordering::SeqCst);
            if !is_kept? {
                return stream.shutdown(std::net::Shutdown::Both);
            }
        }
        Ok(())
    }

    /// Whether the connection goes on.
    fn reply(&self, reply: Reply, mut stream: &TcpStream) -> std::io::Result<bool> {
        let json = "content-type: application/json\r\n";
        let (status, headers, body) = match reply {
            Reply::Json(body) => (200, json, body.to_string()),
            Reply::Status(status, headers, body) => (status, headers, body),
            Reply::Late(wait, body) => {
                thread::sleep(wait);
                (200, json, body.to_string())
            }
            Reply::Close => return Ok(false),
            Reply::Hang => {
                while !self.is_over.load(Ordering::SeqCst) {
                    thread::sleep(Duration::from_millis(5));
                }
                return Ok(false);
            }
            Reply::Drip => {
                write!(stream, "HTTP/1.1 200 OK\r\n{json}content-length: 1000000\r\n\r\n")?;
                while !self.is_over.load(Ordering::SeqCst) {
                    stream.write_all(b" ")?;
                    thread::sleep(Duration::from_millis(5));
                }
                return Ok(false);
            }
            Reply::Cut(body) => {
                write!(stream, "HTTP/1.1 200 OK\r\n{json}content-length: {}\r\n\r\n{body}", body.len() + 100)?;
                return Ok(false);
            }
        };
        write!(stream, "HTTP/1.1 {status} Said\r\n{headers}content-length: {}\r\n\r\n{body}", body.len())?;
        Ok(true)
    }
}

fn read(input: &mut impl BufRead) -> std::io::Result<Option<JudgeRequest>> {
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
    Ok(Some(JudgeRequest {
        path,
        headers: headers.to_lowercase(),
        body: serde_json::from_slice(&body).unwrap_or_default(),
    }))
}
