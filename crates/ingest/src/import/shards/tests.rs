//! Lines are read exactly once wherever a file is cut; Parquet and Arrow give the same items as JSON lines.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Float32Array, Int64Array, RecordBatch, StringArray};
use arrow::ipc::CompressionType;
use arrow::ipc::writer::{FileWriter, IpcWriteOptions};
use parquet::basic::Compression;
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, FloatType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::parser::parse_message_type;
use serde_json::json;

use super::*;

fn open(place: &Path, columns: &[&str]) -> ItemFiles {
    let columns = columns.iter().map(|column| column.parse().unwrap()).collect();
    ItemFiles::open(place.to_str().unwrap(), columns).unwrap()
}

fn read(files: &ItemFiles, max_bytes: u64) -> (usize, Vec<Item>) {
    let shards = files.shards(max_bytes, &mut |_| ()).unwrap();
    let items = shards.iter().flat_map(|shard| files.items(shard).unwrap()).map(|item| item.unwrap().1);
    let items = items.collect();
    (shards.len(), items)
}

fn line(at: usize) -> String {
    let item = json!({"_id": format!("i{at}"), "title": format!("title {at}"), "price": at as f64 / 4.0});
    format!("{item}{}\n", if at.is_multiple_of(3) { "\n" } else { "" })
}

#[test]
fn every_line_is_read_once_wherever_the_file_is_cut() {
    let home = tempfile::tempdir().unwrap();
    let text: String = (0..20).map(line).collect();
    fs::write(home.path().join("a.jsonl"), &text).unwrap();
    fs::write(home.path().join("b.ndjson"), line(20).trim_end()).unwrap();
    fs::write(home.path().join("c.txt"), "not read").unwrap();
    let files = open(home.path(), &[]);
    let expected: Vec<String> = (0..=20).map(|at| format!("i{at}")).collect();
    for max_bytes in 1..=text.len() as u64 + 1 {
        let (_, items) = read(&files, max_bytes);
        assert_eq!(items.iter().map(|item| item.id.clone()).collect::<Vec<_>>(), expected, "{max_bytes}");
    }
    assert_eq!(read(&files, 1 << 20).0, 2);
    let mut notes = Vec::new();
    files.shards(1, &mut |note| notes.push(note.to_owned())).unwrap();
    assert!(notes.len() == 1 && notes[0].contains("c.txt"), "{notes:?}");
}

#[test]
fn errors_name_the_line() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("a.jsonl");
    fs::write(&file, format!("{}{}{{\"_id\": 3}}\n", line(1), line(2))).unwrap();
    let message = |max_bytes, columns: &[&str]| {
        let files = open(&file, columns);
        let shards = files.shards(max_bytes, &mut |_| ()).unwrap();
        shards.iter().flat_map(|shard| files.items(shard).unwrap()).find_map(Result::err).unwrap().to_string()
    };
    assert!(message(1 << 20, &[]).contains("a.jsonl, line 3: not an item"));
    let cut = line(1).len() as u64;
    assert!(message(cut, &[]).contains(&format!("a.jsonl, after byte {cut}, line 2")), "{}", message(cut, &[]));
    assert!(message(1 << 20, &["id=sku"]).contains("no column `sku`"));
}

/// Test columns: foreign names, a numeric id, a null, an f32, a boolean.
type Columns = (Vec<i64>, Vec<Option<&'static str>>, Vec<f32>, Vec<bool>);

fn columns() -> Columns {
    ((0..6).collect(), vec![Some("a"), None, Some("c"), Some("d"), Some("e"), Some("f")], vec![9.99; 6], vec![true; 6])
}

fn check(items: &[Item]) {
    assert_eq!(items.len(), 6);
    let first = Item {
        id: "0".into(),
        title: "a".into(),
        text: String::new(),
        fields: json!({"price": 9.99, "sold": true}).as_object().unwrap().clone(),
    };
    assert_eq!(items[0], first);
    assert_eq!((items[1].title.as_str(), items[5].id.as_str()), ("", "5"));
}

pub(in crate::import) fn parquet(file: &Path) {
    let schema =
        "message m { required int64 sku; optional binary name (UTF8); required float price; required boolean sold; }";
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    let (file, schema) = (File::create(file).unwrap(), Arc::new(parse_message_type(schema).unwrap()));
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties)).unwrap();
    let (ids, names, prices, sold) = columns();
    for rows in [0..2, 2..4, 4..6] {
        let mut group = writer.next_row_group().unwrap();
        let mut column = |write: &dyn Fn(&mut SerializedColumnWriter<'_>)| {
            let mut column = group.next_column().unwrap().unwrap();
            write(&mut column);
            column.close().unwrap();
        };
        column(&|c| assert!(c.typed::<Int64Type>().write_batch(&ids[rows.clone()], None, None).unwrap() > 0));
        let texts: Vec<ByteArray> = names[rows.clone()].iter().flatten().map(|name| (*name).into()).collect();
        let levels: Vec<i16> = names[rows.clone()].iter().map(|name| i16::from(name.is_some())).collect();
        column(&|c| assert!(c.typed::<ByteArrayType>().write_batch(&texts, Some(&levels), None).unwrap() > 0));
        column(&|c| assert!(c.typed::<FloatType>().write_batch(&prices[rows.clone()], None, None).unwrap() > 0));
        column(&|c| assert!(c.typed::<BoolType>().write_batch(&sold[rows.clone()], None, None).unwrap() > 0));
        group.close().unwrap();
    }
    writer.close().unwrap();
}

pub(in crate::import) fn arrow(file: &Path, compression: Option<CompressionType>) {
    let (ids, names, prices, sold) = columns();
    let columns: [(&str, ArrayRef); 4] = [
        ("sku", Arc::new(Int64Array::from(ids))),
        ("name", Arc::new(StringArray::from(names))),
        ("price", Arc::new(Float32Array::from(prices))),
        ("sold", Arc::new(BooleanArray::from(sold))),
    ];
    let all = RecordBatch::try_from_iter(columns).unwrap();
    let options = IpcWriteOptions::default().try_with_compression(compression).unwrap();
    let mut writer = FileWriter::try_new_with_options(File::create(file).unwrap(), &all.schema(), options).unwrap();
    (0..3).for_each(|at| writer.write(&all.slice(2 * at, 2)).unwrap());
    writer.finish().unwrap();
}

#[test]
fn parquet_and_arrow_give_the_same_items() {
    let home = tempfile::tempdir().unwrap();
    let place = |name: &str| home.path().join(name);
    parquet(&place("x.parquet"));
    arrow(&place("x.arrow"), None);
    arrow(&place("x.feather"), Some(CompressionType::LZ4_FRAME));
    for name in ["x.parquet", "x.arrow", "x.feather"] {
        for (max_bytes, shards) in [(1, 3), (1 << 20, 1)] {
            let (num, items) = read(&open(&place(name), &[]), max_bytes);
            assert_eq!(num, shards, "{name}");
            check(&items);
        }
        let (_, items) = read(&open(&place(name), &["id=sku", "title=price", "text=sku"]), 1);
        assert_eq!((items[0].id.as_str(), items[0].title.as_str()), ("0", "9.99"));
    }
}

#[test]
fn damaged_tables_are_errors_not_panics() {
    let home = tempfile::tempdir().unwrap();
    for name in ["x.parquet", "x.arrow"] {
        let file = home.path().join(name);
        if name == "x.parquet" {
            parquet(&file)
        } else {
            arrow(&file, None)
        }
        let whole = fs::read(&file).unwrap();
        let mut num_errors = 0;
        for at in (0..whole.len()).step_by(7) {
            let mut bytes = whole.clone();
            bytes[at] ^= 0xff;
            bytes.truncate(whole.len() - at % 5);
            fs::write(&file, bytes).unwrap();
            let files = open(&file, &[]);
            let read = files.shards(1, &mut |_| ()).and_then(|shards| {
                shards.iter().try_for_each(|shard| files.items(shard)?.try_for_each(|item| item.map(drop)))
            });
            num_errors += usize::from(read.is_err());
        }
        assert!(num_errors > whole.len() / 20, "{name}: {num_errors}");
    }
}
