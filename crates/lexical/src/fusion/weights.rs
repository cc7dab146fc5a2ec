//! Settings of hybrid search: whether a search is hybrid, and how its channels are fused.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{FeatureWeights, ModelFusion};
use crate::Translations;
use souk_io::error::{Error, Result};

const MAX_WEIGHT: f32 = 1e6;
/// Parts of a hit's terms beside scores that are scaled by the channel's best (decision 0027).
const TERMS: FeatureWeights =
    FeatureWeights { dense: 0.0, lexical: 0.0, overlap: 0.5, trigrams: 0.7, missing_numbers: -0.2, translation: 0.0 };

/// Weights of the channels and of the terms. The default is both channels alone.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Weights {
    /// Weight of the cosine.
    pub dense: f32,
    /// Weight of BM25.
    pub lexical: f32,
    /// Weight of how well an item's text matches the query's terms, letters and numbers.
    pub terms: f32,
    /// Fuses ranks instead of scores. Higher values flatten the advantage of the first ranks; 60 is usual.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub constant: Option<f32>,
}

/// Whether a search is hybrid, and with which weights.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected true, false, or weights: {\"dense\": 1, \"lexical\": 1, \"terms\": 1}")]
pub enum Hybrid {
    /// True: with the weights that were fitted to the model, else with the default ones.
    Enabled(bool),
    /// Hybrid, with the given weights.
    Weighted(Weights),
}

/// How the hits of both channels become one list.
#[derive(Clone, Debug, PartialEq)]
pub enum Fusion {
    Weights(Weights),
    Fitted(ModelFusion),
}

impl Default for Weights {
    fn default() -> Self {
        Self { dense: 1.0, lexical: 1.0, terms: 0.0, constant: None }
    }
}

impl Default for Hybrid {
    fn default() -> Self {
        Self::Enabled(false)
    }
}

impl Default for Fusion {
    fn default() -> Self {
        Self::Weights(Weights { terms: 1.0, ..Weights::default() })
    }
}

impl Hybrid {
    /// None if the search is not hybrid. `fitted`: the weights that were fitted to the model.
    pub fn fusion(self, fitted: Option<ModelFusion>) -> Option<Fusion> {
        match self {
            Self::Enabled(false) => None,
            Self::Enabled(true) => Some(fitted.map_or_else(Fusion::default, Fusion::Fitted)),
            Self::Weighted(weights) => Some(Fusion::Weights(weights)),
        }
    }
}

impl Weights {
    pub fn check(&self) -> Result<()> {
        let is_valid = |x: f32| (0.0..=MAX_WEIGHT).contains(&x);
        let are_valid = [self.dense, self.lexical, self.terms].into_iter().chain(self.constant).all(is_valid);
        if self.terms > 0.0 && self.constant.is_some() {
            return Err(Error::input("terms cannot be added to ranks: leave out `terms` or `constant`"));
        }
        if are_valid && self.dense + self.lexical > 0.0 {
            return Ok(());
        }
        Err(Error::input(format!(
            "set weights and constant to 0 to {MAX_WEIGHT}, and dense or lexical above 0: got {}, {}, {}{}",
            self.dense,
            self.lexical,
            self.terms,
            self.constant.map_or_else(String::new, |constant| format!(", {constant}"))
        )))
    }
}

impl Fusion {
    pub fn check(&self) -> Result<()> {
        match self {
            Self::Weights(weights) => weights.check(),
            Self::Fitted(_) => Ok(()),
        }
    }

    /// Weights of the dense and of the lexical channel.
    pub fn channel_weights(&self) -> (f32, f32) {
        match self {
            Self::Weights(weights) => (weights.dense, weights.lexical),
            Self::Fitted(ModelFusion { weights, .. }) => (weights.dense, weights.lexical),
        }
    }

    /// Weights of a hit's terms; none if they count nothing.
    pub fn term_weights(&self) -> Option<FeatureWeights> {
        match self {
            Self::Weights(Weights { terms, .. }) => (*terms > 0.0).then(|| TERMS.scaled(*terms)),
            Self::Fitted(ModelFusion { weights, .. }) => Some(*weights),
        }
    }

    /// Translations that the terms of hits are compared with, besides the query; empty without fitted weights.
    pub fn translations(&self) -> Translations {
        match self {
            Self::Weights(_) => Translations::default(),
            Self::Fitted(ModelFusion { translations, .. }) => translations.clone(),
        }
    }

    /// The weights in words, for reports.
    pub fn describe(&self) -> String {
        match self {
            Self::Weights(Weights { dense, lexical, terms, constant }) => {
                let terms = if *terms > 0.0 { format!(", terms {terms}") } else { String::new() };
                let ranks = constant.map_or_else(String::new, |constant| format!("; ranks with constant {constant}"));
                format!("weights: dense {dense}, lexical {lexical}{terms}{ranks}")
            }
            Self::Fitted(ModelFusion { weights, .. }) => {
                let weights = weights.named().map(|(name, weight)| format!("{name} {weight}"));
                format!("fitted weights: {}", weights.join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_a_switch_or_weights() {
        let read = |text: &str| serde_json::from_str::<Hybrid>(text).map(|hybrid| hybrid.fusion(None));
        assert_eq!(read("false").unwrap(), None);
        assert_eq!(read("true").unwrap(), Some(Fusion::default()));
        let weights = |weights| Some(Fusion::Weights(weights));
        assert_eq!(read("{\"dense\": 1, \"lexical\": 1, \"terms\": 1}").unwrap(), Some(Fusion::default()));
        assert_eq!(read("{\"lexical\": 2}").unwrap(), weights(Weights { lexical: 2.0, ..Weights::default() }));
        let ranks = Weights { constant: Some(60.0), ..Weights::default() };
        assert_eq!(read("{\"constant\": 60}").unwrap(), weights(ranks));
        assert!(read("\"yes\"").unwrap_err().to_string().contains("expected true, false, or weights"));
    }

    #[test]
    fn fitted_weights_are_used_unless_weights_are_given() {
        let fitted = Some(ModelFusion::default());
        assert_eq!(Hybrid::Enabled(true).fusion(fitted.clone()), fitted.clone().map(Fusion::Fitted));
        let given = Hybrid::Weighted(Weights::default());
        assert_eq!(given.fusion(fitted.clone()), Some(Fusion::Weights(Weights::default())));
        assert_eq!(Hybrid::Enabled(false).fusion(fitted), None);
    }

    #[test]
    fn weights_must_be_positive() {
        assert!(Weights { dense: 0.0, lexical: 0.0, terms: 1.0, constant: None }.check().is_err());
        assert!(Weights { terms: 1.0, constant: Some(60.0), ..Weights::default() }.check().is_err());
        assert!(Weights { dense: f32::NAN, ..Weights::default() }.check().is_err());
        assert!(Weights { constant: Some(-1.0), ..Weights::default() }.check().is_err());
    }
}
