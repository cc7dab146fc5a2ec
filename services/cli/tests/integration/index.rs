//! `souk index` with several ranks, after kills, from local files and an object store, into a folder and into Milvus.
//! The vectors are always the same.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use souk::index::Snapshot;

use souk_testing::databases::{server_url, unique};

const ITEMS: usize = 5000;

fn model() -> PathBuf {
    souk_testing::golden("st_mean_dense")
}

fn souk(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_souk-engine"));
    command.args(arguments).env("OMP_NUM_THREADS", "1").env_remove("RUST_LOG");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run_ok(output: &Output) -> Value {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stdout)))
}

fn assert_fails(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

/// Writes a catalogue in two files; returns its folder.
fn catalogue(home: &Path) -> String {
    let folder = home.join("catalogue");
    fs::create_dir(&folder).unwrap();
    let line =
        |at: usize| format!("{}\n", json!({"_id": format!("i{at}"), "title": format!("lamp {at} oak {}", at * 7)}));
    fs::write(folder.join("a.jsonl"), (0..ITEMS / 3).map(line).collect::<String>()).unwrap();
    fs::write(folder.join("b.jsonl"), (ITEMS / 3..ITEMS).map(line).collect::<String>()).unwrap();
    folder.display().to_string()
}

/// Items with their vectors, in catalogue order.
fn vectors(index: &str, built: &Value) -> Vec<(String, Vec<f32>)> {
    let (fingerprint, dimensions) = (built["model"].as_str().unwrap(), built["dimensions"].as_i64().unwrap());
    let snapshot = Snapshot::open(Path::new(index), fingerprint, dimensions).unwrap();
    snapshot.sample(ITEMS).unwrap().into_iter().map(|(item, vector)| (item.id, vector.to_vec())).collect()
}

fn assert_same(one: &[(String, Vec<f32>)], other: &[(String, Vec<f32>)]) {
    assert_eq!(one.len(), ITEMS);
    let ids = |all: &[(String, Vec<f32>)]| all.iter().map(|(id, _)| id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(one), ids(other));
    for ((id, a), (_, b)) in one.iter().zip(other) {
        assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5), "item {id}");
    }
}

#[test]
fn ranks_share_the_work_and_resume_after_a_kill() {
    let home = tempfile::tempdir().unwrap();
    let from = catalogue(home.path());
    let path = |name: &str| home.path().join(name).display().to_string();
    let (model, alone, shared) = (model().display().to_string(), path("alone"), path("shared"));
    let exact = ["--set", "index.type=exact", "--json"];
    let index = |out| {
        let index = ["index", "--model", &model, "--from", &from, "--shard-mb", "1"];
        [&index[..], &exact, &["--out", out]].concat()
    };
    let built = run_ok(&souk(&index(&alone)).output().unwrap());
    assert_eq!((built["num_items"].as_u64(), built["num_shards"].as_u64()), (Some(ITEMS as u64), Some(2)));
    assert!(built["items_per_second"].as_f64().unwrap() > 0.0 && built["billion_days"].as_f64().unwrap() > 0.0);

    let ranks = [&["launch", "--nproc", "2", "--"][..], &index(&shared)].concat();
    let mut job = souk(&ranks).spawn().unwrap();
    let (mark, began) = (home.path().join("shared.shards/0000000.json"), Instant::now());
    while !mark.exists() && job.try_wait().unwrap().is_none() {
        assert!(began.elapsed() < Duration::from_secs(60));
        sleep(Duration::from_millis(5));
    }
    // ranks die with their launcher
    job.kill().unwrap();
    job.wait().unwrap();
    let less = format!("{from}/a.jsonl");
    let other = ["index", "--model", &model, "--from", &less, "--out", &shared];
    let message = loop {
        let message = assert_fails(&mut souk(&other));
        // the ranks may take a moment to exit
        if !message.contains("another process") {
            break message;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{message}");
    };
    assert!(message.contains("was started with another") || message.contains("is not empty"), "{message}");
    if !Path::new(&shared).exists() {
        let rebuilt = run_ok(&souk(&ranks).output().unwrap());
        assert!(rebuilt["shards_before"].as_u64() >= Some(1), "{rebuilt}");
    }
    assert_same(&vectors(&alone, &built), &vectors(&shared, &built));
}

/// Unsigned PUT request to an object store.
pub fn put(server: &str, path: &str, body: &[u8]) {
    let host = server.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    write!(
        stream,
        "PUT /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    )
    .unwrap();
    stream.write_all(body).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
}

fn upload(server: &str, bucket: &str, prefix: &str, folder: &Path) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = format!("{prefix}/{}", path.file_name().unwrap().to_str().unwrap());
        if path.is_dir() {
            upload(server, bucket, &name, &path);
        } else {
            put(server, &format!("{bucket}/{name}"), &fs::read(&path).unwrap());
        }
    }
}

#[test]
fn indexes_from_an_object_store() {
    let Some(server) = server_url("S3_URL", "an index from an object store", |url| url.starts_with("http://")) else {
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let from = catalogue(home.path());
    let bucket = unique("souk").replace('_', "-");
    put(&server, &bucket, b"");
    upload(&server, &bucket, "shop/catalogue", Path::new(&from));
    upload(&server, &bucket, "models/one", &model());
    // empty folder objects, as bucket browsers create them
    for folder in ["models/one/", "models/one/1_Pooling/", "shop/catalogue/"] {
        put(&server, &format!("{bucket}/{folder}"), b"");
    }
    let path = |name: &str| home.path().join(name).display().to_string();
    let (here, there) = (path("here"), path("there"));
    let with_store = |mut command: Command| {
        command.env("AWS_ENDPOINT_URL", &server).env("AWS_ALLOW_HTTP", "true").env("AWS_REGION", "us-east-1");
        command.env("AWS_ACCESS_KEY_ID", "souk").env("AWS_SECRET_ACCESS_KEY", "souk");
        command.env("SOUK_CACHE", home.path().join("cache"));
        command
    };
    let of = |model: &str, from: &str, out: &str| {
        let index = ["index", "--model", model, "--from", from, "--out", out, "--shard-mb", "1"];
        with_store(souk(&[&index[..], &["--set", "index.type=exact", "--json"]].concat()))
    };
    let remote = |path: &str| format!("s3://{bucket}/{path}");
    let built = run_ok(&of(&model().display().to_string(), &from, &here).output().unwrap());
    let rebuilt = run_ok(&of(&remote("models/one"), &remote("shop/catalogue"), &there).output().unwrap());
    assert_eq!(built["model"], rebuilt["model"]);
    assert_same(&vectors(&here, &built), &vectors(&there, &built));

    let message = assert_fails(&mut of(&remote("models/none"), &from, &path("x")));
    assert!(message.contains("models/none") && message.contains("no files"), "{message}");
    // with the store unreachable, the cached model is used
    let mut unreachable = of(&remote("models/one"), &from, &path("away"));
    let cached = unreachable.env("AWS_ENDPOINT_URL", "http://127.0.0.1:1").output().unwrap();
    assert_eq!(run_ok(&cached)["model"], built["model"]);

    // products as a shop has them, by the address of the file or of its folder
    put(&server, &format!("{bucket}/files/products.csv"), b"sku,name\n7,Oak desk\n8,Floor lamp\n");
    for (at, address) in ["files/products.csv", "files"].into_iter().enumerate() {
        let out = path(&format!("items-{at}"));
        let import = ["--json", "import", "--format", "items", "--from", &remote(address), "--out", &out];
        assert_eq!(run_ok(&with_store(souk(&import)).output().unwrap())["items"], 2, "{address}");
    }
}

#[cfg(feature = "milvus")]
#[test]
fn ranks_fill_one_milvus_collection() {
    use souk::address::Address;
    use souk::index::{CollectionContent, Index, Milvus, MilvusSettings};
    use souk::item_text::ItemText;

    let Some(server) = server_url("MILVUS_URL", "an index in Milvus", |url| !url.is_empty()) else { return };
    let home = tempfile::tempdir().unwrap();
    let from = catalogue(home.path());
    let (model, out, prefix) = (model().display().to_string(), home.path().join("work"), unique("index") + "_");
    let setting = format!("search.index={{type=\"milvus\", address=\"{server}\", collection_prefix=\"{prefix}\"}}");
    let index = ["index", "--model", &model, "--from", &from, "--out", out.to_str().unwrap(), "--shard-mb", "1"];
    let whole = [&index[..], &["--collection", "autumn", "--alias", "now", "--json", "--set", &setting]].concat();
    let built = run_ok(&souk(&[&["launch", "--nproc", "2", "--"], &whole[..]].concat()).output().unwrap());
    assert_eq!(
        (built["num_items"].as_u64(), &built["collection"]),
        (Some(ITEMS as u64), &json!(format!("{prefix}autumn")))
    );
    let settings =
        MilvusSettings { address: Address::new(&server), collection_prefix: prefix, ..MilvusSettings::default() };
    let fingerprint = run_ok(&souk(&[&index[..], &["--json"]].concat()).output().unwrap());
    let (fingerprint, dimensions) =
        (fingerprint["model"].as_str().unwrap().to_owned(), fingerprint["dimensions"].as_i64().unwrap());
    souk_testing::databases::runtime().block_on(async {
        let (model, item_text) = (fingerprint.as_str(), ItemText::default());
        let content = CollectionContent { model, dimensions, item_text: &item_text, lexical: None };
        let collection = Milvus::open(&settings, "now", content).await.unwrap();
        assert_eq!(collection.num_items().await.unwrap(), ITEMS);
    });
    // another catalogue is rejected
    let message = assert_fails(&mut souk(
        &[
            &index[..3],
            &["--from", &format!("{from}/a.jsonl"), "--out", home.path().join("y").to_str().unwrap()],
            &whole[9..],
        ]
        .concat(),
    ));
    assert!(message.contains("holds 5000 items"), "{message}");
}
