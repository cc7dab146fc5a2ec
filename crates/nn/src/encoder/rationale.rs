//! GRACE (eq. 1 to 3): the model generates a rationale for a text, and the vector is the mean over text and rationale,
//! without the instruction. Decoding is greedy, so the vector is a function of the text.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use super::{Encoder, Text};
use crate::backbone::{Continuation, ForwardPass, Sampling, Tokens};
use souk_io::error::{Error, Result};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Rationale {
    /// Instruction before every text. Default: the folder's, or none.
    pub instruction: Option<String>,
    /// Maximum tokens of a rationale. Default: the folder's, or 64. 0 disables rationales.
    pub max_tokens: Option<usize>,
}

const DEFAULT_MAX_TOKENS: usize = 64;

impl Rationale {
    /// Fills unset fields from other settings.
    pub(super) fn or(self, other: Option<Self>) -> Self {
        let other = other.unwrap_or_default();
        Self { instruction: self.instruction.or(other.instruction), max_tokens: self.max_tokens.or(other.max_tokens) }
    }

    pub(super) fn instruction(&self) -> &str {
        self.instruction.as_deref().unwrap_or_default()
    }

    pub(super) fn max_tokens(&self) -> usize {
        self.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS)
    }
}

impl Encoder {
    /// Returns an error if the model cannot generate or, with `needs_rationale`, is not configured to generate rationales.
    pub fn check_generates(&self, needs_rationale: bool) -> Result<()> {
        self.backbone.check_generates()?;
        if needs_rationale && self.recipe.rationale.is_none() {
            let problem = "is not set: configure a rationale, for example encoder.rationale.max_tokens=64";
            return Err(Error::config("encoder.rationale", problem));
        }
        if needs_rationale && self.reader.ends.is_empty() {
            let problem = "the model has no end token: set eos_token in tokenizer_config.json";
            return Err(Error::config(self.dir.display(), problem));
        }
        Ok(())
    }

    /// Maximum tokens of a rationale; 0 without rationales.
    pub fn max_rationale_tokens(&self) -> usize {
        self.recipe.rationale.as_ref().map_or(0, Rationale::max_tokens)
    }

    /// Vocabulary size: all token ids are below it.
    pub fn vocab(&self) -> usize {
        self.architecture.vocab()
    }

    /// Generates `each` continuations of every text, those of one text next to each other.
    pub fn generate(&self, texts: &[&Text], each: usize, sampling: &Sampling) -> Result<Vec<Continuation>> {
        let ids: Vec<&[u32]> = texts.iter().map(|text| text.ids.as_slice()).collect();
        sampling.run(&self.backbone, &ids, each, &self.reader.ends)
    }

    /// Rationale of each text, decoded, and the vector of both.
    pub fn explain(&self, texts: &[&Text]) -> Result<Vec<(String, Vec<f32>)>> {
        let problem = "this model generates no rationales: set `encoder.rationale`";
        let rationale = self.recipe.rationale.as_ref().ok_or_else(|| Error::input(problem))?;
        let whole = self.append_rationales(rationale, texts)?;
        let words = texts.iter().zip(&whole).map(|(text, whole)| self.reader.decode(&whole.ids[text.ids.len()..]));
        let words = words.collect::<Result<Vec<_>>>()?;
        let vectors = {
            let _guard = tch::no_grad_guard();
            self.rows(&self.encode_written(&whole.iter().collect::<Vec<_>>())?)?
        };
        Ok(words.into_iter().zip(vectors).collect())
    }

    /// Appends a greedily decoded rationale to each text.
    pub(super) fn append_rationales(&self, rationale: &Rationale, texts: &[&Text]) -> Result<Vec<Text>> {
        let written = self.generate(texts, 1, &Sampling::greedy(rationale.max_tokens()))?;
        Ok(texts.iter().zip(&written).map(|(text, written)| text.followed_by(&written.ids)).collect())
    }

    /// Vectors `[b, d]` of texts that already end with their rationales.
    pub fn encode_written(&self, texts: &[&Text]) -> Result<Tensor> {
        Ok(self.finish(self.pooled(texts, false)?, texts))
    }

    /// Log-probabilities `[t]` of all tokens after the prompt of each text, one text after the other; `texts` are ids with the
    /// number of prompt tokens.
    pub fn log_probs(&self, texts: &[(&[u32], usize)], temperature: f64, train: bool) -> Result<Tensor> {
        let ids: Vec<&[u32]> = texts.iter().map(|(ids, _)| *ids).collect();
        let tokens = Tokens::packed(&ids, self.placement.device)?;
        let (mut positions, mut targets, mut start) = (Vec::new(), Vec::new(), 0);
        for (ids, prompt) in texts {
            if *prompt == 0 {
                return Err(Error::input("log-probabilities need a prompt of at least one token"));
            }
            // the state of a token predicts the next one
            positions.extend((*prompt..ids.len()).map(|at| (start + at - 1) as i64));
            targets.extend(ids[*prompt..].iter().map(|id| i64::from(*id)));
            start += ids.len();
        }
        let device = self.placement.device;
        let (positions, targets) =
            (Tensor::from_slice(&positions).to_device(device), Tensor::from_slice(&targets).to_device(device));
        let pass = ForwardPass { train, rows: Some(&positions), ..ForwardPass::default() };
        let states = self.backbone.forward(&tokens, pass)?;
        let logits = self.backbone.logits(&states)?.to_kind(Kind::Float) / temperature;
        Ok(logits.log_softmax(-1, Kind::Float).gather(1, &targets.unsqueeze(1), false).squeeze_dim(1))
    }
}

impl Text {
    /// Appends token ids.
    pub fn followed_by(&self, ids: &[u32]) -> Self {
        Self { ids: self.ids.iter().chain(ids).copied().collect(), ..*self }
    }
}
