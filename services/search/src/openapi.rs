//! OpenAPI document of the routes, generated from their types, with the limits of this service.

use serde_json::{Value, json};
use souk::search::{Bounds, OpenGeneration};
use utoipa::OpenApi;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};

use crate::shapes::ErrorShape;

#[derive(OpenApi)]
#[openapi(
    info(title = "Souk search", description = "Text in, items out. Errors have OpenAI's nested shape."),
    modifiers(&Keys),
    components(schemas(ErrorShape))
)]
pub struct ApiDocument;

struct Keys;

impl utoipa::Modify for Keys {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let components = openapi.components.get_or_insert_default();
        let scheme = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        components.add_security_scheme("key", scheme);
    }
}

/// Schema of a filter, which the library parses.
fn filter() -> Value {
    let value = json!({"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "boolean"}]});
    let fields = json!({
        "field": {"type": "string", "minLength": 1},
        "eq": value,
        "in": {"type": "array", "items": value, "maxItems": 1000},
        "gte": {"type": "number"},
        "lte": {"type": "number"},
    });
    let says = ["eq", "in", "gte", "lte"].map(|name| json!({"required": [name]}));
    let condition = json!({
        "type": "object", "properties": fields, "required": ["field"], "anyOf": says, "additionalProperties": false,
    });
    json!({
        "type": "object", "properties": {"must": {"type": "array", "items": condition, "maxItems": 32}},
        "required": ["must"], "additionalProperties": false, "description": "Conditions that must all hold",
    })
}

/// Document as JSON, with the limits of this service.
pub fn document(openapi: &utoipa::openapi::OpenApi, bounds: &Bounds, served: &OpenGeneration, keyed: bool) -> Value {
    let dimensions = served.record().dimensions;
    let mut document = serde_json::to_value(openapi).expect("document keys are strings");
    if !keyed {
        let paths = document["paths"].as_object_mut().into_iter().flat_map(|paths| paths.values_mut());
        let methods = paths.filter_map(Value::as_object_mut).flat_map(|methods| methods.values_mut());
        methods.filter_map(Value::as_object_mut).for_each(|operation| drop(operation.remove("security")));
    }
    let lines = &mut document["paths"]["/items/bulk"]["post"]["requestBody"]["content"]["application/x-ndjson"];
    lines["schema"]["minItems"] = json!(1);
    let schemas = &mut document["components"]["schemas"];
    let text = json!({"type": "string", "minLength": 1, "maxLength": bounds.max_text});
    let texts = json!({"type": "array", "items": text, "minItems": 1, "maxItems": bounds.max_texts});
    schemas["Texts"] = json!({"anyOf": [text, texts]});
    let id = json!({"type": "integer", "minimum": 0, "maximum": served.num_ids() - 1});
    let ids = json!({"type": "array", "items": id, "minItems": 1, "maxItems": bounds.max_text});
    let many_ids = json!({"type": "array", "items": ids, "minItems": 1, "maxItems": bounds.max_texts});
    schemas["Inputs"] = json!({"anyOf": [text, texts, ids, many_ids]});
    for name in ["SearchRequest", "CompareRequest"] {
        schemas[name]["properties"]["filter"] = json!({"anyOf": [filter(), {"type": "null"}]});
        schemas[name]["properties"]["k"]["maximum"] = json!(bounds.max_hits);
        schemas[name]["properties"]["query"]["maxLength"] = json!(bounds.max_text);
    }
    schemas["Weights"]["additionalProperties"] = json!(false);
    schemas["Weights"]["required"] = json!([]);
    schemas["SearchRequest"]["anyOf"] = json!([{"required": ["query"]}, {"required": ["vector"]}]);
    let search = &mut schemas["SearchRequest"]["properties"];
    search["vector"]["items"]["minimum"] = json!(f32::MIN);
    search["vector"]["items"]["maximum"] = json!(f32::MAX);
    search["offset"]["maximum"] = json!(bounds.max_offset);
    // a vector of zeros has no direction
    search["vector"]["contains"] = json!({"anyOf": [{"exclusiveMinimum": 0}, {"exclusiveMaximum": 0}]});
    search["vector"]["minItems"] = json!(dimensions);
    search["vector"]["maxItems"] = json!(dimensions);
    schemas["VoteRequest"]["properties"]["query"]["maxLength"] = json!(bounds.max_text);
    schemas["VoteRequest"]["properties"]["voter"]["maxLength"] = json!(bounds.max_text);
    for name in ["EmbedRequest", "EmbeddingsRequest"] {
        schemas[name]["properties"]["dimensions"]["maximum"] = json!(dimensions);
    }
    schemas["ItemsRequest"]["properties"]["items"]["maxItems"] = json!(bounds.max_items);
    schemas["EventsRequest"]["properties"]["events"]["maxItems"] = json!(bounds.max_items);
    document
}
