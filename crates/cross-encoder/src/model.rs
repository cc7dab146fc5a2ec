//! The cross-encoder: backbone, pooling, head and grading. Batches are packed without padding, so a verdict depends on the pair
//! and the model only.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use tch::{Device, Kind, Tensor};

use super::head::{Grading, Head, HeadFamily, HeadShape, Loss};
use super::manifest::{CrossEncoderManifest, MANIFEST, fingerprint};
use super::reader::{PairReader, PairText};
use super::reading::Reading;
use souk_io::error::{Error, Result};
use souk_io::item_text::ItemText;
use souk_io::telemetry::{RELEVANCE, WorkerMetrics};
use souk_nn::backbone::tokenizer::Tokenizer;
use souk_nn::backbone::weights::Parameters;
use souk_nn::backbone::{Architecture, Backbone, ForwardPass, Layout, Precision, Tokens};
use souk_nn::encoder::{Placement, transformer_dir};
use souk_nn::worker::Model;
use souk_reward::Verdict;

/// Default maximum tokens of a pair.
const USUAL_TOKENS: usize = 512;
/// Next-token head; a judge does not need it.
const VOCABULARY: &str = "lm_head.weight";
/// Usual difference between a score in int8 and in f32, for a model whose manifest has none.
const USUAL_INT8_ERROR: f64 = 0.01;
/// Digits of the content hash in a model's name.
const NAME_DIGITS: usize = 12;

/// Architecture of a new cross-encoder.
#[derive(Clone, Debug, Default)]
pub struct EncoderShape {
    pub loss: Loss,
    pub pooling: Option<Reading>,
    pub num_layers: Option<usize>,
    pub max_tokens: Option<usize>,
    /// Seed of the head's initial weights.
    pub seed: u64,
}

pub struct CrossEncoder {
    backbone: Backbone,
    pub(super) architecture: Architecture,
    head: Head,
    pooling: Reading,
    pub(super) reader: Arc<PairReader>,
    pub(super) grading: Grading,
    /// All weights by name; none once frozen.
    pub(super) named: Option<BTreeMap<String, Tensor>>,
    placement: Placement,
    max_tokens: usize,
    item_text: ItemText,
    /// Trained by `souk relevance train`. Other cross-encoders order items, but their levels mean nothing.
    is_calibrated: bool,
    id: String,
    /// In int8: the same model in f32, which judges the pairs whose score is near a threshold.
    exact: Option<Box<Self>>,
    /// Distance from a threshold below which a score in int8 is near it.
    int8_error: f64,
}

impl CrossEncoder {
    /// Builds a fresh head on any model folder.
    pub fn begin(base: &Path, placement: Placement, shape: &EncoderShape) -> Result<Self> {
        let dir = transformer_dir(base)?;
        let whole = Architecture::open(&dir.join("config.json"), &placement.ignore_fields)?;
        let architecture = match shape.num_layers {
            Some(layers) if layers == 0 || layers > whole.num_layers() => {
                let problem = format!("is {layers}, and the model has {}: use 1 to that", whole.num_layers());
                return Err(Error::config("relevance.num_layers", problem));
            }
            Some(layers) => whole.truncate_layers(layers, &placement.ignore_fields)?,
            None => whole.clone(),
        };
        let usual = if architecture.is_decoder() { Reading::LastToken } else { Reading::Cls };
        let pooling = shape.pooling.unwrap_or(usual);
        let max_tokens = shape.max_tokens.unwrap_or(USUAL_TOKENS).min(architecture.max_tokens());
        let mut tokenizer = Tokenizer::open(&dir)?;
        tokenizer.disable_truncation()?;
        tokenizer.add_pair_template()?;
        let mut weights = Parameters::open(&dir, placement.device, placement.precision.kind())?;
        let mut seeded = Parameters::seeded(shape.seed, placement.device, placement.precision.kind());
        let parts = ModelParts { architecture, tokenizer, pooling, max_tokens, loss: shape.loss, placement };
        let others = (parts.architecture.num_layers()..whole.num_layers())
            .flat_map(|layer| [format!("layer.{layer}."), format!("layers.{layer}.")]);
        let others = others.collect::<Vec<_>>();
        let mut model = parts.build(&mut weights, Some(&mut seeded), &others)?;
        model.id = "untrained".into();
        Ok(model)
    }

    /// Loads a folder written by `souk relevance train`, or an encoder for sequence classification with one label, as the hub has
    /// them.
    pub fn open(dir: &Path, placement: Placement) -> Result<Self> {
        let architecture = Architecture::open(&dir.join("config.json"), &placement.ignore_fields)?;
        let is_calibrated = dir.join(MANIFEST).exists() || !is_ranking(&architecture);
        let trained = is_calibrated.then(|| CrossEncoderManifest::open(dir)).transpose()?;
        let usual = || CrossEncoderManifest::uncalibrated(USUAL_TOKENS.min(architecture.max_tokens()));
        let manifest = trained.unwrap_or_else(usual);
        let mut tokenizer = Tokenizer::open(dir)?;
        let mut weights = Parameters::open(dir, placement.device, placement.precision.kind())?;
        if !is_calibrated {
            tokenizer.add_pair_template()?;
            let output = format!("{}.weight", HeadFamily::of(&architecture).output());
            if !weights.has(&output) {
                return Err(Error::weights(dir, format!("tensor `{output}` is missing: this is no cross-encoder")));
            }
        }
        // a cross-encoder of the hub has no cutpoints
        let mut others = (!is_calibrated).then(|| Parameters::seeded(0, placement.device, placement.precision.kind()));
        let CrossEncoderManifest { pooling, max_tokens, loss, int8_error, .. } = manifest;
        let parts = ModelParts { architecture, tokenizer, pooling, max_tokens, loss, placement };
        let mut model = parts.build(&mut weights, others.as_mut(), &[])?;
        model.is_calibrated = is_calibrated;
        model.grading = manifest.grading(model.head.cutpoints()?);
        model.item_text = manifest.item_text;
        if model.placement.precision == Precision::Int8 {
            let placement = Placement { precision: Precision::F32, ..model.placement.clone() };
            model.exact = Some(Box::new(Self::open(dir, placement)?));
            model.int8_error = int8_error.unwrap_or(USUAL_INT8_ERROR);
        }
        let name = dir.canonicalize().ok().and_then(|dir| Some(dir.file_name()?.to_string_lossy().into_owned()));
        let short: String = fingerprint(dir)?.chars().take(NAME_DIGITS).collect();
        model.id = format!("{}-{short}", name.unwrap_or_else(|| "relevance".into()));
        Ok(model)
    }

    /// Without the copy in f32 that judges pairs near a threshold.
    pub(super) fn without_exact(mut self) -> Self {
        self.exact = None;
        self
    }

    /// An error if the model, in the folder `dir`, was trained on texts of another template.
    pub fn check_item_text(&self, dir: &Path, item_text: &ItemText) -> Result<()> {
        if self.item_text == *item_text || !self.is_calibrated {
            return Ok(());
        }
        let problem = format!(
            "was trained on items as `{}`, but is asked about items as `{item_text}`: set encoder.item_text to the former, or \
             train the relevance model again with the latter",
            self.item_text
        );
        Err(Error::config(dir.display(), problem))
    }

    /// Whether its levels mean something.
    pub fn is_calibrated(&self) -> bool {
        self.is_calibrated
    }

    /// An error for a cross-encoder, in the folder `dir`, whose levels mean nothing.
    pub fn check_calibrated(&self, dir: &Path) -> Result<()> {
        if self.is_calibrated {
            return Ok(());
        }
        let problem = "has no calibrated levels, so it can rerank, but not judge: train it on judgements first, with `souk relevance \
                       train --model` and this folder";
        Err(Error::config(dir.display(), problem))
    }

    /// Freezes the model for inference: packs weights where the CPU has a packed format.
    pub fn freeze(mut self) -> Result<Self> {
        let Placement { device, precision, .. } = self.placement;
        self.named = None;
        if device == Device::Cpu && precision != Precision::Bf16 {
            self.backbone.freeze(precision)?;
        } else if precision == Precision::Int8 {
            let problem = "int8 runs on the CPU only: give --device cpu, or use bf16 on the GPU";
            return Err(Error::config("precision", problem));
        }
        self.exact = self.exact.map(|exact| exact.freeze().map(Box::new)).transpose()?;
        Ok(self)
    }

    /// Folder name and content hash.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Template of the items' texts that the model was trained on.
    pub fn item_text(&self) -> &ItemText {
        &self.item_text
    }

    pub fn reader(&self) -> Arc<PairReader> {
        self.reader.clone()
    }

    pub fn grading(&self) -> &Grading {
        &self.grading
    }

    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    pub(super) fn placement(&self) -> &Placement {
        &self.placement
    }

    pub fn device(&self) -> Device {
        self.placement.device
    }

    /// Current manifest.
    pub(super) fn manifest(&self) -> CrossEncoderManifest {
        CrossEncoderManifest::new(&self.grading, self.pooling, self.max_tokens)
    }

    /// Copies the trained cutpoints into the grading.
    pub(super) fn read_cutpoints(&mut self) -> Result<()> {
        self.grading = Grading::plain(self.head.kind_of_loss(), self.head.cutpoints()?);
        Ok(())
    }

    /// All weights by name, with gradients enabled.
    pub fn trainable(&self) -> Result<Vec<(String, Tensor)>> {
        let named = self.named.as_ref().ok_or_else(|| Error::input("a frozen model cannot be trained"))?;
        Ok(named.iter().map(|(name, tensor)| (name.clone(), tensor.set_requires_grad(true))).collect())
    }

    /// Outputs `[b, o]` in f32, on the model's device.
    pub fn outputs(&self, pairs: &[&PairText], dropout: bool) -> Result<Tensor> {
        let ids: Vec<&[u32]> = pairs.iter().map(|pair| pair.ids.as_slice()).collect();
        let mut tokens = Tokens::packed(&ids, self.placement.device)?;
        if self.architecture.num_token_types() > 1 {
            let types: Vec<i64> = pairs.iter().flat_map(|pair| pair.types.iter().copied()).collect();
            tokens = tokens.with_types(&types)?;
        }
        let Layout::Packed { starts } = &tokens.layout else {
            return Err(Error::device("a relevance model packs its tokens"));
        };
        let states = |rows: Option<&Tensor>| {
            self.backbone.forward(&tokens, ForwardPass { train: dropout, rows, ..ForwardPass::default() })
        };
        Ok(self.head.outputs(&self.pooling.pool(starts, pairs, self.placement.device, states)?))
    }

    /// Mean loss of `outputs` for known levels, counted from 0.
    pub fn loss(&self, outputs: &Tensor, levels: &[i64]) -> Tensor {
        self.head.loss(outputs, &Tensor::from_slice(levels).to_device(self.placement.device))
    }

    /// Like `outputs`, without a graph; one `Vec` per pair.
    pub fn outputs_of(&self, pairs: &[&PairText]) -> Result<Vec<Vec<f32>>> {
        let _guard = tch::no_grad_guard();
        let outputs = self.outputs(pairs, false)?.to_device(Device::Cpu).to_kind(Kind::Float).contiguous();
        let width = outputs.size()[1] as usize;
        let mut flat = vec![0_f32; pairs.len() * width];
        outputs.f_copy_data(&mut flat, pairs.len() * width)?;
        if flat.iter().any(|x| !x.is_finite()) {
            let problem = "the relevance model's outputs are not finite: its weights or config.json are broken";
            return Err(Error::device(problem));
        }
        Ok(flat.chunks_exact(width).map(<[f32]>::to_vec).collect())
    }

    /// Like `outputs_of`, but in int8, pairs near a threshold are computed again in f32.
    fn graded_outputs(&self, pairs: &[&PairText]) -> Result<Vec<Vec<f32>>> {
        let mut outputs = self.outputs_of(pairs)?;
        let Some(exact) = &self.exact else { return Ok(outputs) };
        let unsure =
            |place: &usize| self.grading.is_near_threshold(self.grading.score(&outputs[*place]), self.int8_error);
        let places: Vec<usize> = (0..pairs.len()).filter(unsure).collect();
        if !places.is_empty() {
            let again: Vec<&PairText> = places.iter().map(|place| pairs[*place]).collect();
            for (place, output) in places.into_iter().zip(exact.outputs_of(&again)?) {
                outputs[place] = output;
            }
        }
        Ok(outputs)
    }
}

impl Model for CrossEncoder {
    type Input = PairText;
    type Output = Verdict;
    const NAME: &'static str = "relevance model";

    fn num_tokens(pair: &PairText) -> usize {
        pair.ids.len()
    }

    fn run(&self, pairs: &[&PairText]) -> Result<Vec<Verdict>> {
        Ok(self.graded_outputs(pairs)?.iter().map(|outputs| self.grading.verdict(outputs)).collect())
    }

    fn metrics() -> &'static WorkerMetrics {
        &RELEVANCE
    }

    fn device(&self) -> Device {
        Self::device(self)
    }
}

/// Whether a model is a cross-encoder for ranking as sentence-transformers writes it.
fn is_ranking(architecture: &Architecture) -> bool {
    let (json, class) = (architecture.json(), architecture.class_names().class);
    let labels = json["id2label"].as_object().map(|labels| labels.len() as u64).or_else(|| json["num_labels"].as_u64());
    let classifies = json["architectures"][0] == format!("{class}ForSequenceClassification").as_str();
    let has_head = matches!(HeadFamily::of(architecture), HeadFamily::Bert | HeadFamily::Roberta);
    classifies && has_head && labels == Some(1)
}

/// Parts of a model.
struct ModelParts {
    architecture: Architecture,
    tokenizer: Tokenizer,
    pooling: Reading,
    max_tokens: usize,
    loss: Loss,
    placement: Placement,
}

impl ModelParts {
    /// `fresh` initialises a head that `weights` do not have. `others` are parts of tensor names that may remain unused.
    fn build(
        self,
        weights: &mut Parameters,
        fresh: Option<&mut Parameters>,
        others: &[String],
    ) -> Result<CrossEncoder> {
        let Self { architecture, tokenizer, pooling, max_tokens, loss, placement } = self;
        if placement.adapter.is_some() {
            let problem = "a relevance model takes no adapter: merge it first, with souk export";
            return Err(Error::config("model.adapter", problem));
        }
        let reader = PairReader::new(tokenizer, &architecture, max_tokens)?;
        let others: Vec<String> =
            HeadShape::TENSORS.iter().map(ToString::to_string).chain(others.iter().cloned()).collect();
        let backbone = Backbone::build_beside(&architecture, weights, &others)?;
        let prefix = architecture.class_names().prefix;
        let prefix = if weights.named().keys().any(|name| name.starts_with(prefix)) { prefix } else { "" };
        let (width, family) = (architecture.width(), HeadFamily::of(&architecture));
        let shape = HeadShape { loss, width, family, pooling, prefix: prefix.into() };
        let (mut fresh, grading) = (fresh, Grading::plain(loss, [0.0; 3]));
        let head = Head::build(&shape, weights, fresh.as_deref_mut())?;
        let all = weights.named().iter().chain(fresh.iter().flat_map(|fresh| fresh.named()));
        let named = all.filter(|(name, _)| name.as_str() != VOCABULARY);
        let named = Some(named.map(|(name, tensor)| (name.clone(), tensor.shallow_clone())).collect());
        let (reader, id) = (Arc::new(reader), String::new());
        Ok(CrossEncoder {
            backbone,
            architecture,
            head,
            pooling,
            reader,
            grading,
            named,
            placement,
            max_tokens,
            item_text: ItemText::default(),
            is_calibrated: true,
            id,
            exact: None,
            int8_error: 0.0,
        })
    }
}
