//! One conformance test for every collective, and what becomes of a job that loses a rank. A rank is a process: this program
//! starts itself again, with the name of the test that it is a rank of and torchrun's variables.
#![expect(clippy::print_stdout, reason = "a rank speaks to the test that started it")]

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use souk_io::Error;
use souk_nn::collective::{Collective, Settings, Solo, gather_bytes, gather_json, gather_rows, open, return_rows};
use tch::{Device, IndexOp, Kind, Tensor};

const CPU: Device = Device::Cpu;
const READY: &str = "the ranks have met";
const KINDS: [Kind; 5] = [Kind::Float, Kind::Double, Kind::BFloat16, Kind::Half, Kind::Int64];

// ---- every collective ----

fn conformance(c: &dyn Collective) {
    operations(c);
    rows(c);
    values(c);
    refusals(c);
    c.barrier().unwrap();
}

/// `[rows, 3]`, different at each place and on each rank; exact in every kind.
fn block(rows: i64, rank: usize, kind: Kind) -> Tensor {
    (Tensor::arange(3 * rows, (Kind::Int64, CPU)).view([rows, 3]) + 16 * rank as i64).to_kind(kind)
}

/// The sum over ranks of what `of` gives for each.
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
    // memory that is not in order
    let turned = |rank| block(2, rank, Kind::Float).transpose(0, 1);
    let all: Vec<Tensor> = (0..size).map(turned).collect();
    same(&c.all_gather(&turned(rank)).unwrap(), &Tensor::stack(&all, 0));
    let one = c.all_gather(&Tensor::from(rank as i64)).unwrap();
    same(&one, &Tensor::arange(size as i64, (Kind::Int64, CPU)));
    let mut x = turned(rank);
    c.all_reduce(&mut x).unwrap();
    same(&x, &total(c, turned));
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
        // the adjoint: each rank's gradient of all rows, summed, cut to its own
        let end = gathered.starts[size];
        let returned = return_rows(c, &block(end, rank, kind), &gathered.starts).unwrap();
        let (first, own_rows) = gathered.part(rank);
        same(&returned, &total(c, |rank| block(end, rank, kind)).narrow(0, first, own_rows));
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

/// What does not fit is an error on every rank, after which the ranks still work together.
fn refusals(c: &dyn Collective) {
    assert!(c.broadcast(&mut block(1, 0, Kind::Float), c.size()).is_err());
    if c.size() > 1 {
        let width = if c.rank() == 1 { 4 } else { 3 };
        let refused = gather_rows(c, &Tensor::zeros([2, width], (Kind::Float, CPU))).unwrap_err().to_string();
        assert!(refused.contains("rank 1 has rows of 4 columns"), "{refused}");
        let kind = if c.rank() == 1 { Kind::Double } else { Kind::Float };
        assert!(gather_rows(c, &block(2, 0, kind)).unwrap_err().to_string().contains("another kind"));
        let x = Tensor::zeros([c.size() as i64 + 1, 2], (Kind::Float, CPU));
        assert!(c.reduce_scatter(&x).is_err());
    }
}

#[test]
fn one_process_keeps_the_contract() {
    conformance(&Solo);
    assert_eq!(open(&Settings::default()).unwrap().size(), 1);
}

#[test]
fn two_processes_keep_the_contract() {
    with_ranks("two_processes_keep_the_contract", 2);
}

#[test]
fn four_processes_keep_the_contract() {
    with_ranks("four_processes_keep_the_contract", 4);
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

#[test]
fn a_killed_rank_ends_all_others_which_name_it() {
    lose("a_killed_rank_ends_all_others_which_name_it", 1, ("KILL", "no sign of life from rank 1 ("), LOSS_TIMEOUT + 7);
}

#[test]
fn a_killed_rank_0_takes_the_store_along_and_is_named() {
    lose("a_killed_rank_0_takes_the_store_along_and_is_named", 0, ("KILL", "rank 0 ("), LOSS_TIMEOUT + 7);
}

#[test]
fn a_frozen_rank_is_named_at_the_timeout() {
    lose("a_frozen_rank_is_named_at_the_timeout", 2, ("STOP", "no sign of life from rank 2 ("), LOSS_TIMEOUT + 7);
}

#[test]
fn a_frozen_rank_0_freezes_the_store_and_is_named() {
    // a store that does not answer takes a timeout of its own
    lose("a_frozen_rank_0_freezes_the_store_and_is_named", 0, ("STOP", "rank 0 ("), LOSS_TIMEOUT + 12);
}

const LOSS_TIMEOUT: u64 = 8;

/// Three ranks sum numbers without end; then one gets a signal, and the others end within so many seconds.
fn lose(test: &str, lost: usize, (signal, message): (&str, &str), max_seconds: u64) {
    if let Some(c) = as_rank(LOSS_TIMEOUT) {
        return sum_until_it_fails(c.unwrap().as_ref());
    }
    let mut job = Job::start(test, 3, 0..3);
    job.meet();
    let pid = job.signal(lost, signal);
    for rank in job.end(Duration::from_secs(max_seconds)).into_iter().filter(|rank| rank.number != lost) {
        assert!(rank.succeeded, "{}", rank.output);
        let named = rank.output.contains(message) && rank.output.contains(&format!("pid {pid}"));
        assert!(named, "rank {} does not name rank {lost}, pid {pid}: {}", rank.number, rank.output);
    }
}

fn sum_until_it_fails(c: &dyn Collective) {
    let mut x = Tensor::ones([100_000], (Kind::Float, CPU));
    c.all_reduce(&mut x).unwrap();
    println!("{READY}");
    let error = loop {
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
fn a_rank_that_leaves_early_is_told_from_one_that_dies() {
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
    let job = Job::start("a_rank_that_leaves_early_is_told_from_one_that_dies", 3, 0..3);
    for rank in job.end(Duration::from_secs(LOSS_TIMEOUT + 7)) {
        assert!(rank.succeeded, "{}", rank.output);
        assert!(rank.number == 1 || rank.output.contains("pid") && rank.output.contains("left"), "{}", rank.output);
    }
}

#[test]
fn a_rank_that_lives_but_does_not_come_is_named_with_where_it_stands() {
    const TIMEOUT: u64 = 3;
    if let Some(c) = as_rank(TIMEOUT) {
        let c = c.unwrap();
        if c.rank() == 1 {
            // longer than the others wait and then need to judge
            std::thread::sleep(Duration::from_secs(TIMEOUT + 5));
        }
        println!("{}", c.barrier().unwrap_err());
        return;
    }
    let job = Job::start("a_rank_that_lives_but_does_not_come_is_named_with_where_it_stands", 3, 0..3);
    for rank in job.end(Duration::from_secs(TIMEOUT + 15)) {
        assert!(rank.succeeded, "{}", rank.output);
        let named = rank.output.contains("has not come to operation 1 (barrier): it is at 0");
        assert!(named && rank.output.contains("rank 1 ("), "{}", rank.output);
    }
}

#[test]
fn ranks_that_never_come_are_named_at_the_timeout() {
    if let Some(c) = as_rank(3) {
        println!("{}", c.err().unwrap());
        return;
    }
    let job = Job::start("ranks_that_never_come_are_named_at_the_timeout", 5, [0, 1, 3]);
    for rank in job.end(Duration::from_secs(20)) {
        assert!(rank.succeeded && rank.output.contains("ranks 2, 4 of 5 did not come in time"), "{}", rank.output);
    }
}

#[test]
fn without_rank_0_there_is_no_job() {
    if let Some(c) = as_rank(2) {
        println!("{}", c.err().unwrap());
        return;
    }
    for rank in Job::start("without_rank_0_there_is_no_job", 2, [1]).end(Duration::from_secs(20)) {
        assert!(rank.succeeded && rank.output.contains("rank 1 finds no rank 0 at 127.0.0.1:"), "{}", rank.output);
    }
}

// ---- processes ----

/// In a process that `Job` has started, what `open` gives.
fn as_rank(timeout_seconds: u64) -> Option<souk_io::Result<Box<dyn Collective>>> {
    std::env::var_os("SOUK_TEST_RANK")?;
    tch::set_num_threads(1);
    Some(open(&Settings { timeout_seconds, ..Settings::default() }))
}

struct Rank {
    number: usize,
    /// Whether it has had a signal, and is not waited for.
    lost: bool,
    process: Child,
    output: BufReader<ChildStdout>,
    read: String,
}

struct Ended {
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

    /// Waits until all have said that they are at work.
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

    /// Those that have not ended by then are killed, and have not succeeded.
    fn end(mut self, limit: Duration) -> Vec<Ended> {
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
            Ended { number: rank.number, succeeded, output }
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
