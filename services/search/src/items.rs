//! `/items`: add, change, delete and read catalogue items. A write is answered once it is on disk, and the next search
//! sees it.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use serde_json::{Map, Value};
use souk::domain::Item;
use souk::search::{Mutation, WriteReceipt};
use souk_http::{Fault, json_body, read};
use tokio::time::timeout;

use crate::SearchService;
use crate::limits::{MAX_NAME, is_longer};
use crate::shapes::{DeleteAnswer, ErrorResponses, ItemShape, ItemsAnswer, ItemsRequest};

/// Add or replace items
#[utoipa::path(put, path = "/items", tag = "items", request_body = ItemsRequest,
    responses((status = 200, body = ItemsAnswer), ErrorResponses), security(("key" = [])))]
pub async fn put(State(service): State<Arc<SearchService>>, request: Request) -> Result<Response, Fault> {
    let request: ItemsRequest = read(&service.front, request).await?;
    let max = service.settings().bounds.max_items;
    if request.items.len() > max {
        let problem =
            format!("has {} items, more than the {max} of one request: send several requests", request.items.len());
        return Err(Fault::unprocessable("items", problem));
    }
    let items = request.items.into_iter().enumerate().map(|(at, item)| item_of(item, at));
    let items: Vec<Item> = items.collect::<Result<_, Fault>>()?;
    let (served, max_bytes) = (service.serving.served(), service.settings().bounds.max_bytes);
    if let Some(at) = items.iter().position(|item| served.text_of(item).len() > max_bytes) {
        return Err(Fault::unprocessable(format!("items[{at}]"), format!("has a text of more than {max_bytes} bytes")));
    }
    let upserted = items.len();
    let WriteReceipt { num_existing, catalogue } =
        write(&service, items.into_iter().map(Mutation::Put).collect()).await?;
    Ok(json_body(&ItemsAnswer { upserted, new: upserted.saturating_sub(num_existing), catalogue }))
}

/// Delete an item
#[utoipa::path(delete, path = "/items/{id}", tag = "items", params(("id" = String, Path)),
    responses((status = 200, body = DeleteAnswer), ErrorResponses), security(("key" = [])))]
pub async fn delete(
    State(service): State<Arc<SearchService>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, Fault> {
    let id = path_name(id)?;
    if service.serving.served().index().get(std::slice::from_ref(&id)).await?.iter().all(Option::is_none) {
        return Err(Fault::not_found(format!("no item `{id}`")));
    }
    let WriteReceipt { num_existing, catalogue } = write(&service, vec![Mutation::Delete(id)]).await?;
    Ok(json_body(&DeleteAnswer { deleted: num_existing > 0, catalogue }))
}

/// Get an item
#[utoipa::path(get, path = "/items/{id}", tag = "items", params(("id" = String, Path)),
    responses((status = 200, body = ItemShape), ErrorResponses), security(("key" = [])))]
pub async fn get(
    State(service): State<Arc<SearchService>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, Fault> {
    let id = path_name(id)?;
    let found = service.serving.served().index().get(std::slice::from_ref(&id)).await?.pop().flatten();
    let Item { id, title, text, mut fields } = found.ok_or_else(|| Fault::not_found(format!("no item `{id}`")))?;
    fields.extend([("id", id), ("title", title), ("text", text)].map(|(name, value)| (name.to_owned(), value.into())));
    Ok(json_body(&fields))
}

/// Name in a path; invalid UTF-8 is a fault like any other.
pub fn path_name(name: Result<Path<String>, PathRejection>) -> Result<String, Fault> {
    let malformed = |rejection: PathRejection| Fault::malformed(None, rejection.body_text());
    name.map(|Path(name)| name).map_err(malformed)
}

/// Applies mutations. The write continues if the caller disconnects: it must not stop halfway.
async fn write(service: &Arc<SearchService>, mutations: Vec<Mutation>) -> Result<WriteReceipt, Fault> {
    let serving = service.serving.clone();
    let writing = tokio::spawn(async move { serving.apply(mutations).await });
    let ended = |e| souk::Error::device("the write was interrupted").because(e);
    let max_ms = service.settings().bounds.deadline_ms;
    let late = |_| {
        Fault::too_late(format!(
            "the write did not finish in {max_ms} ms; it continues in the background: check the items later"
        ))
    };
    let written = timeout(Duration::from_millis(max_ms), writing).await.map_err(late)?;
    Ok(written.map_err(ended)??)
}

/// Parses an item; `id` is the name in this API, `_id` the name in data folders.
fn item_of(mut fields: Map<String, Value>, at: usize) -> Result<Item, Fault> {
    if !fields.contains_key("_id")
        && let Some(id) = fields.remove("id")
    {
        fields.insert("_id".into(), id);
    }
    let wrong = |problem: String| Fault::unprocessable(format!("items[{at}]"), problem);
    let malformed = |e: serde_json::Error| Fault::malformed(Some(format!("items[{at}]")), e.to_string());
    let item: Item = serde_json::from_value(Value::Object(fields)).map_err(malformed)?;
    if item.id.is_empty() || is_longer(&item.id, MAX_NAME) || item.id.contains('\0') {
        return Err(wrong(format!("needs an id of 1 to {MAX_NAME} characters without NUL")));
    }
    Ok(item)
}
