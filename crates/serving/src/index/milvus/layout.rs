//! How a collection of Souk's is laid out: takes a model and its dimensions, gives the schema; takes items and vectors,
//! gives columns. The item's JSON is a text, so that it comes back to the letter, and what can be filtered by stands beside
//! it. A collection that was made otherwise, or by another model, is refused.

#![expect(clippy::result_large_err, reason = "the client has such errors")]

use std::collections::HashMap;

use milvus::v2::error::Result as SdkResult;
use milvus::v2::prelude::{
    CollectionDesc, CollectionSchema, CreateCollectionRequest, DataType, FieldData, FieldSchema, IndexParam, IndexType,
    MetricType, UpsertRequest,
};
use milvus::v2::request::dml::InsertRequest;

use super::expression::Facets;
use crate::index::manifest::{IndexSettings, Kind};
use souk_io::domain::Item;
use souk_io::error::{Error, Result};

pub const ID: &str = "id";
pub const VECTOR: &str = "vector";
pub const ITEM: &str = "item";
pub const FACETS: &str = "facets";
/// The collection's property that holds the fingerprint of the model.
const MODEL: &str = "souk.model";
/// Bytes; the second is the most that Milvus allows.
const MAX_ID: usize = 1024;
pub const MAX_TEXT: usize = 65_535;
const MAX_DIMENSIONS: i64 = 32_768;
/// What one call writes; a server takes 64 MiB.
const CHUNK: usize = 1000;
const CHUNK_BYTES: usize = 8 << 20;

/// A width that a column of vectors can have.
pub fn width(dimensions: i64) -> Result<u32> {
    let width = u32::try_from(dimensions).ok().filter(|_| (1..=MAX_DIMENSIONS).contains(&dimensions));
    width.ok_or_else(|| Error::input(format!("vectors of {dimensions} entries: Milvus takes 1 to {MAX_DIMENSIONS}")))
}

/// An empty collection whose vectors `model` makes.
pub fn creation(
    name: &str,
    (model, width): (&str, u32),
    settings: &IndexSettings,
) -> SdkResult<CreateCollectionRequest> {
    let text =
        |name: &str, bytes: usize| FieldSchema::new().name(name).data_type(DataType::VarChar).max_length(bytes as u32);
    let schema = CollectionSchema::new()
        .enable_dynamic_field(false)
        .add_field(text(ID, MAX_ID).primary_key(true))
        .add_field(FieldSchema::new().name(VECTOR).data_type(DataType::FloatVector).dimension(width))
        .add_field(text(ITEM, MAX_TEXT))
        .add_field(FieldSchema::new().name(FACETS).data_type(DataType::Json));
    let index = IndexParam::new().field_name(VECTOR).metric_type(MetricType::Ip);
    let index = match settings.kind {
        Kind::Exact => index.index_type(IndexType::Flat),
        Kind::Auto | Kind::Hnsw => index.index_type(IndexType::Hnsw).extra_params(HashMap::from([
            ("M".into(), settings.links.to_string()),
            ("efConstruction".into(), settings.build_reach.to_string()),
        ])),
    };
    CreateCollectionRequest::builder()
        .collection_name(name)
        .schema(schema)
        .index_param(index)
        .properties(HashMap::from([(MODEL.into(), model.into())]))
        .build()
}

/// Provided that `model` made the collection, with vectors of so many entries.
pub fn check(place: &str, found: &CollectionDesc, model: &str, width: u32) -> Result<()> {
    let wrong = |problem: String| Err(Error::config(place, problem));
    let field = |name: &str| found.get_schema().get_fields().iter().find(|field| field.get_name() == name);
    let columns =
        [(ID, DataType::VarChar), (VECTOR, DataType::FloatVector), (ITEM, DataType::VarChar), (FACETS, DataType::Json)];
    let missing = columns.iter().find(|(name, kind)| field(name).is_none_or(|field| field.get_data_type() != *kind));
    let held = found.get_properties().get(MODEL);
    let (Some(held), None) = (held, missing) else {
        return wrong("is no collection of Souk's: name another".into());
    };
    let dimensions = field(VECTOR).map_or(0, FieldSchema::get_dimension);
    if dimensions != width {
        return wrong(format!("holds vectors of {dimensions} entries, the model is set to {width}: set the same"));
    }
    if held != model {
        return wrong(format!("built by model {held}, but the model given is {model}: build the index again"));
    }
    Ok(())
}

/// What is written of one item.
pub struct Row<'a> {
    id: &'a str,
    vector: &'a [f32],
    item: String,
    facets: serde_json::Value,
    num_bytes: usize,
}

impl<'a> Row<'a> {
    pub fn new(item: &'a Item, vector: &'a [f32]) -> Result<Self> {
        let text = serde_json::to_string(item).expect("an item has a JSON form");
        let facets = serde_json::to_value(Facets::of(item)).expect("facets have text for keys");
        let too_long = |what: &str, found: usize, most: usize| {
            Err(Error::input(format!("{what} has {found} bytes: Milvus takes at most {most}")))
        };
        let facet_bytes = facets.to_string().len();
        let num_bytes = item.id.len() + size_of_val(vector) + text.len() + facet_bytes;
        if item.id.len() > MAX_ID {
            return too_long("its id", item.id.len(), MAX_ID);
        }
        if text.len() > MAX_TEXT {
            return too_long("its JSON", text.len(), MAX_TEXT);
        }
        if facet_bytes > MAX_TEXT {
            return too_long("what it can be filtered by", facet_bytes, MAX_TEXT);
        }
        Ok(Self { id: &item.id, vector, item: text, facets, num_bytes })
    }
}

/// Calls that write these rows, each as large as a server takes.
pub fn upserts(name: &str, rows: &[Row<'_>]) -> SdkResult<Vec<UpsertRequest>> {
    let (mut calls, mut rest) = (Vec::new(), rows);
    while !rest.is_empty() {
        let mut num_bytes = 0;
        let fits = |row: &&Row<'_>| {
            num_bytes += row.num_bytes;
            num_bytes <= CHUNK_BYTES
        };
        let num = rest.iter().take(CHUNK).take_while(fits).count().max(1);
        let (chunk, after) = rest.split_at(num);
        let columns = vec![
            FieldData::varchar(ID, chunk.iter().map(|row| row.id.to_owned()).collect()),
            FieldData::float_vector(VECTOR, chunk.iter().map(|row| row.vector.to_vec()).collect()),
            FieldData::varchar(ITEM, chunk.iter().map(|row| row.item.clone()).collect()),
            FieldData::json(FACETS, chunk.iter().map(|row| row.facets.clone()).collect()),
        ];
        let insert = InsertRequest::builder().collection_name(name).columns(columns).build()?;
        calls.push(UpsertRequest::builder().insert(insert).build()?);
        rest = after;
    }
    Ok(calls)
}
