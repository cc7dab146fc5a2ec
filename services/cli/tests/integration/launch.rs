//! `souk launch`: output of the ranks, failure of a rank, and the end of the job.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

const VECTOR: &[u8] = b"[";

fn launch(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_souk-engine"));
    command
        .arg("launch")
        .args(arguments)
        .env("HF_HUB_OFFLINE", "1")
        .env_remove("RUST_LOG")
        .env_remove("OMP_NUM_THREADS");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    texts(launch(arguments).output().unwrap())
}

fn texts(output: Output) -> (Option<i32>, String, String) {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

fn model() -> String {
    souk_testing::golden("st_cls").display().to_string()
}

/// Starts two ranks: rank 1 has no input and is done, rank 0 has printed vectors and waits for more texts.
fn start_waiting_job(flags: &[&str]) -> (Child, BufReader<ChildStdout>) {
    let model = model();
    let arguments = [&["--nproc", "2"], flags, &["--", "embed", "--model", &model]].concat();
    let mut job = launch(&arguments).spawn().unwrap();
    job.stdin.as_mut().unwrap().write_all(&b"oak desk\n".repeat(5000)).unwrap();
    let mut output = BufReader::new(job.stdout.take().unwrap());
    let mut line = Vec::new();
    output.read_until(b'\n', &mut line).unwrap();
    assert!(line.starts_with(VECTOR), "{}", String::from_utf8_lossy(&line));
    (job, output)
}

fn wait(job: Child) -> (Option<i32>, String) {
    let (code, _, message) = texts(job.wait_with_output().unwrap());
    (code, message)
}

fn signal(pid: &str, name: &str) {
    assert!(Command::new("kill").args([name, pid]).status().unwrap().success());
}

fn children(job: &Child) -> Vec<String> {
    let pid = job.id();
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    text.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn standard_output_is_rank_0_and_the_others_have_a_prefix() {
    let (code, output, others) = run(&["--nproc", "3", "--", "--version", "--json"]);
    assert_eq!(code, Some(0), "{others}");
    let version: serde_json::Value = serde_json::from_str(&output).unwrap();
    assert_eq!(version["libtorch"], "2.11.0");
    let cores = std::thread::available_parallelism().unwrap().get();
    assert_eq!(version["threads"], (cores / 3).max(1), "the ranks share the cores");
    let mut lines: Vec<&str> = others.lines().collect();
    lines.sort_unstable();
    assert!(matches!(lines[..], [one, two] if one.starts_with("[1] {") && two.starts_with("[2] {")), "{others}");
}

#[test]
fn global_flags_are_forwarded_to_the_ranks() {
    let (code, output, message) = run(&["--json", "--set", "model.threads=1", "--", "--version"]);
    assert_eq!(code, Some(0), "{message}");
    assert!(output.starts_with('{'), "{output}");
    let (code, _, message) = run(&["--set", "model.color=1", "--", "--version"]);
    assert!(code == Some(2) && message.contains("[0] souk:") && message.contains("color"), "{message}");
}

#[test]
fn a_failed_rank_sets_the_exit_code() {
    let (code, _, message) = run(&["--nproc", "2", "--", "embed", "--model", "/nowhere/at/all"]);
    assert_eq!(code, Some(2), "{message}");
    assert!(message.contains("failed first, with exit code 2"), "{message}");
    assert!(message.contains("] souk: ") && message.contains("neither a local folder"), "{message}");
    for arguments in [&["--nproc", "0", "--", "--version"][..], &["--nproc", "2"], &["--nproc", "2", "embed"]] {
        let (code, _, message) = run(arguments);
        assert_eq!(code, Some(2), "{arguments:?}: {message}");
    }
}

#[test]
fn a_killed_rank_is_reported_with_its_signal() {
    let (job, _output) = start_waiting_job(&[]);
    let ranks = children(&job);
    signal(&ranks[0], "-KILL");
    let (code, message) = wait(job);
    assert_eq!(code, Some(1), "{message}");
    assert!(message.contains("rank 0 failed first, killed by SIGKILL"), "{message}");
}

#[test]
fn stopping_the_job_stops_its_ranks() {
    let (job, _output) = start_waiting_job(&[]);
    let ranks = children(&job);
    signal(&job.id().to_string(), "-TERM");
    let (code, message) = wait(job);
    assert_eq!(code, Some(1), "{message}");
    assert!(message.contains("stopped"), "{message}");
    for rank in ranks {
        assert!(!Path::new("/proc").join(&rank).exists(), "rank {rank} is left over");
    }
}

#[test]
fn ranks_die_with_a_killed_launcher() {
    let (mut job, _output) = start_waiting_job(&[]);
    let ranks = children(&job);
    job.kill().unwrap();
    job.wait().unwrap();
    let begin = Instant::now();
    while ranks.iter().any(|rank| alive(rank)) {
        assert!(begin.elapsed() < Duration::from_secs(10), "a rank is left over");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether the process runs; a zombie does not count.
fn alive(rank: &str) -> bool {
    let status = std::fs::read_to_string(Path::new("/proc").join(rank).join("stat")).unwrap_or_default();
    status.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

#[test]
fn a_job_is_stopped_after_its_timeout() {
    let arguments = ["--nproc", "2", "--timeout", "3", "--", "embed", "--model", &model()];
    let mut job = launch(&arguments).spawn().unwrap();
    // rank 0 waits for texts while this is open
    let input = job.stdin.take();
    let (code, message) = wait(job);
    drop(input);
    assert_eq!(code, Some(1), "{message}");
    assert!(message.contains("not done after 3 s"), "{message}");
}

#[test]
fn nccl_without_cuda_is_an_error() {
    let version = Command::new(env!("CARGO_BIN_EXE_souk-engine")).arg("--version").output().unwrap();
    if String::from_utf8_lossy(&version.stdout).contains("cuda") {
        // the test runner prints this file
        if let Some(file) = std::env::var_os("SOUK_SKIPPED") {
            let mut file = std::fs::OpenOptions::new().append(true).create(true).open(file).unwrap();
            let test = "nccl_without_cuda_is_an_error";
            writeln!(file, "{test}: this libtorch has CUDA; NCCL itself is in docs/gpu-checks.md").unwrap();
        }
        return;
    }
    let model = model();
    let train = ["train", "--model", &model, "--data", "nowhere", "--out", "never", "--set", "collective.backend=nccl"];
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join("nowhere")).unwrap();
    std::fs::write(home.path().join("nowhere/corpus.jsonl"), "{\"_id\":\"a\"}\n").unwrap();
    let mut job = launch(&[&["--nproc", "2", "--"], &train[..]].concat());
    let (code, _, message) = texts(job.current_dir(home.path()).output().unwrap());
    assert_eq!(code, Some(2), "{message}");
    assert!(message.contains("this libtorch has no CUDA") && message.contains("gloo"), "{message}");
}
