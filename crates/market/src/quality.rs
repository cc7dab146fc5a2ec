//! How an item does once it is sold, and the quality that can be told from it: five levels from units, returns and
//! ratings. Few ratings say little, so they are mixed with what is usual.

use super::catalogue::{OF_MAKERS, OF_SALES};
use super::dice::Dice;

/// What the shop's books say of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sales {
    pub units: u32,
    pub returns: u32,
    pub num_ratings: u32,
    /// Sum of 1 to 5 stars.
    pub stars: u32,
}

/// The usual rating and return rate, and how many ratings and units they are worth.
const USUAL_STARS: f64 = 4.0;
const WORTH_RATINGS: f64 = 8.0;
const USUAL_RETURNS: f64 = 0.12;
const WORTH_UNITS: f64 = 20.0;
/// Where the levels begin, so that each has a fair share of a catalogue.
const STEPS: [f64; 4] = [0.602, 0.635, 0.678, 0.745];

/// Who makes an item: a brand, and a series of one category where it is of one.
#[derive(Clone, Copy, Debug)]
pub struct Maker {
    pub brand: u16,
    pub category: u16,
    pub line: u8,
}

/// What brand, series and the item itself have to do with its worth; their squares sum to 1.
const BRAND_WORTH: f64 = 0.7;
const SERIES_WORTH: f64 = 0.4;
const OWN_WORTH: f64 = 0.59;

impl Maker {
    fn reputation(self, seed: u64) -> f64 {
        let Self { brand, category, line } = self;
        let of_brand = Dice::new(&[seed, OF_MAKERS, u64::from(brand)]).normal();
        let series = [seed, OF_MAKERS, u64::from(brand), u64::from(category), u64::from(line)];
        BRAND_WORTH * of_brand + SERIES_WORTH * Dice::new(&series).normal()
    }
}

impl Sales {
    /// Units follow popularity and a hidden worth; returns and ratings follow the worth, with noise. Who makes an item says
    /// most about its worth: its brand, and of a brand's series one is better than another.
    pub fn draw(seed: u64, row: u32, popularity: f32, maker: Maker) -> Self {
        let mut dice = Dice::new(&[seed, OF_SALES, u64::from(row)]);
        let worth = (maker.reputation(seed) + OWN_WORTH * dice.normal()).clamp(-2.5, 2.5);
        let units = (12.0 * (5.5 * f64::from(popularity) + 0.35 * worth + 0.5 * dice.normal()).exp()) as u32;
        let return_rate = (USUAL_RETURNS - 0.05 * worth).clamp(0.01, 0.4);
        let returns = (f64::from(units) * return_rate + 0.5 * dice.normal()).clamp(0.0, f64::from(units)) as u32;
        let num_ratings = (f64::from(units) * 0.25 * dice.unit()) as u32;
        // the mean of many ratings is sharper than of few
        let spread = 1.1 / f64::from(num_ratings.max(1)).sqrt();
        let mean = (USUAL_STARS + 0.45 * worth + spread * dice.normal()).clamp(1.0, 5.0);
        Self { units, returns, num_ratings, stars: (mean * f64::from(num_ratings)).round() as u32 }
    }

    /// 0 to 1: three parts satisfaction, two parts goods that were kept, one part demand.
    pub fn score(self) -> f64 {
        let stars =
            (f64::from(self.stars) + WORTH_RATINGS * USUAL_STARS) / (f64::from(self.num_ratings) + WORTH_RATINGS);
        let returned = (f64::from(self.returns) + WORTH_UNITS * USUAL_RETURNS) / (f64::from(self.units) + WORTH_UNITS);
        let demand = (f64::from(self.units).ln_1p() / 8.0).min(1.0);
        let (satisfied, kept) = ((stars - 1.0) / 4.0, (1.0 - returned / 0.3).max(0.0));
        (3.0 * satisfied + 2.0 * kept + demand) / 6.0
    }

    /// 0 to 4; a fourth of it is the quality in files.
    pub fn quality(self) -> u8 {
        STEPS.iter().filter(|step| self.score() >= **step).count() as u8
    }

    /// The mean rating, where there is one.
    pub fn rating(self) -> Option<f64> {
        (self.num_ratings > 0).then(|| f64::from(self.stars) / f64::from(self.num_ratings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_ratings_say_little() {
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
    fn each_level_has_its_share() {
        let mut levels = [0; 5];
        for row in 0..5000 {
            let popularity = Dice::new(&[u64::from(row)]).unit().powi(4) as f32;
            let maker = Maker { brand: (row % 61) as u16, category: (row % 13) as u16, line: (row % 3) as u8 };
            let sales = Sales::draw(1, row, popularity, maker);
            assert!(sales.returns <= sales.units && sales.stars <= 5 * sales.num_ratings);
            levels[usize::from(sales.quality())] += 1;
        }
        assert!(levels.iter().all(|count| *count >= 400), "{levels:?}");
    }

    #[test]
    fn a_brand_says_much_about_its_items() {
        let mean = |brand: u16| {
            let item = |row: u32| Sales::draw(1, row, 0.1, Maker { brand, category: 3, line: 0 }).quality();
            (0..300).map(|row| f64::from(item(row))).sum::<f64>() / 300.0
        };
        let means: Vec<f64> = (0..40).map(mean).collect();
        let middle = means.iter().sum::<f64>() / 40.0;
        let std = (means.iter().map(|mean| (mean - middle).powi(2)).sum::<f64>() / 40.0).sqrt();
        assert!(std > 0.6, "of five levels: {std}");
    }
}
