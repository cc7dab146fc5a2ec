//! `/search`, `/compare` and `/fields`: hits for a query from the served version or another, by vectors, terms or both.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::response::Response;
use serde_json::{Map, Value};
use souk::cross_encoder::Reranker;
use souk::domain::{Item, TextKind};
use souk::index::Filter;
use souk::lexical::Hybrid;
use souk::search::{
    Arm, Channel, Comparison, Experiment, OpenGeneration, RankedHit, Rerank, Reranking, SearchParams, find, interleave,
};
use souk_http::{Fault, json_body, read};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;
use tracing::{Instrument, Span};

use crate::SearchService;
use crate::events::{ShownHits, fresh_id, log_search};
use crate::items::at_least;
use crate::limits::check_text;
use crate::shapes::{
    Channels, CompareAnswer, CompareRequest, ErrorResponses, ExperimentArm, Explanation, Facet, FacetValue, FieldShape,
    FieldsAnswer, HitPage, HitShape, ReadParams, SearchAnswer, SearchRequest,
};

/// Number of hits that facets count, and number of values reported.
const FACET_HITS: usize = 200;
const FACET_VALUES: usize = 20;
/// Deepest hit of hybrid search: it fuses two such lists in memory for each request.
const MAX_FUSED: usize = 5000;
/// Hits of a page without a filter that take less time than changing threads is worth.
const MAX_SMALL_PAGE: usize = 200;

/// A version, the channel to search, and whether the version's reranker orders the first hits.
struct VersionChannel {
    generation: Arc<OpenGeneration>,
    channel: Channel,
    rerank: Rerank,
}

/// Search for items
#[utoipa::path(post, path = "/search", tag = "search", params(ReadParams), request_body = SearchRequest,
    responses((status = 200, body = SearchAnswer), ErrorResponses), security(("key" = [])))]
pub async fn search(
    State(service): State<Arc<SearchService>>,
    params: Result<Query<ReadParams>, QueryRejection>,
    request: Request,
) -> Result<Response, Fault> {
    let began = Instant::now();
    let request: SearchRequest = read(request).await?;
    request.check(&service)?;
    service.see_at_least(at_least(params)?).await?;
    service.in_time(answer(&service, request, began)).await
}

async fn answer(service: &SearchService, request: SearchRequest, began: Instant) -> Result<Response, Fault> {
    let experiment = assign_experiment(service, &request);
    let end = request.offset + request.k;
    let depth = if request.facets.is_empty() { end } else { end.max(FACET_HITS) };
    let (target, Found { hits: ranked, reranked }, sides) = match &experiment {
        None => {
            let target = request.target(service).await?;
            let found = run_search(service, &target, &request, depth).await?;
            (target, found, Vec::new())
        }
        Some((experiment, arm)) => experiment_hits(service, &request, experiment, *arm, depth).await?,
    };
    let facets = facets(&request.facets, &ranked)?;
    let query_id = fresh_id();
    let record = target.generation.record();
    let explain = request.explain.then_some(request.query.as_deref().unwrap_or_default());
    let page = ranked.into_iter().enumerate().skip(request.offset).take(request.k);
    let hits: souk::Result<Vec<HitShape>> = page
        .map(|(at, ranked)| Ok(HitShape { side: sides.get(at).copied(), ..hit(&target, ranked, at + 1, explain)? }))
        .collect();
    let hits = hits?;
    let experiment = experiment.map(|(experiment, arm)| ExperimentArm { name: experiment.name.clone(), arm });
    let shown =
        ShownHits { query_id: &query_id, version: &record.version, experiment: experiment.as_ref(), hits: &hits };
    log_search(service, &request, &shown);
    Ok(json_body(&SearchAnswer {
        query: request.query,
        query_id,
        model: record.version.clone(),
        index: record.generation.clone(),
        catalogue: target.generation.catalogue(),
        took_ms: began.elapsed().as_secs_f64() * 1e3,
        reranked,
        experiment,
        hits,
        facets,
    }))
}

/// First experiment that includes this shopper; None if the request names a version or a channel.
fn assign_experiment(service: &SearchService, request: &SearchRequest) -> Option<(Experiment, Arm)> {
    let client = request.client_id.as_deref()?;
    // a vector belongs to one version and is meaningless in another
    if request.model.is_some() || request.hybrid.is_some() || request.query.is_none() || request.vector.is_some() {
        return None;
    }
    service.settings().experiments.iter().find_map(|experiment| Some((experiment.clone(), experiment.arm(client)?)))
}

/// Hits of an experiment: one side, or both interleaved together with the side of each hit.
async fn experiment_hits(
    service: &SearchService,
    request: &SearchRequest,
    experiment: &Experiment,
    arm: Arm,
    k: usize,
) -> Result<(VersionChannel, Found, Vec<Arm>), Fault> {
    let name = if arm == Arm::Right { &experiment.right } else { &experiment.left };
    let target = parse_channel(service, name).await?;
    let left = run_search(service, &target, request, k).await?;
    if arm != Arm::Both {
        return Ok((target, left, Vec::new()));
    }
    let right = run_search(service, &parse_channel(service, &experiment.right).await?, request, k).await?;
    let (left_ids, right_ids) = (ids(&left.hits)?, ids(&right.hits)?);
    let (client, query) =
        (request.client_id.as_deref().unwrap_or_default(), request.query.as_deref().unwrap_or_default());
    let mixed = interleave(&left_ids, &right_ids, k, &format!("{client}\0{query}"));
    let sides = mixed.iter().map(|(arm, _)| *arm).collect();
    let side = |arm| if arm == Arm::Left { &left } else { &right };
    let hits = mixed.into_iter().map(|(arm, at)| side(arm).hits[at].clone()).collect();
    Ok((target, Found { hits, reranked: left.reranked.or(right.reranked) }, sides))
}

fn ids(hits: &[RankedHit]) -> souk::Result<Vec<String>> {
    hits.iter().map(|ranked| Ok(ranked.item.load()?.id.clone())).collect()
}

/// Hits of a search, and how many of them were reranked; None if that was not tried.
struct Found {
    hits: Vec<RankedHit>,
    reranked: Option<usize>,
}

async fn run_search(
    service: &SearchService,
    target: &VersionChannel,
    request: &SearchRequest,
    k: usize,
) -> Result<Found, Fault> {
    if matches!(target.channel, Channel::Hybrid(_)) && k > MAX_FUSED {
        let problem = format!(
            "and `k` ask for hit {k}, and hybrid search goes to hit {MAX_FUSED}: ask for less, narrow it with a filter, or search by vectors \
             alone (\"hybrid\": false)"
        );
        return Err(Fault::unprocessable("offset", problem));
    }
    let vector = match (&request.vector, &request.query, &target.channel) {
        (_, _, Channel::Lexical) => None,
        (Some(vector), _, _) => Some(unit(vector)?),
        (None, Some(query), _) => target.generation.vectors(&[query.as_str()], Some(TextKind::Query)).await?.pop(),
        (None, None, _) => None,
    };
    if let Some(vector) = &vector {
        service.remember(&target.generation.record().model, vector);
    }
    if let Some(filter) = &request.filter {
        // name the field in the error
        let unprocessable = |e: souk::Error| match e {
            souk::Error::Input { .. } => Fault::unprocessable("filter", e.to_string()),
            other => other.into(),
        };
        target.generation.index().check(filter).await.map_err(unprocessable)?;
    }
    let query = request.query.as_deref();
    let reranker =
        target.reranker().zip(query).map(|(reranker, query)| (reranker, query, target.rerank.depth(reranker.fit())));
    let params = SearchParams {
        text: query,
        vector: vector.as_deref(),
        k: reranker.map_or(k, |(_, _, depth)| k.max(depth)),
        ef: request.ef,
        filter: request.filter.as_ref(),
        channel: &target.channel,
        item_text: target.generation.item_text(),
        is_wanted: &|| true,
    };
    let is_much = request.filter.is_some() || params.k > MAX_SMALL_PAGE;
    let mut hits = if is_much {
        find_aside(&target.generation, params, request.offset).await?
    } else {
        find(target.generation.index(), &params).await?
    };
    let mut reranked = None;
    if let Some((reranker, query, depth)) = reranker {
        let time = Duration::from_millis(service.settings().bounds.rerank_ms);
        let reranking = Reranking { generation: &target.generation, reranker, depth, time };
        let found = reranking.apply(query, hits).await;
        (hits, reranked) = (found.hits, Some(found.num));
        hits.truncate(k);
    }
    Ok(Found { hits, reranked })
}

/// Searches on a thread of its own, and reads the items from `offset` on: so much work would hold up the other requests, and no
/// deadline could end the wait for it. Ends early if the caller stops waiting.
async fn find_aside(
    generation: &Arc<OpenGeneration>,
    params: SearchParams<'_>,
    offset: usize,
) -> Result<Vec<RankedHit>, Fault> {
    let (generation, span, runtime) = (generation.clone(), Span::current(), Handle::current());
    let (text, vector) = (params.text.map(str::to_owned), params.vector.map(<[f32]>::to_vec));
    let (filter, channel) = (params.filter.cloned(), params.channel.clone());
    let SearchParams { k, ef, .. } = params;
    let (reply, found) = oneshot::channel();
    let work = move || {
        let params = SearchParams {
            text: text.as_deref(),
            vector: vector.as_deref(),
            k,
            ef,
            filter: filter.as_ref(),
            channel: &channel,
            item_text: generation.item_text(),
            is_wanted: &|| !reply.is_closed(),
        };
        let mut found = runtime.block_on(find(generation.index(), &params).instrument(span));
        let shown = found.as_mut().map_or(Default::default(), |hits| hits.get_mut(offset..).unwrap_or_default());
        if let Err(error) = shown.iter_mut().try_for_each(|hit| hit.item.fetch()) {
            found = Err(error);
        }
        // the caller may have left at the last moment
        drop(reply.send(found));
    };
    spawn_blocking(work);
    let found = found.await.map_err(|e| souk::Error::device("a search ended without a result").because(e))?;
    Ok(found?)
}

impl VersionChannel {
    /// The reranker, whose weight was fitted to the scores of the version's own hybrid search.
    fn reranker(&self) -> Option<&Arc<Reranker>> {
        let own = Hybrid::Enabled(true).fusion(self.generation.fusion()).map(Channel::Hybrid);
        let is_own = own.is_some_and(|own| own == self.channel) && self.rerank != Rerank::Enabled(false);
        self.generation.reranker().filter(|_| is_own)
    }
}

/// Normalizes a vector from a request; rejects one without a direction.
fn unit(vector: &[f32]) -> Result<Vec<f32>, Fault> {
    let length = vector.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    if !length.is_finite() || length < f64::from(f32::MIN_POSITIVE) {
        return Err(Fault::unprocessable("vector", "has no direction: its entries are all 0, or one is not finite"));
    }
    Ok(vector.iter().map(|x| (f64::from(*x) / length) as f32).collect())
}

fn hit(target: &VersionChannel, ranked: RankedHit, rank: usize, explain: Option<&str>) -> souk::Result<HitShape> {
    let RankedHit { item, score, dense, lexical, terms, reranker } = ranked;
    let item = item.load()?;
    let explain = explain.map(|query| Explanation {
        channels: Channels { dense, lexical },
        terms,
        reranker,
        overlap: target.generation.overlap(query, &item),
    });
    let Item { id, title, text, fields } = Arc::unwrap_or_clone(item);
    let mut shown_fields = Map::from_iter([("text".to_owned(), Value::String(text))]);
    // a hit's own fields take precedence over catalogue fields of the same name
    shown_fields.extend(fields.into_iter().filter(|(name, _)| !RESERVED_FIELDS.contains(&name.as_str())));
    Ok(HitShape { id, score, rank, title, explain, side: None, fields: shown_fields })
}

const RESERVED_FIELDS: [&str; 7] = ["id", "score", "rank", "title", "text", "explain", "side"];

fn facets(fields: &[String], ranked: &[RankedHit]) -> souk::Result<Vec<Facet>> {
    let counted = if fields.is_empty() { &[] } else { &ranked[..ranked.len().min(FACET_HITS)] };
    let items: Vec<Arc<Item>> = counted.iter().map(|ranked| ranked.item.load()).collect::<souk::Result<_>>()?;
    Ok(fields.iter().map(|field| facet(field, &items)).collect())
}

fn facet(field: &str, items: &[Arc<Item>]) -> Facet {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for value in items.iter().flat_map(|item| souk::index::field_texts(item, field)) {
        *counts.entry(value).or_default() += 1;
    }
    let mut values: Vec<FacetValue> = counts.into_iter().map(|(value, count)| FacetValue { value, count }).collect();
    values.sort_by_key(|value| std::cmp::Reverse(value.count));
    values.truncate(FACET_VALUES);
    Facet { field: field.into(), values }
}

impl SearchRequest {
    fn check(&self, service: &SearchService) -> Result<(), Fault> {
        let settings = service.settings();
        let bounds = &settings.bounds;
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
            let problem = format!("is {}: set it to at most {}, or use a filter", self.offset, bounds.max_offset);
            return Err(Fault::unprocessable("offset", problem));
        }
        if self.ef.is_some_and(|ef| !(1..=100_000).contains(&ef)) {
            return Err(Fault::unprocessable("ef", "must be 1 to 100000"));
        }
        if self.facets.len() > FACET_VALUES {
            return Err(Fault::unprocessable("facets", format!("has more than {FACET_VALUES} fields")));
        }
        if let Some(fusion) = self.hybrid.and_then(|hybrid| hybrid.fusion(None)) {
            fusion.check().map_err(|e| Fault::unprocessable("hybrid", e.to_string()))?;
            if self.query.is_none() {
                let problem = "needs a query: lexical search does not work with a vector alone";
                return Err(Fault::unprocessable("hybrid", problem));
            }
        }
        if let Some(rerank) = self.rerank {
            rerank.check().map_err(|problem| Fault::unprocessable("rerank", problem))?;
        }
        self.filter.as_ref().map_or(Ok(()), check_filter)
    }

    async fn target(&self, service: &SearchService) -> Result<VersionChannel, Fault> {
        let generation = match &self.model {
            None => service.serving.served(),
            Some(version) => open_version(service, version).await?,
        };
        let configured = service.settings().hybrid;
        let hybrid = match self.hybrid {
            None if self.query.is_none() => Hybrid::Enabled(false),
            None => configured,
            Some(Hybrid::Enabled(true)) => enabled(configured),
            Some(hybrid) => hybrid,
        };
        let channel = hybrid.fusion(generation.fusion()).map_or(Channel::Dense, Channel::Hybrid);
        let target = VersionChannel { generation, channel, rerank: self.rerank.unwrap_or(service.settings().rerank) };
        let is_asked = self.rerank.is_some_and(|rerank| rerank != Rerank::Enabled(false));
        if is_asked && target.reranker().is_none() {
            let problem = "needs a version with a reranker (souk fit-fusion --reranker), a query, and hybrid search with the \
                           version's own weights";
            return Err(Fault::unprocessable("rerank", problem));
        }
        Ok(target)
    }
}

/// The configured weights if hybrid search is configured, else those of the version.
fn enabled(configured: Hybrid) -> Hybrid {
    if configured == Hybrid::Enabled(false) { Hybrid::Enabled(true) } else { configured }
}

fn check_k(k: usize, max: usize) -> Result<(), Fault> {
    if (1..=max).contains(&k) {
        return Ok(());
    }
    Err(Fault::unprocessable("k", format!("is {k}: set it to 1 to {max}")))
}

fn check_filter(filter: &Filter) -> Result<(), Fault> {
    filter.check().map_err(|e| Fault::unprocessable("filter", e.to_string()))
}

async fn open_version(service: &SearchService, version: &str) -> Result<Arc<OpenGeneration>, Fault> {
    let unknown = || {
        let open = service.serving.open_versions().join(", ");
        Fault::not_found(format!("version `{version}` has no index; open versions: {open}"))
    };
    service.serving.version(version).await?.ok_or_else(unknown)
}

/// Parses `dense`, `VERSION/dense`, or a version alone.
async fn parse_channel(service: &SearchService, name: &str) -> Result<VersionChannel, Fault> {
    let (version, channel) = match name.rsplit_once('/') {
        Some((version, channel)) if is_channel(channel) => (Some(version), channel),
        None if is_channel(name) => (None, name),
        _ => (Some(name), "dense"),
    };
    let generation = match version {
        Some(version) => open_version(service, version).await?,
        None => service.serving.served(),
    };
    let hybrid = || enabled(service.settings().hybrid).fusion(generation.fusion()).unwrap_or_default();
    let channel = match channel {
        "lexical" => Channel::Lexical,
        "hybrid" => Channel::Hybrid(hybrid()),
        _ => Channel::Dense,
    };
    Ok(VersionChannel { generation, channel, rerank: service.settings().rerank })
}

fn is_channel(name: &str) -> bool {
    ["dense", "lexical", "hybrid"].contains(&name)
}

/// Compare two channels on one query, blind
#[utoipa::path(post, path = "/compare", tag = "search", request_body = CompareRequest,
    responses((status = 200, body = CompareAnswer), ErrorResponses), security(("key" = [])))]
pub async fn compare(State(service): State<Arc<SearchService>>, request: Request) -> Result<Response, Fault> {
    let request: CompareRequest = read(request).await?;
    let bounds = &service.settings().bounds;
    check_text("query", &request.query, 1, bounds.max_text)?;
    check_k(request.k, bounds.max_hits)?;
    request.filter.as_ref().map_or(Ok(()), check_filter)?;
    service.in_time(compare_channels(&service, request)).await
}

async fn compare_channels(service: &SearchService, request: CompareRequest) -> Result<Response, Fault> {
    let CompareRequest { query, left, right, k, filter } = request;
    let (left, right) = (parse_channel(service, &left).await?, parse_channel(service, &right).await?);
    let comparison = Comparison::new(fresh_id(), channel_name(&left), channel_name(&right));
    let (first, second) = if comparison.is_swapped() { (right, left) } else { (left, right) };
    let request = SearchRequest {
        query: Some(query.clone()),
        vector: None,
        k,
        offset: 0,
        filter,
        ef: None,
        model: None,
        explain: false,
        hybrid: None,
        rerank: None,
        facets: Vec::new(),
        client_id: None,
    };
    let mut pages = Vec::new();
    for target in [first, second] {
        let found = run_search(service, &target, &request, k).await?;
        let hits = found.hits.into_iter().enumerate().map(|(at, ranked)| {
            // a score would reveal the channel
            Ok(HitShape { score: 0.0, ..hit(&target, ranked, at + 1, None)? })
        });
        pages.push(HitPage { hits: hits.collect::<souk::Result<_>>()? });
    }
    let (right, left) = (pages.pop(), pages.pop());
    let empty = || HitPage { hits: Vec::new() };
    let (left, right) = (left.unwrap_or_else(empty), right.unwrap_or_else(empty));
    Ok(json_body(&CompareAnswer { query, comparison: comparison.name(), left, right }))
}

/// Channel name with its version, because another version may be served later.
fn channel_name(target: &VersionChannel) -> String {
    let channel = match target.channel {
        Channel::Dense => "dense",
        Channel::Lexical => "lexical",
        Channel::Hybrid(_) => "hybrid",
    };
    format!("{}/{channel}", target.generation.record().version)
}

/// List the fields to filter by
#[utoipa::path(get, path = "/fields", tag = "search",
    responses((status = 200, body = FieldsAnswer), ErrorResponses), security(("key" = [])))]
pub async fn fields(State(service): State<Arc<SearchService>>) -> Result<Response, Fault> {
    let generation = service.serving.served();
    let index = generation.index();
    let fields = index.fields().await?.into_iter().map(|field| {
        let kinds = [(!field.values.is_empty(), "text"), (field.min.is_some(), "number")];
        let value = |count: souk::index::ValueCount| FacetValue { value: count.value, count: count.count };
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
