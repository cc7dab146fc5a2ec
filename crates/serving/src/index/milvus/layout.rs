//! Layout of a Souk collection: schema for a model's vectors, and rows for items. The item's JSON is stored as text, so
//! that it is returned unchanged, with its facets next to it. Rejects collections with another schema or model.

#![expect(clippy::result_large_err, reason = "the client has such errors")]

use std::collections::HashMap;

use milvus::v2::error::Result as SdkResult;
use milvus::v2::prelude::{
    CollectionDesc, CollectionSchema, CreateCollectionRequest, DataType, FieldData, FieldSchema, IndexParam, IndexType,
    MetricType, UpsertRequest,
};
use milvus::v2::request::dml::InsertRequest;

use super::expression::{FACETS, Facets};
use super::terms::{MAX_TEXT, TERMS, TermSearch, joined_terms};
use crate::index::manifest::{IndexKind, IndexSettings};
use souk_io::domain::Item;
use souk_io::error::{Error, Result};

pub const ID: &str = "id";
pub const VECTOR: &str = "vector";
pub const ITEM: &str = "item";
/// Collection property with the model's fingerprint.
const MODEL: &str = "souk.model";
/// Length limit in bytes.
const MAX_ID: usize = 1024;
const MAX_DIMENSIONS: i64 = 32_768;
/// Limits of one upsert call; the server accepts 64 MiB.
const CHUNK: usize = 1000;
const CHUNK_BYTES: usize = 8 << 20;

/// Checks the number of dimensions.
pub fn vector_width(dimensions: i64) -> Result<u32> {
    let width = u32::try_from(dimensions).ok().filter(|_| (1..=MAX_DIMENSIONS).contains(&dimensions));
    width.ok_or_else(|| {
        Error::input(format!("the model gives vectors of {dimensions} entries: Milvus supports 1 to {MAX_DIMENSIONS}"))
    })
}

/// Request to create an empty collection for vectors of `model`, with a field to search by terms if asked.
pub fn create_request(
    name: &str,
    model: &str,
    width: u32,
    settings: &IndexSettings,
    terms: Option<&TermSearch>,
) -> SdkResult<CreateCollectionRequest> {
    let text =
        |name: &str, bytes: usize| FieldSchema::new().name(name).data_type(DataType::VarChar).max_length(bytes as u32);
    let mut schema = CollectionSchema::new()
        .enable_dynamic_field(false)
        .add_field(text(ID, MAX_ID).primary_key(true))
        .add_field(FieldSchema::new().name(VECTOR).data_type(DataType::FloatVector).dimension(width))
        .add_field(text(ITEM, MAX_TEXT))
        .add_field(FieldSchema::new().name(FACETS).data_type(DataType::Json));
    let index = IndexParam::new().field_name(VECTOR).metric_type(MetricType::Ip);
    let index = match settings.kind {
        IndexKind::Exact => index.index_type(IndexType::Flat),
        IndexKind::Auto | IndexKind::Hnsw => index.index_type(IndexType::Hnsw).extra_params(HashMap::from([
            ("M".into(), settings.links.to_string()),
            ("efConstruction".into(), settings.build_reach.to_string()),
        ])),
    };
    let mut indexes = vec![index];
    if let Some(terms) = terms {
        schema = TermSearch::fields().into_iter().fold(schema, CollectionSchema::add_field);
        schema = schema.add_function(TermSearch::function());
        indexes.push(terms.index());
    }
    CreateCollectionRequest::builder()
        .collection_name(name)
        .schema(schema)
        .index_params(indexes)
        .properties(HashMap::from([(MODEL.into(), model.into())]))
        .build()
}

/// Whether a collection has a field to search by terms; those of earlier versions have none.
pub fn has_terms(found: &CollectionDesc) -> bool {
    found.get_schema().get_fields().iter().any(|field| field.get_name() == TERMS)
}

/// Checks that a collection has the expected schema, model and vector size.
pub fn check_collection(place: &str, found: &CollectionDesc, model: &str, width: u32) -> Result<()> {
    let wrong = |problem: String| Err(Error::config(place, problem));
    let field = |name: &str| found.get_schema().get_fields().iter().find(|field| field.get_name() == name);
    let columns =
        [(ID, DataType::VarChar), (VECTOR, DataType::FloatVector), (ITEM, DataType::VarChar), (FACETS, DataType::Json)];
    let missing = columns.iter().find(|(name, kind)| field(name).is_none_or(|field| field.get_data_type() != *kind));
    let made_by = found.get_properties().get(MODEL);
    let (Some(made_by), None) = (made_by, missing) else {
        return wrong("is not a Souk collection: choose another name".into());
    };
    let dimensions = field(VECTOR).map_or(0, FieldSchema::get_dimension);
    if dimensions != width {
        return wrong(format!("holds vectors of {dimensions} entries, the model is set to {width}: set the same"));
    }
    if made_by != model {
        return wrong(format!("built by model {made_by}, but the model given is {model}: rebuild the index"));
    }
    Ok(())
}

/// Values of one item's row.
pub struct UpsertRow<'a> {
    id: &'a str,
    vector: &'a [f32],
    item: String,
    facets: serde_json::Value,
    /// Terms of its text, if the collection has the field.
    terms: Option<String>,
    num_bytes: usize,
}

impl<'a> UpsertRow<'a> {
    pub fn new(item: &'a Item, vector: &'a [f32], terms: Option<&TermSearch>) -> Result<Self> {
        let text = serde_json::to_string(item).expect("an item has a JSON form");
        let facets = serde_json::to_value(Facets::of(item)).expect("facet keys are strings");
        let too_long = |part: &str, bytes: usize, max: usize| {
            Err(Error::input(format!("{part} has {bytes} bytes: Milvus allows at most {max}")))
        };
        let facet_bytes = facets.to_string().len();
        let terms = terms.map(|terms| joined_terms(terms.options.language, &terms.item_text.render(item)));
        let term_bytes = terms.as_ref().map_or(0, String::len);
        let num_bytes = item.id.len() + size_of_val(vector) + text.len() + facet_bytes + term_bytes;
        if item.id.len() > MAX_ID {
            return too_long("its id", item.id.len(), MAX_ID);
        }
        if text.len() > MAX_TEXT {
            return too_long("its JSON", text.len(), MAX_TEXT);
        }
        if facet_bytes > MAX_TEXT {
            return too_long("its filter fields", facet_bytes, MAX_TEXT);
        }
        Ok(Self { id: &item.id, vector, item: text, facets, terms, num_bytes })
    }
}

/// Upsert calls for these rows, each within the limits.
pub fn upserts(name: &str, rows: &[UpsertRow<'_>]) -> SdkResult<Vec<UpsertRequest>> {
    let (mut calls, mut rest) = (Vec::new(), rows);
    while !rest.is_empty() {
        let mut num_bytes = 0;
        let fits = |row: &&UpsertRow<'_>| {
            num_bytes += row.num_bytes;
            num_bytes <= CHUNK_BYTES
        };
        let num = rest.iter().take(CHUNK).take_while(fits).count().max(1);
        let (chunk, after) = rest.split_at(num);
        let mut columns = vec![
            FieldData::varchar(ID, chunk.iter().map(|row| row.id.to_owned()).collect()),
            FieldData::float_vector(VECTOR, chunk.iter().map(|row| row.vector.to_vec()).collect()),
            FieldData::varchar(ITEM, chunk.iter().map(|row| row.item.clone()).collect()),
            FieldData::json(FACETS, chunk.iter().map(|row| row.facets.clone()).collect()),
        ];
        let terms: Vec<String> = chunk.iter().filter_map(|row| row.terms.clone()).collect();
        if !terms.is_empty() {
            columns.push(FieldData::varchar(TERMS, terms));
        }
        let insert = InsertRequest::builder().collection_name(name).columns(columns).build()?;
        calls.push(UpsertRequest::builder().insert(insert).build()?);
        rest = after;
    }
    Ok(calls)
}
