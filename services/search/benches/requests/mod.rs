//! HTTP load generator: keep-alive connections with one request at a time each, as fast as possible or at a fixed rate.
//! Reports counts by status, and the latency of answers with status 200.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};

pub struct Connection {
    stream: BufReader<TcpStream>,
}

impl Connection {
    pub async fn open(address: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: BufReader::with_capacity(1 << 16, stream) })
    }

    /// Returns status and body.
    pub async fn ask(&mut self, route: &str, body: &str) -> std::io::Result<(u16, Vec<u8>)> {
        let head = format!(
            "{route} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        self.stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).await?;
        let (mut status, mut length, mut line) = (0, 0, String::new());
        loop {
            line.clear();
            if self.stream.read_line(&mut line).await? == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            let text = line.trim_end();
            if text.is_empty() {
                break;
            }
            if let Some(rest) = text.strip_prefix("HTTP/1.1 ") {
                status = rest.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0);
            } else if let Some((name, value)) = text.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().unwrap_or(0);
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await?;
        Ok((status, body))
    }
}

/// Requests to send, and for how long.
#[derive(Clone)]
pub struct LoadPlan {
    pub address: SocketAddr,
    pub route: String,
    pub bodies: Arc<Vec<String>>,
    pub connections: usize,
    /// Requests per second over all connections; if None, each connection sends its next request at once.
    pub rate: Option<f64>,
    pub time: Duration,
}

#[derive(Default, Clone)]
pub struct Outcome {
    pub statuses: BTreeMap<u16, usize>,
    /// Connections that broke during a request.
    pub broken: usize,
    /// Sorted latencies in milliseconds of answers with status 200, from the scheduled send time.
    pub millis: Vec<f64>,
    /// Same from the actual send time, which is later if this side cannot keep up with the rate.
    pub since_sent: Vec<f64>,
    pub seconds: f64,
}

impl Outcome {
    pub fn quantile(&self, q: f64) -> f64 {
        quantile(&self.millis, q)
    }

    pub fn p99_since_sent(&self) -> f64 {
        quantile(&self.since_sent, 0.99)
    }

    pub fn per_second(&self) -> f64 {
        self.millis.len() as f64 / self.seconds
    }

    pub fn summary(&self) -> String {
        format!(
            "{:.0}/s answered, p50 {:.2} ms, p99 {:.2} ms, worst {:.1} ms, p99 since sent {:.2} ms, by status {:?}, \
             broken {}",
            self.per_second(),
            self.quantile(0.5),
            self.quantile(0.99),
            self.quantile(1.0),
            self.p99_since_sent(),
            self.statuses,
            self.broken
        )
    }

    fn join(&mut self, other: Self) {
        other.statuses.into_iter().for_each(|(status, num)| *self.statuses.entry(status).or_default() += num);
        self.broken += other.broken;
        self.millis.extend(other.millis);
        self.since_sent.extend(other.since_sent);
    }
}

/// Quantile of sorted numbers.
fn quantile(sorted: &[f64], q: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * q).round() as usize).copied().unwrap_or(f64::NAN)
}

pub async fn run(plan: &LoadPlan) -> Outcome {
    let began = Instant::now();
    let next = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..plan.connections).map(|_| tokio::spawn(one(plan.clone(), began, next.clone()))).collect();
    let mut all = Outcome::default();
    for task in tasks {
        all.join(task.await.expect("a connection does not panic"));
    }
    all.seconds = began.elapsed().as_secs_f64();
    all.millis.sort_by(f64::total_cmp);
    all.since_sent.sort_by(f64::total_cmp);
    all
}

async fn one(plan: LoadPlan, began: Instant, next: Arc<AtomicU64>) -> Outcome {
    let mut outcome = Outcome::default();
    let mut connection = None;
    while began.elapsed() < plan.time {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let mut due = Instant::now();
        if let Some(rate) = plan.rate {
            // latency counts from the scheduled send time
            due = began + Duration::from_secs_f64(number as f64 / rate);
            sleep_until(due).await;
        }
        if connection.is_none() {
            connection = Connection::open(plan.address).await.ok();
        }
        let Some(open) = &mut connection else {
            outcome.broken += 1;
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let sent = Instant::now();
        match open.ask(&plan.route, &plan.bodies[number as usize % plan.bodies.len()]).await {
            Ok((status, _)) => {
                *outcome.statuses.entry(status).or_default() += 1;
                if status == 200 {
                    outcome.millis.push(due.elapsed().as_secs_f64() * 1e3);
                    outcome.since_sent.push(sent.elapsed().as_secs_f64() * 1e3);
                }
            }
            Err(_) => {
                outcome.broken += 1;
                connection = None;
            }
        }
    }
    outcome
}
