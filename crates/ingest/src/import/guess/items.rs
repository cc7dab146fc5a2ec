//! Columns of a product file: id and title are needed; text, category, brand and price are found where they can be.

use std::collections::HashSet;

use super::assignment::{Assignment, IsPlausible};
use super::names::{FieldNames, ITEM_FIELDS};
use super::profile::Profile;
use super::sample::{ReadOptions, Sample, SampledColumn};
use super::{Certainty, Guess};
use souk_io::error::Result;

/// Fraction of distinct ids in a column of ids.
const DISTINCT: f64 = 0.95;
/// Fraction of the rows that have a value, in a column known by its values only.
const MIN_FILLED: f64 = 0.3;

pub fn guess(sample: &Sample, options: &ReadOptions) -> Result<Guess> {
    let mut assignment = Assignment::begin(sample, options, None, &["title", "text"])?;
    by_names(&mut assignment);
    // without names the values say what a column is; next to names, only values that say it clearly
    let has_names = ["id", "title"].iter().all(|field| assignment.certainty(field) == Some(Certainty::Sure));
    by_values(&mut assignment, has_names);
    let [id, title, ..] = &ITEM_FIELDS;
    // the ids of a log come again and again
    assignment.by_name_alone(id, &|profile| profile.distinct >= 0.5);
    assignment.by_name_alone(title, &|_| true);
    assignment.check(&[id, title], "product file", options)?;
    let notes = notes(&assignment);
    Ok(Guess::new(sample, assignment, notes))
}

fn by_names(assignment: &mut Assignment) {
    let [id, title, text, category, brand, price] = &ITEM_FIELDS;
    let is_price = |profile: &Profile| profile.numbers >= 0.5;
    let is_name = |profile: &Profile| profile.letters >= 0.5 && profile.urls < 0.1;
    assignment.by_name(title, &is_prose);
    choose_id(assignment, id);
    let optional: [(&FieldNames, IsPlausible); 4] =
        [(text, &is_prose), (category, &is_name), (brand, &is_name), (price, &is_price)];
    for (names, is_plausible) in optional {
        assignment.by_name(names, is_plausible);
    }
    assignment.by_word(title, &is_prose);
    assignment.by_word(id, &is_id);
    for (names, is_plausible) in optional {
        assignment.by_word(names, is_plausible);
        // a column that is empty so far
        assignment.by_name(names, &|profile| profile.filled == 0.0);
    }
}

/// Takes the named column whose values are distinct among the rows with a title: in a file with a row per variant, the
/// rows after the first of a product have none.
fn choose_id(assignment: &mut Assignment, names: &FieldNames) {
    let title = assignment.column("title");
    let titled: HashSet<usize> = title.map_or_else(HashSet::new, |column| {
        column.values.iter().enumerate().filter(|(_, value)| !value.trim().is_empty()).map(|(at, _)| at).collect()
    });
    let of_titled = |column: &SampledColumn| {
        let values = column.values.iter().enumerate().filter(|(at, _)| titled.contains(at));
        Profile::of(&values.map(|(_, value)| value.clone()).collect::<Vec<_>>())
    };
    assignment.by_name_where(names, &|column| {
        if titled.is_empty() { is_id(&column.profile) } else { is_id(&of_titled(column)) }
    });
}

fn is_prose(profile: &Profile) -> bool {
    profile.letters >= 0.5 && profile.urls < 0.1 && profile.times < 0.1
}

fn is_id(profile: &Profile) -> bool {
    profile.filled >= 0.9 && profile.distinct >= DISTINCT && profile.urls < 0.1 && profile.times < 0.1
}

fn by_values(assignment: &mut Assignment, has_names: bool) {
    // of several texts, the shorter one: a description is longer
    assignment.by_values("title", Certainty::Likely, &|column| {
        let profile = &column.profile;
        let is_title = is_prose(profile) && profile.letters >= 0.8 && profile.paths < 0.6 && profile.distinct >= 0.5;
        (is_title && profile.filled >= MIN_FILLED && (1.5..=30.0).contains(&profile.mean_words))
            .then(|| profile.distinct + profile.mean_words.min(4.0) / 16.0 - profile.mean_chars / 400.0)
    });
    // of several columns with an id in each row, the first
    assignment.by_values("id", Certainty::Likely, &|column| {
        let profile = &column.profile;
        let is_code = profile.single_words >= 0.99 && profile.filled >= 0.99 && profile.mean_chars <= 64.0;
        (is_id(profile) && is_code && profile.prices < 0.5).then_some(profile.distinct.min(0.99))
    });
    assignment.by_values("category", Certainty::Likely, &|column| {
        let profile = &column.profile;
        (profile.paths >= 0.6 && profile.distinct <= 0.8 && profile.filled >= MIN_FILLED).then_some(profile.paths)
    });
    assignment.by_values("price", Certainty::Likely, &|column| {
        let profile = &column.profile;
        let has_signs = || column.values.iter().any(|value| value.contains(['$', '£', '€', '¥', '₹']));
        let is_price = profile.numbers >= 0.8 && profile.prices >= 0.3 && profile.largest > 5.0;
        let is_common = profile.smallest >= 0.0 && profile.filled >= MIN_FILLED;
        (is_price && is_common && (!has_names || has_signs())).then_some(profile.prices)
    });
    if has_names {
        return;
    }
    let title = assignment.column("title");
    assignment.by_values("brand", Certainty::Likely, &|column| {
        let part = named_in(column, title?);
        let profile = &column.profile;
        let is_brand = profile.letters >= 0.6 && profile.distinct < 0.9 && profile.mean_words <= 4.0;
        (is_brand && profile.paths < 0.6 && profile.filled >= MIN_FILLED && part >= 0.3).then_some(part)
    });
    assignment.by_values("text", Certainty::Likely, &|column| {
        let profile = &column.profile;
        let is_longer = title.is_some_and(|title| profile.mean_chars > title.profile.mean_chars);
        (is_prose(profile) && is_longer && profile.filled >= MIN_FILLED && profile.mean_words >= 12.0)
            .then_some(profile.mean_words)
    });
}

/// Fraction of the values that stand in the title of their row, as a brand does.
fn named_in(column: &SampledColumn, title: &SampledColumn) -> f64 {
    let rows = column.values.iter().zip(&title.values);
    let filled: Vec<(String, String)> = rows
        .filter(|(value, _)| value.trim().chars().count() > 1)
        .map(|(value, title)| (value.trim().to_lowercase(), title.to_lowercase()))
        .collect();
    let named = filled.iter().filter(|(value, title)| title.contains(value.as_str())).count();
    named as f64 / filled.len().max(1) as f64
}

fn notes(assignment: &Assignment) -> Vec<String> {
    let repeats = assignment.column("id").filter(|id| id.profile.distinct < 1.0);
    let note = "some ids come again in the first rows: the first row of an id stays, later ones are rejected";
    repeats.map(|_| note.to_owned()).into_iter().collect()
}
