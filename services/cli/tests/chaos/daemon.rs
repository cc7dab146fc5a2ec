//! A Souk service as a process: start, request, kill.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

/// A running `souk` service. Its first output line has its address.
pub struct Daemon {
    child: Child,
    pub address: String,
    /// Model or version, from the first output line.
    pub name: String,
}

impl Daemon {
    pub fn start(command_line: &str, sets: &[String], log: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_souk-engine"));
        let log = File::options().create(true).append(true).open(log).unwrap();
        command
            .args(command_line.split(' '))
            .env("OMP_NUM_THREADS", "1")
            .env_remove("RUST_LOG")
            .stdout(Stdio::piped())
            .stderr(log);
        let mut child = command.args(sets.iter().flat_map(|set| ["--set", set])).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address =
            line.split("http://").nth(1).map(|rest| rest.trim().split('/').next().unwrap_or_default().to_owned());
        let name = line.split(" answers").next().unwrap_or_default().to_owned();
        Self { child, address: address.unwrap_or_else(|| panic!("`souk {command_line}` printed: {line}")), name }
    }

    /// Body of a response with status 200.
    pub fn get(&self, path: &str) -> Option<Value> {
        let (status, body) = ask(&self.address, &format!("GET {path}"), "")?;
        (status == 200).then(|| serde_json::from_str(&body).unwrap())
    }

    /// Waits until this search process builds an index, but no longer than `time`. Returns whether it does.
    pub fn wait_for_build(&self, time: Duration) -> bool {
        let began = Instant::now();
        while began.elapsed() < time {
            if self.get("/models").is_some_and(|models| !models["building"].is_null()) {
                return true;
            }
            sleep(Duration::from_millis(2));
        }
        false
    }

    /// Kills the process with SIGKILL.
    pub fn kill(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Status and body; none without a complete response.
pub fn ask(address: &str, route: &str, body: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    let length = body.len();
    write!(stream, "{route} HTTP/1.1\r\nHost: souk\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}")
        .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}
