//! Documents and index definitions of search engines. Similarity is the inner product everywhere: it equals cosine for vectors of
//! length 1, and is right for models whose vectors have other lengths.

use serde_json::{Value, json};
use sha1::{Digest, Sha1};

use super::parts::Framing;
use super::{MODEL_FIELD, VectorExport, VectorFormat};
use souk_io::domain::Item;
use souk_io::error::{Error, Result};

/// Bytes of a bulk request; OpenSearch and Elasticsearch advise 5 to 15 MB and refuse 100 MB, Qdrant 32 MB.
const BULK_BYTES: usize = 8 << 20;
const VESPA_SCHEMA: &str = include_str!("vespa.sd");
/// Maximum bytes of a document's id in OpenSearch and Elasticsearch.
const MAX_ID: usize = 512;
/// Namespace of URLs in RFC 4122.
const URL_NAMESPACE: [u8; 16] =
    [0x6b, 0xa7, 0xb8, 0x11, 0x9d, 0xad, 0x11, 0xd1, 0x80, 0xb4, 0x00, 0xc0, 0x4f, 0xd4, 0x30, 0xc8];

/// How documents become files; None for Parquet, which has columns instead.
pub fn framing(format: VectorFormat) -> Option<Framing> {
    let lines = Framing { stem: "vectors", extension: "jsonl", around: ["", "\n", "\n"], max_bytes: None };
    match format {
        VectorFormat::Parquet => None,
        VectorFormat::Jsonl => Some(lines),
        VectorFormat::Vespa => Some(Framing { stem: "feed", ..lines }),
        VectorFormat::OpensearchBulk | VectorFormat::Elasticsearch => {
            Some(Framing { stem: "bulk", extension: "ndjson", max_bytes: Some(BULK_BYTES), ..lines })
        }
        VectorFormat::Qdrant => Some(Framing {
            stem: "points",
            extension: "json",
            around: ["{\"points\":[", ",", "]}\n"],
            max_bytes: Some(BULK_BYTES),
        }),
    }
}

/// File with the definition of an index for these vectors.
pub fn definition(export: &VectorExport<'_>) -> Option<(String, String)> {
    let manifest = export.snapshot.manifest();
    let (width, field) = (manifest.dimensions, export.field);
    let about = json!({"souk": {"model": manifest.model, "dimensions": width}});
    let keyword = json!({"type": "keyword"});
    let pretty = |value: Value| format!("{value:#}\n");
    match export.format {
        VectorFormat::Parquet | VectorFormat::Jsonl => None,
        VectorFormat::OpensearchBulk => {
            let method = json!({"name": "hnsw", "engine": "faiss", "space_type": "innerproduct"});
            let vector = json!({"type": "knn_vector", "dimension": width, "method": method});
            let mappings = json!({"_meta": about, "properties": {field: vector, MODEL_FIELD: keyword}});
            let definition = json!({"settings": {"index": {"knn": true}}, "mappings": mappings});
            Some(("index.json".into(), pretty(definition)))
        }
        VectorFormat::Elasticsearch => {
            let vector = json!({"type": "dense_vector", "dims": width, "index": true,
                "similarity": "max_inner_product"});
            let mappings = json!({"_meta": about, "properties": {field: vector, MODEL_FIELD: keyword}});
            Some(("index.json".into(), pretty(json!({ "mappings": mappings }))))
        }
        VectorFormat::Qdrant => {
            let vectors = json!({field: {"size": width, "distance": "Dot"}});
            Some(("collection.json".into(), pretty(json!({ "vectors": vectors }))))
        }
        VectorFormat::Vespa => Some((format!("{}.sd", export.name), vespa_schema(export, width))),
    }
}

/// One item in the engine's format.
pub fn document(export: &VectorExport<'_>, item: &Item, vector: &[f32]) -> Result<String> {
    let mut fields = export.fields(item, vector)?;
    match export.format {
        VectorFormat::Parquet | VectorFormat::Jsonl => {
            fields["_id"] = json!(item.id);
            Ok(fields.to_string())
        }
        VectorFormat::OpensearchBulk | VectorFormat::Elasticsearch => {
            if item.id.len() > MAX_ID {
                let problem = format!("an item's id has more than the {MAX_ID} bytes that the engine takes");
                return Err(Error::input(format!("{problem}: `{}`", item.id)));
            }
            // adds the vector to a document that is there
            let action = json!({"update": {"_id": item.id}});
            Ok(format!("{action}\n{}", json!({"doc": fields, "doc_as_upsert": true})))
        }
        VectorFormat::Qdrant => {
            let vector = fields[export.field].take();
            let mut payload = fields;
            if let Some(payload) = payload.as_object_mut() {
                payload.remove(export.field);
                payload.insert("_id".into(), json!(item.id));
            }
            Ok(json!({"id": point_id(&item.id), "vector": {export.field: vector}, "payload": payload}).to_string())
        }
        VectorFormat::Vespa => {
            let mut assigned = json!({MODEL_FIELD: {"assign": fields[MODEL_FIELD]}});
            assigned[export.field] = json!({"assign": {"values": fields[export.field]}});
            if export.with_items {
                assigned["title"] = json!({"assign": item.title});
                assigned["text"] = json!({"assign": item.text});
            }
            let id = format!("id:{0}:{0}::{1}", export.name, item.id);
            Ok(json!({"update": id, "create": true, "fields": assigned}).to_string())
        }
    }
}

/// Id of a point, which Qdrant wants as a number or a UUID: a whole number stays one, another id becomes its version 5 UUID in the
/// namespace of URLs, in Python `uuid.uuid5(uuid.NAMESPACE_URL, id)`.
fn point_id(id: &str) -> Value {
    if let Ok(number) = id.parse::<u64>()
        && number.to_string() == id
    {
        return json!(number);
    }
    let digest = Sha1::new().chain_update(URL_NAMESPACE).chain_update(id).finalize();
    let mut bytes: Vec<u8> = digest.iter().take(16).copied().collect();
    bytes[6] = bytes[6] & 0x0f | 0x50;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    json!(format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]))
}

fn vespa_schema(export: &VectorExport<'_>, width: usize) -> String {
    let text =
        |name| format!("        field {name} type string {{\n            indexing: summary | index\n        }}\n");
    let texts = if export.with_items { text("title") + &text("text") } else { String::new() };
    let values = [
        ("{model}", export.snapshot.manifest().model.as_str()),
        ("{name}", export.name),
        ("{field}", export.field),
        ("{width}", &width.to_string()),
        ("{texts}", &texts),
    ];
    values.iter().fold(VESPA_SCHEMA.to_owned(), |schema, (name, value)| schema.replace(name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qdrant_ids_are_those_of_pythons_uuid5() {
        assert_eq!(point_id("42"), json!(42));
        // python3 -c 'import uuid; print(uuid.uuid5(uuid.NAMESPACE_URL, "B00-1"), uuid.uuid5(uuid.NAMESPACE_URL, "007"))'
        assert_eq!(point_id("B00-1"), json!("85968032-4eda-5982-beda-54b36e10bd3b"));
        assert_eq!(point_id("007"), json!("2f8a47ca-fdcc-5c8c-8615-5e2b9cc66fe0"));
    }
}
