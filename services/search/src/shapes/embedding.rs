//! How TEI and OpenAI ask for vectors, and are answered. Fields that are not known are passed over, as those services do.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::maybe_whole;

/// As TEI asks for vectors.
#[derive(Deserialize, ToSchema)]
pub struct EmbedRequest {
    pub inputs: Texts,
    #[serde(default = "yes")]
    #[schema(default = true)]
    pub normalize: bool,
    /// Whether a text that is too long may be cut.
    #[schema(default = true)]
    pub truncate: Option<bool>,
    #[expect(dead_code, reason = "to be read is to be one that is known")]
    pub truncation_direction: Option<TruncationDirection>,
    pub prompt_name: Option<PromptName>,
    /// The first so many entries, normalised again.
    #[serde(default, deserialize_with = "maybe_whole")]
    #[schema(minimum = 1)]
    pub dimensions: Option<usize>,
}

fn yes() -> bool {
    true
}

/// Texts are cut on the right only.
#[derive(Clone, Copy, Deserialize, ToSchema)]
pub enum TruncationDirection {
    Right,
    /// As TEI's documents write it at times.
    #[serde(rename = "right")]
    Lowercase,
}

#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum PromptName {
    Query,
    Item,
}

#[derive(Deserialize, ToSchema)]
#[serde(
    untagged,
    expecting = "expected a text or a list of texts; token ids are not taken (LangChain sends texts with \
                 check_embedding_ctx_length=False)"
)]
pub enum Texts {
    One(String),
    Many(Vec<String>),
}

/// As OpenAI asks for vectors.
#[derive(Deserialize, ToSchema)]
pub struct EmbeddingsRequest {
    pub input: Texts,
    /// A version that is open here.
    #[schema(min_length = 1)]
    pub model: String,
    #[serde(default, deserialize_with = "maybe_whole")]
    #[schema(minimum = 1)]
    pub dimensions: Option<usize>,
    pub encoding_format: Option<EncodingFormat>,
    /// Of Souk's own: without it, the model's default prompt.
    pub prompt_name: Option<PromptName>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum EncodingFormat {
    #[default]
    Float,
    Base64,
}

#[derive(Serialize, ToSchema)]
pub struct EmbeddingsAnswer {
    pub object: &'static str,
    pub data: Vec<Embedding>,
    pub model: String,
    pub usage: Usage,
}

#[derive(Serialize, ToSchema)]
pub struct Embedding {
    pub object: &'static str,
    pub index: usize,
    pub embedding: Vector,
}

#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub enum Vector {
    Floats(Vec<f32>),
    /// Little-endian f32.
    Base64(String),
}

#[derive(Serialize, ToSchema)]
pub struct Usage {
    pub prompt_tokens: usize,
    pub total_tokens: usize,
}
