//! GRACE (eq. 1 to 3): the model first writes what it makes of a text, and the vector is the mean over text and rationale, the
//! instruction before them left out. What is written is the likeliest, so that a vector is a function of its text.

use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use super::{Encoder, Text};
use crate::backbone::{Continuation, Pass, Sampling, Tokens};
use souk_io::error::{Error, Result};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rationale {
    /// What the model is told to do with every text; by default what the folder says, or nothing.
    pub instruction: Option<String>,
    /// Tokens of a rationale, at most; by default what the folder says, or 64. 0: none, as if the folder said nothing of one.
    pub max_tokens: Option<usize>,
}

const USUAL_TOKENS: usize = 64;

impl Rationale {
    /// What is said, and what was said before where nothing is.
    pub(super) fn over(self, before: Option<Self>) -> Self {
        let before = before.unwrap_or_default();
        Self { instruction: self.instruction.or(before.instruction), max_tokens: self.max_tokens.or(before.max_tokens) }
    }

    pub(super) fn instruction(&self) -> &str {
        self.instruction.as_deref().unwrap_or_default()
    }

    pub(super) fn most(&self) -> usize {
        self.max_tokens.unwrap_or(USUAL_TOKENS)
    }
}

impl Encoder {
    /// Refuses what cannot learn to write; and, where `before` it encodes, what does not write then.
    pub fn check_writes(&self, before: bool) -> Result<()> {
        self.backbone.check_writes()?;
        if before && self.recipe.rationale.is_none() {
            let problem = "is not set: say what is to be written of a text, such as encoder.rationale.max_tokens=64";
            return Err(Error::config("encoder.rationale", problem));
        }
        match before && self.reader.ends.is_empty() {
            true => {
                let problem = "no token is said to end an answer: name one as eos_token in tokenizer_config.json";
                Err(Error::config(self.dir.display(), problem))
            }
            false => Ok(()),
        }
    }

    /// Tokens of a rationale, at most; 0 where none is written.
    pub fn max_written(&self) -> usize {
        self.recipe.rationale.as_ref().map_or(0, Rationale::most)
    }

    /// Tokens have numbers below this.
    pub fn vocab(&self) -> usize {
        self.architecture.vocab()
    }

    /// `each` continuations of every text, those of one text side by side.
    pub fn write(&self, texts: &[&Text], each: usize, how: &Sampling) -> Result<Vec<Continuation>> {
        let ids: Vec<&[u32]> = texts.iter().map(|text| text.ids.as_slice()).collect();
        how.run(&self.backbone, &ids, each, &self.reader.ends)
    }

    /// The rationale of each text, in words, and the vector that comes of both.
    pub fn explain(&self, texts: &[&Text]) -> Result<Vec<(String, Vec<f32>)>> {
        let problem = "this model writes nothing before it encodes: only one with `encoder.rationale` does";
        let rationale = self.recipe.rationale.as_ref().ok_or_else(|| Error::input(problem))?;
        let whole = self.with_rationales(rationale, texts)?;
        let words = texts.iter().zip(&whole).map(|(text, whole)| self.reader.words(&whole.ids[text.ids.len()..]));
        let words = words.collect::<Result<Vec<_>>>()?;
        let vectors = {
            let _guard = tch::no_grad_guard();
            self.rows(&self.encode_written(&whole.iter().collect::<Vec<_>>())?)?
        };
        Ok(words.into_iter().zip(vectors).collect())
    }

    /// Texts with the likeliest rationale behind each.
    pub(super) fn with_rationales(&self, rationale: &Rationale, texts: &[&Text]) -> Result<Vec<Text>> {
        let written = self.write(texts, 1, &Sampling::greedy(rationale.most()))?;
        Ok(texts.iter().zip(&written).map(|(text, written)| text.followed_by(&written.ids)).collect())
    }

    /// Vectors `[b, d]` of texts that end with their rationales.
    pub fn encode_written(&self, texts: &[&Text]) -> Result<Tensor> {
        Ok(self.finish(self.pooled(texts, false)?))
    }

    /// The log-probability `[t]` of every token behind the first `prompt` ones of each text, one text after the other.
    pub fn log_probs(&self, texts: &[(&[u32], usize)], temperature: f64, train: bool) -> Result<Tensor> {
        let ids: Vec<&[u32]> = texts.iter().map(|(ids, _)| *ids).collect();
        let tokens = Tokens::packed(&ids, self.placement.device)?;
        let states = self.backbone.forward(&tokens, Pass { train, ..Pass::default() })?;
        let (mut places, mut wanted, mut start) = (Vec::new(), Vec::new(), 0);
        for (ids, prompt) in texts {
            if *prompt == 0 {
                return Err(Error::input("a text without a prompt has a first token that nothing was asked for"));
            }
            // a state says what comes after it
            places.extend((*prompt..ids.len()).map(|at| (start + at - 1) as i64));
            wanted.extend(ids[*prompt..].iter().map(|id| i64::from(*id)));
            start += ids.len();
        }
        let device = self.placement.device;
        let (places, wanted) =
            (Tensor::from_slice(&places).to_device(device), Tensor::from_slice(&wanted).to_device(device));
        let logits = self.backbone.logits(&states.index_select(0, &places))?.to_kind(Kind::Float) / temperature;
        Ok(logits.log_softmax(-1, Kind::Float).gather(1, &wanted.unsqueeze(1), false).squeeze_dim(1))
    }
}

impl Text {
    /// The same, and more behind it.
    pub fn followed_by(&self, ids: &[u32]) -> Self {
        Self { ids: self.ids.iter().chain(ids).copied().collect(), skip: self.skip }
    }
}
