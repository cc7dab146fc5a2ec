//! Arrow's IPC files (Feather, version 2) by record batches. Numbers stay numbers; whatever else a column holds becomes the text that
//! Arrow shows of it.

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
use super::held::Held;
use super::{Items, Mapping, Part, merged};
use crate::import::Column;
use souk_io::error::{Cause, Error, Result};

pub fn parts(held: &Held, max_bytes: u64) -> Result<Vec<(Part, u64)>> {
    let num = guarded(&held.path, || FileReader::try_new(held.from(0), None))?.num_batches();
    // the file says where batches lie and not how long each is; writers make them alike
    Ok(merged(std::iter::repeat_n(held.bytes / num.max(1) as u64, num), max_bytes))
}

pub fn items<'a>(held: &Held, batches: Range<usize>, columns: &'a [Column]) -> Result<Items<'a>> {
    let path = held.path.clone();
    let mut reader = guarded(&path, || FileReader::try_new(held.from(0), None))?;
    let names: Vec<String> = reader.schema().fields().iter().map(|field| field.name().clone()).collect();
    let mapping = Mapping::of(columns, &names, &path.display().to_string())?;
    let (mut left, mut number) = (batches, 0);
    let mut rows: std::vec::IntoIter<Map<String, Value>> = Vec::new().into_iter();
    Ok(Box::new(std::iter::from_fn(move || {
        loop {
            if let Some(row) = rows.next() {
                number += 1;
                let item = mapping.item(row).map(|item| (number, item));
                return Some(item.ok_or_else(|| Error::data(&path, Some(number), "has no id")));
            }
            let batch = left.next()?;
            let read = guarded(&path, || {
                reader.set_index(batch)?;
                let batch = reader.next().transpose()?;
                batch.map_or(Ok(Vec::new()), |batch| objects(&batch))
            });
            match read {
                Ok(read) => rows = read.into_iter(),
                Err(error) => return Some(Err(error)),
            }
        }
    })))
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
    // wide enough for all of a kind; what does not fit stays a text
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
            let text = |at: usize| match column.is_null(at) {
                true => Ok(Value::Null),
                false => shown.value(at).try_to_string().map(Value::from),
            };
            (0..column.len()).map(text).collect::<std::result::Result<_, ArrowError>>()?
        }
    })
}

/// A damaged file must not end the program.
fn guarded<T>(file: &Path, read: impl FnOnce() -> std::result::Result<T, ArrowError>) -> Result<T> {
    let cause: Cause = match catch_unwind(AssertUnwindSafe(read)) {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(error)) => error.into(),
        Err(_) => "the reader failed".into(),
    };
    let problem = "cannot be read: it is damaged, or no Arrow file (a stream has to be written as a file first)";
    Err(Error::data(file, None, problem).because(cause))
}
