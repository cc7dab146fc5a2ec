//! Timestamps in search logs, as milliseconds since 1970 (no leap seconds). Reads ISO 8601 in the variants that logs use:
//! `2026-01-31T10:00:00.000Z`, `...+0000`, `2026-01-31 10:00:00.5`, or a date alone. Without an offset, UTC is assumed.

use std::ops::Range;

use jiff::SignedDuration;
use jiff::civil::{DateTime, Time, date};
use jiff::fmt::temporal::Pieces;

const EPOCH: DateTime = date(1970, 1, 1).at(0, 0, 0, 0);
/// Years 0000 to 9999: those of four digits.
const WRITABLE: Range<i64> = -62_167_219_200_000..253_402_300_800_000;

/// Whether `format` writes this time in a form that `parse` reads back.
pub fn is_writable(time: i64) -> bool {
    WRITABLE.contains(&time)
}

/// Milliseconds since 1970, or `None` if the text is not a timestamp. Digits after the milliseconds are cut off, and a
/// leap second counts as the second before it.
pub fn parse(text: &str) -> Option<i64> {
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
