//! Implicit judgements from a search log, held out by time: who was shown what at which position, and chose it or not.
//!
//! `searches` reads the log, `period` cuts it by day, `position_bias` estimates how often each position is looked at,
//! `evidence` adds up what a query's shoppers did with an item, `grade` makes levels of it, `slices` names kinds of queries,
//! and `folder` writes all of it into a data folder.

mod evidence;
mod folder;
mod grade;
mod period;
mod position_bias;
mod searches;
mod slices;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::dataset::Strength;
use souk_io::beir::DataFolder;
use souk_io::catalogue::Catalogue;
use souk_io::error::{Error, Result};

pub use self::folder::{JudgementReport, SplitReport};
pub use self::position_bias::PositionBias;
pub use self::searches::LogCounts;

/// Settings of judgements from the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct JudgementSettings {
    /// Fraction of the searches in the newest days, which become the split `test`; and of those before, `dev`. Whole days are
    /// taken until the fraction is reached. 0: no such split.
    pub test: f64,
    pub dev: f64,
    /// Number of times that an item must have been shown for a query before not being chosen says anything.
    pub min_impressions: u32,
    /// Looks from which on an item that was never chosen is L1; with fewer it is L2.
    pub unchosen_looks: f64,
    /// Weight of the average item in an item's rate, in looks at the item.
    pub prior_looks: f64,
    /// Weight of the assumed position bias, in clicks for each position.
    pub prior_clicks: f64,
    /// Assumed position bias η: position k is looked at k^-η times as often as the first.
    pub position_bias: f64,
    /// Rates from which an item is L3 and L4, in multiples of the average rate.
    pub good: f64,
    pub best: f64,
}

impl Default for JudgementSettings {
    fn default() -> Self {
        Self {
            test: 0.1,
            dev: 0.1,
            min_impressions: 1,
            unchosen_looks: 0.1,
            prior_looks: 3.0,
            prior_clicks: 20.0,
            position_bias: 1.0,
            good: 1.0,
            best: 3.0,
        }
    }
}

impl JudgementSettings {
    pub fn check(&self) -> Result<()> {
        let fraction = |x: f64| (0.0..1.0).contains(&x);
        if !fraction(self.test) || !fraction(self.dev) || self.test + self.dev >= 1.0 {
            let problem =
                "set judgements.test and judgements.dev to fractions of the log that leave some of it for training";
            return Err(Error::config("judgements.test", problem));
        }
        let positive = [
            ("prior_looks", self.prior_looks),
            ("prior_clicks", self.prior_clicks),
            ("good", self.good),
            ("unchosen_looks", self.unchosen_looks),
        ];
        if let Some((name, value)) = positive.into_iter().find(|(_, value)| !(value.is_finite() && *value > 0.0)) {
            return Err(Error::config(format!("judgements.{name}"), format!("is {value}: use a number above 0")));
        }
        if !(0.0..=4.0).contains(&self.position_bias) {
            return Err(Error::config("judgements.position_bias", "use a number from 0 to 4"));
        }
        if !(self.best >= self.good && self.best.is_finite()) {
            return Err(Error::config("judgements.best", "must not be less than judgements.good"));
        }
        Ok(())
    }
}

/// What judgements are made from, and under which names they are written.
pub struct JudgementSource<'a> {
    pub data: &'a DataFolder,
    /// Log files in UBI 1.3.
    pub logs: Vec<PathBuf>,
    /// Weights of clicks, carts and purchases.
    pub strength: &'a Strength,
    /// Prefix of the splits' names, such as `log-`.
    pub prefix: &'a str,
}

/// Reads the log and writes `qrels/{train,dev,test}.tsv`, `queries.jsonl`, `slices.tsv` and `judgements.json` into the data
/// folder. `progress` gets the number of lines read since its last call.
pub fn judge_log(
    source: &JudgementSource<'_>,
    settings: &JudgementSettings,
    progress: &mut dyn FnMut(u64),
) -> Result<JudgementReport> {
    settings.check()?;
    source.strength.check()?;
    let catalogue = Catalogue::open(source.data)?;
    let log = searches::SearchLog::read(&source.logs, &catalogue, progress)?;
    let periods = period::Periods::cut(log.search_times(), settings)?;
    let bias = PositionBias::estimate(&log, settings);
    let evidence = evidence::Evidence::gather(&log, &periods, &bias, source.strength);
    let grades = grade::Grades::of(&evidence, settings);
    let slices = slices::slices(&log, &periods);
    folder::write(
        source,
        settings,
        &folder::Derived { catalogue: &catalogue, log: &log, periods, bias, grades, slices },
    )
}
