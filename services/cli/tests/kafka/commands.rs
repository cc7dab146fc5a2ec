//! `souk produce`, `souk ingest` and `souk judgements` on a small topic.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use souk_testing::small_shop;

use crate::{click, corpus, finish, ingest, query, stable_broker};

#[test]
fn judgements_from_a_topic_are_those_from_its_file() {
    let Some((brokers, _up)) = stable_broker("judgements_from_a_topic_are_those_from_its_file") else { return };
    let topic = format!("souk-judged-{}", std::process::id());
    let homes = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let mut log = String::new();
    for day in 0..10 {
        let id = format!("q{day}");
        let time = 1_700_000_000_000_u64 + day * 86_400_000;
        let (query, click) = (query(&id), click(&id, day as usize));
        log += &format!("{query}\n{click}\n")
            .replace("1700000000000", &time.to_string())
            .replace("1700000001000", &time.to_string());
    }
    let file = homes[0].path().join("logs.ndjson");
    fs::write(&file, &log).unwrap();
    let souk = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_souk-engine"));
        let output = command.args(arguments).stdin(fs::File::open(&file).unwrap()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    souk(&["produce", "--kafka", &brokers, "--topic", &topic, "--partitions", "2"]);
    let qrels = homes.each_ref().map(|home| {
        corpus(home.path(), 10);
        let data = home.path().display().to_string();
        let kafka = ["judgements", "--data", &data, "--kafka", &brokers, "--topic", &topic];
        souk(if home.path().join("logs.ndjson").exists() { &kafka[..3] } else { &kafka });
        ["train", "dev", "test"].map(|split| {
            let text = fs::read_to_string(home.path().join(format!("qrels/{split}.tsv"))).unwrap();
            // queries are numbered in the order in which they are read
            text.lines().skip(1).map(|line| line.split_once('\t').unwrap().1.to_owned()).collect::<BTreeSet<_>>()
        })
    });
    assert_eq!(qrels[0], qrels[1]);
    assert_eq!(qrels[0][2].len(), 1, "{qrels:?}");

    // the same from a catalogue and a topic alone, with settings that have no stage
    let shop = homes[1].path().join("shop");
    fs::create_dir(&shop).unwrap();
    let settings = format!(
        "[model]\npath = {:?}\n\n[store]\ndatabase = \"sqlite:{}\"\n",
        small_shop::model(),
        shop.join("souk.db").display()
    );
    fs::write(shop.join("shop.toml"), &settings).unwrap();
    let [items, out] = ["products.csv", "shop"].map(|name| homes[1].path().join(name).display().to_string());
    let products: String = (0..10).map(|number| format!("{number},Oak desk number {number}\n")).collect();
    fs::write(&items, format!("sku,name\n{products}")).unwrap();
    souk(&["start", "--items", &items, "--kafka", &brokers, "--topic", &topic, "--out", &out, "--once"]);
    let text = fs::read_to_string(shop.join("data/qrels/test.tsv")).unwrap();
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(shop.join("data/examples").exists() && shop.join("measured/untrained-test/metrics.json").exists());
    let mut other = Command::new(env!("CARGO_BIN_EXE_souk-engine"));
    let other = other.args(["start", "--out", &out, "--once", "--log", &items]).output().unwrap();
    let message = String::from_utf8_lossy(&other.stderr);
    assert!(!other.status.success() && message.contains("shop.toml: names another log"), "{message}");
    let written = fs::read_to_string(shop.join("shop.toml")).unwrap();
    // a file on the command line takes the place of the configured topic
    let config = shop.join("shop.toml").display().to_string();
    let (data, log) = (homes[0].path().display().to_string(), file.display().to_string());
    souk(&["ingest", "--config", &config, "--data", &data, "--from", &log]);
    assert_eq!(written, format!("{settings}\n[log]\nbrokers = \"{brokers}\"\ntopics = [\"{topic}\"]\n"));
}

#[test]
fn produce_and_ingest_round_trip() {
    let Some((brokers, _up)) = stable_broker("produce_and_ingest_round_trip") else { return };
    let topic = format!("souk-produced-{}", std::process::id());
    let home = tempfile::tempdir().unwrap();
    corpus(home.path(), 30);
    let mut log = String::new();
    for number in 0..30 {
        let id = format!("q{number}");
        log += &format!("{}\n{}\n\n", query(&id), click(&id, number));
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_souk-engine"));
    command.args(["produce", "--json", "--kafka", &brokers, "--topic", &topic, "--partitions", "3"]);
    // the first run creates the topic, the second finds it
    for (log, num) in [("", 0), (log.as_str(), 60)] {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(log.as_bytes()).unwrap();
        assert_eq!(finish(child)["messages"], num);
    }
    let done = finish(ingest(&brokers, &topic, home.path(), &[]));
    assert_eq!((&done["examples"], &done["waiting"]), (&30.into(), &0.into()), "a click follows its query: {done}");
}
