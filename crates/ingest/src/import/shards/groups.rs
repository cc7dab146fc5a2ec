//! Parquet files, read by row group with the group's bytes in memory. Nested columns are skipped with a note.

use std::io::BufReader;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parquet::errors::ParquetError;
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::{ChunkReader, FileReader, Length, SerializedFileReader};
use parquet::file::serialized_reader::ReadOptionsBuilder;
use parquet::record::reader::RowIter;
use parquet::record::{Field, Row};
use parquet::schema::types::Type;
use serde_json::{Map, Value};

use super::windowed_file::WindowedFile;
use super::{Column, Items, Mapping, ObjectRows, ShardPart, merge_groups};
use crate::import::fields::list_names;
use crate::import::parquet_rows::{catch_panic, check_columns};
use souk_io::error::{Error, Result};

impl Length for WindowedFile {
    fn len(&self) -> u64 {
        self.bytes
    }
}

impl ChunkReader for WindowedFile {
    type T = BufReader<Self>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        Ok(BufReader::new(self.from(start)))
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        let bytes = self.get(start, length as u64).map_err(|e| ParquetError::External(e.into()))?;
        if bytes.len() == length { Ok(bytes) } else { Err(ParquetError::EOF("the file ends too early".into())) }
    }
}

pub fn parts(file: &WindowedFile, max_bytes: u64, note: &mut dyn FnMut(&str)) -> Result<Vec<(ShardPart, u64)>> {
    let reader = catch_panic(&file.path, 0, || SerializedFileReader::new(file.clone()))?;
    let schema = reader.metadata().file_metadata().schema_descr().root_schema().clone();
    let nested: Vec<&str> =
        schema.get_fields().iter().filter(|column| !column.is_primitive()).map(|column| column.name()).collect();
    if !nested.is_empty() {
        note(&format!("{}: skipped nested columns: {}", file.path.display(), list_names(nested.into_iter())));
    }
    let sizes = reader.metadata().row_groups().iter().map(|group| u64::try_from(group.compressed_size()).unwrap_or(0));
    Ok(merge_groups(sizes, max_bytes))
}

pub fn items<'a>(file: &WindowedFile, groups: Range<usize>, columns: &'a [Column]) -> Result<Items<'a>> {
    let path = file.path.clone();
    let rows = rows(file, groups)?;
    let mapping = Mapping::new(columns, &rows.names, &path.display().to_string())?;
    Ok(Box::new(rows.rows.map(move |row| {
        let (number, row) = row?;
        let item = mapping.item(row).map(|item| (number, item));
        item.ok_or_else(|| Error::data(&path, Some(number), "has no id"))
    })))
}

/// Rows of some groups as JSON objects.
pub fn rows(file: &WindowedFile, groups: Range<usize>) -> Result<ObjectRows> {
    let path = file.path.clone();
    let (mut rows, columns) = catch_panic(&path, 0, || open(file, groups))?;
    let names = columns.iter().map(|column| column.name().to_owned()).collect();
    let mut number = 0;
    let rows = std::iter::from_fn(move || {
        number += 1;
        let row = catch_panic(&path, number, || rows.next().transpose()).transpose()?;
        Some(row.map(|row| (number, object(row))))
    });
    Ok(ObjectRows { names, rows: Box::new(rows) })
}

/// Opens the rows of some groups; returns them with their columns.
fn open(file: &WindowedFile, groups: Range<usize>) -> parquet::errors::Result<(RowIter<'static>, Vec<Arc<Type>>)> {
    let is_selected = Box::new(move |_: &RowGroupMetaData, at: usize| groups.contains(&at));
    let options = ReadOptionsBuilder::new().with_predicate(is_selected).build();
    let reader = SerializedFileReader::new_with_options(file.clone(), options)?;
    let metadata = reader.metadata();
    let schema = metadata.file_metadata().schema_descr().root_schema().clone();
    let selected: Vec<Arc<Type>> = schema.get_fields().iter().filter(|column| column.is_primitive()).cloned().collect();
    let chunks = metadata.row_groups().iter().flat_map(RowGroupMetaData::columns).map(|column| column.byte_range());
    let (from, to) = chunks
        .fold((u64::MAX, 0), |(from, to), (start, length)| (from.min(start), to.max(start.saturating_add(length))));
    if from < to {
        // one read, because pages are small and calls are slow
        file.get(from, to - from).map_err(|e| ParquetError::External(e.into()))?;
    }
    check_columns(metadata, |start, length| file.get(start, length).ok(), &selected)?;
    let projection = Type::group_type_builder(schema.name()).with_fields(selected.clone()).build()?;
    Ok((RowIter::from_file_into(Box::new(reader)).project(Some(projection))?, selected))
}

fn object(row: Row) -> Map<String, Value> {
    row.into_columns().into_iter().map(|(name, field)| (name, value(field))).collect()
}

fn value(field: Field) -> Value {
    match field {
        Field::Null => Value::Null,
        Field::Bool(value) => value.into(),
        Field::Byte(number) => number.into(),
        Field::Short(number) => number.into(),
        Field::Int(number) => number.into(),
        Field::Long(number) => number.into(),
        Field::UByte(number) => number.into(),
        Field::UShort(number) => number.into(),
        Field::UInt(number) => number.into(),
        Field::ULong(number) => number.into(),
        // NaN and infinity become null
        Field::Float(number) => shortest(number),
        Field::Double(number) => number.into(),
        Field::Str(text) => text.into(),
        Field::Bytes(bytes) => String::from_utf8_lossy(bytes.data()).into_owned().into(),
        other => other.to_string().into(),
    }
}

/// Shortest decimal of an f32: 9.99 instead of 9.989999771118164.
pub fn shortest(number: f32) -> Value {
    number.to_string().parse::<f64>().ok().filter(|number| number.is_finite()).into()
}
