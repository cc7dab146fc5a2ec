//! Times as logs write them: `2026-01-31T10:00:00.000Z`, `…+0000`, `2026-01-31 10:00:00.5`, or a date alone. Milliseconds
//! since 1970, the proleptic Gregorian calendar, no leap seconds.

use std::ops::Range;

const DAY: i64 = 86_400_000;
/// The years 0000 to 9999, which four digits can say.
const WRITABLE: Range<i64> = -62_167_219_200_000..253_402_300_800_000;

/// Whether it can be written and read again.
pub fn is_writable(time: i64) -> bool {
    WRITABLE.contains(&time)
}

/// `None` for what is no time.
pub fn parse(text: &str) -> Option<i64> {
    let mut digits = Digits { rest: text.trim().as_bytes() };
    let year = digits.number(4)?;
    digits.skip(b"-")?;
    let month = digits.number(2).filter(|month| (1..=12).contains(month))?;
    digits.skip(b"-")?;
    let day = digits.number(2).filter(|day| (1..=month_length(year, month)).contains(day))?;
    let midnight = days(year, month, day) * DAY;
    if digits.rest.is_empty() {
        return Some(midnight);
    }
    digits.skip(b"T t")?;
    let hour = digits.number(2).filter(|hour| *hour < 24)?;
    digits.skip(b":")?;
    let minute = digits.number(2).filter(|minute| *minute < 60)?;
    let mut time = midnight + (hour * 60 + minute) * 60_000;
    if digits.skip(b":").is_some() {
        time += digits.number(2).filter(|second| *second <= 60)? * 1000;
        if digits.skip(b".,").is_some() {
            time += digits.fraction()?;
        }
    }
    digits.zone().map(|offset| time - offset).filter(|time| is_writable(*time))
}

/// `2026-01-31T10:00:00.000Z`. A year beyond four digits is written as it is.
pub fn format(time: i64) -> String {
    let (year, month, day) = date(time.div_euclid(DAY));
    let rest = time.rem_euclid(DAY);
    let (hour, minute) = (rest / 3_600_000, rest / 60_000 % 60);
    let (second, milli) = (rest / 1000 % 60, rest % 1000);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

struct Digits<'a> {
    rest: &'a [u8],
}

impl Digits<'_> {
    fn number(&mut self, length: usize) -> Option<i64> {
        let (digits, rest) = self.rest.split_at_checked(length)?;
        let number = digits
            .iter()
            .try_fold(0, |sum, digit| digit.is_ascii_digit().then(|| sum * 10 + i64::from(digit - b'0')))?;
        self.rest = rest;
        Some(number)
    }

    fn skip(&mut self, any_of: &[u8]) -> Option<()> {
        let (first, rest) = self.rest.split_first()?;
        any_of.contains(first).then(|| self.rest = rest)
    }

    /// Milliseconds; finer digits are cut off.
    fn fraction(&mut self) -> Option<i64> {
        let length = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (digits, rest) = self.rest.split_at(length);
        self.rest = rest;
        let milli = |place: usize| digits.get(place).map_or(0, |digit| i64::from(digit - b'0'));
        (length > 0).then(|| milli(0) * 100 + milli(1) * 10 + milli(2))
    }

    /// Milliseconds east of Greenwich; nothing means Greenwich itself.
    fn zone(mut self) -> Option<i64> {
        let sign = match self.rest {
            [] | [b'Z' | b'z'] => return Some(0),
            [b'+', ..] => 1,
            [b'-', ..] => -1,
            _ => return None,
        };
        self.rest = &self.rest[1..];
        let hours = self.number(2).filter(|hours| *hours < 24)?;
        let _colon = self.skip(b":");
        let minutes = if self.rest.is_empty() { 0 } else { self.number(2).filter(|minutes| *minutes < 60)? };
        self.rest.is_empty().then_some(sign * (hours * 60 + minutes) * 60_000)
    }
}

fn month_length(year: i64, month: i64) -> i64 {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days since 1970-01-01; years begin in March, so that a leap day comes last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let of_era = year.rem_euclid(400) * 365 + year.rem_euclid(400) / 4 - year.rem_euclid(400) / 100 + of_year;
    year.div_euclid(400) * 146_097 + of_era - 719_468
}

/// The inverse of `days`.
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (days.div_euclid(146_097) * 400 + year + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ways_to_write_a_time() {
        // date -u -d 2024-12-10T00:01:29Z +%s
        let time = 1_733_788_889_000;
        for text in [
            "2024-12-10T00:01:29Z",
            "2024-12-10T00:01:29.000+0000",
            "2024-12-10 00:01:29",
            "2024-12-10T02:01:29.000999+02:00",
            "2024-12-09T19:01:29-05",
        ] {
            assert_eq!(parse(text), Some(time), "{text}");
        }
        assert_eq!(parse("2011-09-05 12:25:37.42"), Some(1_315_225_537_420));
        assert_eq!(parse("1970-01-01"), Some(0));
        for text in [
            "",
            "yesterday",
            "2024-13-01",
            "2023-02-29",
            "2024-12-10T25:00Z",
            "2024-12-10T00:01:29.Z",
            "2024-12-10T00:01:29x",
            "é024-12-10",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_a_time_or_none(text in "\\PC{0,40}", digits in "[0-9TZ:. +-]{0,40}") {
            for text in [text, digits] {
                if let Some(time) = parse(&text) {
                    proptest::prop_assert_eq!(parse(&format(time)), Some(time));
                }
            }
        }
    }

    #[test]
    fn formatting_is_the_inverse() {
        for (time, text) in
            [(WRITABLE.start, "0000-01-01T00:00:00.000Z"), (WRITABLE.end - 1, "9999-12-31T23:59:59.999Z")]
        {
            assert_eq!((format(time).as_str(), parse(text)), (text, Some(time)));
        }
        for outside in ["0000-01-01T00:00:00+01:00", "9999-12-31T23:59:60Z"] {
            assert_eq!(parse(outside), None, "{outside}");
        }
        for time in [0, 1_733_788_889_378, -1, 951_782_400_000, 4_107_542_399_999, -62_135_596_800_000] {
            assert_eq!(parse(&format(time)), Some(time), "{}", format(time));
        }
        assert_eq!(format(1_733_788_889_378), "2024-12-10T00:01:29.378Z");
    }
}
