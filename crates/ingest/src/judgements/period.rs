//! Cuts a log by day: the newest days become `test`, the days before them `dev`, and the rest `train`.

use std::collections::BTreeMap;

use super::JudgementSettings;
use souk_io::error::{Error, Result};

const DAY_MILLIS: i64 = 24 * 60 * 60 * 1000;

/// Part of the log's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Period {
    Train,
    Dev,
    Test,
}

impl Period {
    pub const ALL: [Self; 3] = [Self::Train, Self::Dev, Self::Test];

    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Dev => "dev",
            Self::Test => "test",
        }
    }
}

/// Beginnings of the two held-out periods, in milliseconds since 1970, at midnight UTC.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Periods {
    pub dev: i64,
    pub test: i64,
    /// First and last search.
    pub first: i64,
    pub last: i64,
}

impl Periods {
    pub fn cut(times: impl Iterator<Item = i64>, settings: &JudgementSettings) -> Result<Self> {
        let mut days: BTreeMap<i64, u64> = BTreeMap::new();
        let (mut first, mut last, mut total) = (i64::MAX, i64::MIN, 0);
        for time in times {
            (first, last, total) = (first.min(time), last.max(time), total + 1);
            *days.entry(time.div_euclid(DAY_MILLIS)).or_default() += 1;
        }
        if days.len() < 3 {
            let problem = format!(
                "the log has searches of {} days: at least 3 are needed, because the newest days are held out",
                days.len()
            );
            return Err(Error::input(problem));
        }
        let mut newest = days.into_iter().rev();
        let mut take = |fraction: f64, before: i64| {
            let (mut taken, mut begin) = (0, before);
            while (taken as f64) < fraction * f64::from(total) {
                let Some((day, searches)) = newest.next() else { break };
                (taken, begin) = (taken + searches, day * DAY_MILLIS);
            }
            begin
        };
        let test = take(settings.test, last + 1);
        let dev = take(settings.dev, test);
        if newest.next().is_none() {
            let problem = "the held-out days would be the whole log: make judgements.test and judgements.dev smaller";
            return Err(Error::config("judgements.test", problem));
        }
        Ok(Self { dev, test, first, last })
    }

    /// Everything from a time on is `test`, what is before it `train`.
    pub fn since(times: impl Iterator<Item = i64>, time: i64) -> Result<Self> {
        let (mut first, mut last) = (i64::MAX, i64::MIN);
        times.for_each(|at| (first, last) = (first.min(at), last.max(at)));
        if last < time {
            let problem = format!("the log has no search from {} on", souk_io::time::format(time));
            return Err(Error::input(problem));
        }
        Ok(Self { dev: time, test: time, first, last })
    }

    pub fn of(&self, time: i64) -> Period {
        if time >= self.test {
            Period::Test
        } else if time >= self.dev {
            Period::Dev
        } else {
            Period::Train
        }
    }

    /// End of the last day.
    pub fn end(&self) -> i64 {
        (self.last.div_euclid(DAY_MILLIS) + 1) * DAY_MILLIS
    }

    /// First and last moment of a period. The newest one lasts to the end of its day.
    pub fn span(&self, period: Period) -> (i64, i64) {
        match period {
            Period::Train => (self.first, self.dev - 1),
            Period::Dev => (self.dev, self.test - 1),
            Period::Test => (self.test, self.end() - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `counts` searches on each of these days, every ten minutes.
    fn days(counts: &[i64]) -> impl Iterator<Item = i64> {
        (0..).zip(counts).flat_map(|(day, count)| (0..*count).map(move |at| day * DAY_MILLIS + at * 600_000))
    }

    #[test]
    fn the_newest_days_are_held_out_until_they_are_enough() {
        let periods = Periods::cut(days(&[10, 50, 20, 5, 6, 4, 5]), &JudgementSettings::default()).unwrap();
        // 10 of 100 searches: two days give 9, so three are taken
        assert_eq!((periods.test, periods.dev), (4 * DAY_MILLIS, 2 * DAY_MILLIS));
        let of = [0, 2 * DAY_MILLIS - 1, 2 * DAY_MILLIS, 4 * DAY_MILLIS].map(|time| periods.of(time));
        assert_eq!(of, [Period::Train, Period::Train, Period::Dev, Period::Test]);
        assert_eq!(periods.span(Period::Dev), (2 * DAY_MILLIS, 4 * DAY_MILLIS - 1));
        let no_test = JudgementSettings { test: 0.0, ..JudgementSettings::default() };
        let periods = Periods::cut(days(&[10, 50, 20, 5, 6, 4, 5]), &no_test).unwrap();
        assert_eq!((periods.test, periods.dev), (periods.last + 1, 4 * DAY_MILLIS));
    }

    #[test]
    fn a_short_log_is_an_error() {
        let error = Periods::cut(days(&[10, 50]), &JudgementSettings::default()).unwrap_err().to_string();
        assert!(error.contains("of 2 days: at least 3"), "{error}");
        let error = Periods::cut(days(&[1, 1, 1]), &JudgementSettings { test: 0.5, ..<_>::default() }).unwrap_err();
        assert!(error.to_string().contains("whole log"), "{error}");
    }
}
