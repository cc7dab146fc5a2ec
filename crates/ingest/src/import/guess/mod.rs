//! Guesses which columns of a product file, a search log or a file of training pairs mean what. Takes a path and the options, gives a [`Guess`] that
//! can be shown before anything is imported, and used to read the rows. Looks at the names of the columns first, then at
//! their values. Never imports: what is not clear is an error that lists the columns.

mod assignment;
mod header;
mod items;
mod log;
mod names;
mod pairs;
mod profile;
mod sample;
mod show;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use serde::Serialize;

use self::assignment::Assignment;
pub use self::log::{FLAGS, flag, unreadable_times};
pub use self::profile::whole_number;
pub use self::sample::ReadOptions;
use self::sample::Sample;
use super::event_names::EventName;
use super::rows::{ColumnPlace, FileKind, RowFormat};
use super::times::DayOrderVotes;
use souk_io::error::{Error, Result};

/// Fields that a product file, a log or a file of pairs must have.
const NEEDED: [&str; 5] = ["id", "title", "query", "item", "positive"];

/// How sure a guess is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Certainty {
    /// Set by an option.
    Given,
    /// The column's name says it, and its values do not contradict.
    Sure,
    /// A part of its name or its values say it.
    Likely,
    /// Its name says it, but its values look different; or several columns look alike.
    Unsure,
}

impl Certainty {
    pub fn name(self) -> &'static str {
        match self {
            Self::Given => "given",
            Self::Sure => "sure",
            Self::Likely => "likely",
            Self::Unsure => "unsure",
        }
    }
}

/// Column guessed for a field.
#[derive(Clone, Debug, Serialize)]
pub struct FieldGuess {
    pub field: String,
    /// Name, or number from 0, as `--columns` takes it.
    pub column: String,
    pub certainty: Certainty,
    /// Up to three values.
    pub examples: Vec<String>,
    #[serde(skip)]
    place: ColumnPlace,
}

/// Meaning of the columns of a file.
#[derive(Clone, Debug, Serialize)]
pub struct Guess {
    pub file: PathBuf,
    /// Format, such as `comma-separated, with a header`.
    pub layout: String,
    /// Empty for a UBI log, whose fields have fixed names.
    pub fields: Vec<FieldGuess>,
    /// Columns without a field.
    pub other_columns: Vec<String>,
    /// Warnings before the import.
    pub notes: Vec<String>,
    /// None for a UBI log.
    #[serde(skip)]
    format: Option<RowFormat>,
    /// Names of all columns.
    #[serde(skip)]
    names: Vec<String>,
    /// Order of day and month, as far as the sampled times tell.
    #[serde(skip)]
    day_order: DayOrderVotes,
}

/// Guesses for the files of an input; all of its files that have rows are here or unread. Its text shows the first guess,
/// and those that differ from it.
#[derive(Clone, Debug, Serialize)]
pub struct Guesses {
    pub files: Vec<Guess>,
    /// Files of the folder that are not read.
    pub unread: Vec<UnreadFile>,
    #[serde(skip)]
    columns_option: &'static str,
}

/// File of a folder that is not read.
#[derive(Clone, Debug, Serialize)]
pub struct UnreadFile {
    pub file: PathBuf,
    pub reason: String,
}

impl Guess {
    fn new(sample: &Sample, assignment: Assignment, notes: Vec<String>) -> Self {
        let is_taken = |at: &usize| assignment.fields().any(|(_, taken)| taken == *at);
        let others = (0..sample.columns.len()).filter(|at| !is_taken(at)).map(|at| sample.reference(at)).collect();
        let field = |chosen: assignment::Chosen| FieldGuess {
            column: sample.reference(chosen.at),
            certainty: chosen.certainty,
            examples: sample.columns[chosen.at].examples(),
            place: sample.columns[chosen.at].place.clone(),
            field: chosen.field,
        };
        let mut fields: Vec<FieldGuess> = assignment.into_chosen().map(field).collect();
        fields.sort_by_key(|guess| names::place(&guess.field));
        Self {
            file: sample.file.clone(),
            layout: sample.layout(),
            other_columns: others,
            fields,
            notes,
            format: Some(sample.format),
            names: sample.names().into_iter().map(str::to_owned).collect(),
            day_order: DayOrderVotes::default(),
        }
    }

    /// Guess for a log of UBI records.
    fn of_ubi(file: &Path) -> Self {
        let layout = "UBI 1.3, JSON lines".into();
        let (fields, other_columns, notes, names) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let day_order = DayOrderVotes::default();
        Self { file: file.into(), layout, fields, other_columns, notes, format: None, names, day_order }
    }

    /// The columns in the form of the option `--columns`.
    pub fn columns(&self) -> String {
        let pairs = self.fields.iter().map(|guess| format!("{}={}", guess.field, guess.column));
        pairs.collect::<Vec<_>>().join(",")
    }

    /// Column of a field, as `--columns` takes it.
    pub fn column(&self, field: &str) -> Option<&str> {
        self.fields.iter().find(|guess| guess.field == field).map(|guess| guess.column.as_str())
    }

    /// How to read the file's rows; `None` for a UBI log.
    pub(super) fn format(&self) -> Option<RowFormat> {
        self.format
    }

    pub(super) fn day_order(&self) -> &DayOrderVotes {
        &self.day_order
    }

    /// Fields with their columns; a field can have several.
    pub(super) fn places(&self) -> impl Iterator<Item = (&str, &ColumnPlace)> {
        self.fields.iter().map(|guess| (guess.field.as_str(), &guess.place))
    }

    /// Whether the needed columns are known well enough to tell the file from other files of a folder: all by name, or all
    /// by value.
    fn is_clear(&self) -> bool {
        let needed = || self.fields.iter().filter(|guess| NEEDED.contains(&guess.field.as_str()));
        let has = |certainty| needed().any(|guess| guess.certainty == certainty);
        !(has(Certainty::Unsure) || has(Certainty::Sure) && has(Certainty::Likely))
    }

    /// The same columns in another file of the folder, if it has them.
    fn carried_to(&self, file: &Path, format: RowFormat, names: &[String]) -> Option<Self> {
        let own = self.format.filter(|own| own.kind == format.kind)?;
        let is_same = if format.kind == FileKind::Delimited {
            self.names == names && own.header == format.header
        } else {
            // a sample of objects may lack keys that other rows have
            self.places().filter(|(field, _)| NEEDED.contains(field)).all(|(_, place)| names.contains(&place.name))
        };
        is_same.then(|| Self { file: file.into(), format: Some(format), ..self.clone() })
    }
}

/// Guesses the columns of product files.
pub fn item_guesses(files: &[PathBuf], options: &ReadOptions) -> Result<Guesses> {
    guesses(files, options, &|sample| items::guess(sample, options))
}

/// Guesses the columns of files of training pairs.
pub fn pair_guesses(files: &[PathBuf], options: &ReadOptions) -> Result<Guesses> {
    guesses(files, options, &|sample| pairs::guess(sample, options))
}

/// Guesses the columns of log files.
pub fn log_guesses(files: &[PathBuf], options: &ReadOptions, events: &[EventName]) -> Result<Guesses> {
    guesses(files, options, &|sample| {
        if options.columns.is_empty() && log::is_ubi(sample) {
            return Ok(Guess::of_ubi(&sample.file));
        }
        log::guess(sample, options, events)
    })
}

/// Sampled file with its own guess.
struct SampledFile {
    file: PathBuf,
    format: RowFormat,
    names: Vec<String>,
    own: Result<Guess>,
}

fn guesses(files: &[PathBuf], options: &ReadOptions, guess: &dyn Fn(&Sample) -> Result<Guess>) -> Result<Guesses> {
    let mut guesses = Guesses { files: Vec::new(), unread: Vec::new(), columns_option: options.columns_option() };
    let mut sampled: Vec<SampledFile> = Vec::new();
    for file in files {
        let sample = match Sample::read(file, options) {
            Ok(Some(sample)) => sample,
            Ok(None) => continue,
            // one bad file of a folder does not hide the others
            Err(Error::Data { problem, .. }) if files.len() > 1 => {
                guesses.unread.push(UnreadFile { file: file.clone(), reason: problem });
                continue;
            }
            Err(error) => return Err(error),
        };
        let names = sample.names().into_iter().map(str::to_owned).collect();
        sampled.push(SampledFile { file: file.clone(), format: sample.format, names, own: guess(&sample) });
    }
    let Some(first) = first_guess(&mut sampled)? else {
        let place = if let [file] = files { file.as_path() } else { folder_of(files) };
        let reasons = guesses.unread.iter().map(|UnreadFile { file, reason }| format!("{}: {reason}", file.display()));
        let problem = reasons.reduce(|all, more| format!("{all}; {more}"));
        return Err(Error::data(place, None, problem.unwrap_or_else(|| "is empty: it has no rows".into())));
    };
    for SampledFile { file, format, names, own } in sampled {
        let carried = first.carried_to(&file, format, &names);
        match carried.or_else(|| own.ok().filter(Guess::is_clear)) {
            Some(guess) => guesses.files.push(guess),
            None => guesses.unread.push(UnreadFile { file, reason: "its columns are unclear".into() }),
        }
    }
    Ok(guesses)
}

/// The first clear guess, or else the first guess; an error if there is none.
fn first_guess(sampled: &mut Vec<SampledFile>) -> Result<Option<Guess>> {
    let is_clear = |file: &SampledFile| file.own.as_ref().is_ok_and(Guess::is_clear);
    let found = sampled.iter().find(|file| is_clear(file)).or_else(|| sampled.iter().find(|file| file.own.is_ok()));
    if let Some(SampledFile { own: Ok(guess), .. }) = found {
        return Ok(Some(guess.clone()));
    }
    if sampled.is_empty() {
        return Ok(None);
    }
    sampled.swap_remove(0).own.map(Some)
}

fn folder_of(files: &[PathBuf]) -> &Path {
    files.first().and_then(|file| file.parent()).unwrap_or(Path::new("."))
}
