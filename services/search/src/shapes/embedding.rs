//! Request and response types of TEI's and OpenAI's embedding APIs. Unknown fields are ignored, as those services do.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{maybe_whole, whole};

/// Embedding request in TEI's format.
#[derive(Deserialize, ToSchema)]
pub struct EmbedRequest {
    pub inputs: EmbedInput,
    /// Whether vectors have length 1; `false` gives the model's own lengths, which the index does not have.
    #[serde(default = "yes")]
    #[schema(default = true)]
    pub normalize: bool,
    /// Whether a text that is too long may be truncated.
    #[schema(default = true)]
    pub truncate: Option<bool>,
    #[expect(dead_code, reason = "reading it rejects unknown values")]
    pub truncation_direction: Option<TruncationDirection>,
    pub prompt_name: Option<PromptName>,
    /// Extension by Souk: an open version; by default, or as `served`, the served one.
    #[schema(min_length = 1)]
    pub model: Option<String>,
    /// Keep this many entries and normalize again.
    #[serde(default, deserialize_with = "maybe_whole")]
    #[schema(minimum = 1)]
    pub dimensions: Option<usize>,
}

fn yes() -> bool {
    true
}

/// Only right truncation is supported.
#[derive(Clone, Copy, Deserialize, ToSchema)]
pub enum TruncationDirection {
    Right,
    /// Spelling used in parts of TEI's documentation.
    #[serde(rename = "right")]
    Lowercase,
}

#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum PromptName {
    Query,
    Item,
    /// Same as `item`, as many models name it.
    Document,
    /// Same as `item`.
    Passage,
}

/// Texts, or token ids of the model's own tokenizer.
#[derive(Deserialize, ToSchema)]
#[schema(as = Inputs)]
#[serde(untagged, expecting = "expected a text, a list of texts, a list of token ids, or a list of such lists")]
pub enum EmbedInput {
    Texts(TextInput),
    Ids(Vec<TokenId>),
    ManyIds(Vec<Vec<TokenId>>),
}

#[derive(Clone, Copy, Deserialize, ToSchema)]
pub struct TokenId(#[serde(deserialize_with = "whole")] pub usize);

#[derive(Deserialize, ToSchema)]
#[schema(as = Texts)]
#[serde(
    untagged,
    expecting = "expected a text or a list of texts; token ids are those of OpenAI's tokenizer here, which this model does not \
                 know (LangChain sends texts with check_embedding_ctx_length=False)"
)]
pub enum TextInput {
    One(String),
    Many(Vec<String>),
}

/// Embedding request in OpenAI's format.
#[derive(Deserialize, ToSchema)]
pub struct EmbeddingsRequest {
    pub input: TextInput,
    /// An open version, or `served`.
    #[schema(min_length = 1)]
    pub model: String,
    #[serde(default, deserialize_with = "maybe_whole")]
    #[schema(minimum = 1)]
    pub dimensions: Option<usize>,
    pub encoding_format: Option<EncodingFormat>,
    /// Extension by Souk: prompt for queries or items; defaults to the model's default prompt.
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

/// The models that embed, in OpenAI's format: `served`, and the open versions.
#[derive(Serialize, ToSchema)]
pub struct OpenaiModels {
    pub object: &'static str,
    pub data: Vec<ModelShape>,
}

#[derive(Serialize, ToSchema)]
pub struct ModelShape {
    pub id: String,
    pub object: &'static str,
    /// Always 0: versions are listed without asking the ledger, which knows the time (`GET /models`).
    pub created: u64,
    pub owned_by: &'static str,
}

/// The served model, in TEI's format.
#[derive(Serialize, ToSchema)]
pub struct InfoAnswer {
    /// The served version.
    pub model_id: String,
    /// The model's fingerprint.
    pub model_sha: String,
    /// Extension by Souk: entries of a vector.
    pub dimensions: i64,
    pub max_input_length: Option<usize>,
    pub max_client_batch_size: usize,
    pub max_concurrent_requests: usize,
    pub auto_truncate: bool,
    pub version: &'static str,
}
