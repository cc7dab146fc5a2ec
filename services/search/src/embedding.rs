//! `/embed` in TEI's format and `/v1/embeddings` in OpenAI's: texts to vectors of the served version or another.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use souk::domain::TextKind;
use souk::search::{Bounds, OpenGeneration};
use souk_http::{Fault, json_body, read};

use crate::SearchService;
use crate::about::{SERVED, find};
use crate::limits::is_longer;
use crate::shapes::{
    EmbedInput, EmbedRequest, Embedding, EmbeddingsAnswer, EmbeddingsRequest, EncodingFormat, ErrorResponses,
    PromptName, TextInput, TokenId, Usage, Vector,
};

const VERSION_HEADER: &str = "souk-version";
/// Differs from the other header if a client stays with a version that is not served any more.
const SERVED_HEADER: &str = "souk-served-version";

/// Embed texts, in TEI's format
#[utoipa::path(post, path = "/embed", tag = "embedding", request_body = EmbedRequest,
    responses((status = 200, body = Vec<Vec<f32>>), ErrorResponses), security(("key" = [])))]
pub async fn embed(State(service): State<Arc<SearchService>>, request: Request) -> Result<Response, Fault> {
    let request: EmbedRequest = read(request).await?;
    service.in_time(embed_texts(&service, request)).await
}

async fn embed_texts(service: &SearchService, request: EmbedRequest) -> Result<Response, Fault> {
    let generation = find(service, request.model.as_deref().unwrap_or(SERVED)).await?;
    let (settings, kind) = (service.settings(), kind(request.prompt_name));
    let bounds = &settings.bounds;
    let texts = match request.inputs {
        EmbedInput::Texts(texts) => texts.into_checked("inputs", bounds)?,
        EmbedInput::Ids(ids) => decode(&generation, &[ids], bounds)?,
        EmbedInput::ManyIds(many) => decode(&generation, &many, bounds)?,
    };
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    if request.truncate == Some(false)
        && let Some(at) = generation.first_truncated(&texts, kind)?
    {
        return Err(Fault::unprocessable(
            format!("inputs[{at}]"),
            "is too long for the model, and `truncate` is false: shorten it",
        ));
    }
    let length = if request.normalize { Length::Unit } else { Length::Model };
    let body = json_body(&vectors(&generation, &texts, kind, Shape { length, dimensions: request.dimensions }).await?);
    Ok(of_version(body, &generation, service))
}

/// Texts of token ids, as TEI reads them: decoded, then read like other texts.
fn decode(generation: &OpenGeneration, lists: &[Vec<TokenId>], bounds: &Bounds) -> Result<Vec<String>, Fault> {
    if lists.len() > bounds.max_texts {
        return Err(too_many("inputs", lists.len(), bounds));
    }
    let num_ids = generation.num_ids();
    let decode = |(at, ids): (usize, &Vec<TokenId>)| {
        let field = || format!("inputs[{at}]");
        if ids.is_empty() || ids.len() > bounds.max_text {
            let problem = format!("has {} token ids: send 1 to {}", ids.len(), bounds.max_text);
            return Err(Fault::unprocessable(field(), problem));
        }
        if let Some(TokenId(id)) = ids.iter().find(|id| id.0 >= num_ids) {
            let problem = format!("has the token id {id}, but the model has {num_ids} ids: use its own tokenizer");
            return Err(Fault::unprocessable(field(), problem));
        }
        let ids: Vec<u32> = ids.iter().map(|id| id.0 as u32).collect();
        Ok(generation.decode(&ids)?)
    };
    lists.iter().enumerate().map(decode).collect()
}

/// Names in headers the version that answered and the served one, for answers that are nothing but vectors.
fn of_version(mut response: Response, generation: &OpenGeneration, service: &SearchService) -> Response {
    let served = service.serving.served();
    for (header, generation) in [(VERSION_HEADER, generation), (SERVED_HEADER, &served)] {
        if let Ok(version) = generation.record().version.parse() {
            response.headers_mut().insert(header, version);
        }
    }
    response
}

/// Embed texts, in OpenAI's format
#[utoipa::path(post, path = "/v1/embeddings", tag = "embedding", request_body = EmbeddingsRequest,
    responses((status = 200, body = EmbeddingsAnswer), ErrorResponses), security(("key" = [])))]
pub async fn embeddings(State(service): State<Arc<SearchService>>, request: Request) -> Result<Response, Fault> {
    let request: EmbeddingsRequest = read(request).await?;
    service.in_time(create_embeddings(&service, request)).await
}

async fn create_embeddings(service: &SearchService, request: EmbeddingsRequest) -> Result<Response, Fault> {
    let generation = find(service, &request.model).await?;
    let (texts, kind) = (request.input.into_checked("input", &service.settings().bounds)?, kind(request.prompt_name));
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let tokens = generation.num_tokens(&texts, kind)?;
    let shape = Shape { length: Length::Unit, dimensions: request.dimensions };
    let vectors = vectors(&generation, &texts, kind, shape).await?;
    let data = vectors.into_iter().enumerate().map(|(index, vector)| {
        let embedding = match request.encoding_format.unwrap_or_default() {
            EncodingFormat::Float => Vector::Floats(vector),
            EncodingFormat::Base64 => {
                let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                Vector::Base64(STANDARD.encode(bytes))
            }
        };
        Embedding { object: "embedding", index, embedding }
    });
    let body = json_body(&EmbeddingsAnswer {
        object: "list",
        data: data.collect(),
        model: generation.record().version.clone(),
        usage: Usage { prompt_tokens: tokens, total_tokens: tokens },
    });
    Ok(of_version(body, &generation, service))
}

fn kind(prompt: Option<PromptName>) -> Option<TextKind> {
    prompt.map(|prompt| match prompt {
        PromptName::Query => TextKind::Query,
        PromptName::Item | PromptName::Document | PromptName::Passage => TextKind::Item,
    })
}

/// Vectors that a request asks for.
struct Shape {
    length: Length,
    dimensions: Option<usize>,
}

enum Length {
    /// As the index stores them.
    Unit,
    /// As the model's pooling gives them.
    Model,
}

async fn vectors(
    generation: &OpenGeneration,
    texts: &[&str],
    kind: Option<TextKind>,
    shape: Shape,
) -> Result<Vec<Vec<f32>>, Fault> {
    let width = generation.record().dimensions as usize;
    let wanted = shape.dimensions.unwrap_or(width);
    if !(1..=width).contains(&wanted) {
        return Err(Fault::unprocessable("dimensions", format!("is {wanted}: set it to 1 to {width}")));
    }
    if let Length::Model = shape.length {
        let mut vectors = generation.unscaled_vectors(texts, kind).await?;
        vectors.iter_mut().for_each(|vector| vector.truncate(wanted));
        return Ok(vectors);
    }
    let mut vectors = generation.vectors(texts, kind).await?;
    if wanted < width {
        vectors.iter_mut().for_each(|vector| shorten(vector, wanted));
    }
    Ok(vectors)
}

fn too_many(field: &str, num: usize, bounds: &Bounds) -> Fault {
    let max = bounds.max_texts;
    let problem = format!("has {num} texts, more than the {max} of one request: send several requests");
    Fault::unprocessable(field, problem)
}

/// Keeps the first entries and normalizes them to unit length.
fn shorten(vector: &mut Vec<f32>, wanted: usize) {
    vector.truncate(wanted);
    let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt().max(f32::MIN_POSITIVE);
    vector.iter_mut().for_each(|x| *x /= length);
}

impl TextInput {
    fn into_checked(self, field: &str, bounds: &Bounds) -> Result<Vec<String>, Fault> {
        let texts = match self {
            Self::One(text) => vec![text],
            Self::Many(texts) => texts,
        };
        if texts.is_empty() {
            return Err(Fault::unprocessable(field, "is empty"));
        }
        if texts.len() > bounds.max_texts {
            return Err(too_many(field, texts.len(), bounds));
        }
        if let Some(at) = texts.iter().position(|text| text.is_empty()) {
            return Err(Fault::unprocessable(format!("{field}[{at}]"), "is an empty text"));
        }
        if let Some(at) = texts.iter().position(|text| is_longer(text, bounds.max_text)) {
            let problem = format!("has more than {} characters", bounds.max_text);
            return Err(Fault::unprocessable(format!("{field}[{at}]"), problem));
        }
        Ok(texts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortened_vector_has_unit_length() {
        let mut vector = vec![0.6, 0.0, 0.8];
        shorten(&mut vector, 2);
        assert_eq!(vector, [1.0, 0.0]);
        let mut nothing = vec![0.0, 1.0];
        shorten(&mut nothing, 1);
        assert_eq!(nothing, [0.0]);
    }
}
