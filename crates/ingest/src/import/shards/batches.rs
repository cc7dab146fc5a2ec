//! Arrow IPC files (Feather version 2), read by record batch. Numbers and booleans keep their type; other columns
//! become Arrow's text form.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Float32Type, Float64Type, Int64Type, UInt64Type};
use arrow::error::ArrowError;
use arrow::ipc::reader::FileReader;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use serde_json::{Map, Value};

use super::groups::shortest;
use super::windowed_file::WindowedFile;
use super::{Column, Items, Mapping, ObjectRows, ShardPart, merge_groups};
use souk_io::error::{Cause, Error, Result};

pub fn parts(file: &WindowedFile, max_bytes: u64) -> Result<Vec<(ShardPart, u64)>> {
    let num = catch_panic(&file.path, || FileReader::try_new(file.from(0), None))?.num_batches();
    // the file has the batches' offsets but not their sizes; writers make them equal
    Ok(merge_groups(std::iter::repeat_n(file.bytes / num.max(1) as u64, num), max_bytes))
}

pub fn items<'a>(file: &WindowedFile, batches: Range<usize>, columns: &'a [Column]) -> Result<Items<'a>> {
    let path = file.path.clone();
    let rows = rows(file, batches)?;
    let mapping = Mapping::new(columns, &rows.names, &path.display().to_string())?;
    Ok(Box::new(rows.rows.map(move |row| {
        let (number, row) = row?;
        let item = mapping.item(row).map(|item| (number, item));
        item.ok_or_else(|| Error::data(&path, Some(number), "has no id"))
    })))
}

/// Rows of some batches as JSON objects.
pub fn rows(file: &WindowedFile, batches: Range<usize>) -> Result<ObjectRows> {
    let path = file.path.clone();
    let mut reader = catch_panic(&path, || FileReader::try_new(file.from(0), None))?;
    let names = reader.schema().fields().iter().map(|field| field.name().clone()).collect();
    let (mut remaining, mut number) = (batches, 0);
    let mut rows: std::vec::IntoIter<Map<String, Value>> = Vec::new().into_iter();
    let rows = std::iter::from_fn(move || {
        loop {
            if let Some(row) = rows.next() {
                number += 1;
                return Some(Ok((number, row)));
            }
            let batch = remaining.next()?;
            let read = catch_panic(&path, || {
                reader.set_index(batch)?;
                let batch = reader.next().transpose()?;
                batch.map_or(Ok(Vec::new()), |batch| objects(&batch))
            });
            match read {
                Ok(read) => rows = read.into_iter(),
                Err(error) => return Some(Err(error)),
            }
        }
    });
    Ok(ObjectRows { names, rows: Box::new(rows) })
}

fn objects(batch: &RecordBatch) -> std::result::Result<Vec<Map<String, Value>>, ArrowError> {
    let mut rows = vec![Map::new(); batch.num_rows()];
    for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
        for (row, value) in rows.iter_mut().zip(values(column)?) {
            row.insert(field.name().clone(), value);
        }
    }
    Ok(rows)
}

fn values(column: &ArrayRef) -> std::result::Result<Vec<Value>, ArrowError> {
    let kind = column.data_type();
    // widest type of each kind; other types become text
    let wide = match kind {
        DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64 => Some(DataType::Int64),
        DataType::UInt8 | DataType::UInt16 | DataType::UInt32 | DataType::UInt64 => Some(DataType::UInt64),
        DataType::Float16 | DataType::Float32 => Some(DataType::Float32),
        DataType::Float64 => Some(DataType::Float64),
        _ => None,
    };
    let cast = wide.as_ref().map(|wide| arrow::compute::cast(column, wide)).transpose()?;
    Ok(match (wide, cast) {
        (Some(DataType::Int64), Some(cast)) => cast.as_primitive::<Int64Type>().iter().map(Value::from).collect(),
        (Some(DataType::UInt64), Some(cast)) => cast.as_primitive::<UInt64Type>().iter().map(Value::from).collect(),
        (Some(DataType::Float32), Some(cast)) => {
            cast.as_primitive::<Float32Type>().iter().map(|number| number.map_or(Value::Null, shortest)).collect()
        }
        (Some(_), Some(cast)) => cast.as_primitive::<Float64Type>().iter().map(Value::from).collect(),
        _ if *kind == DataType::Boolean => column.as_boolean().iter().map(Value::from).collect(),
        _ => {
            let shown = ArrayFormatter::try_new(column, &FormatOptions::new())?;
            let text = |at: usize| {
                if column.is_null(at) {
                    return Ok(Value::Null);
                }
                shown.value(at).try_to_string().map(Value::from)
            };
            (0..column.len()).map(text).collect::<std::result::Result<_, ArrowError>>()?
        }
    })
}

/// Runs a read and converts panics to errors, because Arrow panics on some damaged files.
fn catch_panic<T>(file: &Path, read: impl FnOnce() -> std::result::Result<T, ArrowError>) -> Result<T> {
    let cause: Cause = match catch_unwind(AssertUnwindSafe(read)) {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(error)) => error.into(),
        Err(_) => "the reader failed".into(),
    };
    let problem = "cannot be read: it is damaged or not an Arrow file (convert an Arrow stream to a file first)";
    Err(Error::data(file, None, problem).because(cause))
}
