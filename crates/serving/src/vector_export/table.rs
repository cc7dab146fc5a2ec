//! Vectors as a Parquet file: columns `id`, `souk_model`, the vectors as lists, and with `with_items` title, text and the other
//! fields as JSON.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, FloatType};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use serde_json::Value;

use super::{MODEL_FIELD, VectorExport};
use souk_io::domain::Item;
use souk_io::error::{Error, Result};

const FILE: &str = "vectors.parquet";
/// Items of a row group, which is held in memory.
const GROUP: usize = 20_000;

/// Texts of one column after another, and all vectors.
struct Group {
    texts: Vec<Vec<ByteArray>>,
    vectors: Vec<f32>,
}

/// Writes the file and returns its name.
pub fn write(export: &VectorExport<'_>, dir: &Path, on_item: &mut dyn FnMut(u64)) -> Result<String> {
    let path = dir.join(FILE);
    let file = File::create(&path).map_err(Error::store(&path, "create it"))?;
    let failed = |e: ParquetError| Error::data(&path, None, "cannot be written").because(e);
    let manifest = export.snapshot.manifest();
    let schema = Arc::new(parse_message_type(&schema(export)).map_err(failed)?);
    let about = [("souk.model", manifest.model.clone()), ("souk.dimensions", manifest.dimensions.to_string())];
    let about = about.map(|(key, value)| KeyValue::new(key.into(), value)).to_vec();
    let properties =
        WriterProperties::builder().set_compression(Compression::SNAPPY).set_key_value_metadata(Some(about)).build();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties)).map_err(failed)?;
    let (mut group, mut done) = (Group::new(export), 0);
    for entry in export.snapshot.entries() {
        let (item, vector) = entry?;
        group.push(export, &item, vector)?;
        done += 1;
        on_item(done as u64);
        if done % GROUP == 0 || done == manifest.num_items {
            let full = std::mem::replace(&mut group, Group::new(export));
            let mut writing = writer.next_row_group().map_err(failed)?;
            full.write(&mut writing, manifest.dimensions).map_err(failed)?;
            writing.close().map_err(failed)?;
        }
    }
    writer.close().map_err(failed)?;
    Ok(FILE.into())
}

fn schema(export: &VectorExport<'_>) -> String {
    let texts = text_columns(export).map(|name| format!("required binary {name} (STRING);"));
    let texts: Vec<String> = texts.collect();
    let field = export.field;
    let vector = format!("required group {field} (LIST) {{ repeated group list {{ required float element; }} }}");
    format!("message souk {{ {} {vector} }}", texts.join(" "))
}

fn text_columns(export: &VectorExport<'_>) -> impl Iterator<Item = &'static str> {
    let own: &[&str] = if export.with_items { &["title", "text", "fields"] } else { &[] };
    ["id", MODEL_FIELD].into_iter().chain(own.iter().copied())
}

impl Group {
    fn new(export: &VectorExport<'_>) -> Self {
        Self { texts: text_columns(export).map(|_| Vec::new()).collect(), vectors: Vec::new() }
    }

    fn push(&mut self, export: &VectorExport<'_>, item: &Item, vector: &[f32]) -> Result<()> {
        if let Some(taken) = text_columns(export).find(|name| *name == export.field) {
            return Err(Error::config("--field", format!("is `{taken}`, another column: give another name")));
        }
        let fields = Value::Object(item.fields.clone()).to_string();
        let model = &export.snapshot.manifest().model;
        let row = [item.id.as_str(), model, &item.title, &item.text, &fields];
        for (column, text) in self.texts.iter_mut().zip(row) {
            column.push(text.into());
        }
        self.vectors.extend_from_slice(vector);
        Ok(())
    }

    fn write(&self, group: &mut SerializedRowGroupWriter<'_, File>, width: usize) -> parquet::errors::Result<()> {
        for texts in &self.texts {
            let mut column = group.next_column()?.ok_or_else(|| missing("text"))?;
            column.typed::<ByteArrayType>().write_batch(texts, None, None)?;
            column.close()?;
        }
        // a list begins where the repetition level is 0; an entry that exists has definition level 1
        let begins: Vec<i16> = (0..self.vectors.len()).map(|at| i16::from(at % width != 0)).collect();
        let exists = vec![1; self.vectors.len()];
        let mut column = group.next_column()?.ok_or_else(|| missing("vector"))?;
        column.typed::<FloatType>().write_batch(&self.vectors, Some(&exists), Some(&begins))?;
        column.close()
    }
}

fn missing(column: &str) -> ParquetError {
    ParquetError::General(format!("the schema has no {column} column"))
}
