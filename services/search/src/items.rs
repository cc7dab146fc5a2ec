//! `/items`: add, change, delete and read catalogue items. A write is answered once it is durable in the catalogue stream and the
//! next search here sees it.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, Request, State};
use axum::response::Response;
use serde_json::{Map, Value};
use souk::catalogue_stream::Mutation;
use souk::domain::Item;
use souk::search::WriteReceipt;
use souk_http::{Fault, json_body, read, read_bytes};
use tokio::time::timeout;

use crate::SearchService;
use crate::limits::{MAX_NAME, is_longer};
use crate::shapes::{
    BulkAnswer, DeleteAnswer, ErrorResponses, ItemFields, ItemShape, ItemsAnswer, ItemsPage, ItemsRequest, ListParams,
    ReadParams, RepeatParams, UpdateAnswer, WriteParams,
};

/// Maximum items of one page.
const LIST_PAGE: usize = 1000;

/// Add or replace items
#[utoipa::path(put, path = "/items", tag = "items", params(WriteParams, RepeatParams), request_body = ItemsRequest,
    responses((status = 200, body = ItemsAnswer), ErrorResponses), security(("key" = [])))]
pub async fn put(
    State(service): State<Arc<SearchService>>,
    params: Result<Query<WriteParams>, QueryRejection>,
    request: Request,
) -> Result<Response, Fault> {
    let condition = if_position(params)?;
    let request: ItemsRequest = read(request).await?;
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
        write(&service, items.into_iter().map(Mutation::Put).collect(), condition).await?;
    Ok(json_body(&ItemsAnswer { upserted, new: upserted.saturating_sub(num_existing), catalogue }))
}

/// Update fields of an item
///
/// Replaces the named fields, such as price and stock, and removes those that are null. The item is encoded again only if
/// its text changes.
#[utoipa::path(patch, path = "/items/{id}", tag = "items", params(("id" = String, Path), WriteParams, RepeatParams), request_body = ItemFields,
    responses((status = 200, body = UpdateAnswer), ErrorResponses), security(("key" = [])))]
pub async fn update(
    State(service): State<Arc<SearchService>>,
    id: Result<Path<String>, PathRejection>,
    params: Result<Query<WriteParams>, QueryRejection>,
    request: Request,
) -> Result<Response, Fault> {
    let (id, condition) = (path_name(id)?, if_position(params)?);
    let fields: Map<String, Value> = read(request).await?;
    let of_text = ["title", "text"].into_iter();
    if let Some(name) =
        of_text.into_iter().find(|name| fields.get(*name).is_some_and(|value| !value.is_string() && !value.is_null()))
    {
        return Err(Fault::malformed(Some(name.into()), "expected a string"));
    }
    check_exists(&service, &id).await?;
    let WriteReceipt { catalogue, .. } = write(&service, vec![Mutation::Update(id, fields)], condition).await?;
    Ok(json_body(&UpdateAnswer { catalogue }))
}

async fn check_exists(service: &SearchService, id: &str) -> Result<(), Fault> {
    let found = service.serving.served().index().get(&[id.to_owned()]).await?;
    if found.iter().all(Option::is_none) {
        return Err(Fault::not_found(format!("no item `{id}`")));
    }
    Ok(())
}

/// Delete an item
#[utoipa::path(delete, path = "/items/{id}", tag = "items", params(("id" = String, Path), WriteParams, RepeatParams),
    responses((status = 200, body = DeleteAnswer), ErrorResponses), security(("key" = [])))]
pub async fn delete(
    State(service): State<Arc<SearchService>>,
    id: Result<Path<String>, PathRejection>,
    params: Result<Query<WriteParams>, QueryRejection>,
) -> Result<Response, Fault> {
    let (id, condition) = (path_name(id)?, if_position(params)?);
    check_exists(&service, &id).await?;
    let WriteReceipt { num_existing, catalogue } = write(&service, vec![Mutation::Delete(id)], condition).await?;
    Ok(json_body(&DeleteAnswer { deleted: num_existing > 0, catalogue }))
}

/// List items
///
/// In byte order of ids. Ask for the next page with `after`, the last id of this one; an empty page is the last.
#[utoipa::path(get, path = "/items", tag = "items", operation_id = "list_items", params(ListParams),
    responses((status = 200, body = ItemsPage), ErrorResponses), security(("key" = [])))]
pub async fn list(
    State(service): State<Arc<SearchService>>,
    params: Result<Query<ListParams>, QueryRejection>,
) -> Result<Response, Fault> {
    let Query(ListParams { after, limit, at_least }) =
        params.map_err(|rejection| Fault::malformed(None, rejection.body_text()))?;
    let limit = limit.unwrap_or(LIST_PAGE);
    if !(1..=LIST_PAGE).contains(&limit) {
        return Err(Fault::unprocessable("limit", format!("is {limit}: give 1 to {LIST_PAGE}")));
    }
    service.see_at_least(at_least).await?;
    let served = service.serving.served();
    let catalogue = served.catalogue();
    let found = served.index().items_after(&after.unwrap_or_default(), limit).await?;
    Ok(json_body(&ItemsPage { items: found.into_iter().map(shape_of).collect(), catalogue }))
}

/// Change many items
///
/// One JSON object per line: an item, `{"id": ..., "_update": {...}}` to replace fields, or `{"id": ..., "_deleted": true}`. Answers when all
/// are durable in the catalogue stream; searches see them as they are encoded (`at_least` waits for it). After an error the first lines may
/// have been written: send all of them again.
#[utoipa::path(post, path = "/items/bulk", tag = "items", params(RepeatParams), request_body(content = Vec<ItemShape>, content_type = "application/x-ndjson"),
    responses((status = 200, body = BulkAnswer), ErrorResponses), security(("key" = [])))]
pub async fn bulk(State(service): State<Arc<SearchService>>, request: Request) -> Result<Response, Fault> {
    check_disk(&service)?;
    let body = read_bytes(request).await?;
    let mut mutations = Vec::new();
    for (number, line) in (1..).zip(body.split(|byte| *byte == b'\n')).filter(|(_, line)| !line.trim_ascii().is_empty())
    {
        let place = format!("line {number}");
        let fields = serde_json::from_slice(line).map_err(|e| Fault::malformed(Some(place.clone()), e.to_string()))?;
        mutations.push(mutation_of(fields, &place)?);
    }
    if mutations.is_empty() {
        return Err(Fault::malformed(None, "the body has no lines: send one JSON object per line"));
    }
    let mut answer = BulkAnswer::default();
    for mutation in &mutations {
        *match mutation {
            Mutation::Put(_) => &mut answer.put,
            Mutation::Update(..) => &mut answer.updated,
            Mutation::Delete(_) => &mut answer.deleted,
        } += 1;
    }
    // a stream takes a limited number at once
    for chunk in mutations.chunks(service.settings().bounds.max_items) {
        answer.catalogue = service.in_time(async { Ok(service.serving.append(chunk).await?) }).await?;
    }
    Ok(json_body(&answer))
}

/// Get an item
#[utoipa::path(get, path = "/items/{id}", tag = "items", params(("id" = String, Path), ReadParams),
    responses((status = 200, body = ItemShape), ErrorResponses), security(("key" = [])))]
pub async fn get(
    State(service): State<Arc<SearchService>>,
    id: Result<Path<String>, PathRejection>,
    params: Result<Query<ReadParams>, QueryRejection>,
) -> Result<Response, Fault> {
    let id = path_name(id)?;
    service.see_at_least(at_least(params)?).await?;
    let found = service.serving.served().index().get(std::slice::from_ref(&id)).await?.pop().flatten();
    let found = found.ok_or_else(|| Fault::not_found(format!("no item `{id}`")))?;
    Ok(json_body(&shape_of(found)))
}

fn shape_of(item: Item) -> Map<String, Value> {
    let Item { id, title, text, mut fields } = item;
    fields.extend([("id", id), ("title", title), ("text", text)].map(|(name, value)| (name.to_owned(), value.into())));
    fields
}

/// The catalogue position that a reader asks for.
pub fn at_least(params: Result<Query<ReadParams>, QueryRejection>) -> Result<Option<u64>, Fault> {
    let malformed = |rejection: QueryRejection| Fault::malformed(None, rejection.body_text());
    params.map(|Query(params)| params.at_least).map_err(malformed)
}

/// The condition of a write.
fn if_position(params: Result<Query<WriteParams>, QueryRejection>) -> Result<Option<u64>, Fault> {
    let malformed = |rejection: QueryRejection| Fault::malformed(None, rejection.body_text());
    let Query(WriteParams { if_position }) = params.map_err(malformed)?;
    match if_position {
        Some(position) if i64::try_from(position).is_err() => {
            Err(Fault::unprocessable("if_position", format!("is {position}, which no catalogue reaches")))
        }
        condition => Ok(condition),
    }
}

/// Name in a path; invalid UTF-8 is a fault like any other.
pub fn path_name(name: Result<Path<String>, PathRejection>) -> Result<String, Fault> {
    let malformed = |rejection: PathRejection| Fault::malformed(None, rejection.body_text());
    name.map(|Path(name)| name).map_err(malformed)
}

/// Refuses changes while the disk is nearly full.
fn check_disk(service: &SearchService) -> Result<(), Fault> {
    service.serving.check_disk().map_err(|error| {
        tracing::error!(?error, "refusing a change of items");
        Fault::read_only("this replica is read-only, because its disk is nearly full: its log says where")
    })
}

/// Applies mutations. The write continues if the caller disconnects: it must not stop halfway.
async fn write(
    service: &Arc<SearchService>,
    mutations: Vec<Mutation>,
    unchanged_since: Option<u64>,
) -> Result<WriteReceipt, Fault> {
    check_disk(service)?;
    let serving = service.serving.clone();
    let busy = |_| {
        let max = service.settings().bounds.max_requests;
        Fault::busy(format!(
            "the limit of {max} writes in progress is reached: some wait for the catalogue stream or the disk, try again"
        ))
    };
    let permit = service.writes.clone().try_acquire_owned().map_err(busy)?;
    let writing = tokio::spawn(async move {
        let _permit = permit;
        serving.apply(mutations, unchanged_since).await
    });
    let ended = |e| souk::Error::device("the write was interrupted").because(e);
    let max_ms = service.settings().bounds.deadline_ms;
    let late = |_| {
        Fault::too_late(format!(
            "the write did not finish in {max_ms} ms; it continues in the background: check the items later"
        ))
    };
    let written = timeout(Duration::from_millis(max_ms), writing).await.map_err(late)?;
    let changed = || Fault::conflict("an item has changed after `if_position`: read it again, and decide anew");
    written.map_err(ended)??.ok_or_else(changed)
}

/// Parses an item.
fn item_of(fields: Map<String, Value>, at: usize) -> Result<Item, Fault> {
    let place = format!("items[{at}]");
    match mutation_of(fields, &place)? {
        Mutation::Put(item) => Ok(item),
        Mutation::Update(..) | Mutation::Delete(_) => {
            Err(Fault::unprocessable(place, "is not an item: send updates and deletions to POST /items/bulk"))
        }
    }
}

/// Parses a mutation; `id` is the name in this API, `_id` the name in data folders.
fn mutation_of(mut fields: Map<String, Value>, place: &str) -> Result<Mutation, Fault> {
    if !fields.contains_key("_id")
        && let Some(id) = fields.remove("id")
    {
        fields.insert("_id".into(), id);
    }
    let malformed = |problem: String| Fault::malformed(Some(place.to_owned()), problem);
    let id = fields.get("_id").and_then(Value::as_str).ok_or_else(|| malformed("needs an `id`, a string".into()))?;
    if id.is_empty() || is_longer(id, MAX_NAME) || id.contains('\0') {
        let problem = format!("needs an id of 1 to {MAX_NAME} characters without NUL");
        return Err(Fault::unprocessable(place, problem));
    }
    let mutation = Mutation::from_fields(fields).map_err(|e| malformed(e.with_causes()))?;
    mutation.check().map_err(|e| Fault::unprocessable(place, e.to_string()))?;
    Ok(mutation)
}
