//! Encoding in shards equals encoding at once, also when the process is killed.

use std::fmt::Write;

use super::*;
use crate::index::VectorQuery;
use souk_nn::backbone::Precision;
use souk_nn::encoder::Placement;

const ITEMS: usize = 60;

fn encoder() -> Encoder {
    let model = souk_testing::golden("st_mean_dense");
    let placement =
        Placement { device: tch::Device::Cpu, precision: Precision::F32, adapter: None, ignore_fields: Vec::new() };
    Encoder::open(&model, placement, Default::default()).unwrap().for_search().unwrap().freeze().unwrap()
}

fn job<'a>(files: &'a ItemFiles, out: &'a Path, shard_bytes: u64) -> IndexJob<'a> {
    IndexJob {
        files,
        out,
        target: IndexTarget::Folder,
        index: IndexSettings::default(),
        shard_bytes,
        limits: Limits::default(),
        made_with: "f32".into(),
    }
}

fn catalogue(home: &Path) -> ItemFiles {
    let lines = (0..ITEMS).fold(String::new(), |mut lines, at| {
        writeln!(lines, "{{\"_id\": \"{at}\", \"title\": \"lamp number {at}\"}}").unwrap();
        lines
    });
    fs::write(home.join("corpus.jsonl"), lines).unwrap();
    ItemFiles::open(home.join("corpus.jsonl").to_str().unwrap(), Vec::new()).unwrap()
}

fn vectors(out: &Path, model: &(String, i64)) -> Vec<(String, Vec<f32>)> {
    let index = Snapshot::open(out, &model.0, model.1).unwrap();
    assert_eq!(index.search(&VectorQuery::new(index.sample(1).unwrap()[0].1, 1)).unwrap().len(), 1);
    index.sample(ITEMS).unwrap().into_iter().map(|(item, vector)| (item.id, vector.to_vec())).collect()
}

#[test]
fn killed_run_resumes_and_builds_the_same_index() {
    let home = tempfile::tempdir().unwrap();
    let files = catalogue(home.path());
    let model = (encoder().fingerprint().unwrap(), encoder().dimensions());
    let [once, killed] = ["once", "killed"].map(|name| home.path().join(name));
    let done = job(&files, &once, 1 << 20).run(encoder(), &mut |_| ()).unwrap().unwrap();
    assert_eq!((done.num_items, done.num_shards, done.shards_before), (ITEMS as u64, 1, 0));

    // killed in the third of several shards
    let cut = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let mut items = 0;
        job(&files, &killed, 500).run(encoder(), &mut |progress| {
            items += usize::from(matches!(progress, IndexProgress::Encoding(_)));
            assert!(items < 30, "killed");
        })
    }));
    assert!(cut.is_err() && !killed.exists());
    let work = home.path().join("killed.shards");
    // left over: half a shard and half an index
    assert!(work.exists());
    fs::create_dir(home.path().join("killed.part")).unwrap();
    let other = job(&files, &killed, 600).run(encoder(), &mut |_| ()).err().unwrap().to_string();
    assert!(other.contains("other settings"), "{other}");
    let coarser = IndexJob { made_with: "int8".into(), ..job(&files, &killed, 500) };
    assert!(coarser.run(encoder(), &mut |_| ()).is_err(), "vectors of two precisions cannot mix");
    let done = job(&files, &killed, 500).run(encoder(), &mut |_| ()).unwrap().unwrap();
    assert!(done.shards_before >= 2 && done.num_shards > 4, "{done:?}");
    assert!(done.num_items == ITEMS as u64 && done.throughput.items < ITEMS as u64);
    assert!(!work.exists());
    let (one, other) = (vectors(&once, &model), vectors(&killed, &model));
    assert_eq!(one.len(), other.len());
    for ((id, a), (other, b)) in one.iter().zip(&other) {
        assert_eq!(id, other);
        assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5), "item {id}");
    }
    let again = job(&files, &killed, 500).run(encoder(), &mut |_| ()).err().unwrap().to_string();
    assert!(again.contains("not empty"), "{again}");
}

#[test]
fn damaged_shard_is_reported_and_encoded_again() {
    let home = tempfile::tempdir().unwrap();
    let files = catalogue(home.path());
    let out = home.path().join("out");
    let work = home.path().join("out.shards");
    let mut damage = |progress: IndexProgress<'_>| {
        if let IndexProgress::Waiting(_) | IndexProgress::Encoding(_) = progress
            && let Ok(bytes) = fs::read(work.join("0000000.f32"))
            && work.join("0000000.json").exists()
        {
            fs::write(work.join("0000000.f32"), &bytes[1..]).unwrap();
        }
    };
    let error = job(&files, &out, 1000).run(encoder(), &mut damage).err().unwrap().to_string();
    assert!(error.contains("0000000.f32") && error.contains("damaged"), "{error}");
    let done = job(&files, &out, 1000).run(encoder(), &mut |_| ()).unwrap().unwrap();
    assert_eq!((done.num_items, done.num_shards - done.shards_before), (ITEMS as u64, 1));
}

#[test]
fn rejects_duplicate_ids() {
    let home = tempfile::tempdir().unwrap();
    let files = catalogue(home.path());
    let file = home.path().join("corpus.jsonl");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("\"_id\": \"59\"", "\"_id\": \"0\"")).unwrap();
    let error = job(&files, &home.path().join("out"), 500).run(encoder(), &mut |_| ()).err().unwrap().to_string();
    assert!(error.contains("two items have the id `0`"), "{error}");
}
