//! Strength of an event as evidence for its item: the action's weight, corrected for position bias.
//!
//! `strength = weight(action) · min(1 / p(position), cap)` with the examination probability `p(k) = k^-η`
//! (clipped inverse propensity weights; Joachims, Swaminathan and Schnabel 2017, section 4).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use souk_io::error::{Error, Result};
use souk_io::ubi::Action;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Strength {
    /// Weight of a click.
    pub click: f32,
    /// Weight of an item put into the cart.
    pub add_to_cart: f32,
    /// Weight of a purchase.
    pub purchase: f32,
    /// η: 0 disables the correction; with 1, position 10 is assumed to be examined a tenth as often as position 1.
    pub position_bias: f32,
    /// Upper bound of the position's factor.
    pub cap: f32,
    /// Number of the first position in the log.
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
            let problem = "weights and position_bias must be 0 or more, and cap 1 or more";
            return Err(Error::config("ingest.strength", problem));
        }
        Ok(())
    }

    /// Strength of an event. Without a position there is no correction.
    pub fn of_event(&self, action: Action, position: Option<u32>) -> f32 {
        let weight = match action {
            Action::Impression => 0.0,
            Action::Click => self.click,
            Action::AddToCart => self.add_to_cart,
            Action::Purchase => self.purchase,
        };
        let rank = position.map_or(1, |position| position.saturating_sub(self.first_position).saturating_add(1));
        weight * (rank as f32).powf(self.position_bias).min(self.cap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deep_clicks_count_more_up_to_the_cap() {
        let strength = Strength::default();
        assert_eq!(strength.of_event(Action::Click, Some(1)), 1.0);
        assert_eq!(strength.of_event(Action::Click, Some(4)), 4.0);
        assert_eq!(strength.of_event(Action::Purchase, Some(500)), 40.0);
        assert_eq!(strength.of_event(Action::AddToCart, None), 2.0);
        assert_eq!(strength.of_event(Action::Impression, Some(3)), 0.0);
        let from_zero = Strength { first_position: 0, position_bias: 0.5, ..Strength::default() };
        assert_eq!(from_zero.of_event(Action::Click, Some(3)), 2.0);
        assert_eq!(
            Strength::default().of_event(Action::Click, Some(0)),
            1.0,
            "a log that counts from 0 despite the setting"
        );
    }

    #[test]
    fn rejects_invalid_weights() {
        assert!(Strength { click: f32::NAN, ..Strength::default() }.check().is_err());
        assert!(Strength { cap: 0.5, ..Strength::default() }.check().is_err());
        assert!(Strength::default().check().is_ok());
    }
}
