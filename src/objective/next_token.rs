//! Language modelling: −log π of every next token, averaged over tokens. Makes small decoders from nothing writers of catalogue text,
//! as what GRACE and GIRCSE begin with; and says, of items kept aside, how well a model still writes (perplexity).

use serde::{Deserialize, Serialize};

use super::{Needs, ObjectiveSettings};
use souk_io::error::{Error, Result};

/// Settings of language modelling.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NextTokenSettings {
    /// What is written behind an item's text, and by turns behind a query that it answers (or its title, where `train.pairs` is
    /// `items`), of an encoder with rationales: fields of the item, or its `title`, as `brand: Souk, colour: red`. None: the text alone.
    pub answer: Vec<String>,
    /// The share of items that is never learned from.
    pub held_out: f64,
}

impl Default for NextTokenSettings {
    fn default() -> Self {
        Self { answer: Vec::new(), held_out: 0.05 }
    }
}

impl ObjectiveSettings for NextTokenSettings {
    fn check(&self, _: i64) -> Result<()> {
        match self.held_out >= 0.0 && self.held_out < 1.0 {
            true => Ok(()),
            false => {
                let problem = format!("is {}: use a fraction from 0 to less than 1", self.held_out);
                Err(Error::config("objective.held_out", problem))
            }
        }
    }

    fn needs(&self) -> Needs {
        // an answer stands behind a text that is left open for one
        Needs { next_tokens: true, rationales: !self.answer.is_empty(), ..Needs::default() }
    }
}
