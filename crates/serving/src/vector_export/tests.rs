//! Exported files hold each item's vector, in the shape that the engine documents.

use std::fs;
use std::path::PathBuf;

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;

use super::parts::Framing;
use super::*;
use crate::index::IndexSettings;

/// Index of three items, of which two have one vector.
fn snapshot(home: &Path) -> Snapshot {
    let dir = home.join("index");
    let mut builder = Snapshot::builder(&dir, "m1".into(), 2, IndexSettings::default()).unwrap();
    for (id, vector) in [("b-1", [0.6, 0.8]), ("7", [1.0, 0.0]), ("ü", [0.6, 0.8])] {
        let item = json!({"_id": id, "title": format!("lamp {id}"), "text": "red", "price": 9.5});
        builder.add(&serde_json::from_value(item).unwrap(), &vector).unwrap();
    }
    builder.write(&mut |_| ()).unwrap();
    Snapshot::open_any(&dir).unwrap()
}

fn export(home: &Path, format: VectorFormat, with_items: bool) -> (PathBuf, ExportReport) {
    let out = home.join(format!("{format:?}-{with_items}"));
    let snapshot = snapshot(&tempfile::tempdir_in(home).unwrap().keep());
    let export = VectorExport { snapshot: &snapshot, format, field: "v2", name: "shop", with_items };
    let mut seen = 0;
    let report = export.write(&out, &mut |done| seen = done).unwrap();
    assert_eq!((seen, report.num_items, report.model.as_str(), report.dimensions), (3, 3, "m1", 2));
    let saved: ExportReport = serde_json::from_slice(&fs::read(out.join(ABOUT)).unwrap()).unwrap();
    assert_eq!(saved, report);
    (out, report)
}

fn lines(path: &Path) -> Vec<Value> {
    fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Vector of the item with this id.
fn expected(id: &str) -> Value {
    if id == "7" { json!([1.0, 0.0]) } else { json!([0.6, 0.8]) }
}

#[test]
fn documents_hold_id_vector_and_model() {
    let home = tempfile::tempdir().unwrap();
    let (out, report) = export(home.path(), VectorFormat::Jsonl, false);
    let documents = lines(&out.join(&report.files[0]));
    assert_eq!(documents.len(), 3);
    for document in documents {
        let id = document["_id"].as_str().unwrap();
        assert_eq!(document, json!({"_id": id, "v2": expected(id), "souk_model": "m1"}));
    }

    for format in [VectorFormat::OpensearchBulk, VectorFormat::Elasticsearch] {
        let (out, report) = export(home.path(), format, false);
        assert_eq!(report.files, ["bulk-00000.ndjson"]);
        let bulk = lines(&out.join(&report.files[0]));
        assert_eq!(bulk.len(), 6);
        for pair in bulk.chunks(2) {
            let id = pair[0]["update"]["_id"].as_str().unwrap();
            assert_eq!(pair[1], json!({"doc": {"v2": expected(id), "souk_model": "m1"}, "doc_as_upsert": true}));
        }
        let index = &lines_of_one(&out.join("index.json"))["mappings"];
        assert_eq!(index["_meta"]["souk"], json!({"model": "m1", "dimensions": 2}));
        let vector = &index["properties"]["v2"];
        assert!(vector["dimension"] == 2 || vector["dims"] == 2, "{vector}");
    }
}

fn lines_of_one(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn numbers_keep_their_value_in_few_digits() {
    for number in [0.1_f32, -1.0e-7, 3.4e38, 0.0, 0.334_730_86, f32::MIN_POSITIVE] {
        assert_eq!(in_few_digits(number) as f32, number);
        assert!(json!(in_few_digits(number)).to_string().len() < 15, "{number}");
    }
}

#[test]
fn points_and_feeds_hold_them_too() {
    let home = tempfile::tempdir().unwrap();
    let (out, report) = export(home.path(), VectorFormat::Qdrant, true);
    let body = lines_of_one(&out.join(&report.files[0]));
    for point in body["points"].as_array().unwrap() {
        let id = point["payload"]["_id"].as_str().unwrap();
        assert_eq!(point["vector"], json!({"v2": expected(id)}));
        assert_eq!(point["id"].is_u64(), id == "7", "{point}");
        let title = format!("lamp {id}");
        let payload = json!({"_id": id, "souk_model": "m1", "title": title, "text": "red", "price": 9.5});
        assert_eq!(point["payload"], payload);
    }
    assert_eq!(lines_of_one(&out.join("collection.json"))["vectors"]["v2"]["size"], 2);

    let (out, report) = export(home.path(), VectorFormat::Vespa, false);
    for update in lines(&out.join(&report.files[0])) {
        let id = update["update"].as_str().unwrap().strip_prefix("id:shop:shop::").unwrap();
        assert_eq!(update["create"], true);
        assert_eq!(update["fields"]["v2"]["assign"]["values"], expected(id));
    }
    let schema = fs::read_to_string(out.join("shop.sd")).unwrap();
    assert!(schema.contains("field v2 type tensor<float>(x[2])"), "{schema}");
    assert_eq!(schema.matches('{').count(), schema.matches('}').count());
}

#[test]
fn parquet_holds_lists() {
    let home = tempfile::tempdir().unwrap();
    let (out, report) = export(home.path(), VectorFormat::Parquet, true);
    let reader = SerializedFileReader::new(fs::File::open(out.join(&report.files[0])).unwrap()).unwrap();
    let about = reader.metadata().file_metadata().key_value_metadata().unwrap();
    assert!(about.iter().any(|pair| pair.key == "souk.model" && pair.value.as_deref() == Some("m1")));
    let rows: Vec<_> = reader.get_row_iter(None).unwrap().map(|row| row.unwrap().into_columns()).collect();
    assert_eq!(rows.len(), 3);
    for row in rows {
        let (name, id) = &row[0];
        let Field::Str(id) = id else { panic!("{name}: {id}") };
        let Field::ListInternal(vector) = &row[5].1 else { panic!("{:?}", row[5]) };
        let numbers: Vec<f64> = vector
            .elements()
            .iter()
            .map(|number| if let Field::Float(number) = number { in_few_digits(*number) } else { panic!("{number}") })
            .collect();
        assert_eq!(json!(numbers), expected(id));
        assert_eq!(row[4].1, Field::Str("{\"price\":9.5}".into()));
    }
}

#[test]
fn names_that_an_engine_refuses_are_errors() {
    let home = tempfile::tempdir().unwrap();
    let snapshot = snapshot(home.path());
    for (format, field, name, said) in [
        (VectorFormat::Vespa, "souk-vector", "items", "--field"),
        (VectorFormat::Jsonl, "v", "Items", "--name"),
        (VectorFormat::Jsonl, "price", "items", "a field of item"),
        (VectorFormat::Parquet, "title", "items", "another column"),
    ] {
        let export = VectorExport { snapshot: &snapshot, format, field, name, with_items: true };
        let out = home.path().join("out");
        let error = export.write(&out, &mut |_| ()).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
        assert!(!out.exists());
    }
}

#[test]
fn large_exports_are_split_into_whole_requests() {
    let home = tempfile::tempdir().unwrap();
    let framing =
        Framing { stem: "points", extension: "json", around: ["{\"points\":[", ",", "]}"], max_bytes: Some(40) };
    let mut parts = Parts::new(home.path(), framing);
    for at in 0..9 {
        parts.push(format!("{{\"id\":{at}}}").as_bytes()).unwrap();
    }
    let files = parts.finish().unwrap();
    assert!(files.len() > 1, "{files:?}");
    let bodies = files.iter().map(|file| lines_of_one(&home.path().join(file)));
    let ids: Vec<Value> =
        bodies.flat_map(|body| body["points"].as_array().unwrap().clone()).map(|point| point["id"].clone()).collect();
    assert_eq!(json!(ids), json!([0, 1, 2, 3, 4, 5, 6, 7, 8]));
    for file in files {
        assert!(fs::metadata(home.path().join(&file)).unwrap().len() <= 45, "{file}");
    }
}

#[test]
fn every_format_says_where_its_vectors_are() {
    let home = tempfile::tempdir().unwrap();
    for format in VectorFormat::ALL {
        assert_eq!(json!(format), format.name());
        let (out, report) = export(home.path(), format, true);
        assert!(!report.files.is_empty() && report.files.iter().all(|file| out.join(file).exists()), "{report:?}");
    }
}
