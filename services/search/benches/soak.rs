//! Soak test of a service under load: swaps between two versions, upserts and deletes, restarts of its dependencies,
//! then overload. Reports counts of requests, rejections and failures, latency, and memory.
//!
//! `cargo bench -p souk-search --bench soak -- ADDRESS PID BODIES SECONDS FIRST SECOND [COMMAND]`: the service runs at
//! ADDRESS as process PID; BODIES has one search per line; FIRST and SECOND are the versions to swap; COMMAND restarts
//! one dependency after another and is run three times.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a bench prints its results")]

mod requests;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use requests::{Connection, LoadPlan, Outcome, run};
use tokio::time::{Instant, interval, sleep, timeout};

const NUM_SWAPS: u32 = 20;
const NUM_RESTARTS: u32 = 3;
/// Upserts and deletes per minute.
const WRITES: u32 = 1000;
/// Overload rate relative to the capacity.
const OVERLOAD: f64 = 5.0;
const MINUTE: Duration = Duration::from_secs(60);
const PHASE: Duration = Duration::from_secs(15);

struct SoakTest {
    address: SocketAddr,
    bodies: Arc<Vec<String>>,
    stop: AtomicBool,
    failed: AtomicUsize,
}

impl SoakTest {
    fn plan(&self, connections: usize, rate: Option<f64>, time: Duration) -> LoadPlan {
        let (address, bodies) = (self.address, self.bodies.clone());
        LoadPlan { address, route: "POST /search".into(), bodies, connections, rate, time }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let [address, pid, bodies, seconds, first, second, rest @ ..] = arguments.as_slice() else {
        println!("usage: ADDRESS PID BODIES SECONDS FIRST SECOND [COMMAND]");
        return ExitCode::from(2);
    };
    let bodies = std::fs::read_to_string(bodies).expect("the file of bodies").lines().map(str::to_owned).collect();
    let test = Arc::new(SoakTest {
        address: address.parse().expect("an address"),
        bodies: Arc::new(bodies),
        stop: AtomicBool::new(false),
        failed: AtomicUsize::new(0),
    });
    let seconds: u64 = seconds.parse().expect("seconds");
    let alone = run(&test.plan(1, None, PHASE)).await;
    println!("alone          {}", alone.summary());
    let full = run(&test.plan(8, None, PHASE)).await;
    println!("8 at a time    {}", full.summary());
    println!("memory         {} MiB", memory(pid));
    let rate = full.per_second() * 0.4;
    let plan = test.plan(16, Some(rate), Duration::from_secs(seconds));
    let load = tokio::spawn(async move { run(&plan).await });
    let tasks = [
        tokio::spawn(write(test.clone())),
        tokio::spawn(swap(test.clone(), seconds, [first.clone(), second.clone()])),
        tokio::spawn(restart(test.clone(), seconds, rest.first().cloned())),
        tokio::spawn(sample_memory(test.clone(), pid.clone())),
    ];
    let outcome = load.await.expect("the load does not panic");
    test.stop.store(true, Ordering::Relaxed);
    for task in tasks {
        println!("{}", task.await.expect("a background task does not panic"));
    }
    println!("{seconds} s of {rate:.0}/s   {}", outcome.summary());
    let mut num_bad = num_failed(&outcome) + test.failed.load(Ordering::Relaxed);
    println!("failed         {num_bad} of the accepted requests");
    sleep(Duration::from_secs(5)).await;
    num_bad += num_failed(&overload(&test, &alone, &full).await);
    if num_bad == 0 {
        return ExitCode::SUCCESS;
    }
    eprintln!("soak: {num_bad} requests failed");
    ExitCode::FAILURE
}

async fn overload(test: &SoakTest, alone: &Outcome, full: &Outcome) -> Outcome {
    let over = run(&test.plan(64, Some(full.per_second() * OVERLOAD), PHASE)).await;
    println!("{OVERLOAD} times capacity  {}", over.summary());
    let sent = over.statuses.values().sum::<usize>() as f64 / over.seconds;
    println!(
        "               {sent:.0}/s sent; p99 since sent is {:.2} times that of one connection",
        over.p99_since_sent() / alone.p99_since_sent()
    );
    over
}

/// Requests that neither succeeded nor were rejected with 429.
fn num_failed(outcome: &Outcome) -> usize {
    let bad = outcome.statuses.iter().filter(|(status, _)| !matches!(status, 200 | 429));
    bad.map(|(_, num)| num).sum::<usize>() + outcome.broken
}

/// Adds items and deletes every third.
async fn write(test: Arc<SoakTest>) -> String {
    let mut ticks = interval(Duration::from_secs(60) / WRITES);
    let mut connection = Connection::open(test.address).await.expect("the service runs");
    let (mut num, mut refused, mut worst) = (0, 0, Duration::ZERO);
    while !test.stop.load(Ordering::Relaxed) {
        ticks.tick().await;
        let (route, body) = match num % 3 {
            2 => (format!("DELETE /items/soak-{}", num - 1), String::new()),
            _ => ("PUT /items".into(), format!(r#"{{"items":[{{"id":"soak-{num}","title":"soak item {num}"}}]}}"#)),
        };
        let began = Instant::now();
        match connection.ask(&route, &body).await {
            Ok((200, _)) => {}
            Ok((429, _)) => refused += 1,
            // an item whose upsert was rejected cannot be deleted
            Ok((404, _)) if refused > 0 => {}
            answer => {
                println!("a write failed: {route}: {answer:?}");
                test.failed.fetch_add(1, Ordering::Relaxed);
                connection = Connection::open(test.address).await.expect("the service runs");
            }
        }
        worst = worst.max(began.elapsed());
        num += 1;
    }
    format!("writes         {num}, {refused} rejected, slowest {:.0} ms", worst.as_secs_f64() * 1e3)
}

/// Promotes the two versions in turn.
async fn swap(test: Arc<SoakTest>, seconds: u64, versions: [String; 2]) -> String {
    let pause = Duration::from_secs(seconds) / (NUM_SWAPS + 1);
    let (mut done, mut building) = (0, 0);
    for number in 0..NUM_SWAPS {
        sleep(pause).await;
        if test.stop.load(Ordering::Relaxed) {
            break;
        }
        let mut connection = Connection::open(test.address).await.expect("the service runs");
        let version = &versions[(number as usize + 1) % 2];
        match connection.ask(&format!("POST /models/{version}/promote"), "{}").await {
            Ok((200, _)) => done += 1,
            Ok((202, _)) => building += 1,
            // the ledger may be restarting
            answer => {
                println!(
                    "swap to {version} failed: {:?}",
                    answer.map(|(status, body)| (status, String::from_utf8(body)))
                )
            }
        }
    }
    format!("swaps          {done} at once, {building} after a build")
}

async fn restart(test: Arc<SoakTest>, seconds: u64, command: Option<String>) -> String {
    let Some(command) = command else { return "restarts       none: no COMMAND".into() };
    let pause = Duration::from_secs(seconds) / (NUM_RESTARTS + 1);
    let mut done = 0;
    for _ in 0..NUM_RESTARTS {
        sleep(pause).await;
        if test.stop.load(Ordering::Relaxed) {
            break;
        }
        let command = command.clone();
        let ran = tokio::task::spawn_blocking(move || std::process::Command::new("sh").args(["-c", &command]).status());
        done += usize::from(ran.await.is_ok_and(|ran| ran.is_ok_and(|status| status.success())));
    }
    format!("restarts       {done}")
}

/// Samples memory every minute.
async fn sample_memory(test: Arc<SoakTest>, pid: String) -> String {
    let mut by_minute = Vec::new();
    let mut ticks = interval(MINUTE);
    ticks.tick().await;
    while !test.stop.load(Ordering::Relaxed) {
        if timeout(Duration::from_secs(1), ticks.tick()).await.is_ok() {
            by_minute.push(memory(&pid).to_string());
        }
    }
    format!("MiB by minute  {}", by_minute.join(" "))
}

/// Anonymous memory of the process in MiB, without mapped files.
fn memory(pid: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok()).unwrap_or(0) / 1024
}
