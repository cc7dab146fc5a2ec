//! Parquet files row by row, a page of each column in memory at a time. Takes the names of text or number columns, gives
//! texts. The reader of the `parquet` crate panics on some damaged files: here, and only here, a panic becomes an error.

use std::any::Any;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use parquet::record::reader::RowIter;
use parquet::schema::types::Type;

use super::fields::listed;
use super::page_guard::check_pages;
use souk_io::error::{Cause, Error, Result};

pub struct ParquetRows {
    rows: RowIter<'static>,
    file: PathBuf,
    /// Where each wanted column stands in a row; `None` for an optional one that is not there.
    places: Vec<Option<usize>>,
    number: u64,
}

impl ParquetRows {
    /// Rows have the `needed` columns first, then the `optional` ones.
    pub fn open(file: &Path, needed: &[&str], optional: &[&str]) -> Result<Self> {
        let opened = File::open(file).map_err(Error::store(file, "open it"))?;
        let pages = opened.try_clone().map_err(Error::store(file, "open it twice"))?;
        let reader = guarded(file, 0, || SerializedFileReader::new(opened))?;
        let schema = reader.metadata().file_metadata().schema_descr().root_schema().clone();
        let columns = schema.get_fields();
        if let Some(missing) = needed.iter().find(|name| !columns.iter().any(|column| column.name() == **name)) {
            let found = listed(columns.iter().map(|column| column.name()));
            let problem = format!("has no column `{missing}`; its columns are: {found}");
            return Err(Error::data(file, None, problem));
        }
        let wanted = |name: &str| needed.iter().chain(optional).any(|other| *other == name);
        let kept: Vec<Arc<Type>> = columns.iter().filter(|column| wanted(column.name())).cloned().collect();
        if let Some(nested) = kept.iter().find(|column| !column.is_primitive()) {
            return Err(Error::data(file, None, format!("its column `{}` holds no plain texts", nested.name())));
        }
        let read = |start, most| {
            let (mut pages, mut bytes) = (&pages, Vec::new());
            pages
                .seek(SeekFrom::Start(start))
                .and_then(|_| pages.take(most).read_to_end(&mut bytes))
                .ok()
                .map(|_| bytes)
        };
        guarded(file, 0, || check_columns(reader.metadata(), read, &kept))?;
        let place = |name: &&str| kept.iter().position(|column| column.name() == *name);
        let places = needed.iter().chain(optional).map(place).collect();
        let rows = guarded(file, 0, || {
            let projection = Type::group_type_builder(schema.name()).with_fields(kept).build()?;
            RowIter::from_file_into(Box::new(reader)).project(Some(projection))
        })?;
        Ok(Self { rows, file: file.into(), places, number: 0 })
    }

    /// The next row's number and its texts, empty for null.
    pub fn next(&mut self) -> Result<Option<(u64, Vec<String>)>> {
        let (rows, number) = (&mut self.rows, self.number + 1);
        let Some(row) = guarded(&self.file, number, || rows.next().transpose())? else { return Ok(None) };
        self.number = number;
        let mut cells: Vec<String> = row.into_columns().into_iter().map(|(_, field)| text(field)).collect();
        let take = |at: &Option<usize>| at.and_then(|at| cells.get_mut(at)).map(std::mem::take).unwrap_or_default();
        Ok(Some((number, self.places.iter().map(take).collect())))
    }
}

/// What the metadata and the pages announce is believed by the reader, so it is looked at first: a damaged count of rows
/// would be read to its end, a damaged size allocated.
pub fn check_columns<B: AsRef<[u8]>>(
    metadata: &ParquetMetaData,
    mut read: impl FnMut(u64, u64) -> Option<B>,
    kept: &[Arc<Type>],
) -> parquet::errors::Result<()> {
    for group in metadata.row_groups() {
        for column in group.columns() {
            let name = column.column_path().string();
            if !kept.iter().any(|wanted| wanted.name() == name) {
                continue;
            }
            let (values, rows) = (column.num_values(), group.num_rows());
            if values != rows {
                let problem = format!("`{name}` has {values} values in {rows} rows");
                return Err(parquet::errors::ParquetError::General(problem));
            }
            let (start, length) = column.byte_range();
            check_pages(&mut read, start, length)?;
        }
    }
    Ok(())
}

pub fn guarded<T>(file: &Path, row: u64, read: impl FnOnce() -> parquet::errors::Result<T>) -> Result<T> {
    let cause: Cause = match catch_unwind(AssertUnwindSafe(read)) {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(error)) => error.into(),
        Err(panic) => said(panic.as_ref()).into(),
    };
    let place = if row == 0 { String::new() } else { format!(" at row {row}") };
    let problem =
        format!("cannot be read{place}: it is damaged, no Parquet file, or not packed with snappy, gzip or zstd");
    Err(Error::data(file, None, problem).because(cause))
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_else(|| "the reader failed".into())
}

fn text(field: Field) -> String {
    match field {
        Field::Null => String::new(),
        Field::Str(text) => text,
        Field::Bytes(bytes) => String::from_utf8_lossy(bytes.data()).into_owned(),
        other => other.to_string(),
    }
}
