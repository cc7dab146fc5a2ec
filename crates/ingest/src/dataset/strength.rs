//! How much an event says for its item: what was done, corrected for how likely the item was to be looked at.
//!
//! `strength = weight(action) · min(1 / p(position), cap)` with the chance to be examined `p(k) = k^-η` (inverse propensity
//! weights, clipped; Joachims, Swaminathan and Schnabel 2017, section 4).

use serde::{Deserialize, Serialize};

use souk_io::error::{Error, Result};
use souk_io::ubi::Action;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Strength {
    pub click: f32,
    pub add_to_cart: f32,
    pub purchase: f32,
    /// η: 0 corrects nothing, 1 takes the tenth place to be looked at a tenth as often as the first.
    pub position_bias: f32,
    /// The most that a position can multiply by.
    pub cap: f32,
    /// How the log numbers the first place.
    pub first_position: u32,
}

impl Default for Strength {
    fn default() -> Self {
        Self { click: 1.0, add_to_cart: 2.0, purchase: 4.0, position_bias: 1.0, cap: 10.0, first_position: 1 }
    }
}

impl Strength {
    pub fn check(&self) -> Result<()> {
        let weights = [self.click, self.add_to_cart, self.purchase, self.position_bias];
        if weights.iter().any(|weight| !weight.is_finite() || *weight < 0.0) || !self.cap.is_finite() || self.cap < 1.0
        {
            let problem = "weights and position_bias must be numbers from 0 up, and cap from 1 up";
            return Err(Error::config("ingest.strength", problem));
        }
        Ok(())
    }

    /// An event without a position is not corrected.
    pub fn of(&self, action: Action, position: Option<u32>) -> f32 {
        let weight = match action {
            Action::Impression => 0.0,
            Action::Click => self.click,
            Action::AddToCart => self.add_to_cart,
            Action::Purchase => self.purchase,
        };
        let place = position.map_or(1, |position| position.saturating_sub(self.first_position).saturating_add(1));
        weight * (place as f32).powf(self.position_bias).min(self.cap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deep_click_counts_more_up_to_the_cap() {
        let strength = Strength::default();
        assert_eq!(strength.of(Action::Click, Some(1)), 1.0);
        assert_eq!(strength.of(Action::Click, Some(4)), 4.0);
        assert_eq!(strength.of(Action::Purchase, Some(500)), 40.0);
        assert_eq!(strength.of(Action::AddToCart, None), 2.0);
        assert_eq!(strength.of(Action::Impression, Some(3)), 0.0);
        let from_zero = Strength { first_position: 0, position_bias: 0.5, ..Strength::default() };
        assert_eq!(from_zero.of(Action::Click, Some(3)), 2.0);
        assert_eq!(Strength::default().of(Action::Click, Some(0)), 1.0, "a log that counts from 0 after all");
    }

    #[test]
    fn what_is_no_weight_is_refused() {
        assert!(Strength { click: f32::NAN, ..Strength::default() }.check().is_err());
        assert!(Strength { cap: 0.5, ..Strength::default() }.check().is_err());
        assert!(Strength::default().check().is_ok());
    }
}
