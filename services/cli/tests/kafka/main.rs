//! `souk ingest` on a real Kafka broker (KAFKA_BROKERS): kills, shared partitions and broker restarts.
#![expect(clippy::unwrap_used, reason = "a test stops at the first error")]

#[path = "../broker/mod.rs"]
mod broker;
mod catalogue;
mod commands;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use rdkafka::Message;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::Headers;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use souk::beir::DataFolder;
use souk::catalogue::Catalogue;
use souk::dataset::Examples;
use souk::log::kafka::{KafkaSettings, KafkaSource};
use souk::log::{LogSource, OnGap, Position, Signal};

use crate::broker::{client, make, topic};

/// Read lock: the broker must stay up. Write lock: the broker is being restarted.
static BROKER_UP: RwLock<()> = RwLock::new(());

/// Broker address with a lock that keeps it up. Without a broker, records the test as skipped.
fn stable_broker(test: &str) -> Option<(String, RwLockReadGuard<'static, ()>)> {
    let up = BROKER_UP.read().unwrap_or_else(PoisonError::into_inner);
    brokers(test).map(|brokers| (brokers, up))
}

/// Broker address. Without one, records the test as skipped.
fn brokers(test: &str) -> Option<String> {
    let brokers = std::env::var("KAFKA_BROKERS").ok().filter(|brokers| !brokers.is_empty());
    if brokers.is_none() {
        skip(test, "KAFKA_BROKERS is not set");
    }
    brokers
}

fn skip(test: &str, reason: &str) {
    if let Some(file) = std::env::var_os("SOUK_SKIPPED") {
        let mut file = fs::OpenOptions::new().append(true).create(true).open(file).unwrap();
        writeln!(file, "{test}: {reason}").unwrap();
    }
}

struct Writer {
    producer: BaseProducer,
    topic: String,
}

impl Writer {
    fn new(brokers: &str, topic: &str) -> Self {
        let mut client = client(brokers);
        client.set("linger.ms", "20").set("compression.type", "lz4").set("enable.idempotence", "true");
        Self { producer: client.create().unwrap(), topic: topic.into() }
    }

    fn send(&self, key: &str, payload: &str) {
        let mut record = BaseRecord::to(&self.topic).key(key).payload(payload);
        while let Err((error, again)) = self.producer.send(record) {
            assert_eq!(error.rdkafka_error_code(), Some(rdkafka::types::RDKafkaErrorCode::QueueFull));
            self.producer.poll(Duration::from_millis(20));
            record = again;
        }
    }

    fn flush(&self) {
        self.producer.flush(Duration::from_secs(60)).unwrap();
    }
}

fn query(id: &str) -> String {
    format!(r#"{{"query_id":"{id}","client_id":"c","user_query":"words of {id}","timestamp":1700000000000}}"#)
}

fn click(query: &str, item: usize) -> String {
    format!(
        r#"{{"action_name":"click","query_id":"{query}","client_id":"c","timestamp":1700000001000,"event_attributes":{{"object":{{"object_id":"{item}"}},"position":{{"ordinal":1}}}}}}"#
    )
}

/// Starts `souk ingest` from a topic into a folder.
fn ingest(brokers: &str, topic: &str, data: &Path, more: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_souk-engine"));
    command.args(["ingest", "--json", "--kafka", brokers, "--topic", topic, "--group", topic, "--data"]).arg(data);
    // short session timeout, so that the group notices a killed consumer soon
    command.args(["--set", "log.properties.\"session.timeout.ms\"=\"1500\""]);
    command.args(["--set", "log.properties.\"heartbeat.interval.ms\"=\"300\""]);
    command.args(["--set", "ingest.commit_seconds=1"]).args(more);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn num_commits(data: &Path) -> usize {
    let lanes = fs::read_dir(data.join("examples")).into_iter().flatten();
    let commits = lanes.flat_map(|lane| fs::read_dir(lane.unwrap().path()).unwrap());
    commits.filter(|entry| !entry.as_ref().unwrap().file_name().to_string_lossy().starts_with('.')).count()
}

fn wait_for(what: &str, mut until: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !until() {
        assert!(begin.elapsed() < Duration::from_secs(120), "waited two minutes for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn finish(child: Child) -> serde_json::Value {
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    serde_json::from_slice(&stdout).unwrap()
}

fn corpus(data: &Path, items: usize) {
    let mut corpus = String::new();
    (0..items).for_each(|item| corpus.push_str(&format!("{{\"_id\":\"{item}\"}}\n")));
    fs::write(data.join("corpus.jsonl"), corpus).unwrap();
}

/// The items of all examples, sorted.
fn items(data: &Path) -> Vec<u32> {
    let catalogue = Catalogue::open(&DataFolder::open(data).unwrap()).unwrap();
    let examples = Examples::open(&data.join("examples"), &catalogue, None).unwrap();
    assert_eq!(examples.num_unknown_items(), 0);
    let mut items: Vec<u32> = (0..examples.len()).map(|row| examples.row(row).item).collect();
    items.sort_unstable();
    items
}

fn dead_letters(data: &Path) -> Vec<String> {
    let mut letters = Vec::new();
    for lane in fs::read_dir(data.join("examples")).unwrap() {
        for commit in fs::read_dir(lane.unwrap().path()).unwrap() {
            let commit = commit.unwrap();
            // hidden folders are partial commits of a killed writer
            if commit.file_name().to_string_lossy().starts_with('.') {
                continue;
            }
            let file = commit.path().join("dead.jsonl");
            let text = if file.exists() { fs::read_to_string(file).unwrap() } else { String::new() };
            letters.extend(text.lines().map(|line| {
                let letter: serde_json::Value = serde_json::from_str(line).unwrap();
                letter["payload"].as_str().unwrap().to_owned()
            }));
        }
    }
    letters.sort();
    letters
}

/// Kills and restarts the broker, if this test run started it.
fn restart_broker(test: &str, just_before: impl FnOnce()) {
    let services = std::env::var_os("SOUK_SERVICES").filter(|dir| Path::new(dir).join("kafka/port").exists());
    let Some(services) = services else {
        return skip(test, "the broker was not started by this run (SOUK_SERVICES has no kafka)");
    };
    let _down = BROKER_UP.write().unwrap_or_else(PoisonError::into_inner);
    just_before();
    let script = souk_testing::repository().join("scripts/services.sh");
    let done = Command::new(script).args(["restart", "kafka"]).arg(services).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

const EVENTS: usize = 1_000_000;
const CLICKS_PER_QUERY: usize = 20;
const KILLS: u64 = 20;
/// Number of portions of the million events. Each is written when released, so that there is always something to read.
const PORTIONS: usize = KILLS as usize + 6;
/// Minimum time to write a portion.
const PORTION_TIME: Duration = Duration::from_millis(1600);

/// Writes queries and clicks, some out of order, some repeated, and invalid messages. Returns the invalid messages.
fn write_million(writer: &Writer, released: &AtomicUsize) -> Vec<String> {
    let queries = EVENTS / CLICKS_PER_QUERY;
    let (mut invalid, mut portion, mut begin, mut first_number) = (Vec::new(), 0, Instant::now(), 0);
    for number in 0..queries {
        if number * PORTIONS / queries > portion {
            (portion, first_number) = (number * PORTIONS / queries, number);
            while released.load(Ordering::Relaxed) <= portion {
                std::thread::sleep(Duration::from_millis(5));
            }
            begin = Instant::now();
        }
        let id = format!("q{number}");
        let first = number * CLICKS_PER_QUERY;
        // out of order: some clicks come before their query
        let (early, late) = if number % 7 == 0 { (5, CLICKS_PER_QUERY) } else { (0, CLICKS_PER_QUERY) };
        (0..early).for_each(|click_number| writer.send(&id, &click(&id, first + click_number)));
        writer.send(&id, &query(&id));
        (early..late).for_each(|click_number| writer.send(&id, &click(&id, first + click_number)));
        if number % 11 == 0 {
            // duplicates, as from a producer that retries
            writer.send(&id, &query(&id));
            writer.send(&id, &click(&id, first));
        }
        if number % 50 == 0 {
            invalid.push(format!("{{invalid {number}"));
            writer.send(&id, invalid.last().unwrap());
            let due = PORTION_TIME.mul_f64(((number - first_number) * PORTIONS) as f64 / queries as f64);
            std::thread::sleep(due.saturating_sub(begin.elapsed()));
        }
    }
    writer.flush();
    invalid
}

#[test]
fn a_million_events_arrive_exactly_once() {
    let test = "a_million_events_arrive_exactly_once";
    let Some(brokers) = brokers(test) else { return };
    let topic = topic(&brokers, "million", 4);
    let writer = Writer::new(&brokers, &topic);
    let released = Arc::new(AtomicUsize::new(1));
    let until = released.clone();
    let writing = std::thread::spawn(move || write_million(&writer, &until));
    let release = |portions| {
        released.fetch_add(portions, Ordering::Relaxed);
    };
    let home = tempfile::tempdir().unwrap();
    let data = home.path();
    corpus(data, EVENTS);
    let small = ["--set", "ingest.commit_messages=8192"];
    let mut dice = 0x9e37_79b9_7f4a_7c15_u64 ^ u64::from(std::process::id());
    for kill in 0..KILLS {
        let before = num_commits(data);
        release(1);
        let mut reader = ingest(&brokers, &topic, data, &[&small[..], &["--follow"]].concat());
        wait_for("a commit", || {
            assert!(reader.try_wait().unwrap().is_none(), "the reader has exited early");
            num_commits(data) > before
        });
        dice = dice.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        std::thread::sleep(Duration::from_millis(dice >> 57));
        if kill == KILLS / 2 {
            // messages are in flight while the broker goes down
            restart_broker(test, || release(1));
            let before = num_commits(data);
            release(1);
            wait_for("a commit after the broker's restart", || num_commits(data) > before);
        }
        reader.kill().unwrap();
        reader.wait().unwrap();
    }
    // a second reader joins the first and leaves again
    let mut first = ingest(&brokers, &topic, data, &[&small[..], &["--follow"]].concat());
    let before = num_commits(data);
    release(1);
    wait_for("a commit", || num_commits(data) > before);
    release(PORTIONS);
    let second = ingest(&brokers, &topic, data, &[&small[..], &["--follow"]].concat());
    std::thread::sleep(Duration::from_secs(3));
    terminate(&second);
    finish(second);
    assert!(first.try_wait().unwrap().is_none());
    let mut invalid = writing.join().unwrap();
    invalid.sort();
    terminate(&first);
    finish(first);
    finish(ingest(&brokers, &topic, data, &[]));

    assert!(items(data).into_iter().eq(0..EVENTS as u32), "each event once");
    assert!(dead_letters(data) == invalid, "each dead letter once");
}

fn terminate(child: &Child) {
    let sent = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

#[test]
fn dead_letters_reach_their_topic_with_origin_and_reason() {
    let Some((brokers, _up)) = stable_broker("dead_letters_reach_their_topic_with_origin_and_reason") else { return };
    let (source, dead) = (topic(&brokers, "with-invalid", 1), topic(&brokers, "dead", 1));
    let writer = Writer::new(&brokers, &source);
    for payload in [query("q").as_str(), "invalid", &click("q", 0), r#"{"action_name":"click","query_id":"q"}"#] {
        writer.send("k", payload);
    }
    writer.flush();
    let home = tempfile::tempdir().unwrap();
    corpus(home.path(), 1);
    let done = finish(ingest(&brokers, &source, home.path(), &["--dead-letters", &dead]));
    assert_eq!((&done["examples"], &done["dead"]), (&1.into(), &2.into()));

    let consumer: BaseConsumer =
        client(&brokers).set("group.id", &dead).set("auto.offset.reset", "earliest").create().unwrap();
    consumer.subscribe(&[&dead]).unwrap();
    let mut found = Vec::new();
    wait_for("two letters", || {
        if let Some(letter) = consumer.poll(Duration::from_millis(100)) {
            let letter = letter.unwrap();
            let headers: BTreeMap<String, String> = letter
                .headers()
                .unwrap()
                .iter()
                .map(|header| (header.key.to_owned(), String::from_utf8(header.value.unwrap().to_vec()).unwrap()))
                .collect();
            found.push((String::from_utf8(letter.payload().unwrap().to_vec()).unwrap(), headers));
        }
        found.len() == 2
    });
    assert_eq!((found[0].0.as_str(), found[0].1["souk.offset"].as_str()), ("invalid", "1"));
    assert_eq!((found[1].1["souk.topic"].as_str(), found[1].1["souk.offset"].as_str()), (source.as_str(), "3"));
    assert!(found[1].1["souk.reason"].contains("object_id"), "{:?}", found[1].1);
}

#[test]
fn queries_and_events_in_two_topics_are_joined() {
    let Some((brokers, _up)) = stable_broker("queries_and_events_in_two_topics_are_joined") else { return };
    let topics = [topic(&brokers, "queries", 3), topic(&brokers, "events", 3)];
    let [queries, events] = topics.each_ref().map(|topic| Writer::new(&brokers, topic));
    for number in 0..300 {
        let id = format!("q{number}");
        events.send(&id, &click(&id, number));
        queries.send(&id, &query(&id));
    }
    queries.flush();
    events.flush();
    let home = tempfile::tempdir().unwrap();
    corpus(home.path(), 300);
    let done = finish(ingest(&brokers, &topics[0], home.path(), &["--topic", &topics[1]]));
    assert_eq!((&done["examples"], &done["waiting"]), (&300.into(), &0.into()), "{done}");
    assert!(items(home.path()).into_iter().eq(0..300));
}

#[test]
fn broker_and_topic_errors_are_reported() {
    let Some((brokers, _up)) = stable_broker("broker_and_topic_errors_are_reported") else { return };
    let home = tempfile::tempdir().unwrap();
    let (one, three) = (topic(&brokers, "one", 1), topic(&brokers, "three", 3));
    for (arguments, expected) in [
        (["--topic", three.as_str()], "as many partitions each"),
        (["--dead-letters", one.as_str()], "the dead-letter topic is also a source topic"),
        (["--set", "log.properties.\"auto.offset.reset\"=\"latest\""], "is set by Souk"),
    ] {
        let done = ingest(&brokers, &one, home.path(), &arguments).wait_with_output().unwrap();
        let text = String::from_utf8(done.stderr).unwrap();
        assert!(text.contains(expected) && done.status.code() == Some(2), "{text}");
    }
    for (brokers, properties, code, expected) in [
        (brokers.as_str(), vec![], 2, "no topic `souk-absent`"),
        ("127.0.0.1:1", vec![], 1, "no answer within 10 s: check that it runs"),
        (
            brokers.as_str(),
            vec!["--set", "log.properties.\"no.such\"=\"1\""],
            2,
            "librdkafka rejects this configuration",
        ),
    ] {
        let done = ingest(brokers, "souk-absent", home.path(), &properties).wait_with_output().unwrap();
        let text = String::from_utf8(done.stderr).unwrap();
        assert!(text.contains(expected), "{text}");
        assert_eq!(done.status.code(), Some(code), "{text}");
    }
}

#[test]
fn a_recreated_topic_is_a_gap_and_then_read_from_its_start() {
    let Some((brokers, _up)) = stable_broker("a_recreated_topic_is_a_gap_and_then_read_from_its_start") else { return };
    let topic = topic(&brokers, "recreated", 1);
    let write = |from: usize, to: usize| {
        let writer = Writer::new(&brokers, &topic);
        let id = format!("q{from}");
        writer.send(&id, &query(&id));
        (from..to).for_each(|number| writer.send(&id, &click(&id, number)));
        writer.flush();
    };
    write(0, 20);
    let home = tempfile::tempdir().unwrap();
    corpus(home.path(), 25);
    assert_eq!(finish(ingest(&brokers, &topic, home.path(), &[]))["examples"], 20);
    let admin: AdminClient<DefaultClientContext> = client(&brokers).create().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(admin.delete_topics(&[topic.as_str()], &AdminOptions::new())).unwrap();
    wait_for("the topic to be created again", || make(&brokers, &topic, 1));
    write(20, 25);
    let stopped = ingest(&brokers, &topic, home.path(), &[]).wait_with_output().unwrap();
    let text = String::from_utf8(stopped.stderr).unwrap();
    assert!(stopped.status.code() == Some(1) && text.contains("log.on_gap=skip"), "{text}");
    let skip = ["--set", "log.on_gap=skip"];
    assert_eq!(finish(ingest(&brokers, &topic, home.path(), &skip))["examples"], 5);
    assert_eq!(finish(ingest(&brokers, &topic, home.path(), &[]))["messages"], 0);
    assert!(items(home.path()).into_iter().eq(0..25));
}

fn settings(brokers: &str, topic: &str, group: &str) -> KafkaSettings {
    let properties =
        [("session.timeout.ms", "1500"), ("heartbeat.interval.ms", "300"), ("max.poll.interval.ms", "2000")];
    KafkaSettings {
        brokers: brokers.into(),
        topics: vec![topic.into()],
        group: group.into(),
        dead_letter_topic: None,
        follow: true,
        on_gap: OnGap::Stop,
        properties: properties.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect(),
    }
}

#[test]
fn a_long_pause_loses_no_partition_and_no_message() {
    let Some((brokers, _up)) = stable_broker("a_long_pause_loses_no_partition_and_no_message") else { return };
    let topic = topic(&brokers, "pause", 2);
    let writer = Writer::new(&brokers, &topic);
    let messages = 60_000;
    let filling = "x".repeat(1000);
    (0..messages).for_each(|number| writer.send(&number.to_string(), &format!("{number} {filling}")));
    writer.flush();
    let mut source = KafkaSource::open(&settings(&brokers, &topic, &topic), Arc::new(|_| Ok(None))).unwrap();
    let (mut num_opened, mut numbers, mut has_paused) = (0, Vec::new(), false);
    wait_for("all messages", || {
        match source.next(Duration::from_millis(100)).unwrap() {
            Some(Signal::Opened(..)) => num_opened += 1,
            Some(Signal::Batch(batch)) => {
                numbers.extend(batch.messages().map(|message| {
                    std::str::from_utf8(message.payload).unwrap().split(' ').next().unwrap().parse::<usize>().unwrap()
                }));
                if !has_paused {
                    has_paused = true;
                    // three times max.poll.interval.ms
                    std::thread::sleep(Duration::from_secs(6));
                }
            }
            Some(Signal::Closed(..)) => panic!("the group has dropped this member"),
            Some(Signal::Ended) | None => {}
        }
        numbers.len() >= messages
    });
    assert_eq!(num_opened, 2);
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..messages));
}

#[test]
fn a_source_resumes_at_a_position_and_commits_offsets() {
    let Some((brokers, _up)) = stable_broker("a_source_resumes_at_a_position_and_commits_offsets") else { return };
    let topic = topic(&brokers, "resume", 1);
    let writer = Writer::new(&brokers, &topic);
    (0..100).for_each(|number| writer.send("k", &number.to_string()));
    writer.flush();
    let at = Position(BTreeMap::from([(topic.clone(), 40)]));
    let start = at.clone();
    let mut settings = settings(&brokers, &topic, &topic);
    settings.follow = false;
    let mut source = KafkaSource::open(&settings, Arc::new(move |_| Ok(Some(start.clone())))).unwrap();
    let (mut read, mut lane) = (Vec::new(), None);
    wait_for("the end", || match source.next(Duration::from_millis(100)).unwrap() {
        Some(Signal::Opened(opened, _)) => {
            lane = Some(opened);
            false
        }
        Some(Signal::Batch(batch)) => {
            read.extend(
                batch.messages().map(|message| (message.offset, String::from_utf8_lossy(message.payload).into_owned())),
            );
            false
        }
        signal => matches!(signal, Some(Signal::Ended)),
    });
    assert!(read.iter().map(|(offset, _)| *offset).eq(40..100));
    assert_eq!(read[0].1, "40");
    source.commit(&lane.unwrap(), &at).unwrap();
    let consumer: BaseConsumer = client(&brokers).set("group.id", &topic).create().unwrap();
    let mut list = rdkafka::TopicPartitionList::new();
    list.add_partition(&topic, 0);
    wait_for("the committed offset", || {
        let offsets = consumer.committed_offsets(list.clone(), Duration::from_secs(10)).unwrap();
        offsets.elements()[0].offset() == rdkafka::Offset::Offset(40)
    });
    wait_for("the lag", || source.lag() == 0 && source.next(Duration::from_millis(100)).unwrap().is_none());
}
