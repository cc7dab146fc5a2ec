//! Times as shops log them: ISO 8601, seconds to nanoseconds since 1970, `07/31/2025 22:00` and `31/07/2025 22:00`.
//! Gives milliseconds since 1970. Never guesses from one value which number of a date is the day: [`DayOrderVotes`]
//! decides it for a whole log.

use souk_io::time;

/// September 2001 to 2060, in milliseconds: a plain number outside of it is not a time.
const PLAUSIBLE: std::ops::Range<i64> = 1_000_000_000_000..2_840_140_800_000;
/// Formats that can be read, for error messages.
pub const READABLE: &str = "ISO 8601 (2025-07-31T22:00:20Z, 2025-07-31 22:00:20), seconds or milliseconds since 1970, \
    07/31/2025 22:00 and 31/07/2025 22:00";

/// Order of day and month in dates such as `03/04/2025`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DayOrder {
    MonthFirst,
    DayFirst,
}

/// Milliseconds since 1970; without an offset, UTC is assumed.
pub fn parse(text: &str, order: DayOrder) -> Option<i64> {
    let text = text.trim();
    time::parse(text)
        .or_else(|| parse_number(text))
        .or_else(|| parse_year_first(text))
        .or_else(|| Date::split(text).and_then(|date| date.time(order)))
        .or_else(|| parse_spaced_zone(text))
}

/// Whether the text is a number of seconds, milliseconds, … since 1970.
pub fn is_number(text: &str) -> bool {
    parse_number(text.trim()).is_some()
}

/// Seconds (with a fraction, or not), milliseconds, microseconds or nanoseconds, by the number of digits; also the
/// compact `20250731220020`.
fn parse_number(text: &str) -> Option<i64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || whole.len() > 19 || !is_digits(whole) || !is_digits(fraction) {
        return None;
    }
    let number: i64 = whole.parse().ok()?;
    let millis = match whole.len() {
        10 => {
            let millis: String = fraction.chars().chain("000".chars()).take(3).collect();
            number * 1000 + millis.parse::<i64>().ok()?
        }
        13 => number,
        16 => number / 1000,
        19 => number / 1_000_000,
        8 | 14 => return parse_compact(whole),
        _ => return None,
    };
    Some(millis).filter(|millis| PLAUSIBLE.contains(millis))
}

/// `20250731` and `20250731220020`.
fn parse_compact(digits: &str) -> Option<i64> {
    let (date, clock) = digits.split_at(8);
    let date = format!("{}-{}-{}", &date[..4], &date[4..6], &date[6..]);
    let text = match clock {
        "" => date,
        clock => format!("{date}T{}:{}:{}", &clock[..2], &clock[2..4], &clock[4..]),
    };
    time::parse(&text).filter(|millis| PLAUSIBLE.contains(millis))
}

/// `2025/07/31 22:00:20`.
fn parse_year_first(text: &str) -> Option<i64> {
    let (year, _) = text.split_once('/')?;
    (year.len() == 4).then(|| time::parse(&text.replacen('/', "-", 2)))?
}

/// `2025-07-31 22:00:20 UTC` and `… +00:00`.
fn parse_spaced_zone(text: &str) -> Option<i64> {
    let (local, zone) = text.rsplit_once(' ')?;
    match zone {
        "UTC" | "GMT" | "Z" => time::parse(&format!("{local}Z")),
        zone if zone.starts_with(['+', '-']) => time::parse(&format!("{local}{zone}")),
        _ => None,
    }
}

/// Date whose year is not its first number.
struct Date<'a> {
    first: u32,
    second: u32,
    year: u32,
    /// Whether the separator says that the day comes first, as in `31.07.2025`.
    is_dotted: bool,
    clock: &'a str,
}

impl<'a> Date<'a> {
    fn split(text: &'a str) -> Option<Self> {
        let end = text.find([' ', 'T', ',']).unwrap_or(text.len());
        let (date, clock) = text.split_at(end);
        let separator = date.chars().find(|letter| !letter.is_ascii_digit()).filter(|s| ['/', '.', '-'].contains(s))?;
        let mut parts = date.split(separator);
        let mut number = |max_length: usize| {
            let part = parts.next()?;
            (1..=max_length).contains(&part.len()).then(|| part.parse::<u32>().ok())?
        };
        let (first, second, year) = (number(2)?, number(2)?, number(4)?);
        let year = match year {
            0..=99 => 2000 + year,
            1000..=9999 => year,
            _ => return None,
        };
        let clock = clock.trim_start_matches([' ', 'T', ',']);
        parts.next().is_none().then_some(Self { first, second, year, is_dotted: separator == '.', clock })
    }

    fn time(&self, order: DayOrder) -> Option<i64> {
        let is_day_first = self.is_dotted || order == DayOrder::DayFirst;
        let (day, month) = if is_day_first { (self.first, self.second) } else { (self.second, self.first) };
        let date = format!("{:04}-{month:02}-{day:02}", self.year);
        if self.clock.is_empty() {
            return time::parse(&date);
        }
        let upper = self.clock.to_uppercase();
        let half = ["AM", "PM"].into_iter().find(|half| upper.ends_with(half));
        let clock = half.map_or(upper.as_str(), |half| upper.trim_end_matches(half).trim_end());
        let (hour, rest) = clock.split_once(':')?;
        let hour: u32 = hour.parse().ok()?;
        let hour = match half {
            Some("AM") if hour == 12 => 0,
            Some("PM") if hour < 12 => hour + 12,
            _ => hour,
        };
        let text = format!("{date} {hour:02}:{rest}");
        time::parse(&text).or_else(|| parse_spaced_zone(&text))
    }
}

/// Evidence for the order of day and month, from many times of a log.
#[derive(Clone, Debug, Default)]
pub struct DayOrderVotes {
    /// Times whose order matters.
    num_dates: u64,
    /// Dates that can only be read with the month first, or with the day first.
    month_first: u64,
    day_first: u64,
    /// First and last time if the month comes first, and if the day does.
    spans: [Option<(i64, i64)>; 2],
}

impl DayOrderVotes {
    pub fn add(&mut self, text: &str) {
        let text = text.trim();
        let Some(date) = Date::split(text).filter(|date| !date.is_dotted && time::parse(text).is_none()) else {
            return;
        };
        let times = [DayOrder::MonthFirst, DayOrder::DayFirst].map(|order| date.time(order));
        self.num_dates += u64::from(times != [None, None]);
        self.month_first += u64::from(times[0].is_some() && times[1].is_none());
        self.day_first += u64::from(times[1].is_some() && times[0].is_none());
        for (span, time) in self.spans.iter_mut().zip(times) {
            if let Some(time) = time {
                let (from, to) = span.unwrap_or((time, time));
                *span = Some((from.min(time), to.max(time)));
            }
        }
    }

    /// Whether the log has dates in which the day could be the first or the second number.
    pub fn has_dates(&self) -> bool {
        self.num_dates > 0
    }

    /// Whether a day above 12 decides the order.
    pub fn is_certain(&self) -> bool {
        self.month_first != self.day_first
    }

    /// The order that more dates need. If no day is above 12, the order in which the log spans less time; if that is
    /// equal too, the month first.
    pub fn order(&self) -> DayOrder {
        let length = |span: Option<(i64, i64)>| span.map_or(i64::MAX, |(from, to)| to - from);
        let is_day_first = if self.is_certain() {
            self.day_first > self.month_first
        } else {
            length(self.spans[1]) < length(self.spans[0])
        };
        if is_day_first { DayOrder::DayFirst } else { DayOrder::MonthFirst }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// date -u -d 2025-07-31T22:00:20Z +%s
    const TIME: i64 = 1_753_999_220_000;

    #[test]
    fn reads_the_times_of_many_logs() {
        for text in [
            "2025-07-31T22:00:20Z",
            "2025-07-31T22:00:20",
            "2025-08-01T00:00:20+02:00",
            "2025-07-31 22:00:20",
            " 2025-07-31 22:00:20 UTC",
            "2025-07-31 22:00:20 +00:00",
            "1753999220",
            "1753999220.000",
            "1753999220000",
            "1753999220000123",
            "1753999220000123456",
            "20250731220020",
            "2025/07/31 22:00:20",
            "07/31/2025 22:00:20",
            "7/31/2025, 10:00:20 PM",
            "7/31/25 22:00:20",
            "07-31-2025 22:00:20",
            "31.07.2025 22:00:20",
        ] {
            assert_eq!(parse(text, DayOrder::MonthFirst), Some(TIME), "{text}");
        }
        for text in ["31/07/2025 22:00:20", "31-07-2025T22:00:20", "31.07.2025 22:00:20", "31/7/2025 10:00:20pm"] {
            assert_eq!(parse(text, DayOrder::DayFirst), Some(TIME), "{text}");
        }
        assert_eq!(parse("12/31/2025 12:05 AM", DayOrder::MonthFirst), parse("2025-12-31 00:05", DayOrder::MonthFirst));
        assert_eq!(parse("1753999220.5", DayOrder::MonthFirst), Some(TIME + 500));
        assert_eq!(parse("20250731", DayOrder::MonthFirst), Some(1_753_920_000_000));
        for text in [
            "",
            "12",
            "123456",
            "9999999999",
            "4006381333931",
            "31/07/2025",
            "1/2",
            "1/2/3/4",
            "a/b/c",
            "22:00",
            "10/10/2025 x",
            "soon",
            "1.5",
            "0731/2/2025",
            "12345678",
        ] {
            assert_eq!(parse(text, DayOrder::MonthFirst), None, "{text}");
        }
    }

    fn votes(times: &[&str]) -> DayOrderVotes {
        let mut votes = DayOrderVotes::default();
        times.iter().for_each(|time| votes.add(time));
        votes
    }

    #[test]
    fn a_day_above_12_decides_for_the_whole_log() {
        let month = votes(&["03/04/2025 10:00", "03/13/2025 10:00"]);
        assert_eq!((month.order(), month.is_certain()), (DayOrder::MonthFirst, true));
        let day = votes(&["03/04/2025 10:00", "13/04/2025 10:00"]);
        assert_eq!((day.order(), day.is_certain()), (DayOrder::DayFirst, true));
    }

    #[test]
    fn without_such_a_day_the_shorter_log_is_likelier() {
        // 1 to 3 April, or 4 January to 4 March
        let day = votes(&["01/04/2025 10:00", "03/04/2025 10:00"]);
        assert_eq!((day.order(), day.is_certain()), (DayOrder::DayFirst, false));
        let month = votes(&["04/01/2025 10:00", "04/03/2025 10:00"]);
        assert_eq!((month.order(), month.is_certain()), (DayOrder::MonthFirst, false));
        assert_eq!(votes(&["04/03/2025 10:00"]).order(), DayOrder::MonthFirst);
        assert!(!votes(&["2025-04-03", "03.04.2025", "1753999220", ""]).has_dates());
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_a_time_or_none(text in "\\PC{0,30}", digits in "[0-9/.:, APMTZ+-]{0,30}") {
            for text in [text, digits] {
                for order in [DayOrder::MonthFirst, DayOrder::DayFirst] {
                    let _ = parse(&text, order);
                }
                votes(&[&text]);
            }
        }
    }
}
