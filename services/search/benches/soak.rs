//! A service under load for minutes: swaps between two versions, upserts and deletes, neighbours that are killed and come
//! back, then more than it can answer. Says what was asked, what was refused, what failed, how long answers took, and what
//! memory did.
//!
//! `cargo bench -p souk-search --bench soak -- ADDRESS PID BODIES SECONDS FIRST SECOND [COMMAND]`: the service runs at
//! ADDRESS as process PID; BODIES has one search a line; it swaps between the versions FIRST and SECOND; COMMAND restarts the
//! neighbours in turn and is run three times.

#![expect(clippy::print_stdout, reason = "a bench tells what it measured")]

mod requests;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use requests::{Connection, Outcome, Plan, run};
use tokio::time::{Instant, interval, sleep, timeout};

const NUM_SWAPS: u32 = 20;
const NUM_RESTARTS: u32 = 3;
/// Upserts and deletes a minute.
const WRITES: u32 = 1000;
/// Of what can be answered.
const OVERLOAD: f64 = 5.0;
const MINUTE: Duration = Duration::from_secs(60);
const CALM: Duration = Duration::from_secs(15);

struct Setting {
    address: SocketAddr,
    bodies: Arc<Vec<String>>,
    stop: AtomicBool,
    failed: AtomicUsize,
}

impl Setting {
    fn plan(&self, connections: usize, rate: Option<f64>, time: Duration) -> Plan {
        let (address, bodies) = (self.address, self.bodies.clone());
        Plan { address, route: "POST /search".into(), bodies, connections, rate, time }
    }
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let [address, pid, bodies, seconds, first, second, rest @ ..] = arguments.as_slice() else {
        println!("usage: ADDRESS PID BODIES SECONDS FIRST SECOND [COMMAND]");
        return;
    };
    let bodies = std::fs::read_to_string(bodies).expect("the file of bodies").lines().map(str::to_owned).collect();
    let setting = Arc::new(Setting {
        address: address.parse().expect("an address"),
        bodies: Arc::new(bodies),
        stop: AtomicBool::new(false),
        failed: AtomicUsize::new(0),
    });
    let seconds: u64 = seconds.parse().expect("seconds");
    let alone = run(&setting.plan(1, None, CALM)).await;
    println!("alone          {}", alone.said());
    let full = run(&setting.plan(8, None, CALM)).await;
    println!("8 at a time    {}", full.said());
    println!("memory         {} MiB", memory(pid));
    let rate = full.per_second() * 0.4;
    let plan = setting.plan(16, Some(rate), Duration::from_secs(seconds));
    let load = tokio::spawn(async move { run(&plan).await });
    let beside = [
        tokio::spawn(write(setting.clone())),
        tokio::spawn(swap(setting.clone(), seconds, [first.clone(), second.clone()])),
        tokio::spawn(restart(setting.clone(), seconds, rest.first().cloned())),
        tokio::spawn(remember(setting.clone(), pid.clone())),
    ];
    let kept = load.await.expect("the load does not panic");
    setting.stop.store(true, Ordering::Relaxed);
    for task in beside {
        println!("{}", task.await.expect("what happens beside does not panic"));
    }
    println!("{seconds} s of {rate:.0}/s   {}", kept.said());
    println!("failed         {} of what was accepted", failed(&kept) + setting.failed.load(Ordering::Relaxed));
    sleep(Duration::from_secs(5)).await;
    overload(&setting, &alone, &full).await;
}

async fn overload(setting: &Setting, alone: &Outcome, full: &Outcome) {
    let over = run(&setting.plan(64, Some(full.per_second() * OVERLOAD), CALM)).await;
    println!("{OVERLOAD} times too much  {}", over.said());
    let asked = over.statuses.values().sum::<usize>() as f64 / over.seconds;
    println!(
        "               {asked:.0}/s were sent; since then p99 is {:.2} times that of one alone",
        over.late() / alone.late()
    );
}

/// What was neither answered nor refused at once.
fn failed(outcome: &Outcome) -> usize {
    let bad = outcome.statuses.iter().filter(|(status, _)| !matches!(status, 200 | 429));
    bad.map(|(_, num)| num).sum::<usize>() + outcome.broken
}

/// Items come and every third goes again.
async fn write(setting: Arc<Setting>) -> String {
    let mut ticks = interval(Duration::from_secs(60) / WRITES);
    let mut connection = Connection::open(setting.address).await.expect("the service is there");
    let (mut num, mut refused, mut worst) = (0, 0, Duration::ZERO);
    while !setting.stop.load(Ordering::Relaxed) {
        ticks.tick().await;
        let (route, body) = match num % 3 {
            2 => (format!("DELETE /items/soak-{}", num - 1), String::new()),
            _ => ("PUT /items".into(), format!(r#"{{"items":[{{"id":"soak-{num}","title":"soak item {num}"}}]}}"#)),
        };
        let began = Instant::now();
        match connection.ask(&route, &body).await {
            Ok((200, _)) => {}
            Ok((429, _)) => refused += 1,
            // what was refused before it came is not there to be deleted
            Ok((404, _)) if refused > 0 => {}
            answer => {
                println!("a write failed: {route}: {answer:?}");
                setting.failed.fetch_add(1, Ordering::Relaxed);
                connection = Connection::open(setting.address).await.expect("the service is there");
            }
        }
        worst = worst.max(began.elapsed());
        num += 1;
    }
    format!("writes         {num}, {refused} refused, the slowest took {:.0} ms", worst.as_secs_f64() * 1e3)
}

/// Promotes one version after the other.
async fn swap(setting: Arc<Setting>, seconds: u64, versions: [String; 2]) -> String {
    let pause = Duration::from_secs(seconds) / (NUM_SWAPS + 1);
    let (mut done, mut later) = (0, 0);
    for number in 0..NUM_SWAPS {
        sleep(pause).await;
        if setting.stop.load(Ordering::Relaxed) {
            break;
        }
        let mut connection = Connection::open(setting.address).await.expect("the service is there");
        let version = &versions[(number as usize + 1) % 2];
        match connection.ask(&format!("POST /models/{version}/promote"), "{}").await {
            Ok((200, _)) => done += 1,
            Ok((202, _)) => later += 1,
            // the ledger may be away just now
            answer => {
                println!("no swap to {version}: {:?}", answer.map(|(status, body)| (status, String::from_utf8(body))))
            }
        }
    }
    format!("swaps          {done} at once, {later} after a build")
}

async fn restart(setting: Arc<Setting>, seconds: u64, command: Option<String>) -> String {
    let Some(command) = command else { return "restarts       none: no command was given".into() };
    let pause = Duration::from_secs(seconds) / (NUM_RESTARTS + 1);
    let mut done = 0;
    for _ in 0..NUM_RESTARTS {
        sleep(pause).await;
        if setting.stop.load(Ordering::Relaxed) {
            break;
        }
        let command = command.clone();
        let ran = tokio::task::spawn_blocking(move || std::process::Command::new("sh").args(["-c", &command]).status());
        done += usize::from(ran.await.is_ok_and(|ran| ran.is_ok_and(|status| status.success())));
    }
    format!("restarts       {done}")
}

/// Memory by the minute.
async fn remember(setting: Arc<Setting>, pid: String) -> String {
    let mut by_minute = Vec::new();
    let mut ticks = interval(MINUTE);
    ticks.tick().await;
    while !setting.stop.load(Ordering::Relaxed) {
        if timeout(Duration::from_secs(1), ticks.tick()).await.is_ok() {
            by_minute.push(memory(&pid).to_string());
        }
    }
    format!("MiB by minute  {}", by_minute.join(" "))
}

/// MiB that the process has in memory, without files that are mapped.
fn memory(pid: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok()).unwrap_or(0) / 1024
}
