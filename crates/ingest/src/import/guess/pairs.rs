//! Columns of a file of training pairs: query and positive are needed, negatives are found where they can be. Columns without a known
//! name are read in sentence-transformers' order: query, positive, negative.

use super::assignment::Assignment;
use super::names::{FieldNames, PAIR_FIELDS, normal};
use super::profile::Profile;
use super::sample::{ReadOptions, Sample};
use super::{Certainty, Guess};
use crate::import::rows::FileKind;
use souk_io::error::{Error, Result};

/// Names of columns that make a file one of graded pairs.
const GRADES: [&str; 5] = ["label", "labels", "score", "scores", "similarity"];

pub fn guess(sample: &Sample, options: &ReadOptions) -> Result<Guess> {
    let [query, positive, negative] = &PAIR_FIELDS;
    let fields = PAIR_FIELDS.each_ref().map(|names| names.field);
    let mut assignment = Assignment::begin(sample, options, Some(&fields), &[positive.field, negative.field])?;
    if options.columns.is_empty()
        && let Some((_, column)) =
            assignment.free().find(|(_, column)| GRADES.contains(&normal(&column.place.name).as_str()))
    {
        let problem = format!(
            "has a column `{}`: graded pairs are judgements (--format beir). If all rows are positives, name the columns with {} \
             query=...,positive=...",
            column.place.name,
            options.columns_option()
        );
        return Err(Error::config(sample.file.display(), problem));
    }
    for names in [query, positive] {
        assignment.by_name(names, &is_text);
    }
    let is_negative = |names: &FieldNames, name: &str| {
        let name = normal(name);
        names
            .all_names()
            .any(|known| name.strip_prefix(known).is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit())))
    };
    if !assignment.has(negative.field) {
        let free: Vec<usize> = assignment
            .free()
            .filter(|(_, column)| is_negative(negative, &column.place.name))
            .map(|(at, _)| at)
            .collect();
        free.into_iter().for_each(|at| assignment.choose(negative.field, at, Certainty::Sure));
    }
    by_order(&mut assignment, sample);
    assignment.check(&[query, positive], "file of pairs", options)?;
    Ok(Guess::new(sample, assignment, Vec::new()))
}

/// The fields that are left, in their order, if the file has no column that could be something else.
fn by_order(assignment: &mut Assignment, sample: &Sample) {
    let is_ordered = !matches!(sample.format.kind, FileKind::JsonLines | FileKind::JsonArray);
    let free: Vec<usize> = assignment.free().map(|(at, _)| at).collect();
    let open: Vec<&str> = PAIR_FIELDS.iter().map(|names| names.field).filter(|field| !assignment.has(field)).collect();
    let needs_one = open.iter().any(|field| *field != PAIR_FIELDS[2].field);
    if needs_one && free.len() <= open.len() && (is_ordered || free.len() == 1) {
        free.into_iter().zip(open).for_each(|(at, field)| assignment.choose(field, at, Certainty::Likely));
    }
}

fn is_text(profile: &Profile) -> bool {
    profile.letters >= 0.5 && profile.times < 0.1
}
