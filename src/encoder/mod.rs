//! Texts to vectors: tokens through the backbone, pooled, projected, cut to the wanted dimensions and normalised.
//! An embedding is a function of text, model and dimensions alone: batches are packed, so that no text ever meets
//! another's padding.

mod export;
mod fingerprint;
mod folder;
mod outline;
mod pooling;
mod scratch;
mod stream;
mod training;
mod worker;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor};

pub use self::fingerprint::digest_files;
use self::folder::{Dense, Recipe};
pub use self::folder::{Prompts, transformer_dir};
pub use self::outline::Outline;
pub use self::pooling::{Pooling, Spans};
pub use self::scratch::Scratch;
pub use self::stream::encode;
pub use self::worker::{Reply, Worker};
use crate::backbone::lora::Lora;
use crate::backbone::tokenizer::Tokenizer;
use crate::backbone::weights::Parameters;
use crate::backbone::{Architecture, Backbone, Layout, Pass, Precision, Tokens};
use crate::domain::TextKind;
use crate::error::{Error, Result};
pub use crate::worker::Limits;

/// What may differ from what the model's folder says.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Overrides {
    pub pooling: Option<Pooling>,
    /// Texts are cut to so many tokens.
    pub max_tokens: Option<usize>,
    /// The first so many entries of a vector, normalised again (Matryoshka).
    pub dimensions: Option<i64>,
    pub normalize: Option<bool>,
    /// Attention in both directions, or not, whatever the architecture was trained with.
    pub causal: Option<bool>,
}

/// Where and in which numbers a model runs.
#[derive(Clone, Debug)]
pub struct Placement {
    pub device: Device,
    pub precision: Precision,
    /// A PEFT folder whose low-rank adapter is attached.
    pub adapter: Option<PathBuf>,
    /// Fields of `config.json` that the user vouches for.
    pub ignore_fields: Vec<String>,
}

/// One text as the model reads it.
#[derive(Clone, Debug, PartialEq)]
pub struct Text {
    pub ids: Vec<u32>,
    /// Tokens of the prompt at its head that the pooling leaves out.
    pub skip: usize,
}

/// Text to ids: everything before the model, shared by all callers.
pub struct Reader {
    tokenizer: Tokenizer,
    plain: Prompt,
    query: Prompt,
    item: Prompt,
}

/// What stands before a text, and how many of its tokens the pooling leaves out.
struct Prompt {
    text: String,
    skip: usize,
}

impl Reader {
    /// The tokenizer of a folder, cut to what the model has positions for.
    fn of(transformer: &Path, architecture: &Architecture, recipe: &mut Recipe, overrides: &Overrides) -> Result<Self> {
        let longest = architecture.max_tokens();
        // a folder's own limit is often a default of its tokenizer; a user's is meant
        let max_tokens = overrides.max_tokens.unwrap_or(recipe.max_tokens.unwrap_or(longest).min(longest));
        if max_tokens > longest {
            let problem = format!("is {max_tokens}, but the model has positions for {longest}");
            return Err(Error::config("max_tokens", problem));
        }
        let mut tokenizer = Tokenizer::open(transformer)?;
        tokenizer.check_fits(architecture.vocab())?;
        tokenizer.shape(max_tokens, recipe.lowercase)?;
        recipe.max_tokens = Some(max_tokens);
        Self::new(tokenizer, recipe)
    }

    fn new(tokenizer: Tokenizer, recipe: &Recipe) -> Result<Self> {
        let prompt = |kind| -> Result<Prompt> {
            let text = recipe.prompts.of(kind).to_string();
            let counts = recipe.include_prompt || text.is_empty();
            let skip = if counts { 0 } else { tokenizer.prompt_length(&text)? };
            Ok(Prompt { text, skip })
        };
        let (plain, query, item) = (prompt(None)?, prompt(Some(TextKind::Query))?, prompt(Some(TextKind::Item))?);
        Ok(Self { tokenizer, plain, query, item })
    }

    /// Without a kind, the model's default prompt holds.
    pub fn read(&self, text: &str, kind: Option<TextKind>) -> Result<Text> {
        let prompt = self.prompt(kind);
        let ids = match prompt.text.as_str() {
            "" => self.tokenizer.encode(text)?,
            before => self.tokenizer.encode(&format!("{before}{text}"))?,
        };
        if ids.is_empty() {
            return Err(Error::input("the text has no tokens: this model's tokenizer adds none to an empty text"));
        }
        Ok(Text { ids, skip: prompt.skip })
    }

    /// Whether a text is too long to be read whole.
    pub fn cuts(&self, text: &str, kind: Option<TextKind>) -> Result<bool> {
        self.tokenizer.cuts(&format!("{}{text}", self.prompt(kind).text))
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
    /// Gone once frozen.
    parameters: Option<Parameters>,
    reader: Arc<Reader>,
    recipe: Recipe,
    overrides: Overrides,
    placement: Placement,
    dir: PathBuf,
}

impl Encoder {
    /// Opens a hub or sentence-transformers folder, ready to be trained or exported.
    pub fn open(dir: &Path, placement: Placement, overrides: Overrides) -> Result<Self> {
        let transformer = transformer_dir(dir)?;
        let architecture = Architecture::open(&transformer.join("config.json"), &placement.ignore_fields)?;
        let mut recipe = Recipe::read(dir, &placement.ignore_fields)?;
        recipe.pooling = overrides.pooling.unwrap_or(recipe.pooling);
        recipe.normalize = overrides.normalize.unwrap_or(recipe.normalize);
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
                let problem = format!("takes {inputs} entries, but is given {width}");
                return Err(Error::config(self.dir.display(), format!("Dense module {} {problem}", i + 1)));
            }
            width = dense.weight.size()[0];
        }
        match self.overrides.dimensions {
            Some(n) if n < 1 || n > width => {
                Err(Error::config("dimensions", format!("is {n}, but a vector of this model has {width} entries")))
            }
            _ => Ok(()),
        }
    }

    /// For an index: vectors whose product is what the model's are compared by.
    pub fn for_search(mut self) -> Result<Self> {
        match self.recipe.similarity.as_deref() {
            None | Some("cosine") => self.recipe.normalize = true,
            Some("dot" | "dot_product") => {}
            Some(other) => {
                let problem = format!("compares vectors by `{other}`: an index knows cosine and dot");
                return Err(Error::config(self.dir.join(folder::SETTINGS).display(), problem));
            }
        }
        Ok(self)
    }

    /// Gives up training for speed: packs the weights where the CPU has a packed form for them.
    pub fn freeze(mut self) -> Result<Self> {
        if self.placement.device == Device::Cpu && self.placement.precision != Precision::Bf16 {
            Lora::merge(&mut self.backbone);
            self.parameters = None;
            self.backbone.freeze(self.placement.precision)?;
        } else if self.placement.precision == Precision::Int8 {
            return Err(Error::config(
                "precision",
                "int8 runs on the CPU only: give --device cpu, or use bf16 on the GPU",
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

    /// Entries of a vector.
    pub fn dimensions(&self) -> i64 {
        let last = self.recipe.dense.last().map(|dense| dense.weight.size()[0]);
        self.overrides.dimensions.or(last).unwrap_or_else(|| self.architecture.width())
    }

    /// Vectors `[b, d]` in f32, on the model's device.
    pub fn encode(&self, texts: &[&Text]) -> Result<Tensor> {
        self.pass(texts, false)
    }

    fn pass(&self, texts: &[&Text], train: bool) -> Result<Tensor> {
        let ids: Vec<&[u32]> = texts.iter().map(|text| text.ids.as_slice()).collect();
        let tokens = Tokens::packed(&ids, self.placement.device)?;
        let skip_layers = usize::from(self.recipe.pooling == Pooling::PenultimateMean);
        let pass = Pass { causal: self.overrides.causal, skip_layers, train, ..Pass::default() };
        let states = self.backbone.forward(&tokens, pass)?;
        let Layout::Packed { starts } = &tokens.layout else {
            return Err(Error::device("an encoder packs its tokens"));
        };
        let skip: Vec<i64> = texts.iter().map(|text| text.skip as i64).collect();
        let mut vectors = self.recipe.pooling.pool(&states, &Spans { starts, skip: &skip })?;
        for dense in &self.recipe.dense {
            vectors = dense.apply(&vectors);
        }
        if self.recipe.normalize {
            vectors = unit(&vectors);
        }
        Ok(match self.overrides.dimensions {
            Some(dimensions) => unit(&vectors.narrow(1, 0, dimensions)),
            None => vectors,
        })
    }

    /// As `encode`, without a graph, one `Vec` per text.
    pub fn vectors(&self, texts: &[&Text]) -> Result<Vec<Vec<f32>>> {
        let _guard = tch::no_grad_guard();
        let vectors = self.encode(texts)?.to_device(Device::Cpu).to_kind(Kind::Float).contiguous();
        let width = vectors.size()[1] as usize;
        let mut flat = vec![0_f32; texts.len() * width];
        vectors.f_copy_data(&mut flat, texts.len() * width)?;
        if flat.iter().any(|x| !x.is_finite()) {
            return Err(Error::device(
                "the model gives vectors that are not finite: its weights or config.json are broken",
            ));
        }
        Ok(flat.chunks_exact(width).map(<[f32]>::to_vec).collect())
    }
}

/// L2-normalised, as sentence-transformers does it (a zero vector stays zero).
pub fn unit(x: &Tensor) -> Tensor {
    let norm = x.square().sum_dim_intlist(1, true, Kind::Float).sqrt().clamp_min(1e-12);
    x / norm
}
