//! Throughput of ingestion and sampling: files, Kafka compared with a bare consumer, and memory use.
//!
//!   cargo bench -p souk-ingest --bench ingest -- [EVENTS] [KAFKA_BROKERS]      (default: 10000000 events; no Kafka)
//!
//! The Kafka part uses a tenth of the events. The bare consumer's time is from its first message to its last. Souk's begins
//! earlier, with the assignment of its partitions, and ends when the last message is durable. Closing is left out for both.
//! Rates per core are by processor time, which other programs do not disturb.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a bench that cannot go on says why and ends")]

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{ClientConfig, Message};
use souk_ingest::dataset::{Examples, Ingest, IngestProgress, IngestSettings};
use souk_ingest::log::file::{FileSettings, FileSource};
use souk_ingest::log::kafka::{KafkaSettings, KafkaSource};
use souk_ingest::log::{LogSource, OnGap, Resume, Signal};
use souk_io::beir::DataFolder;
use souk_io::catalogue::Catalogue;
use souk_io::shuffle::{Draw, Order};
use souk_io::ubi::{Action, EventRecord, QueryRecord};

const ITEMS: u64 = 100_000;
/// Each query is followed by ten impressions and one or two choices.
const SHOWN: u64 = 10;
const ROUNDS: usize = 5;
const PARTITIONS: i32 = 4;

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let events: u64 = arguments.next().map_or(10_000_000, |text| text.parse().unwrap());
    let brokers = arguments.next();
    let home = tempfile::tempdir().unwrap();
    let log = home.path().join("logs.ndjson");
    write_log(&log, events);
    let corpus: String = (0..ITEMS).map(|item| format!("{{\"_id\":\"item-{item}\"}}\n")).collect();
    fs::write(home.path().join("corpus.jsonl"), corpus).unwrap();
    from_file(home.path(), &log);
    draw(home.path());
    match brokers {
        Some(brokers) => from_kafka(home.path(), &brokers, events / 10),
        None => println!("skipped: Kafka: no broker was named"),
    }
}

/// Pseudo-random number.
fn scattered(number: u64) -> u64 {
    let bits = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (bits ^ (bits >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 20
}

/// Calls `with` with key and JSON of each record of a search.
fn search(number: u64, mut with: impl FnMut(&str, &[u8])) -> u64 {
    let (id, client) = (format!("{:016x}-{number:08}", scattered(number)), format!("client-{:06}", number % 300_000));
    let time = 1_760_000_000_000 + number as i64 * 50;
    let words = ["oak", "desk", "lamp", "red", "usb", "cable", "pan", "towel", "men", "waterproof"];
    let word = |n: u64| words[(scattered(number / 5 + n) % 10) as usize];
    let text = format!("{} {} {} {}", word(1), word(2), word(3), scattered(number / 5) % 5000);
    let mut json = Vec::with_capacity(400);
    let query = QueryRecord {
        query_id: id.as_str().into(),
        client_id: client.as_str().into(),
        text: text.into(),
        time,
        hits: Vec::new(),
    };
    query.write("shop", &mut json);
    with(&id, &json);
    let choices = 1 + number % 2;
    for event in 0..SHOWN + choices {
        let (action, place) = match event.checked_sub(SHOWN) {
            None => (Action::Impression, event),
            Some(0) => (Action::Click, scattered(number) % SHOWN),
            Some(_) => (Action::Purchase, scattered(number) % SHOWN),
        };
        let item = format!("item-{}", scattered(number * SHOWN + place) % ITEMS);
        let record = EventRecord {
            action,
            query_id: id.as_str().into(),
            client_id: client.as_str().into(),
            item: item.into(),
            position: Some(place as u32 + 1),
            time: time + event as i64,
            text: None,
        };
        json.clear();
        record.write("shop", &mut json);
        with(&id, &json);
    }
    SHOWN + choices
}

fn write_log(path: &Path, events: u64) {
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path).unwrap());
    let (mut written, mut number) = (0, 0);
    while written < events {
        written += search(number, |_, json| {
            out.write_all(json).and_then(|()| out.write_all(b"\n")).unwrap();
        });
        number += 1;
    }
    out.flush().unwrap();
}

/// Processor time of this process so far.
fn processor() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

fn resident_mib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

fn run(
    home: &Path,
    open: impl FnMut(Resume) -> souk_io::Result<Box<dyn LogSource>>,
    report: impl FnMut(&IngestProgress),
) -> IngestProgress {
    let stop = Arc::new(AtomicBool::new(false));
    Ingest::new(home, IngestSettings::default(), Box::new(open), stop).unwrap().run(report).unwrap()
}

fn from_file(home: &Path, log: &Path) {
    let settings = FileSettings { paths: vec![log.into()], follow: false, on_gap: OnGap::Stop };
    let (begin, before) = (Instant::now(), processor());
    let mut memory = Vec::new();
    let done = run(
        &home.join("examples"),
        |resume| Ok(Box::new(FileSource::open(settings.clone(), resume)?)),
        |progress| memory.push((progress.counts.messages, resident_mib())),
    );
    let (wall, busy) = (begin.elapsed().as_secs_f64(), (processor() - before).as_secs_f64());
    let events = (done.counts.impressions + done.counts.examples) as f64;
    println!(
        "file: {events:.0} events ({} examples) and {} queries, read, joined and made durable in {wall:.1} s, {busy:.1} s of a core",
        done.counts.examples, done.counts.queries
    );
    println!("file: {:.0} events/s and {:.0} MB/s per core", events / busy, done.bytes as f64 / busy / 1e6);
    let shown = memory.len().div_ceil(10).max(1);
    let line: Vec<String> =
        memory.iter().step_by(shown).map(|(messages, mib)| format!("{:.1}M: {mib}", *messages as f64 / 1e6)).collect();
    println!("memory, MiB resident after so many messages: {}", line.join(", "));
}

fn draw(home: &Path) {
    let begin = Instant::now();
    let catalogue = Catalogue::open(&DataFolder::open(home).unwrap()).unwrap();
    let examples = Examples::open(&home.join("examples"), &catalogue, None).unwrap();
    println!("dataset: {} examples opened and checked in {:.2} s", examples.len(), begin.elapsed().as_secs_f64());
    for (name, block) in [("all together", None), ("in blocks of 65536", Some(65_536))] {
        let num = examples.len().max(2_000_000);
        let begin = processor();
        let drawn = Draw::new(examples.len(), Order { seed: 1, block }, 0).take(num as usize);
        let sum: u64 = drawn
            .map(|row| examples.row(row))
            .map(|example| example.query.len() as u64 + u64::from(example.item))
            .sum();
        let busy = (processor() - begin).as_secs_f64();
        println!("dataset, shuffled {name}: {:.2} M examples/s per core (sum {sum})", num as f64 / busy / 1e6);
    }
}

fn from_kafka(home: &Path, brokers: &str, events: u64) {
    let topic = format!("souk-bench-{}", std::process::id());
    let mut client = ClientConfig::new();
    client.set("bootstrap.servers", brokers);
    let admin: AdminClient<DefaultClientContext> = client.create().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let new = [NewTopic::new(&topic, PARTITIONS, TopicReplication::Fixed(1))];
    runtime.block_on(admin.create_topics(&new, &AdminOptions::new())).unwrap();
    let producer: BaseProducer = client.clone().set("linger.ms", "20").set("compression.type", "lz4").create().unwrap();
    let (mut written, mut number, mut messages) = (0, 0, 0_u64);
    while written < events {
        written += search(number, |key, json| {
            messages += 1;
            let mut record = BaseRecord::to(&topic).key(key).payload(json);
            while let Err((_, again)) = producer.send(record) {
                producer.poll(Duration::from_millis(20));
                record = again;
            }
        });
        number += 1;
    }
    producer.flush(Duration::from_secs(60)).unwrap();
    let mut measured = [const { Vec::new() }; 4];
    for round in 0..ROUNDS {
        let settings = KafkaSettings {
            brokers: brokers.into(),
            topics: vec![topic.clone()],
            group: format!("{topic}-souk-{round}"),
            dead_letter_topic: None,
            follow: false,
            on_gap: OnGap::Stop,
            properties: Default::default(),
        };
        let alone = KafkaSettings { group: format!("{topic}-alone-{round}"), ..settings.clone() };
        let bare =
            |client: &ClientConfig, name| count_bytes(client, &format!("{topic}-{name}-{round}"), &topic, messages);
        let times = [
            timed(|| bare(&client, "bare")),
            timed(|| bare(&like_souk(&client), "like-souk")),
            timed(|| count_messages(&alone, messages)),
            timed(|| to_examples(&settings, &home.join(format!("kafka-{round}")), messages)),
        ];
        for (measured, time) in measured.iter_mut().zip(times) {
            measured.push(time);
        }
    }
    print_kafka(messages, measured);
}

/// Prints rates, processor time and ratios, each the median of its rounds.
fn print_kafka(messages: u64, measured: [Vec<(Duration, Duration)>; 4]) {
    let median = |mut times: Vec<Duration>| {
        times.sort();
        times[ROUNDS / 2].as_secs_f64()
    };
    let [bare, same, source, examples] =
        measured.each_ref().map(|times| messages as f64 / median(times.iter().map(|(wall, _)| *wall).collect()));
    println!("kafka, messages/s, medians of {ROUNDS}: a bare consumer that only counts bytes {bare:.0},");
    println!("  the same with Souk's settings {same:.0}, Souk's source {source:.0}, to durable examples {examples:.0}");
    println!("kafka: the source runs at {:.2} and {:.2} times a bare consumer,", source / bare, source / same);
    println!("  all the way to durable examples at {:.2} and {:.2} times", examples / bare, examples / same);
    let [bare, same, source, examples] =
        measured.map(|times| median(times.into_iter().map(|(_, busy)| busy).collect()) / messages as f64 * 1e6);
    println!("kafka, us of processor time per message, with opening and closing: a bare consumer {bare:.2},");
    println!("  with Souk's settings {same:.2}, Souk's source {source:.2}, to durable examples {examples:.2}");
}

/// Wall time that `run` reports, and the processor time that it takes.
fn timed(run: impl FnOnce() -> Duration) -> (Duration, Duration) {
    let before = processor();
    let wall = run();
    (wall, processor() - before)
}

/// Souk's own values for a log that it reads to the end.
fn like_souk(client: &ClientConfig) -> ClientConfig {
    let mut client = client.clone();
    // librdkafka by default waits a second if its queue was full
    client.set("fetch.queue.backoff.ms", "10").set("fetch.wait.max.ms", "10");
    client.set("partition.assignment.strategy", "range").set("statistics.interval.ms", "1000");
    client
}

/// From the assignment until all events are counted.
fn count_messages(settings: &KafkaSettings, messages: u64) -> Duration {
    let mut source = KafkaSource::open(settings, Arc::new(|_| Ok(None))).unwrap();
    let (mut bytes, mut count, mut assigned) = (0, 0, None);
    while count < messages {
        match source.next(Duration::from_millis(100)).unwrap() {
            Some(Signal::Opened(..)) => drop(assigned.get_or_insert_with(Instant::now)),
            Some(Signal::Batch(batch)) => {
                count += batch.len() as u64;
                bytes += batch.num_bytes();
            }
            _ => {}
        }
    }
    assert!(bytes > 0);
    assigned.unwrap().elapsed()
}

/// From the assignment until everything is durable.
fn to_examples(settings: &KafkaSettings, home: &Path, messages: u64) -> Duration {
    let assigned = Arc::new(OnceLock::new());
    let seen = assigned.clone();
    let open = move |resume: Resume| -> souk_io::Result<Box<dyn LogSource>> {
        Ok(Box::new(Timed { source: KafkaSource::open(settings, resume)?, assigned: seen.clone() }))
    };
    let mut durable = Instant::now();
    let done = run(home, open, |_| durable = Instant::now());
    assert_eq!(done.counts.messages, messages);
    durable - *assigned.get().unwrap()
}

/// From the first message until all are counted.
fn count_bytes(client: &ClientConfig, group: &str, topic: &str, messages: u64) -> Duration {
    let mut config = client.clone();
    config.set("group.id", group).set("auto.offset.reset", "earliest").set("enable.auto.commit", "false");
    let consumer: BaseConsumer = config.create().unwrap();
    consumer.subscribe(&[topic]).unwrap();
    let (mut bytes, mut count, mut first) = (0, 0, None);
    while count < messages {
        if let Some(message) = consumer.poll(Duration::from_millis(100)) {
            first.get_or_insert_with(Instant::now);
            bytes += message.unwrap().payload().map_or(0, <[u8]>::len);
            count += 1;
        }
    }
    assert!(bytes > 0);
    first.unwrap().elapsed()
}

/// Records the time of the assignment, which comes before any message.
struct Timed {
    source: KafkaSource,
    assigned: Arc<OnceLock<Instant>>,
}

impl LogSource for Timed {
    fn next(&mut self, wait: Duration) -> souk_io::Result<Option<Signal>> {
        let signal = self.source.next(wait)?;
        if matches!(signal, Some(Signal::Opened(..))) {
            self.assigned.get_or_init(Instant::now);
        }
        Ok(signal)
    }

    fn commit(&mut self, lane: &souk_ingest::log::Lane, position: &souk_ingest::log::Position) -> souk_io::Result<()> {
        self.source.commit(lane, position)
    }

    fn send_dead_letters(&mut self, letters: &[souk_ingest::log::DeadLetter]) -> souk_io::Result<()> {
        self.source.send_dead_letters(letters)
    }

    fn lag(&self) -> u64 {
        self.source.lag()
    }
}
