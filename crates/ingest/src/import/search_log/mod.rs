//! Search logs as shops have them: a table with a row per event (CSV, TSV, JSON lines, Parquet, Arrow) whose columns are
//! guessed, or UBI records; one file or a folder. Takes them with the catalogue that was imported before, if any. Gives
//! `logs.ndjson`: each search with the items shown, then its events. Rows of a table are held in memory.

mod log_columns;
mod logged_rows;
mod searches;

use std::path::{Path, PathBuf};

use self::log_columns::LogColumns;
use self::logged_rows::LoggedRows;
use super::event_names::{EventKind, EventName};
use super::guess::{Guess, Guesses, ReadOptions, log_guesses, unreadable_times};
use super::import_writer::ImportWriter;
use super::log_output::LogOutput;
use super::rows::{InputFiles, RowFile, input_files};
use super::times::{DayOrder, DayOrderVotes};
use super::ubi;
use souk_io::error::{Error, Result};
use souk_io::ubi::Action;

/// File of a data folder that has the log.
const LOGS: &str = "logs.ndjson";

/// How to read a log.
pub struct LogOptions<'a> {
    pub reading: &'a ReadOptions,
    /// Event names that the user maps.
    pub events: &'a [EventName],
}

/// Guesses the columns of a log, or of the files of a folder.
pub fn guess(from: &Path, options: &LogOptions) -> Result<Guesses> {
    log_guesses(&input_files(from, LOGS)?.files, options.reading, options.events)
}

/// Files of a log; a folder's others are listed as unread.
pub fn log_files(writer: &mut ImportWriter, from: &Path) -> Result<Vec<PathBuf>> {
    let InputFiles { files, others } = input_files(from, LOGS)?;
    writer.summary.unread_files.extend(others);
    Ok(files)
}

pub fn import(writer: &mut ImportWriter, files: &[PathBuf], options: &LogOptions, has_catalogue: bool) -> Result<()> {
    let guesses = log_guesses(files, options.reading, options.events)?;
    guesses.unread.iter().for_each(|unread| writer.note_unread(&unread.file));
    let (tables, records): (Vec<&Guess>, Vec<&Guess>) =
        guesses.files.iter().partition(|guess| guess.format().is_some());
    let mut output = LogOutput::new(has_catalogue);
    for guess in &records {
        ubi::import_records(writer, &guess.file, &mut output)?;
    }
    if !tables.is_empty() {
        import_tables(writer, &tables, options, &mut output)?;
    }
    records.iter().try_for_each(|guess| ubi::add_untitled_items(writer, &guess.file, &output))?;
    output.warn(writer);
    Ok(())
}

fn import_tables(
    writer: &mut ImportWriter,
    guesses: &[&Guess],
    options: &LogOptions,
    output: &mut LogOutput,
) -> Result<()> {
    let order = day_order(guesses)?;
    let mut rows = LoggedRows::default();
    for guess in guesses {
        let columns = LogColumns::of(guess, order, options.events)?;
        rows.read(writer, guess, &columns, output)?;
    }
    if 2 * rows.num_unreadable > rows.num_timed {
        return Err(unreadable_times(&guesses[0].file, &rows.unreadable, options.reading));
    }
    check_events(&rows, &guesses[0].file)?;
    warn_of_views(&rows, writer);
    rows.write_untitled_items(writer, output)?;
    searches::write(rows, writer)
}

/// Order of day and month in the dates. Reads the times of all files unless a few decide it.
fn day_order(guesses: &[&Guess]) -> Result<DayOrder> {
    let sampled = guesses.iter().map(|guess| guess.day_order()).find(|votes| votes.has_dates());
    let Some(sampled) = sampled.filter(|votes| !votes.is_certain()) else {
        return Ok(sampled.map_or(DayOrder::MonthFirst, DayOrderVotes::order));
    };
    let mut votes = sampled.clone();
    for guess in guesses {
        let (columns, Some(format)) = (LogColumns::of(guess, votes.order(), &[])?, guess.format()) else { continue };
        let mut rows = RowFile::open(&guess.file, format)?;
        while let Some(read) = rows.read()? {
            if let Ok(row) = read {
                votes.add(&columns.time_text(&row));
            }
            if votes.is_certain() {
                return Ok(votes.order());
            }
        }
    }
    Ok(votes.order())
}

/// A log whose events all have unknown names is an error that says how to map them.
fn check_events(rows: &LoggedRows, file: &Path) -> Result<()> {
    if !rows.is_empty() || rows.unknown_events.is_empty() {
        return Ok(());
    }
    let names: Vec<String> =
        rows.unknown_events.iter().take(10).map(|(name, count)| format!("`{name}` ({count})")).collect();
    let first = rows.unknown_events.keys().next().map_or("NAME", String::as_str);
    let problem = format!(
        "no name in its event column is known: {}. Say what they mean, for example with --events '{first}=click'",
        names.join(", ")
    );
    Err(Error::config(file.display(), problem))
}

/// `view` can be a look at a product's page. It then is a click, and such a log has no other.
fn warn_of_views(rows: &LoggedRows, writer: &mut ImportWriter) {
    let has = |action| rows.num_events(EventKind::Action(action)) > 0;
    let view = rows.known_events.keys().find(|name| name.to_lowercase().contains("view"));
    if let Some(view) = view.filter(|_| has(Action::Impression) && !has(Action::Click)) {
        let warning = format!(
            "the log has no clicks, and its events `{view}` count as impressions; if they are visits of product pages, \
             use --events '{view}=click'"
        );
        writer.summary.warnings.push(warning);
    }
}

#[cfg(test)]
mod tests;
