//! Texts to vectors: tokens through the backbone, pooled, projected, cut to the wanted dimensions and normalised.
//! An embedding is a function of text, model and dimensions alone: batches are packed, so that no text ever meets
//! another's padding.

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
pub use self::rationale::Rationale;
pub use self::refine::Refine;
pub use self::scratch::Scratch;
pub use self::stream::encode;
pub use self::worker::{Reply, Worker};
use crate::backbone::chat::Chat;
use crate::backbone::lora::Lora;
use crate::backbone::tokenizer::Tokenizer;
use crate::backbone::weights::Parameters;
use crate::backbone::{Architecture, Backbone, Layout, Pass, Precision, Tokens};
pub use crate::worker::Limits;
use souk_io::domain::TextKind;
use souk_io::error::{Error, Result};

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
    /// A decoder attends in one direction, or in both: what the folder says of it otherwise (`is_causal`), or in one.
    pub causal: Option<bool>,
    /// Soft tokens after the text instead of a pooling: decoders only.
    // a model that has none keeps its fingerprint
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refine: Option<Refine>,
    /// The model writes what it makes of a text before that is pooled: decoders only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rationale: Option<Rationale>,
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
    /// Of a model that writes: what stands around a text, and how many tokens it may have.
    open: Option<(Chat, usize)>,
    /// What ends what it writes.
    ends: Vec<u32>,
}

/// What stands before a text, and how many of its tokens the pooling leaves out.
struct Prompt {
    text: String,
    skip: usize,
}

impl Reader {
    /// The tokenizer of a folder, cut to what the model has positions for.
    fn of(transformer: &Path, architecture: &Architecture, recipe: &mut Recipe, overrides: &Overrides) -> Result<Self> {
        // room for what comes behind the text
        let written = recipe.rationale.as_ref().map_or(0, Rationale::most);
        let soft = recipe.refine.map_or(0, Refine::num_steps);
        let longest = architecture.max_tokens().saturating_sub(written + soft);
        // a folder's own limit is often a default of its tokenizer; a user's is meant
        let max_tokens = overrides.max_tokens.unwrap_or(recipe.max_tokens.unwrap_or(longest).min(longest));
        if max_tokens > longest {
            let problem = format!("is {max_tokens}, but the model has positions for {longest} of a text");
            return Err(Error::config("max_tokens", problem));
        }
        let mut tokenizer = Tokenizer::open(transformer)?;
        tokenizer.check_fits(architecture.vocab())?;
        tokenizer.shape(max_tokens, recipe.lowercase)?;
        recipe.max_tokens = Some(max_tokens);
        let open = match &recipe.rationale {
            Some(rationale) => {
                tokenizer.uncut()?;
                Some((Chat::open(transformer, &tokenizer, rationale.instruction())?, max_tokens))
            }
            None => None,
        };
        let ends = match &open {
            Some((chat, _)) => chat.ends.clone(),
            None => Vec::new(),
        };
        Ok(Self { open, ends, ..Self::new(tokenizer, recipe)? })
    }

    fn new(tokenizer: Tokenizer, recipe: &Recipe) -> Result<Self> {
        let prompt = |kind| -> Result<Prompt> {
            let text = recipe.prompts.of(kind).to_string();
            let counts = recipe.include_prompt || text.is_empty();
            let skip = if counts { 0 } else { tokenizer.prompt_length(&text)? };
            Ok(Prompt { text, skip })
        };
        let (plain, query, item) = (prompt(None)?, prompt(Some(TextKind::Query))?, prompt(Some(TextKind::Item))?);
        Ok(Self { tokenizer, plain, query, item, open: None, ends: Vec::new() })
    }

    /// Without a kind, the model's default prompt holds.
    pub fn read(&self, text: &str, kind: Option<TextKind>) -> Result<Text> {
        let prompt = self.prompt(kind);
        if let Some((chat, most)) = &self.open {
            let whole = format!("{}{text}", prompt.text);
            let (ids, skip) = self.tokenizer.between((&chat.before, &chat.after), &whole, (chat.complete, *most))?;
            return Ok(Text { ids, skip });
        }
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
        let whole = format!("{}{text}", self.prompt(kind).text);
        match &self.open {
            Some((chat, most)) => {
                let around = (chat.before.as_str(), chat.after.as_str());
                Ok(self.tokenizer.between(around, &whole, (chat.complete, usize::MAX))?.0.len() > *most)
            }
            None => self.tokenizer.cuts(&whole),
        }
    }

    /// What ends what the model writes.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// What the model wrote, in words.
    pub fn words(&self, ids: &[u32]) -> Result<String> {
        self.tokenizer.decode(ids)
    }

    /// The tokens of a text as it stands in the midst of others.
    pub fn plain(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.tokenizer.between(("", ""), text, (true, usize::MAX))?.0)
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
        let architecture = Architecture::open(&transformer.join("config.json"), &placement.ignore_fields)?
            .attending(overrides.causal, &placement.ignore_fields)?;
        let mut recipe = Recipe::read(dir, &placement.ignore_fields)?;
        recipe.pooling = overrides.pooling.unwrap_or(recipe.pooling);
        recipe.normalize = overrides.normalize.unwrap_or(recipe.normalize);
        // of two ways to go on behind a text, what is said now replaces what the folder says
        let (refine, rationale) = (overrides.refine, overrides.rationale.clone());
        let (refined, told) = (recipe.refine.take(), recipe.rationale.take());
        recipe.refine = match refine {
            Some(refine) => Some(refine.over(refined)),
            None => refined.filter(|_| rationale.is_none()),
        };
        recipe.rationale = match rationale {
            Some(rationale) => Some(rationale.over(told)).filter(|rationale| rationale.most() > 0),
            None => told.filter(|_| refine.is_none()),
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
                let problem = format!("takes {inputs} entries, but is given {width}");
                return Err(Error::config(self.dir.display(), format!("Dense module {} {problem}", i + 1)));
            }
            width = dense.weight.size()[0];
        }
        if self.recipe.rationale.is_some() {
            self.backbone.check_writes()?;
            if self.recipe.refine.is_some() {
                let problem = "cannot be together with encoder.refine: say which of them";
                return Err(Error::config("encoder.rationale", problem));
            }
        }
        if let Some(refine) = self.recipe.refine {
            refine.check(&self.backbone)?;
        }
        match self.overrides.dimensions {
            Some(n) if n < 1 || n > width => {
                Err(Error::config("dimensions", format!("is {n}, but a vector of this model has {width} entries")))
            }
            _ => Ok(()),
        }
    }

    /// One that learns to refine its vectors, in as many steps as were said, or as it is usual.
    pub fn refining(mut self) -> Result<Self> {
        if self.recipe.refine.is_none() && self.recipe.rationale.is_some() {
            let problem = "is not set, and this model writes rationales: say encoder.refine.steps=5 to refine instead";
            return Err(Error::config("encoder.refine", problem));
        }
        self.recipe.refine.get_or_insert_default();
        self.check()?;
        Ok(self)
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
        let vectors = match (&self.recipe.rationale, self.recipe.refine) {
            (Some(rationale), _) => {
                let whole = self.with_rationales(rationale, texts)?;
                self.pooled(&whole.iter().collect::<Vec<_>>(), train)?
            }
            (None, Some(refine)) => self.refined(refine, texts, train)?.select(1, refine.num_steps() as i64 - 1),
            (None, None) => self.pooled(texts, train)?,
        };
        Ok(self.finish(vectors))
    }

    /// The vectors of all steps of a refined one, `[b, k, d]`, before they are projected.
    fn refined(&self, refine: Refine, texts: &[&Text], train: bool) -> Result<Tensor> {
        let ids: Vec<&[u32]> = texts.iter().map(|text| text.ids.as_slice()).collect();
        refine.vectors(&self.backbone, &ids, train)
    }

    /// One vector for each text from the states of its tokens.
    fn pooled(&self, texts: &[&Text], train: bool) -> Result<Tensor> {
        let ids: Vec<&[u32]> = texts.iter().map(|text| text.ids.as_slice()).collect();
        let tokens = Tokens::packed(&ids, self.placement.device)?;
        let skip_layers = usize::from(self.recipe.pooling == Pooling::PenultimateMean);
        let pass = Pass { skip_layers, train, ..Pass::default() };
        let states = self.backbone.forward(&tokens, pass)?;
        let Layout::Packed { starts } = &tokens.layout else {
            return Err(Error::device("an encoder packs its tokens"));
        };
        let skip: Vec<i64> = texts.iter().map(|text| text.skip as i64).collect();
        self.recipe.pooling.pool(&states, &Spans { starts, skip: &skip })
    }

    /// Rows as others see them: projected, normalised, cut.
    fn finish(&self, mut vectors: Tensor) -> Tensor {
        for dense in &self.recipe.dense {
            vectors = dense.apply(&vectors);
        }
        if self.recipe.normalize {
            vectors = unit(&vectors);
        }
        match self.overrides.dimensions {
            Some(dimensions) => unit(&vectors.narrow(1, 0, dimensions)),
            None => vectors,
        }
    }

    /// As `encode`, without a graph, one `Vec` per text.
    pub fn vectors(&self, texts: &[&Text]) -> Result<Vec<Vec<f32>>> {
        let _guard = tch::no_grad_guard();
        self.rows(&self.encode(texts)?)
    }

    /// Checked, one `Vec` per row.
    fn rows(&self, vectors: &Tensor) -> Result<Vec<Vec<f32>>> {
        let vectors = vectors.to_device(Device::Cpu).to_kind(Kind::Float).contiguous();
        let (num, width) = (vectors.size()[0] as usize, vectors.size()[1] as usize);
        let mut flat = vec![0_f32; num * width];
        vectors.f_copy_data(&mut flat, num * width)?;
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
