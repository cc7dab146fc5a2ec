//! Columns of a search log that is a table: query and item are needed; time, session, event and position are found where
//! they can be. Instead of events, a table can have a column for clicks, carts or purchases with 0 and 1.

use std::path::Path;

use super::assignment::{Assignment, IsPlausible};
use super::names::{FieldNames, LOG_FIELDS};
use super::profile::Profile;
use super::sample::{ReadOptions, Sample, SampledColumn};
use super::show::shown_examples;
use super::{Certainty, Guess};
use crate::import::event_names::{EventName, event_kind};
use crate::import::rows::FileKind;
use crate::import::times::{self, DayOrder, DayOrderVotes};
use souk_io::error::{Error, Result};

/// Keys that only UBI records have.
const UBI_KEYS: [&str; 4] = ["event_attributes", "query_response_hit_ids", "query_response_id", "query_attributes"];
/// Keys of OpenSearch bulk lines.
const BULK_KEYS: [&str; 2] = ["index", "create"];
/// Fields that say which event a row is.
pub const FLAGS: [&str; 3] = ["click", "add_to_cart", "purchase"];
/// Names of a column of events even if no name of an event in it is known.
const EVENT_ALONE: FieldNames =
    FieldNames { field: "event", names: "event eventtype eventname action actionname", words: "" };
/// Distinct event names of a log, at most.
const MAX_EVENTS: usize = 50;

/// Whether the rows are UBI records.
pub fn is_ubi(sample: &Sample) -> bool {
    let names = sample.names();
    let has_any = |keys: &[&str]| names.iter().any(|name| keys.contains(name));
    sample.format.kind == FileKind::JsonLines
        && (has_any(&UBI_KEYS) || has_any(&BULK_KEYS) && names.contains(&"user_query"))
}

pub fn guess(sample: &Sample, options: &ReadOptions, events: &[EventName]) -> Result<Guess> {
    let known: Vec<&str> = LOG_FIELDS.iter().map(|names| names.field).collect();
    let mut assignment = Assignment::begin(sample, options, Some(&known), &["time"])?;
    by_names(&mut assignment, events);
    assignment.by_name_alone(&EVENT_ALONE, &|_| true);
    by_values(&mut assignment, events);
    let [time, _, query, item, ..] = &LOG_FIELDS;
    [time, query, item].into_iter().for_each(|names| assignment.by_name_alone(names, &|_| true));
    add_clock(&mut assignment);
    assignment.check(&[query, item], "search log", options)?;
    check_times(&assignment, sample, options)?;
    let mut votes = DayOrderVotes::default();
    sampled_times(&assignment, sample).iter().for_each(|time| votes.add(time));
    let notes = notes(&assignment, &votes);
    Ok(Guess { day_order: votes, ..Guess::new(sample, assignment, notes) })
}

/// Names of the fields with a test of their values, in the order in which they take their columns.
fn by_names(assignment: &mut Assignment, events: &[EventName]) {
    let [time, session, query, item, event, position, query_time, title, click, cart, purchase] = &LOG_FIELDS;
    let is_session = |profile: &Profile| profile.filled >= 0.5 && profile.times < 0.5;
    let is_query = |profile: &Profile| profile.urls < 0.5 && profile.times < 0.5;
    let is_item = |profile: &Profile| profile.single_words >= 0.8 && profile.filled >= 0.3;
    let is_position = |profile: &Profile| profile.integers >= 0.5;
    let is_title = |profile: &Profile| profile.letters >= 0.5 && profile.mean_words > 1.5;
    let tests: [(&FieldNames, IsPlausible); 7] = [
        (query_time, &is_time),
        (time, &is_time),
        (session, &is_session),
        (query, &is_query),
        (item, &is_item),
        (position, &is_position),
        (title, &is_title),
    ];
    assignment.by_name_where(event, &|column| known_events(column, events) > 0.0);
    for (names, is_plausible) in tests {
        assignment.by_name(names, is_plausible);
    }
    if !assignment.has("event") {
        for names in [click, cart, purchase] {
            assignment.by_name_where(names, &is_flag);
        }
    }
    let is_worded_query = |profile: &Profile| is_query(profile) && profile.letters >= 0.5;
    for (names, is_plausible) in [(query, &is_worded_query as IsPlausible)].into_iter().chain(tests) {
        assignment.by_word(names, is_plausible);
    }
    if assignment.column_at("time").is_none() {
        assignment.rename("query_time", "time");
    }
}

fn is_time(profile: &Profile) -> bool {
    profile.times + profile.epochs >= 0.5
}

fn by_values(assignment: &mut Assignment, events: &[EventName]) {
    if !FLAGS.iter().any(|flag| assignment.has(flag)) {
        assignment.by_values("event", Certainty::Likely, &|column| {
            let part = known_events(column, events);
            (part >= 0.5 && column.profile.num_distinct <= MAX_EVENTS).then_some(part)
        });
    }
    assignment.by_values("time", Certainty::Likely, &|column| {
        let profile = &column.profile;
        let is_time = profile.times >= 0.95 || profile.epochs >= 0.95 && profile.ascending >= 0.8;
        is_time.then_some(profile.times)
    });
    // the shortest texts of a few words: titles and categories are longer
    assignment.by_values("query", Certainty::Likely, &|column| {
        let profile = &column.profile;
        let is_text = profile.letters >= 0.7 && profile.paths < 0.5 && profile.urls < 0.1 && profile.times < 0.1;
        (is_text && profile.mean_words > 1.1 && profile.mean_chars <= 80.0).then_some(-profile.mean_chars)
    });
    assignment.by_values("position", Certainty::Likely, &|column| {
        let profile = &column.profile;
        let is_rank = profile.integers >= 0.95 && profile.increments >= 0.3 && profile.largest <= 10_000.0;
        (is_rank && (0.0..=1.0).contains(&profile.smallest)).then_some(profile.increments)
    });
    identifiers_by_values(assignment);
}

/// Session and item by values: a session stays the same from row to row, an item does not. Of several columns that could
/// be the item, one is only taken if it has far more different values than the others.
fn identifiers_by_values(assignment: &mut Assignment) {
    let is_identifier = |column: &SampledColumn| {
        let profile = &column.profile;
        let is_code = profile.numbers + profile.codes >= 0.8 && profile.prices < 0.5;
        is_code && profile.filled >= 0.9 && profile.num_distinct > 1
    };
    let counts = |assignment: &Assignment| {
        let mut counts: Vec<usize> = assignment
            .free()
            .filter(|(_, column)| is_identifier(column))
            .map(|(_, column)| column.profile.num_distinct)
            .collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        counts
    };
    if counts(assignment).len() > usize::from(!assignment.has("item")) {
        assignment.by_values("session", Certainty::Likely, &|column| {
            let profile = &column.profile;
            (is_identifier(column) && profile.repeats >= 0.2).then_some(profile.repeats)
        });
    }
    let is_clear = match counts(assignment).as_slice() {
        [most, next, ..] => *most >= 3 * next,
        rest => !rest.is_empty(),
    };
    if is_clear {
        assignment.by_values("item", Certainty::Likely, &|column| {
            is_identifier(column).then_some(column.profile.num_distinct as f64)
        });
    }
}

/// Fraction of the values that are names of events.
fn known_events(column: &SampledColumn, events: &[EventName]) -> f64 {
    let filled = column.values.iter().map(|value| value.trim()).filter(|value| !value.is_empty());
    let is_known = |value: &&str| event_kind(value).is_some() || events.iter().any(|event| event.name == *value);
    let num_filled = filled.clone().count();
    filled.filter(is_known).count() as f64 / num_filled.max(1) as f64
}

fn is_flag(column: &SampledColumn) -> bool {
    let is_flag = |value: &String| value.trim().is_empty() || flag(value).is_some();
    column.profile.filled > 0.0 && column.values.iter().all(is_flag)
}

/// Value of a column such as `clicked`.
pub fn flag(value: &str) -> Option<bool> {
    match value.trim().to_lowercase().as_str() {
        "1" | "1.0" | "true" | "t" | "yes" | "y" => Some(true),
        "" | "0" | "0.0" | "false" | "f" | "no" | "n" => Some(false),
        _ => None,
    }
}

/// Joins a column with the time of day to one with only dates.
fn add_clock(assignment: &mut Assignment) {
    let has_dates = assignment
        .column("time")
        .is_some_and(|column| column.profile.epochs < 0.5 && column.values.iter().all(|value| !value.contains(':')));
    if !has_dates || assignment.certainty("time") == Some(Certainty::Given) {
        return;
    }
    let is_clock = |value: &String| {
        let parts: Vec<&str> = value.trim().split([':', '.']).collect();
        let are_digits = parts.iter().all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()));
        value.contains(':') && are_digits && parts[0].len() <= 2
    };
    let clock = assignment.free().find(|(_, column)| column.values.iter().all(is_clock)).map(|(at, _)| at);
    if let Some(at) = clock {
        assignment.choose("time", at, Certainty::Likely);
    }
}

/// Times of the rows that have one; several columns are joined with a space.
fn sampled_times(assignment: &Assignment, sample: &Sample) -> Vec<String> {
    let columns: Vec<&SampledColumn> =
        assignment.fields().filter(|(field, _)| *field == "time").map(|(_, at)| &sample.columns[at]).collect();
    let num_rows = columns.first().map_or(0, |column| column.values.len());
    let join = |row: usize| columns.iter().map(|column| column.values[row].trim()).collect::<Vec<_>>().join(" ");
    (0..num_rows).map(join).filter(|time| !time.trim().is_empty()).collect()
}

/// Checks that most times can be read.
fn check_times(assignment: &Assignment, sample: &Sample, options: &ReadOptions) -> Result<()> {
    let times = sampled_times(assignment, sample);
    let orders = [DayOrder::MonthFirst, DayOrder::DayFirst];
    let is_readable = |time: &&String| orders.iter().any(|order| times::parse(time, *order).is_some());
    let num_readable = times.iter().filter(is_readable).count();
    if 2 * num_readable >= times.len() {
        return Ok(());
    }
    let seen: Vec<String> = times.iter().filter(|time| !is_readable(time)).take(3).cloned().collect();
    Err(unreadable_times(&sample.file, &seen, options))
}

/// Error for a log whose times are in an unknown format.
pub fn unreadable_times(file: &Path, seen: &[String], options: &ReadOptions) -> Error {
    let problem = format!(
        "its times cannot be read, such as {}. Souk reads {}. Convert them, or name another column with {} time=COLUMN",
        shown_examples(seen),
        times::READABLE,
        options.columns_option()
    );
    Error::config(file.display(), problem)
}

fn notes(assignment: &Assignment, votes: &DayOrderVotes) -> Vec<String> {
    let mut notes = Vec::new();
    if votes.has_dates() {
        let order = match votes.order() {
            DayOrder::DayFirst => "the day comes first in its dates",
            DayOrder::MonthFirst => "the month comes first in its dates",
        };
        let doubt = if votes.is_certain() { "" } else { ", as far as the first rows tell: the whole log decides" };
        notes.push(format!("{order}{doubt}"));
    }
    if !assignment.has("time") {
        notes.push("no time: the rows keep their order".into());
    }
    if !assignment.has("session") {
        notes.push("no session: rows with the same query count as one search until a gap of 30 minutes".into());
    }
    let flags: Vec<&str> = FLAGS.into_iter().filter(|flag| assignment.column_at(flag).is_some()).collect();
    if !flags.is_empty() {
        notes
            .push(format!("every row is an impression, and also a {} where that column says so", flags.join(" or a ")));
    } else if assignment.column_at("event").is_none() {
        notes.push("no event column: every row is a click".into());
    }
    notes
}
