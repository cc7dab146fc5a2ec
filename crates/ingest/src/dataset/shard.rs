//! Files of one commit, in Arrow IPC format. Written once with checksums, then memory-mapped and read without copying.

use std::collections::BTreeMap;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use arrow::array::{
    Array, ArrayRef, DictionaryArray, Float32Array, Float32Builder, Int64Array, Int64Builder, RecordBatch, StringArray,
    StringBuilder, StringDictionaryBuilder, UInt8Array, UInt8Builder, UInt32Array, UInt64Array, UInt64Builder,
};
use arrow::buffer::Buffer;
use arrow::datatypes::UInt32Type;
use arrow::error::ArrowError;
use arrow::ipc::convert::try_fb_to_schema;
use arrow::ipc::reader::{FileDecoder, read_footer_length};
use arrow::ipc::root_as_footer;
use arrow::ipc::writer::FileWriter;

use super::join::{JoinedExample, Sink, WaitingEvent};
use crate::log::DeadLetter;
use souk_io::checksummed::{Checksum, ChecksumWriter, map_checked, write_json_lines};
use souk_io::error::{Error, Result};
use souk_io::ubi::QueryRecord;

pub const EXAMPLES: &str = "examples.arrow";
pub const QUERIES: &str = "queries.arrow";
pub const SEEN: &str = "seen.arrow";
pub const WAITING: &str = "waiting.jsonl";
pub const DEAD: &str = "dead.jsonl";

/// JoinedExample data of a lane in memory, to be written as a commit.
#[derive(Default)]
pub struct CommitBuffer {
    query: StringDictionaryBuilder<UInt32Type>,
    item: StringDictionaryBuilder<UInt32Type>,
    action: UInt8Builder,
    strength: Float32Builder,
    time: Int64Builder,
    part: UInt8Builder,
    offset: UInt64Builder,
    query_id: StringBuilder,
    query_text: StringBuilder,
    query_time: Int64Builder,
    seen: UInt64Builder,
    pub dead: Vec<DeadLetter>,
    /// Names of the parts that `part` refers to.
    pub parts: Vec<String>,
    /// The first offset of each part among the examples.
    pub low: BTreeMap<String, u64>,
    /// Approximate size in memory.
    pub num_bytes: usize,
    pub num_examples: u64,
    pub num_seen: u64,
    pub num_queries: u64,
}

impl Sink for CommitBuffer {
    fn example(&mut self, example: JoinedExample<'_>) {
        self.query.append_value(example.query);
        self.item.append_value(example.item);
        self.action.append_value(example.action as u8);
        self.strength.append_value(example.strength);
        self.time.append_value(example.time);
        let part = self.parts.iter().position(|part| part == example.part).unwrap_or_else(|| {
            self.parts.push(example.part.into());
            self.parts.len() - 1
        });
        // a lane has one part per topic, or per file rotated since the last commit
        self.part.append_value(u8::try_from(part).unwrap_or(u8::MAX));
        self.offset.append_value(example.offset);
        match self.low.get_mut(example.part) {
            Some(low) => *low = example.offset.min(*low),
            None => drop(self.low.insert(example.part.into(), example.offset)),
        }
        self.num_bytes += 64;
        self.num_examples += 1;
    }

    fn query(&mut self, query: &QueryRecord<'_>) {
        self.query_id.append_value(&query.query_id);
        self.query_text.append_value(&query.text);
        self.query_time.append_value(query.time);
        self.num_bytes += query.query_id.len() + query.text.len() + 32;
        self.num_queries += 1;
    }

    fn seen(&mut self, key: u64) {
        self.seen.append_value(key);
        self.num_bytes += 8;
        self.num_seen += 1;
    }

    fn dead(&mut self, letter: DeadLetter) {
        self.num_bytes += letter.payload.len() + 128;
        self.dead.push(letter);
    }
}

impl CommitBuffer {
    /// Writes everything durably into `folder`, with the events still waiting.
    pub fn write<'a>(
        &mut self,
        folder: &Path,
        waiting: impl Iterator<Item = &'a WaitingEvent>,
    ) -> Result<BTreeMap<String, Checksum>> {
        let mut sums = BTreeMap::new();
        let examples: [(&str, ArrayRef); 7] = [
            ("query", Arc::new(self.query.finish())),
            ("item", Arc::new(self.item.finish())),
            ("action", Arc::new(self.action.finish())),
            ("strength", Arc::new(self.strength.finish())),
            ("time", Arc::new(self.time.finish())),
            ("part", Arc::new(self.part.finish())),
            ("offset", Arc::new(self.offset.finish())),
        ];
        let queries: [(&str, ArrayRef); 3] = [
            ("query_id", Arc::new(self.query_id.finish())),
            ("text", Arc::new(self.query_text.finish())),
            ("time", Arc::new(self.query_time.finish())),
        ];
        let seen: [(&str, ArrayRef); 1] = [("key", Arc::new(self.seen.finish()))];
        // together, because most of the time is spent waiting for the disk
        thread::scope(|scope| {
            let files = [(EXAMPLES, &examples[..]), (QUERIES, &queries), (SEEN, &seen)];
            let writing = files.map(|(name, columns)| {
                let path = folder.join(name);
                (name, scope.spawn(move || write_arrow(&path, columns)))
            });
            if !self.dead.is_empty() {
                sums.insert(DEAD.into(), write_json_lines(&folder.join(DEAD), self.dead.iter())?);
            }
            sums.insert(WAITING.into(), write_json_lines(&folder.join(WAITING), waiting)?);
            for (name, thread) in writing {
                sums.insert(name.into(), thread.join().unwrap_or_else(|panic| resume_unwind(panic))?);
            }
            Ok(sums)
        })
    }
}

fn write_arrow(path: &Path, columns: &[(&str, ArrayRef)]) -> Result<Checksum> {
    let failed = |e: ArrowError| match e {
        ArrowError::IoError(_, e) => Error::store(path, "write the shard")(e),
        e => Error::data(path, None, "cannot be written as Arrow").because(e),
    };
    let batch = RecordBatch::try_from_iter(columns.iter().map(|(name, column)| (*name, column.clone())));
    let batch = batch.map_err(failed)?;
    let mut out = ChecksumWriter::create(path)?;
    let mut writer = FileWriter::try_new(&mut out, &batch.schema()).map_err(failed)?;
    writer.write(&batch).and_then(|()| writer.finish()).map_err(failed)?;
    drop(writer);
    out.finish(path)
}

/// Reads the single batch of a file; its columns point into the mapped file.
fn read_arrow(path: &Path, sum: Checksum) -> Result<RecordBatch> {
    let bytes = Buffer::from(bytes::Bytes::from_owner(map_checked(path, sum)?));
    let broken = |e: ArrowError| Error::data(path, None, "is not an Arrow file").because(e);
    let invalid = |e: &dyn std::fmt::Display| ArrowError::IpcError(e.to_string());
    let end = bytes.len().checked_sub(10).ok_or_else(|| broken(invalid(&"too short")))?;
    let trailer: [u8; 10] = bytes[end..].try_into().expect("the slice has ten bytes");
    let length = read_footer_length(trailer).map_err(broken)?;
    let start = end.checked_sub(length).ok_or_else(|| broken(invalid(&"no footer")))?;
    let footer = root_as_footer(&bytes[start..end]).map_err(|e| broken(invalid(&e)))?;
    let schema = footer.schema().ok_or_else(|| broken(invalid(&"no schema")))?;
    let mut decoder = FileDecoder::new(Arc::new(try_fb_to_schema(schema).map_err(broken)?), footer.version());
    let slice = |block: &arrow::ipc::Block| -> Result<Buffer> {
        let length = block.bodyLength() as usize + block.metaDataLength() as usize;
        let inside = (block.offset() as usize).checked_add(length).is_some_and(|end| end <= bytes.len());
        inside
            .then(|| bytes.slice_with_length(block.offset() as usize, length))
            .ok_or_else(|| broken(invalid(&"truncated")))
    };
    for block in footer.dictionaries().iter().flatten() {
        decoder.read_dictionary(block, &slice(block)?).map_err(broken)?;
    }
    let block = footer.recordBatches().and_then(|blocks| blocks.iter().next());
    let block = block.ok_or_else(|| broken(invalid(&"no batch")))?;
    let batch = decoder.read_record_batch(block, &slice(block)?).map_err(broken)?;
    batch.ok_or_else(|| broken(invalid(&"an empty batch")))
}

fn column<T: Clone + 'static>(path: &Path, batch: &RecordBatch, name: &str) -> Result<T> {
    let column = batch.column_by_name(name).and_then(|column| column.as_any().downcast_ref::<T>());
    column.cloned().ok_or_else(|| Error::data(path, None, format!("has no column `{name}` of the expected type")))
}

/// Examples of one commit. Distinct texts are stored once; `query_keys` and `item_keys` index them per row.
pub struct ExampleColumns {
    pub queries: StringArray,
    pub items: StringArray,
    pub query_keys: UInt32Array,
    pub item_keys: UInt32Array,
    pub action: UInt8Array,
    pub strength: Float32Array,
    pub time: Int64Array,
    pub part: UInt8Array,
    pub offset: UInt64Array,
}

impl ExampleColumns {
    pub fn open(path: &Path, sum: Checksum) -> Result<Self> {
        let batch = read_arrow(path, sum)?;
        let texts = |name: &str| -> Result<(StringArray, UInt32Array)> {
            let both: DictionaryArray<UInt32Type> = column(path, &batch, name)?;
            let values = both.values().as_any().downcast_ref::<StringArray>().cloned();
            let values = values.ok_or_else(|| Error::data(path, None, format!("column `{name}` is not text")))?;
            Ok((values, both.keys().clone()))
        };
        let ((queries, query_keys), (items, item_keys)) = (texts("query")?, texts("item")?);
        Ok(Self {
            queries,
            items,
            query_keys,
            item_keys,
            action: column(path, &batch, "action")?,
            strength: column(path, &batch, "strength")?,
            time: column(path, &batch, "time")?,
            part: column(path, &batch, "part")?,
            offset: column(path, &batch, "offset")?,
        })
    }

    pub fn len(&self) -> usize {
        self.action.len()
    }
}

/// Reads id, text and time of the queries first seen in a commit.
pub fn read_queries(path: &Path, sum: Checksum) -> Result<Vec<(String, String, i64)>> {
    let batch = read_arrow(path, sum)?;
    let (ids, texts): (StringArray, StringArray) = (column(path, &batch, "query_id")?, column(path, &batch, "text")?);
    let times: Int64Array = column(path, &batch, "time")?;
    Ok((0..batch.num_rows()).map(|row| (ids.value(row).into(), texts.value(row).into(), times.value(row))).collect())
}

/// Reads the keys of the events first seen in a commit.
pub fn read_seen(path: &Path, sum: Checksum) -> Result<Vec<u64>> {
    let batch = read_arrow(path, sum)?;
    let keys: UInt64Array = column(path, &batch, "key")?;
    Ok(keys.values().to_vec())
}
