//! The catalogue stream in a Kafka topic, and the command that brings it to the state of a product feed.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{Offset, TopicPartitionList};
use serde_json::{Map, Value, json};
use souk::catalogue_stream::{CatalogueStream, Mutation};
use souk::changed_catalogue::ChangedCatalogue;
use souk::log::kafka::CatalogueTopic;
use tokio::runtime::Runtime;

use crate::broker::client;
use crate::{settings, stable_broker};

fn unique(name: &str) -> String {
    format!("souk-{name}-{}", std::process::id())
}

fn open(brokers: &str, topic: &str) -> CatalogueTopic {
    CatalogueTopic::new(settings(brokers, topic, "unused"), topic).unwrap()
}

fn put(id: &str, title: &str) -> Mutation {
    Mutation::parse(json!({"_id": id, "title": title}).to_string().as_bytes(), Path::new("test"), 1).unwrap()
}

fn create(brokers: &str, topic: &str, partitions: i32, policy: &str) {
    let admin: AdminClient<DefaultClientContext> = client(brokers).create().unwrap();
    let new = NewTopic::new(topic, partitions, TopicReplication::Fixed(1)).set("cleanup.policy", policy);
    let made = Runtime::new().unwrap().block_on(admin.create_topics(&[new], &AdminOptions::new())).unwrap();
    assert!(made.into_iter().all(|made| made.is_ok()));
}

#[test]
fn two_processes_share_one_order_and_resume_anywhere() {
    let Some((brokers, _up)) = stable_broker("two_processes_share_one_order_and_resume_anywhere") else { return };
    let topic = unique("stream");
    let (first, second) = (open(&brokers, &topic), open(&brokers, &topic));
    let runtime = Runtime::new().unwrap();
    let read =
        |stream: &CatalogueTopic, after| runtime.block_on(stream.read(after, 100, Duration::from_secs(5))).unwrap();
    assert_eq!(read(&first, 0).end, 0, "the topic is created");
    let update = Mutation::Update("b".into(), Map::from_iter([("price".to_owned(), json!(2))]));
    let mutations = [put("a", "1"), put("b", "2"), update, Mutation::Delete("a".into())];
    for (at, mutation) in (1..).zip(&mutations) {
        let stream = if at % 2 == 0 { &first } else { &second };
        assert_eq!(runtime.block_on(stream.append(std::slice::from_ref(mutation))).unwrap(), at);
    }
    let expected: Vec<(u64, Mutation)> = (1..).zip(mutations).collect();
    for after in [0, 3, 1, 4] {
        let mut page = read(&first, after);
        while page.reached < 4 {
            let more = read(&first, page.reached);
            page.mutations.extend(more.mutations);
            page.reached = more.reached;
        }
        assert_eq!(page.mutations, expected[after as usize..]);
    }
    // what other programs write: an empty record, which deletes, and one that means nothing
    let producer: BaseProducer = client(&brokers).create().unwrap();
    producer.send(BaseRecord::<str, str>::to(&topic).key("b")).unwrap_or_else(|(e, _)| panic!("{e}"));
    producer.send(BaseRecord::to(&topic).key("c").payload("nonsense")).unwrap_or_else(|(e, _)| panic!("{e}"));
    producer.flush(Duration::from_secs(10)).unwrap();
    assert_eq!(runtime.block_on(second.append(&[put("c", "3")])).unwrap(), 7);
    let changed = runtime.block_on(ChangedCatalogue::read(&first)).unwrap();
    let items: Vec<String> = changed.over(std::iter::empty()).map(|item| item.unwrap().id).collect();
    assert_eq!((items, changed.position), (vec!["c".to_owned()], 7));
    assert_eq!(read(&first, 9).end, 7, "a replica that is ahead of the stream");
}

#[test]
fn a_topic_that_loses_changes_is_refused() {
    let Some((brokers, _up)) = stable_broker("a_topic_that_loses_changes_is_refused") else { return };
    let runtime = Runtime::new().unwrap();
    let refused = |topic: &str, after: u64| {
        let error = runtime.block_on(open(&brokers, topic).read(after, 10, Duration::ZERO)).unwrap_err();
        error.to_string()
    };
    let (several, short, lost) = (unique("several"), unique("short"), unique("lost"));
    create(&brokers, &several, 2, "compact");
    assert!(refused(&several, 0).contains("has 2 partitions, which have no common order"));
    create(&brokers, &short, 1, "delete");
    assert!(refused(&short, 0).contains("cleanup.policy=delete, which deletes the catalogue"));
    // somebody deletes the oldest records
    create(&brokers, &lost, 1, "compact,delete");
    let producer: BaseProducer = client(&brokers).create().unwrap();
    for id in ["a", "b", "c"] {
        let line = put(id, "x").to_json();
        producer.send(BaseRecord::to(&lost).key(id).payload(&line)).unwrap_or_else(|(e, _)| panic!("{e}"));
        producer.flush(Duration::from_secs(10)).unwrap();
    }
    let admin: AdminClient<DefaultClientContext> = client(&brokers).create().unwrap();
    let mut until = TopicPartitionList::new();
    until.add_partition_offset(&lost, 0, Offset::Offset(2)).unwrap();
    runtime.block_on(admin.delete_records(&until, &AdminOptions::new())).unwrap();
    alter(&brokers, &lost);
    let problem = refused(&lost, 1);
    assert!(
        problem.contains("has lost the changes from 2 to 2") && problem.contains("move the state folder away"),
        "{problem}"
    );
    let page = runtime.block_on(open(&brokers, &lost).read(2, 10, Duration::from_secs(5))).unwrap();
    assert_eq!(page.mutations, [(3, put("c", "x"))]);
}

/// Makes the topic compacted.
fn alter(brokers: &str, topic: &str) {
    use rdkafka::admin::{AlterConfig, ResourceSpecifier};
    let admin: AdminClient<DefaultClientContext> = client(brokers).create().unwrap();
    let change = AlterConfig::new(ResourceSpecifier::Topic(topic)).set("cleanup.policy", "compact");
    Runtime::new().unwrap().block_on(admin.alter_configs(&[change], &AdminOptions::new())).unwrap();
}

#[test]
fn a_feed_is_synced_through_the_topic() {
    let Some((brokers, _up)) = stable_broker("a_feed_is_synced_through_the_topic") else { return };
    let (home, topic) = (tempfile::tempdir().unwrap(), unique("feed"));
    let (data, feed) = (home.path().join("data"), home.path().join("feed.jsonl"));
    fs::create_dir(&data).unwrap();
    let lines = |items: &[Value]| items.iter().map(|item| item.to_string() + "\n").collect::<String>();
    let item = |n: usize, price: f64| json!({"_id": format!("i{n}"), "title": format!("desk {n}"), "price": price});
    fs::write(data.join("corpus.jsonl"), lines(&(0..20).map(|n| item(n, 1.0)).collect::<Vec<_>>())).unwrap();
    let sync_from = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_souk-engine"));
        command.args(["items", "sync", "--json", "--data"]).arg(&data);
        command.args(["--set", &format!("log.brokers={brokers}"), "--set", &format!("catalogue.topic={topic}")]);
        let done = command.args(more).output().unwrap();
        let error = String::from_utf8_lossy(&done.stderr).into_owned();
        serde_json::from_slice::<Value>(&done.stdout)
            .map(|json| {
                ["new", "changed", "deleted", "unchanged", "catalogue"].map(|name| json[name].as_u64().unwrap())
            })
            .map_err(|_| error)
    };
    let sync = |items: &[Value], more: &[&str]| {
        fs::write(&feed, lines(items)).unwrap();
        sync_from(&[&["--from", feed.to_str().unwrap()], more].concat())
    };
    let feeds: Vec<Value> = (1..22).map(|n| item(n, if n < 4 { 2.0 } else { 1.0 })).collect();
    assert_eq!(sync(&feeds, &["--dry-run"]).unwrap(), [2, 3, 1, 16, 0]);
    assert_eq!(sync(&feeds, &[]).unwrap(), [2, 3, 1, 16, 6]);
    assert_eq!(sync(&feeds, &[]).unwrap(), [0, 0, 0, 21, 6], "nothing is left to do");
    let halved = sync(&feeds[..10], &[]).unwrap_err();
    assert!(halved.contains("11 of the catalogue's 21 are not among them"), "{halved}");
    assert!(sync(&[], &[]).is_err(), "an empty feed deletes nothing");
    assert_eq!(sync(&feeds[..10], &["--max-deleted", "0.6"]).unwrap(), [0, 0, 11, 10, 17]);
    // the feed in a topic of several partitions: the last record of each key counts, and an empty one deletes
    let products = unique("products");
    create(&brokers, &products, 3, "compact");
    let producer: BaseProducer = client(&brokers).create().unwrap();
    let send = |n: usize, price: Option<f64>| {
        let (key, line) = (format!("i{n}"), price.map(|price| item(n, price).to_string()));
        let record = BaseRecord::to(&products).key(&key);
        let record = if let Some(line) = &line { record.payload(line) } else { record };
        producer.send(record).unwrap_or_else(|(e, _)| panic!("{e}"));
    };
    (1..20).for_each(|n| send(n, Some(9.0)));
    (1..12).for_each(|n| send(n, Some(if n < 4 { 2.0 } else { 1.0 })));
    (12..20).for_each(|n| send(n, None));
    producer.flush(Duration::from_secs(10)).unwrap();
    let from_topic = ["--kafka", &brokers, "--topic", &products];
    let synced = sync_from(&from_topic).unwrap();
    assert_eq!(synced, [1, 0, 0, 10, 18], "item i11 is new");
    assert_eq!(sync_from(&from_topic).unwrap(), [0, 0, 0, 11, 18]);
    let unknown = sync_from(&["--kafka", &brokers, "--topic", "nothing-here"]).unwrap_err();
    assert!(unknown.contains("nothing-here") && unknown.contains("check its name"), "{unknown}");
    let twice = sync(&[item(1, 1.0), item(1, 2.0)], &["--max-deleted", "1"]).unwrap_err();
    assert!(twice.contains("feed.jsonl, line 2, item `i1`: the id came before"), "{twice}");
}
