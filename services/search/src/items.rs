//! `/items`: what the shop sells comes, changes and goes. Answered when it is on disk; found by the next search.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use serde_json::{Map, Value};
use souk::domain::Item;
use souk::search::{Applied, Wish};
use souk_http::{Fault, json_body, read};
use tokio::time::timeout;

use crate::Service;
use crate::hits::{MAX_NAME, is_longer};
use crate::shapes::{DeleteAnswer, ItemShape, ItemsAnswer, ItemsRequest, Refusals};

/// Put items in, each in the place of what has its id
#[utoipa::path(put, path = "/items", tag = "items", request_body = ItemsRequest,
    responses((status = 200, body = ItemsAnswer), Refusals), security(("key" = [])))]
pub async fn put(State(service): State<Arc<Service>>, request: Request) -> Result<Response, Fault> {
    let asked: ItemsRequest = read(&service.front, request).await?;
    let most = service.settings().bounds.max_items;
    if asked.items.len() > most {
        let problem = format!("holds {}, and one request may have {most}: send several", asked.items.len());
        return Err(Fault::unprocessable("items", problem));
    }
    let max_text = service.settings().bounds.max_bytes;
    let items = asked.items.into_iter().enumerate().map(|(at, item)| item_of(item, at, max_text));
    let items: Vec<Item> = items.collect::<Result<_, Fault>>()?;
    let upserted = items.len();
    let Applied { there, catalogue } = write(&service, items.into_iter().map(Wish::Put).collect()).await?;
    Ok(json_body(&ItemsAnswer { upserted, new: upserted.saturating_sub(there), catalogue }))
}

/// Take an item out
#[utoipa::path(delete, path = "/items/{id}", tag = "items", params(("id" = String, Path)),
    responses((status = 200, body = DeleteAnswer), Refusals), security(("key" = [])))]
pub async fn delete(
    State(service): State<Arc<Service>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, Fault> {
    let id = named(id)?;
    if service.shop.served().index().get(std::slice::from_ref(&id)).await?.iter().all(Option::is_none) {
        return Err(Fault::not_found(format!("there is no item `{id}`")));
    }
    let Applied { there, catalogue } = write(&service, vec![Wish::Delete(id)]).await?;
    Ok(json_body(&DeleteAnswer { deleted: there > 0, catalogue }))
}

/// Look at an item
#[utoipa::path(get, path = "/items/{id}", tag = "items", params(("id" = String, Path)),
    responses((status = 200, body = ItemShape), Refusals), security(("key" = [])))]
pub async fn get(
    State(service): State<Arc<Service>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, Fault> {
    let id = named(id)?;
    let found = service.shop.served().index().get(std::slice::from_ref(&id)).await?.pop().flatten();
    let Item { id, title, text, mut fields } =
        found.ok_or_else(|| Fault::not_found(format!("there is no item `{id}`")))?;
    fields.extend([("id", id), ("title", title), ("text", text)].map(|(name, value)| (name.to_owned(), value.into())));
    Ok(json_body(&fields))
}

/// The name in a path; one that is no text has a fault like any other.
pub fn named(name: Result<Path<String>, PathRejection>) -> Result<String, Fault> {
    let malformed = |rejection: PathRejection| Fault::malformed(None, rejection.body_text());
    name.map(|Path(name)| name).map_err(malformed)
}

/// A write goes on where its caller has left: half of it may be done.
async fn write(service: &Arc<Service>, wishes: Vec<Wish>) -> Result<Applied, Fault> {
    let shop = service.shop.clone();
    let writing = tokio::spawn(async move { shop.apply(wishes).await });
    let ended = |e| souk::Error::device("writing was broken off").because(e);
    let most = service.settings().bounds.deadline_ms;
    let late = |_| {
        Fault::too_late(format!("not written in {most} ms; it goes on, and what was asked will be done: look again"))
    };
    let written = timeout(Duration::from_millis(most), writing).await.map_err(late)?;
    Ok(written.map_err(ended)??)
}

/// `id` is what the other routes call it, `_id` what data folders do.
fn item_of(mut fields: Map<String, Value>, at: usize, most: usize) -> Result<Item, Fault> {
    if !fields.contains_key("_id")
        && let Some(id) = fields.remove("id")
    {
        fields.insert("_id".into(), id);
    }
    let wrong = |problem: String| Fault::unprocessable(format!("items[{at}]"), problem);
    let malformed = |e: serde_json::Error| Fault::malformed(Some(format!("items[{at}]")), e.to_string());
    let item: Item = serde_json::from_value(Value::Object(fields)).map_err(malformed)?;
    if item.id.is_empty() || is_longer(&item.id, MAX_NAME) || item.id.contains('\0') {
        return Err(wrong(format!("has an id that is empty, has NUL in it or more than {MAX_NAME} letters")));
    }
    match item.passage().len() > most {
        true => Err(wrong(format!("has a text of more than {most} bytes"))),
        false => Ok(item),
    }
}
