//! Language modelling: −log π of every next token, averaged over tokens. Turns a decoder initialised from scratch into a writer
//! of catalogue text, the starting point of GRACE and GIRCSE, and measures perplexity on held-out items.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Needs, ObjectiveSettings};
use souk_io::error::{Error, Result};

/// Settings of language modelling.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NextTokenSettings {
    /// Completion to learn after an item's text, and alternately after a query that it answers (or its title, if `train.pairs`
    /// is `items`), for an encoder with rationales: fields of the item, or its `title`, written as `brand: Souk, colour: red`.
    /// Empty: the text alone.
    pub answer: Vec<String>,
    /// Fraction of items that are held out.
    pub held_out: f64,
}

impl Default for NextTokenSettings {
    fn default() -> Self {
        Self { answer: Vec::new(), held_out: 0.05 }
    }
}

impl ObjectiveSettings for NextTokenSettings {
    fn check(&self, _: i64) -> Result<()> {
        if self.held_out >= 0.0 && self.held_out < 1.0 {
            Ok(())
        } else {
            let problem = format!("is {}: use a fraction from 0 to less than 1", self.held_out);
            Err(Error::config("objective.held_out", problem))
        }
    }

    fn needs(&self) -> Needs {
        // the answer follows a text without an end token
        Needs { next_tokens: true, rationales: !self.answer.is_empty(), ..Needs::default() }
    }
}
