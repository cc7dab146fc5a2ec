//! `/search`, `/compare` and `/fields`: a query to hits, through the served version or another, by vectors, terms or both.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Map, Value};
use souk::domain::{Item, TextKind};
use souk::index::Filter;
use souk::search::{Arm, Channel, Comparison, Experiment, Generation, Ranked, Wanted, Weights, find, interleave};
use souk_http::{Fault, json_body, read};

use crate::Service;
use crate::events::{fresh_id, searched};
use crate::shapes::{
    Assigned, Channels, CompareAnswer, CompareRequest, Explained, Facet, FacetValue, FieldShape, FieldsAnswer,
    HitShape, Hybrid, Page, Refusals, SearchAnswer, SearchRequest,
};

/// Facets are counted over so many hits, and told with so many values.
const FACET_HITS: usize = 200;
const FACET_VALUES: usize = 20;
/// Letters of an id or a name.
pub const MAX_NAME: usize = 256;

/// One way to search: a version and a channel of it.
struct Way {
    generation: Arc<Generation>,
    channel: Channel,
}

/// Find items
#[utoipa::path(post, path = "/search", tag = "search", request_body = SearchRequest,
    responses((status = 200, body = SearchAnswer), Refusals), security(("key" = [])))]
pub async fn search(State(service): State<Arc<Service>>, request: Request) -> Result<Response, Fault> {
    let began = Instant::now();
    let asked: SearchRequest = read(&service.front, request).await?;
    asked.check(&service)?;
    service.in_time(answer(&service, asked, began)).await
}

async fn answer(service: &Service, asked: SearchRequest, began: Instant) -> Result<Response, Fault> {
    let experiment = assigned(service, &asked);
    let looked_at = match asked.facets.is_empty() {
        true => asked.offset + asked.k,
        false => (asked.offset + asked.k).max(FACET_HITS),
    };
    let (way, ranked, sides) = match &experiment {
        None => {
            let way = asked.way(service).await?;
            let ranked = through(service, &way, &asked, looked_at).await?;
            (way, ranked, Vec::new())
        }
        Some((experiment, arm)) => shown(service, &asked, (experiment, *arm), looked_at).await?,
    };
    let facets = asked.facets.iter().map(|field| facet(field, &ranked)).collect();
    let query_id = fresh_id();
    let record = way.generation.record();
    let explain = asked.explain.then_some(asked.query.as_deref().unwrap_or_default());
    let page = ranked.into_iter().enumerate().skip(asked.offset).take(asked.k);
    let hits: Vec<HitShape> = page
        .map(|(at, ranked)| HitShape { side: sides.get(at).copied(), ..hit(&way, ranked, at + 1, explain) })
        .collect();
    let experiment = experiment.map(|(experiment, arm)| Assigned { name: experiment.name.clone(), arm });
    searched(service, &asked, (&query_id, &record.version), experiment.as_ref(), &hits);
    Ok(json_body(&SearchAnswer {
        query: asked.query,
        query_id,
        model: record.version.clone(),
        index: record.generation.clone(),
        catalogue: way.generation.catalogue(),
        took_ms: began.elapsed().as_secs_f64() * 1e3,
        experiment,
        hits,
        facets,
    }))
}

/// The first experiment that this shopper takes part in; who asks for a version or a channel wants that one.
fn assigned<'a>(service: &'a Service, asked: &SearchRequest) -> Option<(&'a Experiment, Arm)> {
    let client = asked.client_id.as_deref()?;
    // a vector is of one version, and says nothing in another
    if asked.model.is_some() || asked.hybrid.is_some() || asked.query.is_none() || asked.vector.is_some() {
        return None;
    }
    service.settings().experiments.iter().find_map(|experiment| Some((experiment, experiment.arm(client)?)))
}

/// What an experiment shows: one side, or both in one list, and then which side brought each hit.
async fn shown(
    service: &Service,
    asked: &SearchRequest,
    (experiment, arm): (&Experiment, Arm),
    k: usize,
) -> Result<(Way, Vec<Ranked>, Vec<Arm>), Fault> {
    let name = if arm == Arm::Right { &experiment.right } else { &experiment.left };
    let way = named(service, name).await?;
    let left = through(service, &way, asked, k).await?;
    if arm != Arm::Both {
        return Ok((way, left, Vec::new()));
    }
    let right = through(service, &named(service, &experiment.right).await?, asked, k).await?;
    let left_ids: Vec<&str> = left.iter().map(|ranked| ranked.item.id.as_str()).collect();
    let right_ids: Vec<&str> = right.iter().map(|ranked| ranked.item.id.as_str()).collect();
    let (client, query) = (asked.client_id.as_deref().unwrap_or_default(), asked.query.as_deref().unwrap_or_default());
    let mixed = interleave(&left_ids, &right_ids, k, &format!("{client}\0{query}"));
    let sides = mixed.iter().map(|(arm, _)| *arm).collect();
    let ranked = mixed.into_iter().map(|(arm, at)| if arm == Arm::Left { left[at].clone() } else { right[at].clone() });
    Ok((way, ranked.collect(), sides))
}

async fn through(service: &Service, way: &Way, asked: &SearchRequest, k: usize) -> Result<Vec<Ranked>, Fault> {
    let vector = match (&asked.vector, &asked.query, way.channel) {
        (_, _, Channel::Lexical) => None,
        (Some(vector), _, _) => Some(unit(vector)?),
        (None, Some(query), _) => way.generation.vectors(&[query.as_str()], Some(TextKind::Query)).await?.pop(),
        (None, None, _) => None,
    };
    if let Some(vector) = &vector {
        service.remember(&way.generation.record().model, vector);
    }
    if let Some(filter) = &asked.filter {
        // with the name of what is wrong
        let wrong = |e: souk::Error| match e {
            souk::Error::Input { .. } => Fault::unprocessable("filter", e.to_string()),
            other => other.into(),
        };
        way.generation.index().check(filter).await.map_err(wrong)?;
    }
    let wanted = Wanted {
        text: asked.query.as_deref(),
        vector: vector.as_deref(),
        k,
        reach: asked.ef,
        filter: asked.filter.as_ref(),
        channel: way.channel,
    };
    Ok(find(way.generation.index(), &wanted).await?)
}

/// A vector from outside, as the index has them; one without a direction is near to nothing.
fn unit(vector: &[f32]) -> Result<Vec<f32>, Fault> {
    let length = vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    if !length.is_finite() || length < f64::from(f32::MIN_POSITIVE) {
        return Err(Fault::unprocessable("vector", "has no direction: all of its entries are 0, or one is not finite"));
    }
    Ok(vector.iter().map(|x| (f64::from(*x) / length) as f32).collect())
}

fn hit(way: &Way, ranked: Ranked, rank: usize, explain: Option<&str>) -> HitShape {
    let Ranked { item, score, dense, lexical } = ranked;
    let explain = explain.map(|query| Explained {
        channels: Channels { dense, lexical },
        overlap: way.generation.index().overlap(query, &item.passage()),
    });
    let Item { id, title, text, fields } = item;
    let mut shown = Map::from_iter([("text".to_owned(), Value::String(text))]);
    // what a hit says of itself goes before fields of the same name
    shown.extend(fields.into_iter().filter(|(name, _)| !OWN.contains(&name.as_str())));
    HitShape { id, score, rank, title, explain, side: None, fields: shown }
}

const OWN: [&str; 7] = ["id", "score", "rank", "title", "text", "explain", "side"];

fn facet(field: &str, ranked: &[Ranked]) -> Facet {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for ranked in ranked.iter().take(FACET_HITS) {
        for value in souk::index::texts_of(&ranked.item, field) {
            *counts.entry(value).or_default() += 1;
        }
    }
    let mut values: Vec<FacetValue> = counts.into_iter().map(|(value, count)| FacetValue { value, count }).collect();
    values.sort_by_key(|value| std::cmp::Reverse(value.count));
    values.truncate(FACET_VALUES);
    Facet { field: field.into(), values }
}

impl SearchRequest {
    fn check(&self, service: &Service) -> Result<(), Fault> {
        let bounds = &service.settings().bounds;
        if self.query.is_none() && self.vector.is_none() {
            return Err(Fault::malformed(Some("query".into()), "give a query or a vector"));
        }
        if let Some(query) = &self.query {
            check_text("query", query, 1, bounds.max_text)?;
        }
        if let Some(client) = &self.client_id {
            check_text("client_id", client, 0, bounds.max_text)?;
        }
        check_k(self.k, bounds.max_hits)?;
        if self.offset > bounds.max_offset {
            let problem =
                format!("is {}: at most {}; filter instead of leafing further", self.offset, bounds.max_offset);
            return Err(Fault::unprocessable("offset", problem));
        }
        if self.ef.is_some_and(|ef| !(1..=100_000).contains(&ef)) {
            return Err(Fault::unprocessable("ef", "is 1 to 100000"));
        }
        if self.facets.len() > FACET_VALUES {
            return Err(Fault::unprocessable("facets", format!("names more than {FACET_VALUES} fields")));
        }
        let weights = match self.hybrid {
            Some(Hybrid::Weighted(weights)) => weights,
            _ => Weights::default(),
        };
        weights.check().map_err(|e| Fault::unprocessable("hybrid", e.to_string()))?;
        if self.query.is_none() && !matches!(self.hybrid, None | Some(Hybrid::Wanted(false))) {
            return Err(Fault::unprocessable("hybrid", "searches by terms, and a vector alone has none: give a query"));
        }
        self.filter.as_ref().map_or(Ok(()), check_filter)
    }

    async fn way(&self, service: &Service) -> Result<Way, Fault> {
        let channel = match self.hybrid {
            None | Some(Hybrid::Wanted(false)) => Channel::Dense,
            Some(Hybrid::Wanted(true)) => Channel::Hybrid(Weights::default()),
            Some(Hybrid::Weighted(weights)) => Channel::Hybrid(weights),
        };
        let generation = match &self.model {
            None => service.shop.served(),
            Some(version) => of_version(service, version).await?,
        };
        Ok(Way { generation, channel })
    }
}

/// A text of `least` to `most` letters.
pub fn check_text(field: &str, text: &str, least: usize, most: usize) -> Result<(), Fault> {
    if text.len() < least {
        return Err(Fault::unprocessable(field, "is empty"));
    }
    if is_longer(text, most) {
        return Err(Fault::unprocessable(field, format!("has more than {most} letters")));
    }
    Ok(())
}

pub fn is_longer(text: &str, most: usize) -> bool {
    // letters are counted only where there may be too many
    text.len() > most && text.chars().count() > most
}

fn check_k(k: usize, most: usize) -> Result<(), Fault> {
    match (1..=most).contains(&k) {
        true => Ok(()),
        false => Err(Fault::unprocessable("k", format!("is {k}: say 1 to {most}"))),
    }
}

fn check_filter(filter: &Filter) -> Result<(), Fault> {
    filter.check().map_err(|e| Fault::unprocessable("filter", e.to_string()))
}

async fn of_version(service: &Service, version: &str) -> Result<Arc<Generation>, Fault> {
    let unknown = || {
        let open = service.shop.open_versions().join(", ");
        Fault::not_found(format!("version `{version}` has no index here; there is {open}"))
    };
    service.shop.version(version).await?.ok_or_else(unknown)
}

/// `dense`, `VERSION/dense`, or a version alone.
async fn named(service: &Service, name: &str) -> Result<Way, Fault> {
    let channel = |name: &str| match name {
        "dense" => Some(Channel::Dense),
        "lexical" => Some(Channel::Lexical),
        "hybrid" => Some(Channel::Hybrid(Weights::default())),
        _ => None,
    };
    if let Some(channel) = channel(name) {
        return Ok(Way { generation: service.shop.served(), channel });
    }
    let (version, channel) = match name.rsplit_once('/').and_then(|(version, last)| Some((version, channel(last)?))) {
        Some(both) => both,
        None => (name, Channel::Dense),
    };
    Ok(Way { generation: of_version(service, version).await?, channel })
}

/// Compare two channels on one query, blind
#[utoipa::path(post, path = "/compare", tag = "search", request_body = CompareRequest,
    responses((status = 200, body = CompareAnswer), Refusals), security(("key" = [])))]
pub async fn compare(State(service): State<Arc<Service>>, request: Request) -> Result<Response, Fault> {
    let asked: CompareRequest = read(&service.front, request).await?;
    let bounds = &service.settings().bounds;
    check_text("query", &asked.query, 1, bounds.max_text)?;
    check_k(asked.k, bounds.max_hits)?;
    asked.filter.as_ref().map_or(Ok(()), check_filter)?;
    service.in_time(compared(&service, asked)).await
}

async fn compared(service: &Service, asked: CompareRequest) -> Result<Response, Fault> {
    let CompareRequest { query, left, right, k, filter } = asked;
    let (left, right) = (named(service, &left).await?, named(service, &right).await?);
    let comparison = Comparison::new(fresh_id(), name_of(&left), name_of(&right));
    let (first, second) = if comparison.is_swapped() { (right, left) } else { (left, right) };
    let asked = SearchRequest {
        query: Some(query.clone()),
        vector: None,
        k,
        offset: 0,
        filter,
        ef: None,
        model: None,
        explain: false,
        hybrid: None,
        facets: Vec::new(),
        client_id: None,
    };
    let mut pages = Vec::new();
    for way in [first, second] {
        let ranked = through(service, &way, &asked, k).await?;
        let hits = ranked.into_iter().enumerate().map(|(at, ranked)| hit(&way, ranked, at + 1, None));
        // a score would give the channel away
        pages.push(Page { hits: hits.map(|hit| HitShape { score: 0.0, ..hit }).collect() });
    }
    let (right, left) = (pages.pop(), pages.pop());
    let none = || Page { hits: Vec::new() };
    let (left, right) = (left.unwrap_or_else(none), right.unwrap_or_else(none));
    Ok(json_body(&CompareAnswer { query, comparison: comparison.name(), left, right }))
}

/// With its version, which `dense` alone does not say: another one may be served tomorrow.
fn name_of(way: &Way) -> String {
    let channel = match way.channel {
        Channel::Dense => "dense",
        Channel::Lexical => "lexical",
        Channel::Hybrid(_) => "hybrid",
    };
    format!("{}/{channel}", way.generation.record().version)
}

/// What the catalogue can be filtered by
#[utoipa::path(get, path = "/fields", tag = "search",
    responses((status = 200, body = FieldsAnswer), Refusals), security(("key" = [])))]
pub async fn fields(State(service): State<Arc<Service>>) -> Result<Response, Fault> {
    let generation = service.shop.served();
    let index = generation.index();
    let fields = index.fields().await?.into_iter().map(|field| {
        let kinds = [(!field.values.is_empty(), "text"), (field.min.is_some(), "number")];
        let value = |count: souk::index::Count| FacetValue { value: count.value, count: count.count };
        FieldShape {
            name: field.name,
            kinds: kinds.into_iter().filter(|(has, _)| *has).map(|(_, kind)| kind).collect(),
            num_items: field.num_items,
            values: field.values.into_iter().map(value).collect(),
            min: field.min,
            max: field.max,
        }
    });
    Ok(json_body(&FieldsAnswer { num_items: index.num_items().await?, fields: fields.collect() }))
}
