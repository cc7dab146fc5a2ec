//! Row reader for Parquet files, with one page per column in memory. Takes the names of text or number columns, gives
//! texts. Never panics: the reader of the `parquet` crate panics on some damaged files, which becomes an error here.

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

use super::fields::list_names;
use super::page_guard::check_pages;
use souk_io::error::{Cause, Error, Result};

pub struct ParquetRows {
    rows: RowIter<'static>,
    file: PathBuf,
    /// Position of each wanted column in a row; `None` for an absent optional column.
    positions: Vec<Option<usize>>,
    number: u64,
}

impl ParquetRows {
    /// Opens a file. Rows have the `needed` columns first, then the `optional` ones.
    pub fn open(file: &Path, needed: &[&str], optional: &[&str]) -> Result<Self> {
        let opened = File::open(file).map_err(Error::store(file, "open it"))?;
        let pages = opened.try_clone().map_err(Error::store(file, "reopen it"))?;
        let reader = catch_panic(file, 0, || SerializedFileReader::new(opened))?;
        let schema = reader.metadata().file_metadata().schema_descr().root_schema().clone();
        let columns = schema.get_fields();
        if let Some(missing) = needed.iter().find(|name| !columns.iter().any(|column| column.name() == **name)) {
            let found = list_names(columns.iter().map(|column| column.name()));
            let problem = format!("has no column `{missing}`; its columns are: {found}");
            return Err(Error::data(file, None, problem));
        }
        let wanted = |name: &str| needed.iter().chain(optional).any(|other| *other == name);
        let selected: Vec<Arc<Type>> = columns.iter().filter(|column| wanted(column.name())).cloned().collect();
        if let Some(nested) = selected.iter().find(|column| !column.is_primitive()) {
            return Err(Error::data(
                file,
                None,
                format!("its column `{}` is nested: expected plain values", nested.name()),
            ));
        }
        let read = |start, length| {
            let (mut pages, mut bytes) = (&pages, Vec::new());
            pages
                .seek(SeekFrom::Start(start))
                .and_then(|_| pages.take(length).read_to_end(&mut bytes))
                .ok()
                .map(|_| bytes)
        };
        catch_panic(file, 0, || check_columns(reader.metadata(), read, &selected))?;
        let position = |name: &&str| selected.iter().position(|column| column.name() == *name);
        let positions = needed.iter().chain(optional).map(position).collect();
        let rows = catch_panic(file, 0, || {
            let projection = Type::group_type_builder(schema.name()).with_fields(selected).build()?;
            RowIter::from_file_into(Box::new(reader)).project(Some(projection))
        })?;
        Ok(Self { rows, file: file.into(), positions, number: 0 })
    }

    /// Returns the next row's number and texts; null is empty.
    pub fn next(&mut self) -> Result<Option<(u64, Vec<String>)>> {
        let (rows, number) = (&mut self.rows, self.number + 1);
        let Some(row) = catch_panic(&self.file, number, || rows.next().transpose())? else { return Ok(None) };
        self.number = number;
        let mut cells: Vec<String> = row.into_columns().into_iter().map(|(_, field)| text(field)).collect();
        let take = |at: &Option<usize>| at.and_then(|at| cells.get_mut(at)).map(std::mem::take).unwrap_or_default();
        Ok(Some((number, self.positions.iter().map(take).collect())))
    }
}

/// Checks metadata and page headers before reading, because the reader trusts them: it would allocate a damaged size
/// and read up to a damaged row count.
pub fn check_columns<B: AsRef<[u8]>>(
    metadata: &ParquetMetaData,
    mut read: impl FnMut(u64, u64) -> Option<B>,
    selected: &[Arc<Type>],
) -> parquet::errors::Result<()> {
    for group in metadata.row_groups() {
        for column in group.columns() {
            let name = column.column_path().string();
            if !selected.iter().any(|column| column.name() == name) {
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

/// Runs a read and converts panics to errors.
pub fn catch_panic<T>(file: &Path, row: u64, read: impl FnOnce() -> parquet::errors::Result<T>) -> Result<T> {
    let cause: Cause = match catch_unwind(AssertUnwindSafe(read)) {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(error)) => error.into(),
        Err(panic) => panic_message(panic.as_ref()).into(),
    };
    let place = if row == 0 { String::new() } else { format!(" at row {row}") };
    let problem = format!(
        "cannot be read{place}: it is damaged, not a Parquet file, or not compressed with snappy, gzip or zstd"
    );
    Err(Error::data(file, None, problem).because(cause))
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
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
