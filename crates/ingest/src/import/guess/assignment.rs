//! Assignment of columns to fields: those that the user gives, then those whose names or values say what they are. Each
//! column has at most one field. A needed field without a column is an error that lists the columns and how to give them.

use std::collections::HashSet;

use super::Certainty;
use super::names::{FieldNames, normal, words};
use super::profile::Profile;
use super::sample::{ReadOptions, Sample, SampledColumn};
use super::show::{quoted, shown, shown_examples};
use souk_io::error::{Error, Result};

/// Column of `--columns` that leaves a field without one.
const NO_COLUMN: &str = "-";
/// Words of names that belong to something else than the item, such as `brand_id` and `seller_name`.
const FOREIGN_WORDS: [&str; 25] = [
    "brand",
    "category",
    "color",
    "colour",
    "country",
    "currency",
    "customer",
    "file",
    "group",
    "image",
    "img",
    "language",
    "link",
    "manufacturer",
    "parent",
    "seller",
    "shop",
    "size",
    "store",
    "supplier",
    "tax",
    "type",
    "url",
    "user",
    "vendor",
];
/// Columns listed by an error.
const MAX_LISTED: usize = 40;

/// Whether the values of a column can be those of a field.
pub type IsPlausible<'a> = &'a dyn Fn(&Profile) -> bool;

pub struct Chosen {
    pub field: String,
    pub at: usize,
    pub certainty: Certainty,
}

pub struct Assignment<'a> {
    sample: &'a Sample,
    chosen: Vec<Chosen>,
    /// Fields that the user leaves without a column.
    closed: HashSet<String>,
}

impl<'a> Assignment<'a> {
    /// Begins with the columns that the user gives. `known` has the fields that exist, `joined` those that join several
    /// columns.
    pub fn begin(sample: &'a Sample, options: &ReadOptions, known: Option<&[&str]>, joined: &[&str]) -> Result<Self> {
        let mut assignment = Self { sample, chosen: Vec::new(), closed: HashSet::new() };
        let option = options.columns_option();
        for column in &options.columns {
            let field = column.field.as_str();
            if field == "_id" {
                return Err(Error::input("use id=... instead of _id=...: Souk writes the id as _id"));
            }
            if known.is_some_and(|known| !known.contains(&field)) {
                let known = known.unwrap_or_default().join(", ");
                return Err(Error::input(format!("{option} has no field `{field}`: use {known}")));
            }
            if assignment.has(field) && !joined.contains(&field) {
                let problem = format!("{option} maps `{field}` twice: only {} can join columns", joined.join(" and "));
                return Err(Error::input(problem));
            }
            if column.from == NO_COLUMN {
                assignment.closed.insert(field.into());
            } else {
                let at = sample.find(&column.from, option)?;
                assignment.chosen.push(Chosen { field: field.into(), at, certainty: Certainty::Given });
            }
        }
        Ok(assignment)
    }

    pub fn has(&self, field: &str) -> bool {
        self.closed.contains(field) || self.column_at(field).is_some()
    }

    pub fn column_at(&self, field: &str) -> Option<usize> {
        self.chosen.iter().find(|chosen| chosen.field == field).map(|chosen| chosen.at)
    }

    pub fn column(&self, field: &str) -> Option<&'a SampledColumn> {
        self.column_at(field).map(|at| &self.sample.columns[at])
    }

    pub fn certainty(&self, field: &str) -> Option<Certainty> {
        self.chosen.iter().find(|chosen| chosen.field == field).map(|chosen| chosen.certainty)
    }

    pub fn fields(&self) -> impl Iterator<Item = (&str, usize)> {
        self.chosen.iter().map(|chosen| (chosen.field.as_str(), chosen.at))
    }

    pub fn into_chosen(self) -> impl Iterator<Item = Chosen> {
        self.chosen.into_iter()
    }

    /// Columns without a field.
    pub fn free(&self) -> impl Iterator<Item = (usize, &'a SampledColumn)> {
        let taken: HashSet<usize> = self.chosen.iter().map(|chosen| chosen.at).collect();
        self.sample.columns.iter().enumerate().filter(move |(at, _)| !taken.contains(at))
    }

    pub fn choose(&mut self, field: &str, at: usize, certainty: Certainty) {
        self.chosen.push(Chosen { field: field.into(), at, certainty });
    }

    /// Moves the column of one field to another.
    pub fn rename(&mut self, field: &str, to: &str) {
        let chosen = self.chosen.iter_mut().find(|chosen| chosen.field == field);
        chosen.into_iter().for_each(|chosen| chosen.field = to.into());
    }

    /// Takes the column with the likeliest whole name whose values are plausible.
    pub fn by_name(&mut self, names: &FieldNames, is_plausible: IsPlausible) {
        self.by_name_where(names, &|column| is_plausible(&column.profile));
    }

    /// Takes the plausible column with the likeliest whole name.
    pub fn by_name_where(&mut self, names: &FieldNames, is_plausible: &dyn Fn(&SampledColumn) -> bool) {
        if self.has(names.field) {
            return;
        }
        let found = self.named(names).into_iter().find(|at| is_plausible(&self.sample.columns[*at]));
        if let Some(at) = found {
            self.choose(names.field, at, Certainty::Sure);
        }
    }

    /// Takes a plausible column with one of the field's words in its name.
    pub fn by_word(&mut self, names: &FieldNames, is_plausible: IsPlausible) {
        if self.has(names.field) {
            return;
        }
        let is_named = |column: &SampledColumn| {
            let found = words(&column.place.name);
            let is_foreign = found.iter().any(|word| FOREIGN_WORDS.contains(&word.as_str()) && !names.has_word(word));
            !is_foreign && found.iter().any(|word| names.has_word(word))
        };
        let found = self.free().find(|(_, column)| is_named(column) && is_plausible(&column.profile));
        if let Some((at, _)) = found {
            self.choose(names.field, at, Certainty::Likely);
        }
    }

    /// Takes the column with the likeliest whole name whose values are possible, though not plausible.
    pub fn by_name_alone(&mut self, names: &FieldNames, is_possible: IsPlausible) {
        if self.has(names.field) {
            return;
        }
        let found = self.named(names).into_iter().find(|at| is_possible(&self.sample.columns[*at].profile));
        if let Some(at) = found {
            self.choose(names.field, at, Certainty::Unsure);
        }
    }

    /// Takes the free column with the highest score.
    pub fn by_values(&mut self, field: &str, certainty: Certainty, score: &dyn Fn(&SampledColumn) -> Option<f64>) {
        if self.has(field) {
            return;
        }
        let mut best: Option<(usize, f64)> = None;
        for (at, column) in self.free() {
            if let Some(score) = score(column)
                && best.is_none_or(|(_, highest)| score > highest)
            {
                best = Some((at, score));
            }
        }
        if let Some((at, _)) = best {
            self.choose(field, at, certainty);
        }
    }

    /// Free columns with one of the field's names, the likeliest first.
    fn named(&self, names: &FieldNames) -> Vec<usize> {
        let named: Vec<(usize, String)> = self.free().map(|(at, column)| (at, normal(&column.place.name))).collect();
        let at = |name: &str| named.iter().find(|(_, normal)| normal == name).map(|(at, _)| *at);
        names.all_names().filter_map(at).collect()
    }

    /// Checks that the needed fields have columns. `kind` is what the file should be.
    pub fn check(&self, needed: &[&FieldNames], kind: &str, options: &ReadOptions) -> Result<()> {
        let fields = needed.iter().map(|names| names.field);
        let missing: Vec<&str> = fields.filter(|field| self.column_at(field).is_none()).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let columns = self.sample.columns.iter().enumerate().take(MAX_LISTED);
        let names: Vec<String> = columns.clone().map(|(at, _)| shown(&self.sample.reference(at))).collect();
        let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        let list: Vec<String> = columns
            .zip(&names)
            .map(|((_, column), name)| {
                format!("  {name:width$}  {}", shown_examples(&column.examples())).trim_end().into()
            })
            .collect();
        let more = self.sample.columns.len().saturating_sub(MAX_LISTED);
        let more = if more > 0 { format!("\n  and {more} more") } else { String::new() };
        let problem = format!(
            "cannot tell which column of this {kind} is the {}. Its columns:\n{}{more}\nName them with {} {}",
            missing.join(" and which is the "),
            list.join("\n"),
            options.columns_option(),
            quoted(&self.suggestion(needed))
        );
        Err(Error::config(self.sample.file.display(), problem))
    }

    /// Needed fields with their columns, for the user to correct: a field without one gets one that has its name, or the
    /// one that looks most like it.
    fn suggestion(&self, needed: &[&FieldNames]) -> String {
        let mut taken: Vec<usize> = needed.iter().filter_map(|names| self.column_at(names.field)).collect();
        let pairs = needed.iter().map(|names| {
            let named = self.named(names).first().copied();
            let at = self.column_at(names.field).or(named).or_else(|| self.likest(names.field, &taken));
            taken.extend(at);
            format!("{}={}", names.field, at.map_or_else(|| "COLUMN".to_owned(), |at| self.sample.reference(at)))
        });
        pairs.collect::<Vec<_>>().join(",")
    }

    /// The column with the most words, or with the most codes for an id or item, among those that are not taken.
    fn likest(&self, field: &str, taken: &[usize]) -> Option<usize> {
        let score = |at: &usize| {
            let profile = &self.sample.columns[*at].profile;
            let is_identifier = ["id", "item"].contains(&field);
            if is_identifier { profile.numbers + profile.codes } else { profile.letters * profile.mean_words.min(9.0) }
        };
        let free = (0..self.sample.columns.len()).filter(|at| !taken.contains(at));
        // of several alike, the first
        free.rev().max_by(|a, b| score(a).total_cmp(&score(b)))
    }
}
