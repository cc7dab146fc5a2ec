//! Timestamps in search logs, as milliseconds since 1970 (no leap seconds). Reads ISO 8601 in the variants that logs use:
//! `2026-01-31T10:00:00.000Z`, `...+0000`, `2026-01-31 10:00:00.5`, or a date alone. Without an offset, UTC is assumed.

use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

use jiff::SignedDuration;
use jiff::civil::{DateTime, Time, date};
use jiff::fmt::temporal::Pieces;

const EPOCH: DateTime = date(1970, 1, 1).at(0, 0, 0, 0);
/// Years 0000 to 9999: those of four digits.
const WRITABLE: Range<i64> = -62_167_219_200_000..253_402_300_800_000;

/// The present time.
pub fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as i64)
}

/// Whether `format` writes this time in a form that `parse` reads back.
pub fn is_writable(time: i64) -> bool {
    WRITABLE.contains(&time)
}

/// Milliseconds since 1970, or `None` if the text is not a timestamp. Digits after the milliseconds are cut off, and a
/// leap second counts as the second before it.
pub fn parse(text: &str) -> Option<i64> {
    parse_usual(text).or_else(|| parse_any(text))
}

/// `2026-01-31T10:00:00.000Z` exactly, which is what `format` and most logs write; `None` also for a leap second.
fn parse_usual(text: &str) -> Option<i64> {
    let text: &[u8; 24] = text.as_bytes().try_into().ok()?;
    let mut is_usual = true;
    for (byte, shape) in text.iter().zip(b"0000-00-00T00:00:00.000Z") {
        is_usual &= if *shape == b'0' { byte.is_ascii_digit() } else { byte == shape };
    }
    let number =
        |digits: Range<usize>| text[digits].iter().fold(0, |number, digit| number * 10 + i64::from(digit & 15));
    let (year, month, day) = (number(0..4), number(5..7), number(8..10));
    let (hour, minute, second) = (number(11..13), number(14..16), number(17..19));
    let is_leap_year = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let num_days = match month {
        2 => 28 + i64::from(is_leap_year),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    is_usual &= (1..=12).contains(&month) && (1..=num_days).contains(&day) && hour < 24 && minute < 60 && second < 60;
    // days since 1970 in the Gregorian calendar, whose years are counted here from March on
    let (years, months) = (year - i64::from(month <= 2), (month + 9) % 12);
    let days = 365 * years + years.div_euclid(4) - years.div_euclid(100) + years.div_euclid(400);
    let days = days + (153 * months + 2) / 5 + day - 719_469;
    is_usual.then(|| (((days * 24 + hour) * 60 + minute) * 60 + second) * 1000 + number(20..23))
}

fn parse_any(text: &str) -> Option<i64> {
    let pieces = Pieces::parse(text.trim()).ok()?;
    let offset = pieces.to_numeric_offset();
    if offset.is_none() && pieces.time_zone_annotation().is_some() {
        return None;
    }
    let local = pieces.date().to_datetime(pieces.time().unwrap_or(Time::midnight()));
    let local = local.duration_since(EPOCH);
    let seconds = local.as_secs() - i64::from(offset.map_or(0, |offset| offset.seconds()));
    let time = seconds * 1000 + i64::from(local.subsec_nanos().div_euclid(1_000_000));
    Some(time).filter(|time| is_writable(*time))
}

/// Formats as `2026-01-31T10:00:00.000Z`.
pub fn format(time: i64) -> String {
    format!("{:.3}Z", EPOCH.saturating_add(SignedDuration::from_millis(time)))
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

    proptest::proptest! {
        #[test]
        fn usual_times_are_read_like_any_others(
            time in WRITABLE,
            text in "[012][0-9]{3}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-6][0-9]:[0-6][0-9].[0-9]{3}Z",
        ) {
            proptest::prop_assert_eq!(parse_usual(&format(time)), Some(time));
            proptest::prop_assert_eq!(parse_any(&format(time)), Some(time));
            proptest::prop_assert!(parse_usual(&text).is_none_or(|time| parse_any(&text) == Some(time)), "{}", text);
        }
    }

    #[test]
    fn every_day_is_read_the_usual_way() {
        for day in (WRITABLE.start..WRITABLE.end).step_by(86_400_000) {
            let text = format(day);
            assert_eq!(parse_usual(&text), Some(day), "{text}");
        }
        for text in ["2023-02-29T00:00:00.000Z", "1900-02-29T00:00:00.000Z", "2024-04-31T00:00:00.000Z"] {
            assert_eq!((parse_usual(text), parse_any(text)), (None, None), "{text}");
        }
    }

    #[test]
    fn formatting_is_the_inverse() {
        for (time, text) in
            [(WRITABLE.start, "0000-01-01T00:00:00.000Z"), (WRITABLE.end - 1, "9999-12-31T23:59:59.999Z")]
        {
            assert_eq!((format(time).as_str(), parse(text)), (text, Some(time)));
        }
        assert_eq!(parse("2016-12-31T23:59:60Z"), parse("2016-12-31T23:59:59Z"), "a leap second");
        for outside in ["0000-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00", "2024-12-10T00:01[Europe/Paris]"] {
            assert_eq!(parse(outside), None, "{outside}");
        }
        for time in [0, 1_733_788_889_378, -1, 951_782_400_000, 4_107_542_399_999, -62_135_596_800_000] {
            assert_eq!(parse(&format(time)), Some(time), "{}", format(time));
        }
        assert_eq!(format(1_733_788_889_378), "2024-12-10T00:01:29.378Z");
    }
}
