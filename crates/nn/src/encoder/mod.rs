//! Texts to vectors: backbone, pooling, projections, truncation to the requested dimensions, normalisation. An embedding
//! depends only on text, model and dimensions: batches are packed, so no text is affected by another's padding.

mod average;
mod export;
mod fingerprint;
mod folder;
mod outline;
mod pooling;
mod rationale;
mod refine;
mod scratch;
mod stream;
mod training;
mod vector_cache;
mod worker;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

pub use self::fingerprint::digest_files;
use self::folder::{Dense, Recipe};
pub use self::folder::{Prompts, transformer_dir};
pub use self::outline::Outline;
pub use self::pooling::{Pooling, Spans};
pub use self::rationale::Rationale;
pub use self::refine::Refine;
pub use self::scratch::Scratch;
pub use self::stream::encode;
pub use self::vector_cache::VectorCache;
pub use self::worker::{EncoderReply, EncoderWorker};
use crate::backbone::chat::Chat;
use crate::backbone::lora::Lora;
use crate::backbone::tokenizer::{Frame, Tokenizer};
use crate::backbone::weights::Parameters;
use crate::backbone::{Architecture, Backbone, ForwardPass, Layout, Precision, Tokens};
pub use crate::worker::{Limits, Urgency};
use souk_io::domain::TextKind;
use souk_io::error::{Error, Result};
use souk_io::item_text::ItemText;

/// Settings that override those of the model's folder.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Overrides {
    /// How the tokens become one vector. Default: the folder's.
    pub pooling: Option<Pooling>,
    /// Maximum tokens per text; longer texts are truncated.
    pub max_tokens: Option<usize>,
    /// Keeps the first dimensions of a vector, normalised again (Matryoshka).
    pub dimensions: Option<i64>,
    /// Whether vectors have length 1. Default: the folder's.
    pub normalize: Option<bool>,
    /// Causal (true) or bidirectional (false) attention of a decoder. Default: the folder's `is_causal`, or causal.
    pub causal: Option<bool>,
    /// Soft tokens after the text instead of pooling (GIRCSE); decoders only.
    // skipped if absent, so that the fingerprint of other models does not change
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refine: Option<Refine>,
    /// Rationale that the model generates before pooling (GRACE); decoders only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rationale: Option<Rationale>,
    /// Text of an item, such as `{title} {brand}`: a template over its fields. Default: the folder's, or title and text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item_text: Option<ItemText>,
    /// Text before every query, such as `Query: `. Default: the folder's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query_prompt: Option<String>,
    /// Text before every item. Default: the folder's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub item_prompt: Option<String>,
}

/// Device, precision and adapter of a model.
#[derive(Clone, Debug)]
pub struct Placement {
    pub device: Device,
    pub precision: Precision,
    /// PEFT folder of a low-rank adapter to attach.
    pub adapter: Option<PathBuf>,
    /// Unknown fields of `config.json` to accept.
    pub ignore_fields: Vec<String>,
}

/// Tokenized text.
#[derive(Clone, Debug, PartialEq)]
pub struct Text {
    pub ids: Vec<u32>,
    /// Number of prompt tokens at its start that pooling excludes.
    pub skip: usize,
    /// Whether its vector keeps its length although the model normalises vectors.
    pub keeps_length: bool,
}

impl Text {
    pub fn new(ids: Vec<u32>, skip: usize) -> Self {
        Self { ids, skip, keeps_length: false }
    }
}

/// Tokenizes texts with the model's prompts; shared by all callers.
pub struct Reader {
    tokenizer: Tokenizer,
    item_text: ItemText,
    plain: Prompt,
    query: Prompt,
    item: Prompt,
    /// Chat prompt and maximum tokens of a text, for a model that generates rationales.
    chat: Option<(Chat, usize)>,
    /// Tokens that end a rationale.
    ends: Vec<u32>,
}

/// Prompt before a text, and the number of its tokens that pooling excludes.
struct Prompt {
    text: String,
    skip: usize,
}

impl Reader {
    /// Opens the tokenizer of a folder, truncating to the model's positions.
    fn of(transformer: &Path, architecture: &Architecture, recipe: &mut Recipe, overrides: &Overrides) -> Result<Self> {
        // positions reserved for the tokens after the text
        let rationale = recipe.rationale.as_ref().map_or(0, Rationale::max_tokens);
        let soft = recipe.refine.map_or(0, Refine::num_steps);
        let limit = architecture.max_tokens().saturating_sub(rationale + soft);
        // the folder's limit may be a tokenizer default, so it is clamped; the user's must fit
        let max_tokens = overrides.max_tokens.unwrap_or(recipe.max_tokens.unwrap_or(limit).min(limit));
        if max_tokens > limit {
            let problem = format!("is {max_tokens}, but the model has positions for {limit} tokens of a text");
            return Err(Error::config("max_tokens", problem));
        }
        let mut tokenizer = Tokenizer::open(transformer)?;
        tokenizer.limit_ids(architecture.vocab())?;
        tokenizer.set_truncation(max_tokens, recipe.lowercase)?;
        recipe.max_tokens = Some(max_tokens);
        if let Some(item_text) = &overrides.item_text {
            recipe.item_text = item_text.clone();
        }
        let chat = match &recipe.rationale {
            Some(rationale) => {
                tokenizer.disable_truncation()?;
                Some((Chat::open(transformer, &tokenizer, rationale.instruction())?, max_tokens))
            }
            None => None,
        };
        let ends = match &chat {
            Some((chat, _)) => chat.ends.clone(),
            None => Vec::new(),
        };
        Ok(Self { chat, ends, ..Self::new(tokenizer, recipe)? })
    }

    fn new(tokenizer: Tokenizer, recipe: &Recipe) -> Result<Self> {
        let prompt = |kind| -> Result<Prompt> {
            let text = recipe.prompts.of(kind).to_string();
            let includes_prompt = recipe.include_prompt || text.is_empty();
            let skip = if includes_prompt { 0 } else { tokenizer.prompt_length(&text)? };
            Ok(Prompt { text, skip })
        };
        let (plain, query, item) = (prompt(None)?, prompt(Some(TextKind::Query))?, prompt(Some(TextKind::Item))?);
        Ok(Self { tokenizer, item_text: recipe.item_text.clone(), plain, query, item, chat: None, ends: Vec::new() })
    }

    /// Template of the items' texts.
    pub fn item_text(&self) -> &ItemText {
        &self.item_text
    }

    /// Tokenizes a text with the prompt of its kind, or the model's default prompt without one.
    pub fn read(&self, text: &str, kind: Option<TextKind>) -> Result<Text> {
        let prompt = self.prompt(kind);
        if let Some((chat, max_tokens)) = &self.chat {
            let whole = format!("{}{text}", prompt.text);
            let (ids, skip) = self.tokenizer.encode_framed(chat.frame(), &whole, *max_tokens)?;
            return Ok(Text::new(ids, skip));
        }
        let ids = match prompt.text.as_str() {
            "" => self.tokenizer.encode(text)?,
            before => self.tokenizer.encode(&format!("{before}{text}"))?,
        };
        if ids.is_empty() {
            return Err(Error::input("the text has no tokens: this model's tokenizer adds none to an empty text"));
        }
        Ok(Text::new(ids, prompt.skip))
    }

    /// Maximum number of tokens of a text; longer ones are truncated.
    pub fn max_tokens(&self) -> Option<usize> {
        self.chat.as_ref().map(|(_, max_tokens)| *max_tokens).or_else(|| self.tokenizer.max_tokens())
    }

    /// Whether a text would be truncated.
    pub fn truncates(&self, text: &str, kind: Option<TextKind>) -> Result<bool> {
        let whole = format!("{}{text}", self.prompt(kind).text);
        match &self.chat {
            Some((chat, max_tokens)) => {
                let (ids, _) = self.tokenizer.encode_framed(chat.frame(), &whole, usize::MAX)?;
                Ok(ids.len() > *max_tokens)
            }
            None => self.tokenizer.truncates(&whole),
        }
    }

    /// Tokens that end a generated text.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// Decodes tokens to text, without special tokens.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.tokenizer.decode(ids)
    }

    /// Number of token ids, which begin with 0.
    pub fn num_ids(&self) -> usize {
        self.tokenizer.num_ids()
    }

    /// Tokenizes a text without prompt, special tokens or truncation.
    pub fn encode_raw(&self, text: &str) -> Result<Vec<u32>> {
        let frame = Frame { before: "", after: "", complete: true };
        Ok(self.tokenizer.encode_framed(frame, text, usize::MAX)?.0)
    }

    fn prompt(&self, kind: Option<TextKind>) -> &Prompt {
        match kind {
            None => &self.plain,
            Some(TextKind::Query) => &self.query,
            Some(TextKind::Item) => &self.item,
        }
    }
}

pub struct Encoder {
    backbone: Backbone,
    architecture: Architecture,
    /// `None` once frozen.
    parameters: Option<Parameters>,
    reader: Arc<Reader>,
    recipe: Recipe,
    overrides: Overrides,
    placement: Placement,
    dir: PathBuf,
}

impl Encoder {
    /// Folder it was opened from.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Opens a hub or sentence-transformers folder for training or export.
    pub fn open(dir: &Path, placement: Placement, mut overrides: Overrides) -> Result<Self> {
        let transformer = transformer_dir(dir)?;
        let architecture = Architecture::open(&transformer.join("config.json"), &placement.ignore_fields)?
            .with_causal(overrides.causal, &placement.ignore_fields)?;
        let mut recipe = Recipe::read(dir, &placement.ignore_fields)?;
        // the fingerprint does not change if the folder has the same template
        overrides.item_text.take_if(|item_text| *item_text == recipe.item_text);
        for (kind, prompt) in [(TextKind::Query, &overrides.query_prompt), (TextKind::Item, &overrides.item_prompt)] {
            if let Some(prompt) = prompt {
                recipe.prompts.set(kind, prompt);
            }
        }
        recipe.pooling = overrides.pooling.unwrap_or(recipe.pooling);
        recipe.normalize = overrides.normalize.unwrap_or(recipe.normalize);
        // refine and rationale exclude each other: an override of one replaces the folder's other
        let (refine, rationale) = (overrides.refine, overrides.rationale.clone());
        let (saved_refine, saved_rationale) = (recipe.refine.take(), recipe.rationale.take());
        recipe.refine = match refine {
            Some(refine) => Some(refine.or(saved_refine)),
            None => saved_refine.filter(|_| rationale.is_none()),
        };
        recipe.rationale = match rationale {
            Some(rationale) => Some(rationale.or(saved_rationale)).filter(|rationale| rationale.max_tokens() > 0),
            None => saved_rationale.filter(|_| refine.is_none()),
        };
        let mut parameters = Parameters::open(&transformer, placement.device, placement.precision.kind())?;
        let mut backbone = Backbone::build(&architecture, &mut parameters)?;
        if let Some(adapter) = &placement.adapter {
            Lora::load(adapter, &mut backbone, &placement.ignore_fields)?;
        }
        for dense in &mut recipe.dense {
            *dense = Dense {
                weight: dense.weight.to_device(placement.device),
                bias: dense.bias.as_ref().map(|bias| bias.to_device(placement.device)),
                tanh: dense.tanh,
            };
        }
        let reader = Reader::of(&transformer, &architecture, &mut recipe, &overrides)?;
        let encoder = Self {
            backbone,
            architecture,
            parameters: Some(parameters),
            reader: Arc::new(reader),
            recipe,
            overrides,
            placement,
            dir: dir.into(),
        };
        encoder.check()?;
        Ok(encoder)
    }

    fn check(&self) -> Result<()> {
        let mut width = self.architecture.width();
        for (i, dense) in self.recipe.dense.iter().enumerate() {
            let inputs = dense.weight.size()[1];
            if inputs != width {
                let problem = format!("takes {inputs} inputs, but gets {width}");
                return Err(Error::config(self.dir.display(), format!("Dense module {} {problem}", i + 1)));
            }
            width = dense.weight.size()[0];
        }
        if self.recipe.rationale.is_some() {
            self.backbone.check_generates()?;
            if self.recipe.refine.is_some() {
                let problem = "cannot be combined with encoder.refine: remove one of them";
                return Err(Error::config("encoder.rationale", problem));
            }
        }
        if let Some(refine) = self.recipe.refine {
            refine.check(&self.backbone)?;
        }
        match self.overrides.dimensions {
            Some(n) if n < 1 || n > width => Err(Error::config(
                "dimensions",
                format!("is {n}, but this model's vectors have {width}: set it to 1 to {width}"),
            )),
            _ => Ok(()),
        }
    }

    /// Enables soft tokens (`refine`) for training, with the configured or default number of steps.
    pub fn with_refine(mut self) -> Result<Self> {
        if self.recipe.refine.is_none() && self.recipe.rationale.is_some() {
            let problem =
                "is not set, and this model generates rationales: set encoder.refine.steps=5 to refine instead";
            return Err(Error::config("encoder.refine", problem));
        }
        self.recipe.refine.get_or_insert_default();
        self.check()?;
        Ok(self)
    }

    /// Prepares vectors for an index: their dot product equals the model's similarity.
    pub fn for_search(mut self) -> Result<Self> {
        match self.recipe.similarity.as_deref() {
            None | Some("cosine") => self.recipe.normalize = true,
            Some("dot" | "dot_product") => {}
            Some(other) => {
                let problem = format!("has similarity `{other}`: an index supports cosine and dot");
                return Err(Error::config(self.dir.join(folder::SETTINGS).display(), problem));
            }
        }
        Ok(self)
    }

    /// Packs the weights for fast CPU inference where supported; the encoder can no longer be trained.
    pub fn freeze(mut self) -> Result<Self> {
        if self.placement.device == Device::Cpu && self.placement.precision != Precision::Bf16 {
            Lora::merge(&mut self.backbone);
            self.parameters = None;
            self.backbone.freeze(self.placement.precision)?;
        } else if self.placement.precision == Precision::Int8 {
            return Err(Error::config(
                "precision",
                "int8 runs on the CPU only: pass --device cpu, or use bf16 on the GPU",
            ));
        }
        Ok(self)
    }

    pub fn device(&self) -> Device {
        self.placement.device
    }

    pub fn reader(&self) -> Arc<Reader> {
        self.reader.clone()
    }

    /// Template of the items' texts.
    pub fn item_text(&self) -> &ItemText {
        &self.recipe.item_text
    }

    /// Dimensions of a vector.
    pub fn dimensions(&self) -> i64 {
        let last = self.recipe.dense.last().map(|dense| dense.weight.size()[0]);
        self.overrides.dimensions.or(last).unwrap_or_else(|| self.architecture.width())
    }

    /// Vectors `[b, d]` in f32, on the model's device.
    pub fn encode(&self, texts: &[&Text]) -> Result<Tensor> {
        self.pass(texts, false)
    }

    fn pass(&self, texts: &[&Text], train: bool) -> Result<Tensor> {
        let vectors = match (&self.recipe.rationale, self.recipe.refine) {
            (Some(rationale), _) => {
                let whole = self.append_rationales(rationale, texts)?;
                self.pooled(&whole.iter().collect::<Vec<_>>(), train)?
            }
            (None, Some(refine)) => self.refined(refine, texts, train)?.select(1, refine.num_steps() as i64 - 1),
            (None, None) => self.pooled(texts, train)?,
        };
        Ok(self.finish(vectors, texts))
    }

    /// Vectors of all refine steps, `[b, k, d]`, before projection.
    fn refined(&self, refine: Refine, texts: &[&Text], train: bool) -> Result<Tensor> {
        let ids: Vec<&[u32]> = texts.iter().map(|text| text.ids.as_slice()).collect();
        refine.vectors(&self.backbone, &ids, train)
    }

    /// Pools one vector per text from its hidden states.
    fn pooled(&self, texts: &[&Text], train: bool) -> Result<Tensor> {
        let ids: Vec<&[u32]> = texts.iter().map(|text| text.ids.as_slice()).collect();
        let tokens = Tokens::packed(&ids, self.placement.device)?;
        let Layout::Packed { starts } = &tokens.layout else {
            return Err(Error::device("the encoder needs packed tokens"));
        };
        let skip: Vec<i64> = texts.iter().map(|text| text.skip as i64).collect();
        let pooling = self.recipe.pooling;
        let skip_layers = usize::from(pooling == Pooling::PenultimateMean);
        pooling.pool(&Spans { starts, skip: &skip }, self.placement.device, |rows| {
            self.backbone.forward(&tokens, ForwardPass { skip_layers, train, rows, ..ForwardPass::default() })
        })
    }

    /// Projects, normalises and truncates vectors of these texts.
    fn finish(&self, mut vectors: Tensor, texts: &[&Text]) -> Tensor {
        for dense in &self.recipe.dense {
            vectors = dense.apply(&vectors);
        }
        if self.recipe.normalize {
            vectors = unit_unless_kept(&vectors, texts);
        }
        match self.overrides.dimensions {
            Some(dimensions) => unit_unless_kept(&vectors.narrow(1, 0, dimensions), texts),
            None => vectors,
        }
    }

    /// As `encode`, without gradients, as one `Vec` per text.
    pub fn vectors(&self, texts: &[&Text]) -> Result<Vec<Vec<f32>>> {
        let _guard = tch::no_grad_guard();
        self.rows(&self.encode(texts)?)
    }

    /// Copies vectors to one `Vec` per row; non-finite values are an error.
    fn rows(&self, vectors: &Tensor) -> Result<Vec<Vec<f32>>> {
        let vectors = vectors.to_device(Device::Cpu).to_kind(Kind::Float).contiguous();
        let (num, width) = (vectors.size()[0] as usize, vectors.size()[1] as usize);
        let mut flat = vec![0_f32; num * width];
        vectors.f_copy_data(&mut flat, num * width)?;
        if flat.iter().any(|x| !x.is_finite()) {
            return Err(Error::device(
                "the model returned vectors that are not finite: its weights or config.json are broken",
            ));
        }
        Ok(flat.chunks_exact(width).map(<[f32]>::to_vec).collect())
    }
}

/// Normalises the rows of texts that do not keep their length.
fn unit_unless_kept(vectors: &Tensor, texts: &[&Text]) -> Tensor {
    if !texts.iter().any(|text| text.keeps_length) {
        return unit(vectors);
    }
    let kept: Vec<bool> = texts.iter().map(|text| text.keeps_length).collect();
    let kept = Tensor::from_slice(&kept).to_device(vectors.device()).unsqueeze(1);
    vectors.where_self(&kept, &unit(vectors))
}

/// L2-normalises rows as sentence-transformers does (a zero vector stays zero).
pub fn unit(x: &Tensor) -> Tensor {
    let norm = x.square().sum_dim_intlist(1, true, Kind::Float).sqrt().clamp_min(1e-12);
    x / norm
}
