//! A writing process is killed at a random point, again and again. All acknowledged writes must exist.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write, stdout};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use souk_io::address::Address;
use souk_store::{Ledger, MAX_PAGE, Offset, SqlLedger, VoteVerdict};
use sqlx::{Connection, SqliteConnection};

use crate::ledgers::{put, vote};
use souk_testing::databases::{ledger, runtime};

const URL: &str = "SOUK_TEST_CRASH_URL";
const ROUND: &str = "SOUK_TEST_CRASH_ROUND";
const ROUNDS: usize = 8;

/// Runs in the process to kill: writes, and prints what was acknowledged. Does not return.
pub fn write_if_child() {
    let (Ok(url), Ok(round)) = (std::env::var(URL), std::env::var(ROUND)) else { return };
    runtime().block_on(async {
        let ledger = SqlLedger::open(&Address::new(url)).await.unwrap();
        let mut out = stdout();
        for step in 0.. {
            let name = format!("{round}/{step}");
            ledger.append_changes(&[put(&format!("{name}/a"), &name), put(&format!("{name}/b"), &name)]).await.unwrap();
            ledger.append_votes(&[vote(&name, VoteVerdict::Same)]).await.unwrap();
            let next = Offset { lane: round.clone(), position: step.to_string(), revision: step };
            assert!(ledger.move_offsets("crash", &[next]).await.unwrap());
            // the harness captures `println`
            writeln!(out, "\nacknowledged {step}").unwrap();
            out.flush().unwrap();
        }
    });
}

pub async fn kill_writers(name: &str, url: String) {
    let ledger = ledger(&url).await;
    let mut acknowledged = Vec::new();
    for round in 0..ROUNDS {
        let last = kill_one(name, &url, round);
        acknowledged.extend((0..=last).map(|step| format!("{round}/{step}")));
        let offsets = ledger.offsets("crash").await.unwrap();
        let offset = offsets.iter().find(|offset| offset.lane == round.to_string()).unwrap();
        assert!(offset.position.parse::<i64>().unwrap() >= last, "{offset:?} after {last}");
        sound(&url).await;
    }
    let changes = ledger.page_changes(0, MAX_PAGE).await.unwrap();
    assert_eq!(changes.len() as u64, ledger.last_change().await.unwrap(), "none is missing and none is there twice");
    let ids: HashSet<&str> = changes.iter().map(|(_, change)| change.id()).collect();
    for name in &acknowledged {
        assert!(ids.contains(format!("{name}/a").as_str()), "{name} was lost");
    }
    assert!(changes.iter().all(|(_, change)| ids.contains(change.id().replace("/a", "/b").as_str())), "half a call");
    let (mut votes, mut last) = (HashSet::new(), 0);
    while let Some((number, _)) = ledger.page_votes(last, 1000).await.unwrap().last() {
        votes.extend(ledger.page_votes(last, 1000).await.unwrap().into_iter().map(|(_, vote)| vote.id));
        last = *number;
    }
    assert!(acknowledged.iter().all(|name| votes.contains(name)));
}

/// Starts a writer, kills it some time after its first acknowledgements, and returns the last one.
fn kill_one(name: &str, url: &str, round: usize) -> i64 {
    let program = std::env::current_exe().unwrap();
    let mut command = Command::new(program);
    command.args([name, "--exact", "--nocapture"]).env(URL, url).env(ROUND, round.to_string());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = || loop {
        let line = lines.next()?.unwrap();
        if let Some(step) = line.strip_prefix("acknowledged ") {
            return Some(step.parse::<i64>().unwrap());
        }
    };
    let mut last = None;
    let luck = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().subsec_nanos();
    for _ in 0..1 + luck % 20 {
        last = next();
        assert!(last.is_some(), "the writer ended by itself");
    }
    std::thread::sleep(Duration::from_micros(u64::from(luck / 7 % 5000)));
    child.kill().unwrap();
    child.wait().unwrap();
    while let Some(step) = next() {
        last = Some(step);
    }
    last.unwrap()
}

async fn sound(url: &str) {
    if let Some(file) = url.strip_prefix("sqlite:") {
        let mut connection = SqliteConnection::connect(&format!("sqlite://{file}")).await.unwrap();
        let said: String = sqlx::query_scalar("PRAGMA integrity_check").fetch_one(&mut connection).await.unwrap();
        assert_eq!(said, "ok");
    }
}
