//! Cost of all_reduce and gather_rows between 1, 2 and 4 processes of this machine, by size, with a fit of `seconds = alpha +
//! bytes / beta` (latency and bandwidth per rank).
//!
//!     collective [PROCESSES,...]         default 1,2,4
//!
//! Reports the fastest of several rounds, because other programs may use the machine. The program starts itself again for each
//! rank.
#![expect(clippy::unwrap_used, reason = "a bench that cannot go on stops")]
#![expect(clippy::print_stdout, reason = "results")]

use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};
use souk::collective::{Collective, CollectiveSettings, gather_rows, open};
use tch::{Device, Kind, Tensor};

/// Sizes in f32 numbers; rows of 384 for gather_rows.
const SIZES: [i64; 6] = [384, 6_144, 49_152, 393_216, 3_145_728, 12_582_912];
const WIDTH: i64 = 384;
const ROUNDS: usize = 5;
const ROUND_SECONDS: f64 = 0.3;

fn main() {
    if std::env::var_os("RANK").is_some() {
        return rank(open(&CollectiveSettings::default()).unwrap().as_ref());
    }
    let argument = std::env::args().skip(1).find(|argument| argument != "--bench");
    let processes = argument.unwrap_or_else(|| "1,2,4".to_owned());
    println!("{:>9} {:>11} {:>9} {:>12} {:>10}", "processes", "operation", "bytes", "ms", "sent GB/s");
    for size in processes.split(',').map(|size| size.parse::<usize>().unwrap()) {
        let measured = measure(size);
        for line in &measured {
            let sent = sent(line, size);
            let (bytes, ms) = (line["bytes"].as_f64().unwrap(), line["ms"].as_f64().unwrap());
            let operation = line["operation"].as_str().unwrap();
            println!("{size:>9} {operation:>11} {bytes:>9} {ms:>12.4} {:>10.3}", sent / ms / 1e6);
        }
        for operation in ["all_reduce", "gather_rows"].into_iter().filter(|_| size > 1) {
            let of = measured.iter().filter(|line| line["operation"] == operation);
            let points: Vec<(f64, f64)> =
                of.map(|line| (sent(line, size), line["ms"].as_f64().unwrap() / 1e3)).collect();
            let (alpha, beta) = fit(&points);
            println!(
                "{size:>9} {operation:>11} fits alpha {:.3} ms, beta {:.3} GB/s; off by at most {:.0} %",
                alpha * 1e3,
                beta / 1e9,
                1e2 * points.iter().map(|(x, y)| (alpha + x / beta) / y - 1.0).fold(0.0, |m: f64, e| m.max(e.abs()))
            );
        }
    }
}

/// Bytes sent per rank: a ring sends all parts but one, twice for a sum; a gather sends each rank's rows.
fn sent(line: &Value, size: usize) -> f64 {
    let (bytes, size) = (line["bytes"].as_f64().unwrap(), size as f64);
    match line["operation"].as_str().unwrap() {
        "all_reduce" => 2.0 * (size - 1.0) / size * bytes,
        _ => (size - 1.0) * bytes,
    }
}

fn measure(size: usize) -> Vec<Value> {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let start = |rank: usize| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env("RANK", rank.to_string()).env("LOCAL_RANK", rank.to_string()).env("WORLD_SIZE", size.to_string());
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string()).env("OMP_NUM_THREADS", "1");
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let ranks: Vec<_> = (0..size).map(start).collect();
    let outputs: Vec<_> = ranks.into_iter().map(|rank| rank.wait_with_output().unwrap()).collect();
    assert!(outputs.iter().all(|output| output.status.success()));
    String::from_utf8_lossy(&outputs[0].stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn rank(c: &dyn Collective) {
    for numbers in SIZES {
        // zeros, so that many sums stay finite
        let mut x = Tensor::zeros([numbers / WIDTH, WIDTH], (Kind::Float, Device::Cpu));
        let reduce = best(c, || c.all_reduce(&mut x).unwrap());
        let gather = best(c, || drop(gather_rows(c, &x).unwrap()));
        if c.rank() == 0 {
            for (operation, seconds) in [("all_reduce", reduce), ("gather_rows", gather)] {
                println!("{}", json!({"operation": operation, "bytes": 4 * numbers, "ms": seconds * 1e3}));
            }
        }
    }
}

/// Seconds per call in the fastest round.
fn best(c: &dyn Collective, mut call: impl FnMut()) -> f64 {
    let mut timed = |count: usize| {
        c.barrier().unwrap();
        let start = Instant::now();
        (0..count).for_each(|_| call());
        start.elapsed().as_secs_f64() / count as f64
    };
    let mut count = Tensor::from((ROUND_SECONDS / timed(1).max(timed(2))).ceil().clamp(1.0, 1e4) as i64);
    c.broadcast(&mut count, 0).unwrap();
    let count = usize::try_from(count.int64_value(&[])).unwrap();
    (0..ROUNDS).map(|_| timed(count)).fold(f64::INFINITY, f64::min)
}

/// Least squares of relative errors, because sizes span orders of magnitude: alpha in seconds, beta in bytes per second.
fn fit(points: &[(f64, f64)]) -> (f64, f64) {
    let sum = |of: &dyn Fn(f64, f64) -> f64| points.iter().map(|(x, y)| of(*x, *y)).sum::<f64>();
    // minimise sum (a / y + b x / y - 1)^2
    let (aa, ab, bb) = (sum(&|_, y| 1.0 / y / y), sum(&|x, y| x / y / y), sum(&|x, y| x * x / y / y));
    let (a, b) = (sum(&|_, y| 1.0 / y), sum(&|x, y| x / y));
    let determinant = aa * bb - ab * ab;
    ((a * bb - b * ab) / determinant, determinant / (b * aa - a * ab))
}
