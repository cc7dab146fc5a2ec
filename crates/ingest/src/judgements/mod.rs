//! Implicit judgements from a search log, held out by time: who was shown what at which position, and chose it or not.
//!
//! `searches` reads the log, `period` cuts it by day, `position_bias` estimates how often each position is looked at,
//! `evidence` adds up what a query's shoppers did with an item, `grade` makes levels of it, `slices` names kinds of queries,
//! `quality` compares items whatever the query, and `folder` writes the judgements into a data folder.

mod evidence;
mod folder;
mod grade;
mod period;
mod position_bias;
mod quality;
mod searches;
mod slices;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::period::Period;
use crate::dataset::Strength;
use crate::log::LogSource;
use souk_io::beir::DataFolder;
use souk_io::catalogue::Catalogue;
use souk_io::error::{Error, Result};

pub use self::folder::{JudgementReport, SplitReport};
pub use self::position_bias::PositionBias;
pub use self::quality::ItemQuality;
pub use self::searches::LogCounts;
pub use self::slices::UnclickedQuery;

/// Settings of judgements from the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct JudgementSettings {
    /// Fraction of the searches in the newest days, which become the split `test`. Whole days are taken until the fraction is
    /// reached. 0: no such split.
    pub test: f64,
    /// Fraction of the searches before those of `test`, which becomes the split `dev`.
    pub dev: f64,
    /// Number of times that an item must have been shown for a query before not being chosen says anything.
    pub min_impressions: u32,
    /// Looks from which on an item that was never chosen is L1; with fewer it has no level.
    pub unchosen_looks: f64,
    /// Weight of the average item in an item's rate, in looks at the item.
    pub prior_looks: f64,
    /// Weight of the assumed position bias, in clicks for each position.
    pub prior_clicks: f64,
    /// Assumed position bias η: position k is looked at k^-η times as often as the first.
    pub position_bias: f64,
    /// Rate from which an item is L3, in multiples of the average rate.
    pub good: f64,
    /// Rate from which an item is L4, in multiples of the average rate.
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

/// The log that judgements are derived from, and the folder they are written to.
pub struct JudgementSource<'a> {
    pub data: &'a DataFolder,
    /// A log in UBI 1.3 that is read to its end.
    pub log: Box<dyn LogSource>,
    /// The log in reports and errors: its files or topics.
    pub name: String,
    /// Weights of clicks, carts and purchases.
    pub strength: &'a Strength,
    pub splits: Splits<'a>,
}

/// Which days become which split.
#[derive(Clone, Copy, Debug)]
pub enum Splits<'a> {
    /// `train`, `dev` and `test` by the shares of the settings, with a prefix such as `log-`.
    ByShare { prefix: &'a str },
    /// Only the newest part of the log, from this time on, in milliseconds since 1970.
    Since { time: i64, name: &'a str },
}

impl Splits<'_> {
    /// Name of the split of a period, if it is written.
    fn name(&self, period: Period) -> Option<String> {
        match self {
            Self::ByShare { prefix } => Some(format!("{prefix}{}", period.name())),
            Self::Since { name, .. } => (period == Period::Test).then(|| (*name).to_owned()),
        }
    }
}

/// A log with its judgements. Nothing is written yet.
pub struct JudgedLog<'a> {
    source: JudgementSource<'a>,
    settings: &'a JudgementSettings,
    derived: folder::Derived,
}

impl<'a> JudgedLog<'a> {
    /// Reads the log. `progress` gets the number of lines read since its last call.
    pub fn read(
        mut source: JudgementSource<'a>,
        settings: &'a JudgementSettings,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self> {
        settings.check()?;
        source.strength.check()?;
        let catalogue = Catalogue::open(source.data)?;
        let log = searches::SearchLog::read(source.log.as_mut(), &source.name, &catalogue, progress)?;
        let periods = match source.splits {
            Splits::ByShare { .. } => period::Periods::cut(log.search_times(), settings)?,
            Splits::Since { time, .. } => period::Periods::since(log.search_times(), time)?,
        };
        let bias = PositionBias::estimate(&log, settings);
        let evidence = evidence::Evidence::gather(&log, &periods, &bias, source.strength);
        let grades = grade::Grades::of(&evidence, settings);
        let slices = slices::slices(&log, &periods);
        Ok(Self { source, settings, derived: folder::Derived { catalogue, log, periods, bias, grades, slices } })
    }

    /// Writes `qrels/SPLIT.tsv`, `queries.jsonl`, `slices.tsv` and `judgements.json` into the data folder.
    pub fn write(&self) -> Result<JudgementReport> {
        folder::write(&self.source, self.settings, &self.derived)
    }

    /// The most frequent queries of the held-out days after which nobody chose an item, at most `num`.
    pub fn unclicked(&self, num: usize) -> Vec<UnclickedQuery> {
        let folder::Derived { log, periods, slices, .. } = &self.derived;
        slices::unclicked(log, periods, slices, num)
    }

    /// Quality of the items that have evidence, from the log's time before the held-out days.
    pub fn qualities(&self) -> Result<Vec<ItemQuality>> {
        quality::qualities(&self.derived.log, &self.derived.periods, &self.derived.catalogue)
    }
}
