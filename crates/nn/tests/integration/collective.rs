//! Conformance test of all collectives, and behaviour of a job that loses a rank. Each rank is a process: this program starts
//! itself again with the name of the test and torchrun's variables.
#![expect(clippy::print_stdout, reason = "a rank reports to the test that started it")]

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use souk_io::Error;
use souk_nn::collective::{
    Collective, CollectiveSettings, Solo, gather_bytes, gather_json, gather_rows, open, return_rows,
};
use tch::{Device, IndexOp, Kind, Tensor};

const CPU: Device = Device::Cpu;
const READY: &str = "the ranks have met";
const KINDS: [Kind; 5] = [Kind::Float, Kind::Double, Kind::BFloat16, Kind::Half, Kind::Int64];

// ---- every collective ----

fn conformance(c: &dyn Collective) {
    operations(c);
    rows(c);
    values(c);
    mismatches(c);
    c.barrier().unwrap();
}

/// Tensor `[rows, 3]`, different at each entry and on each rank; exact in every kind.
fn block(rows: i64, rank: usize, kind: Kind) -> Tensor {
    (Tensor::arange(3 * rows, (Kind::Int64, CPU)).view([rows, 3]) + 16 * rank as i64).to_kind(kind)
}

/// Sum of `of(rank)` over ranks.
fn total(c: &dyn Collective, of: impl Fn(usize) -> Tensor) -> Tensor {
    (1..c.size()).fold(of(0), |sum, rank| sum + of(rank))
}

#[track_caller]
fn same(ours: &Tensor, want: &Tensor) {
    assert_eq!((ours.size(), ours.kind()), (want.size(), want.kind()));
    assert!(ours.equal(want), "{ours} is not {want}");
}

fn operations(c: &dyn Collective) {
    let (rank, size) = (c.rank(), c.size());
    for kind in KINDS {
        let all: Vec<Tensor> = (0..size).map(|rank| block(2, rank, kind)).collect();
        same(&c.all_gather(&block(2, rank, kind)).unwrap(), &Tensor::stack(&all, 0));
        let mut x = block(2, rank, kind);
        c.all_reduce(&mut x).unwrap();
        same(&x, &total(c, |rank| block(2, rank, kind)));
        let part = c.reduce_scatter(&block(2 * size as i64, rank, kind)).unwrap();
        same(&part, &total(c, |rank| block(2 * size as i64, rank, kind)).narrow(0, 2 * rank as i64, 2));
        for root in 0..size {
            let mut x = block(2, rank, kind);
            c.broadcast(&mut x, root).unwrap();
            same(&x, &block(2, root, kind));
        }
    }
    // tensors that are not contiguous
    let transposed = |rank| block(2, rank, Kind::Float).transpose(0, 1);
    let all: Vec<Tensor> = (0..size).map(transposed).collect();
    same(&c.all_gather(&transposed(rank)).unwrap(), &Tensor::stack(&all, 0));
    let one = c.all_gather(&Tensor::from(rank as i64)).unwrap();
    same(&one, &Tensor::arange(size as i64, (Kind::Int64, CPU)));
    let mut x = transposed(rank);
    c.all_reduce(&mut x).unwrap();
    same(&x, &total(c, transposed));
    let whole = block(3, rank, Kind::Float);
    c.all_reduce(&mut whole.i((.., 1))).unwrap();
    same(&whole.i((.., 1)), &total(c, |rank| block(3, rank, Kind::Float).i((.., 1))));
    same(&whole.i((.., 0)), &block(3, rank, Kind::Float).i((.., 0)));
}

fn rows(c: &dyn Collective) {
    let (rank, size) = (c.rank(), c.size());
    let cases: [fn(usize) -> i64; 4] = [|_| 4, |rank| 3 * rank as i64 % 5, |rank| 2 * (rank as i64 % 2), |_| 0];
    for (num_rows, kind) in cases.into_iter().flat_map(|case| [(case, Kind::Float), (case, Kind::BFloat16)]) {
        let own = block(num_rows(rank), rank, kind).set_requires_grad(true);
        let gathered = gather_rows(c, &own).unwrap();
        let parts: Vec<Tensor> = (0..size).map(|rank| block(num_rows(rank), rank, kind)).collect();
        same(&gathered.all, &Tensor::cat(&parts, 0));
        assert!(!gathered.all.requires_grad());
        assert_eq!((gathered.starts[0], gathered.starts.len()), (0, size + 1));
        for other in 0..size {
            assert_eq!(gathered.part(other), (gathered.starts[other], num_rows(other)));
        }
        // the adjoint: the sum of all ranks' gradients, restricted to this rank's rows
        let end = gathered.starts[size];
        let retransposed = return_rows(c, &block(end, rank, kind), &gathered.starts).unwrap();
        let (first, own_rows) = gathered.part(rank);
        same(&retransposed, &total(c, |rank| block(end, rank, kind)).narrow(0, first, own_rows));
    }
}

fn values(c: &dyn Collective) {
    let bytes = |rank: usize| vec![rank as u8; 5 * (rank % 3)];
    let want: Vec<Vec<u8>> = (0..c.size()).map(bytes).collect();
    assert_eq!(gather_bytes(c, &bytes(c.rank())).unwrap(), want);
    let ids = |rank: usize| (0..rank).map(|i| format!("item «{i}» of {rank}")).collect::<Vec<_>>();
    let want: Vec<Vec<String>> = (0..c.size()).map(ids).collect();
    assert_eq!(gather_json(c, &ids(c.rank())).unwrap(), want);
}

/// Mismatched shapes are errors on every rank, after which the ranks still work together.
fn mismatches(c: &dyn Collective) {
    assert!(c.broadcast(&mut block(1, 0, Kind::Float), c.size()).is_err());
    if c.size() > 1 {
        let width = if c.rank() == 1 { 4 } else { 3 };
        let error = gather_rows(c, &Tensor::zeros([2, width], (Kind::Float, CPU))).unwrap_err().to_string();
        assert!(error.contains("rank 1 has rows of 4 columns"), "{error}");
        let kind = if c.rank() == 1 { Kind::Double } else { Kind::Float };
        assert!(gather_rows(c, &block(2, 0, kind)).unwrap_err().to_string().contains("another kind"));
        let x = Tensor::zeros([c.size() as i64 + 1, 2], (Kind::Float, CPU));
        assert!(c.reduce_scatter(&x).is_err());
    }
}

#[test]
fn one_process_conforms() {
    conformance(&Solo);
    assert_eq!(open(&CollectiveSettings::default()).unwrap().size(), 1);
}

#[test]
fn two_processes_conform() {
    with_ranks("two_processes_conform", 2);
}

#[test]
fn four_processes_conform() {
    with_ranks("four_processes_conform", 4);
}

fn with_ranks(test: &str, size: usize) {
    if let Some(c) = as_rank(60) {
        assert_eq!(c.as_ref().unwrap().size(), size);
        return conformance(c.unwrap().as_ref());
    }
    for rank in Job::start(test, size, 0..size).end(Duration::from_secs(90)) {
        assert!(rank.succeeded, "{}", rank.output);
    }
}

// ---- a job that loses a rank ----

/// All cases wait for timeouts at once; each starts its ranks when those of the case before have met.
#[test]
fn lost_ranks_are_named() {
    if let Some(c) = as_rank(LOSS_TIMEOUT) {
        return sum_until_it_fails(c.unwrap().as_ref());
    }
    let losses = [
        Loss { rank: 1, signal: "KILL", message: "no heartbeat from rank 1 (", max_seconds: LOSS_TIMEOUT + 7 },
        // its store is gone
        Loss { rank: 0, signal: "KILL", message: "rank 0 (", max_seconds: LOSS_TIMEOUT + 7 },
        Loss { rank: 2, signal: "STOP", message: "no heartbeat from rank 2 (", max_seconds: LOSS_TIMEOUT + 7 },
        // its store does not answer, which takes an extra timeout
        Loss { rank: 0, signal: "STOP", message: "rank 0 (", max_seconds: LOSS_TIMEOUT + 12 },
    ];
    std::thread::scope(|scope| {
        for loss in &losses {
            let mut job = Job::start("lost_ranks_are_named", 3, 0..3);
            job.meet();
            scope.spawn(move || loss.inflict(job));
        }
    });
}

const LOSS_TIMEOUT: u64 = 8;

/// A signal to one of three ranks that sum numbers in a loop.
struct Loss {
    rank: usize,
    signal: &'static str,
    /// Part of the error with which the others must end.
    message: &'static str,
    max_seconds: u64,
}

impl Loss {
    fn inflict(&self, mut job: Job) {
        let pid = job.signal(self.rank, self.signal);
        for rank in job.end(Duration::from_secs(self.max_seconds)) {
            if rank.number == self.rank {
                continue;
            }
            assert!(rank.succeeded, "{}", rank.output);
            let named = rank.output.contains(self.message) && rank.output.contains(&format!("pid {pid}"));
            assert!(named, "rank {} does not name rank {}, pid {pid}: {}", rank.number, self.rank, rank.output);
        }
    }
}

fn sum_until_it_fails(c: &dyn Collective) {
    let mut x = Tensor::ones([100_000], (Kind::Float, CPU));
    c.all_reduce(&mut x).unwrap();
    println!("{READY}");
    let error = loop {
        // leaves the cores to the other cases
        std::thread::sleep(Duration::from_millis(5));
        let _ = x.fill_(1.0);
        if let Err(error) = c.all_reduce(&mut x) {
            break error;
        }
    };
    println!("{error}");
    assert!(matches!(&error, Error::Upstream { service, retryable: false, .. } if service == "collective"));
    let again = c.barrier().unwrap_err().to_string();
    assert!(again.contains("the job is over"), "{again}");
}

#[test]
fn a_rank_that_leaves_early_is_named_as_left() {
    if let Some(c) = as_rank(LOSS_TIMEOUT) {
        let c = c.unwrap();
        return match c.rank() {
            1 => c.barrier().unwrap(),
            _ => {
                c.barrier().unwrap();
                println!("{}", c.barrier().unwrap_err());
            }
        };
    }
    let job = Job::start("a_rank_that_leaves_early_is_named_as_left", 3, 0..3);
    for rank in job.end(Duration::from_secs(LOSS_TIMEOUT + 7)) {
        assert!(rank.succeeded, "{}", rank.output);
        assert!(rank.number == 1 || rank.output.contains("pid") && rank.output.contains("left"), "{}", rank.output);
    }
}

#[test]
fn a_lagging_rank_is_named_with_its_operation() {
    const TIMEOUT: u64 = 3;
    if let Some(c) = as_rank(TIMEOUT) {
        let c = c.unwrap();
        if c.rank() == 1 {
            // longer than the others wait and then need to find the fault
            std::thread::sleep(Duration::from_secs(TIMEOUT + 5));
        }
        println!("{}", c.barrier().unwrap_err());
        return;
    }
    let job = Job::start("a_lagging_rank_is_named_with_its_operation", 3, 0..3);
    for rank in job.end(Duration::from_secs(TIMEOUT + 15)) {
        assert!(rank.succeeded, "{}", rank.output);
        let named = rank.output.contains("has not reached operation 1 (barrier): it is at 0");
        assert!(named && rank.output.contains("rank 1 ("), "{}", rank.output);
    }
}

#[test]
fn missing_ranks_are_named_at_the_timeout() {
    if let Some(c) = as_rank(3) {
        println!("{}", c.err().unwrap());
        return;
    }
    let job = Job::start("missing_ranks_are_named_at_the_timeout", 5, [0, 1, 3]);
    for rank in job.end(Duration::from_secs(20)) {
        assert!(rank.succeeded && rank.output.contains("ranks 2, 4 of 5 did not start in time"), "{}", rank.output);
    }
}

#[test]
fn a_missing_rank_0_is_an_error() {
    if let Some(c) = as_rank(2) {
        println!("{}", c.err().unwrap());
        return;
    }
    for rank in Job::start("a_missing_rank_0_is_an_error", 2, [1]).end(Duration::from_secs(20)) {
        assert!(rank.succeeded && rank.output.contains("rank 1 finds no rank 0 at 127.0.0.1:"), "{}", rank.output);
    }
}

// ---- processes ----

/// Opens the collective in a process started by `Job`; `None` in the test itself.
fn as_rank(timeout_seconds: u64) -> Option<souk_io::Result<Box<dyn Collective>>> {
    std::env::var_os("SOUK_TEST_RANK")?;
    tch::set_num_threads(1);
    Some(open(&CollectiveSettings { timeout_seconds, ..CollectiveSettings::default() }))
}

struct Rank {
    number: usize,
    /// True if the rank was sent a signal, so that nothing waits for it.
    lost: bool,
    process: Child,
    output: BufReader<ChildStdout>,
    read: String,
}

struct RankOutput {
    number: usize,
    succeeded: bool,
    output: String,
}

struct Job(Vec<Rank>);

impl Job {
    fn start(test: &str, size: usize, present: impl IntoIterator<Item = usize>) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let rank = |number: usize| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args([&format!("collective::{test}"), "--exact", "--nocapture"]).env("SOUK_TEST_RANK", "1");
            command.env("RANK", number.to_string()).env("LOCAL_RANK", number.to_string());
            command.env("WORLD_SIZE", size.to_string());
            command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
            let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
            let output = BufReader::new(process.stdout.take().unwrap());
            Rank { number, lost: false, process, output, read: String::new() }
        };
        Self(present.into_iter().map(rank).collect())
    }

    /// Waits until all ranks have reported ready.
    fn meet(&mut self) {
        for rank in &mut self.0 {
            while !rank.read.contains(READY) {
                assert!(rank.output.read_line(&mut rank.read).unwrap() > 0, "rank {}: {}", rank.number, rank.read);
            }
        }
    }

    fn signal(&mut self, number: usize, signal: &str) -> u32 {
        let rank = self.0.iter_mut().find(|rank| rank.number == number).unwrap();
        rank.lost = true;
        let pid = rank.process.id();
        assert!(Command::new("kill").args([format!("-{signal}"), pid.to_string()]).status().unwrap().success());
        pid
    }

    /// Waits for all ranks; those still running after `limit` are killed and count as failed.
    fn end(mut self, limit: Duration) -> Vec<RankOutput> {
        let end = Instant::now() + limit;
        let running =
            |job: &mut Self| job.0.iter_mut().any(|rank| !rank.lost && rank.process.try_wait().unwrap().is_none());
        while running(&mut self) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        let ended = |mut rank: Rank| {
            drop(rank.process.kill());
            let succeeded = rank.process.wait().unwrap().success();
            let mut output = std::mem::take(&mut rank.read);
            rank.output.read_to_string(&mut output).unwrap();
            RankOutput { number: rank.number, succeeded, output }
        };
        std::mem::take(&mut self.0).into_iter().map(ended).collect()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for rank in &mut self.0 {
            drop(rank.process.kill());
            drop(rank.process.wait());
        }
    }
}
