//! Sales figures of an item, and the quality computed from them: five levels from units, returns and ratings. Few ratings
//! are smoothed with a prior.

use super::dice::{Dice, STREAM_MAKERS, STREAM_SALES};

/// Sales figures of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sales {
    pub units: u32,
    pub returns: u32,
    pub num_ratings: u32,
    /// Sum of 1 to 5 stars.
    pub stars: u32,
}

/// Prior rating and return rate, and their weight in ratings and units.
const PRIOR_STARS: f64 = 4.0;
const PRIOR_RATINGS: f64 = 8.0;
const PRIOR_RETURN_RATE: f64 = 0.12;
const PRIOR_UNITS: f64 = 20.0;
/// Lower bounds of levels 1 to 4, chosen so that each level has a fair share of a catalogue.
const LEVEL_THRESHOLDS: [f64; 4] = [0.602, 0.635, 0.678, 0.745];

/// Maker of an item: brand and, if any, series within a category.
#[derive(Clone, Copy, Debug)]
pub struct Maker {
    pub brand: u16,
    pub category: u16,
    pub series: u8,
}

/// Weights of brand, series and item in the latent quality; their squares sum to 1.
const BRAND_WEIGHT: f64 = 0.7;
const SERIES_WEIGHT: f64 = 0.4;
const ITEM_WEIGHT: f64 = 0.59;

impl Maker {
    fn reputation(self, seed: u64) -> f64 {
        let Self { brand, category, series } = self;
        let of_brand = Dice::new(&[seed, STREAM_MAKERS, u64::from(brand)]).normal();
        let series_key = [seed, STREAM_MAKERS, u64::from(brand), u64::from(category), u64::from(series)];
        BRAND_WEIGHT * of_brand + SERIES_WEIGHT * Dice::new(&series_key).normal()
    }
}

impl Sales {
    /// Draws sales figures. Units depend on popularity and a latent quality; returns and ratings depend on the latent quality,
    /// with noise. The brand has the largest weight in the latent quality, then the item itself, then the series.
    pub fn draw(seed: u64, row: u32, popularity: f32, maker: Maker) -> Self {
        let mut dice = Dice::new(&[seed, STREAM_SALES, u64::from(row)]);
        let latent = (maker.reputation(seed) + ITEM_WEIGHT * dice.normal()).clamp(-2.5, 2.5);
        let units = (12.0 * (5.5 * f64::from(popularity) + 0.35 * latent + 0.5 * dice.normal()).exp()) as u32;
        let return_rate = (PRIOR_RETURN_RATE - 0.05 * latent).clamp(0.01, 0.4);
        let returns = (f64::from(units) * return_rate + 0.5 * dice.normal()).clamp(0.0, f64::from(units)) as u32;
        let num_ratings = (f64::from(units) * 0.25 * dice.unit()) as u32;
        // the mean of many ratings has less noise than that of few
        let spread = 1.1 / f64::from(num_ratings.max(1)).sqrt();
        let mean = (PRIOR_STARS + 0.45 * latent + spread * dice.normal()).clamp(1.0, 5.0);
        Self { units, returns, num_ratings, stars: (mean * f64::from(num_ratings)).round() as u32 }
    }

    /// Score from 0 to 1: 3/6 ratings, 2/6 kept (not returned) units, 1/6 demand.
    pub fn score(self) -> f64 {
        let stars =
            (f64::from(self.stars) + PRIOR_RATINGS * PRIOR_STARS) / (f64::from(self.num_ratings) + PRIOR_RATINGS);
        let returned =
            (f64::from(self.returns) + PRIOR_UNITS * PRIOR_RETURN_RATE) / (f64::from(self.units) + PRIOR_UNITS);
        let demand = (f64::from(self.units).ln_1p() / 8.0).min(1.0);
        let (satisfied, kept) = ((stars - 1.0) / 4.0, (1.0 - returned / 0.3).max(0.0));
        (3.0 * satisfied + 2.0 * kept + demand) / 6.0
    }

    /// Quality level, 0 to 4; the data files store a quarter of it.
    pub fn quality(self) -> u8 {
        LEVEL_THRESHOLDS.iter().filter(|threshold| self.score() >= **threshold).count() as u8
    }

    /// Mean rating, if there are ratings.
    pub fn rating(self) -> Option<f64> {
        (self.num_ratings > 0).then(|| f64::from(self.stars) / f64::from(self.num_ratings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_ratings_are_smoothed() {
        let new = Sales { units: 1, returns: 0, num_ratings: 1, stars: 5 };
        let proven = Sales { units: 1, returns: 0, num_ratings: 200, stars: 960 };
        // (5 + 8 * 4) / 9 = 4.11 stars against (960 + 32) / 208 = 4.77
        assert!(new.score() < proven.score());
        let nothing = Sales { units: 0, returns: 0, num_ratings: 0, stars: 0 };
        // stars 4.0 → 0.75; returned 0.12 → 0.6; no demand: (2.25 + 1.2) / 6
        assert!((nothing.score() - 0.575).abs() < 1e-12);
        assert_eq!(nothing.rating(), None);
    }

    #[test]
    fn every_level_is_frequent() {
        let mut levels = [0; 5];
        for row in 0..5000 {
            let popularity = Dice::new(&[u64::from(row)]).unit().powi(4) as f32;
            let maker = Maker { brand: (row % 61) as u16, category: (row % 13) as u16, series: (row % 3) as u8 };
            let sales = Sales::draw(1, row, popularity, maker);
            assert!(sales.returns <= sales.units && sales.stars <= 5 * sales.num_ratings);
            levels[usize::from(sales.quality())] += 1;
        }
        assert!(levels.iter().all(|count| *count >= 400), "{levels:?}");
    }

    #[test]
    fn brands_differ_in_quality() {
        let mean = |brand: u16| {
            let item = |row: u32| Sales::draw(1, row, 0.1, Maker { brand, category: 3, series: 0 }).quality();
            (0..300).map(|row| f64::from(item(row))).sum::<f64>() / 300.0
        };
        let means: Vec<f64> = (0..40).map(mean).collect();
        let middle = means.iter().sum::<f64>() / 40.0;
        let std = (means.iter().map(|mean| (mean - middle).powi(2)).sum::<f64>() / 40.0).sqrt();
        assert!(std > 0.6, "of five levels: {std}");
    }
}
