//! Importers for foreign catalogues, judgements and logs. Takes a file or folder of a known [`Format`], gives Souk's
//! data folder and a [`Summary`]. Never drops a row silently: rejected rows are counted and listed in `rejected.jsonl`
//! with location and reason, out-of-scope rows are counted. Files are streamed; memory holds a hash or an offset per
//! row.

mod beir;
mod catalogue;
mod click_table;
mod columns;
mod corpus;
mod encoding;
mod esci;
mod event_names;
mod fields;
mod folder;
mod guess;
mod home_depot;
mod icecat;
mod import_writer;
mod lines;
mod log_output;
mod mapping;
mod page_guard;
mod pairs;
mod parquet_rows;
mod product_files;
mod rejection;
mod rows;
mod scale;
mod search_log;
mod shards;
mod table;
#[cfg(test)]
mod tests;
mod times;
mod ubi;
mod wands;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

pub use columns::Column;
pub use encoding::Encoding;
pub use event_names::{EventKind, EventName};
pub use guess::{Certainty, FieldGuess, Guess, Guesses, UnreadFile};
pub use import_writer::{REJECTED_FILE, Summary};
pub use scale::Scale;
pub use shards::{ItemFiles, Shard};

use guess::ReadOptions;
use import_writer::ImportWriter;
use search_log::LogOptions;
use souk_io::error::{Error, Result};
use table::TableFormat;

/// Input format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    Beir,
    HomeDepot,
    Wands,
    Esci,
    Icecat,
    Csv,
    Ubi,
    /// Product files whose columns are guessed.
    Items,
    /// Search logs whose columns are guessed, or UBI.
    Log,
    /// Files of training pairs whose columns are guessed.
    Pairs,
}

impl Format {
    pub const ALL: [Self; 10] = [
        Self::Items,
        Self::Log,
        Self::Pairs,
        Self::Beir,
        Self::HomeDepot,
        Self::Wands,
        Self::Esci,
        Self::Icecat,
        Self::Csv,
        Self::Ubi,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Beir => "beir",
            Self::HomeDepot => "home-depot",
            Self::Wands => "wands",
            Self::Esci => "esci",
            Self::Icecat => "icecat",
            Self::Csv => "csv",
            Self::Ubi => "ubi",
            Self::Items => "items",
            Self::Log => "log",
            Self::Pairs => "pairs",
        }
    }

    /// Whether the format is a folder of files with fixed names.
    fn is_folder(self) -> bool {
        !matches!(self, Self::Csv | Self::Ubi | Self::Items | Self::Log | Self::Pairs)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let unknown = || {
            let known: Vec<&str> = Self::ALL.iter().map(|format| format.name()).collect();
            Error::input(format!("unknown format `{name}`: use {}", known.join(", ")))
        };
        Self::ALL.into_iter().find(|format| format.name() == name).ok_or_else(unknown)
    }
}

/// Import options. An option that the format does not support is an error.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub encoding: Encoding,
    /// Replaces the format's own scale (beir, wands, esci, icecat).
    pub scale: Option<Scale>,
    /// esci only; defaults to `us`.
    pub locale: Option<String>,
    /// csv, items, log and pairs: columns of the fields. Those that are not given are guessed, except in csv. `-` leaves a field
    /// without a column (items, log, pairs).
    pub columns: Vec<Column>,
    /// Option that sets `columns`, for messages; `--columns` by default.
    pub columns_option: Option<&'static str>,
    pub no_header: bool,
    pub separator: Option<u8>,
    /// log only: meanings of event names that Souk does not know, or knows otherwise.
    pub events: Vec<EventName>,
    /// ubi and log: data folder with the items that the log refers to.
    pub catalogue: Option<PathBuf>,
}

impl Options {
    fn check(&self, format: Format) -> Result<()> {
        use Format::{Beir, Csv, Esci, Icecat, Items, Log, Pairs, Ubi, Wands};
        let supported: [(&str, bool, &[Format]); 7] = [
            ("--levels", self.scale.is_some(), &[Beir, Wands, Esci, Icecat]),
            ("--locale", self.locale.is_some(), &[Esci]),
            ("--columns", !self.columns.is_empty(), &[Csv, Items, Log, Pairs]),
            ("--no-header", self.no_header, &[Csv, Items, Log, Pairs]),
            ("--delimiter", self.separator.is_some(), &[Csv, Items, Log, Pairs]),
            ("--events", !self.events.is_empty(), &[Log]),
            ("--catalogue", self.catalogue.is_some(), &[Ubi, Log]),
        ];
        match supported.iter().find(|(_, is_set, formats)| *is_set && !formats.contains(&format)) {
            Some((option, _, formats)) => {
                let formats: Vec<&str> = formats.iter().map(|format| format.name()).collect();
                Err(Error::input(format!("{option} applies to {}, not to {format}", formats.join(", "))))
            }
            None => Ok(()),
        }
    }

    fn reading(&self) -> ReadOptions {
        ReadOptions {
            encoding: self.encoding,
            separator: self.separator,
            no_header: self.no_header,
            columns: self.columns.clone(),
            columns_option: self.columns_option,
        }
    }
}

/// Files of a shop: where they are, and how to read them.
#[derive(Clone, Debug)]
pub struct ShopFiles {
    pub from: PathBuf,
    pub options: Options,
}

/// Guesses the columns of a product file, or of the files of a folder. Never imports.
pub fn guess_items(from: &Path, options: &Options) -> Result<Guesses> {
    options.check(Format::Items)?;
    check_kind(Format::Items, from)?;
    product_files::guess(from, &options.reading())
}

/// Guesses the columns of a search log, or of the files of a folder. Never imports.
pub fn guess_log(from: &Path, options: &Options) -> Result<Guesses> {
    options.check(Format::Log)?;
    check_kind(Format::Log, from)?;
    search_log::guess(from, &LogOptions { reading: &options.reading(), events: &options.events })
}

/// Guesses the columns of a file of training pairs, or of the files of a folder. Never imports.
pub fn guess_pairs(from: &Path, options: &Options) -> Result<Guesses> {
    options.check(Format::Pairs)?;
    check_kind(Format::Pairs, from)?;
    pairs::guess(from, &options.reading())
}

/// Imports a shop's product files and its search log, if there is one, to one data folder.
pub fn import_shop(
    items: &ShopFiles,
    log: Option<&ShopFiles>,
    out: &Path,
    progress: &mut dyn FnMut(u64),
) -> Result<Summary> {
    items.options.check(Format::Items)?;
    check_kind(Format::Items, &items.from)?;
    if let Some(log) = log {
        log.options.check(Format::Log)?;
        check_kind(Format::Log, &log.from)?;
    }
    let mut writer = ImportWriter::new(&items.from, out, items.options.encoding, progress)?;
    product_files::import(&mut writer, &items.from, &items.options.reading())?;
    if let Some(log) = log {
        import_log(&mut writer, &log.from, &log.options, true)?;
    }
    writer.finish()
}

/// Reads `from` and writes the data folder `out`, which must be new or empty. `progress` gets the number of rows read
/// since its last call.
pub fn import(
    format: Format,
    options: &Options,
    from: &Path,
    out: &Path,
    progress: &mut dyn FnMut(u64),
) -> Result<Summary> {
    options.check(format)?;
    check_kind(format, from)?;
    let mut import_writer = ImportWriter::new(from, out, options.encoding, progress)?;
    let (writer, scale) = (&mut import_writer, options.scale.as_ref());
    match format {
        Format::Beir => beir::import(writer, from, scale)?,
        Format::HomeDepot => home_depot::import(writer, from)?,
        Format::Wands => wands::import(writer, from, scale)?,
        Format::Esci => esci::import(writer, from, options.locale.as_deref().unwrap_or(esci::DEFAULT_LOCALE), scale)?,
        Format::Icecat => icecat::import(writer, from, scale)?,
        Format::Csv => {
            let table_format = TableFormat { separator: options.separator, header: !options.no_header };
            catalogue::import(writer, from, table_format, &options.columns)?;
        }
        Format::Ubi => {
            let catalogue =
                options.catalogue.as_deref().map(|data| folder::require_file(data, "corpus.jsonl")).transpose()?;
            ubi::import(writer, from, catalogue.as_deref())?;
        }
        Format::Items => product_files::import(writer, from, &options.reading())?,
        Format::Log => import_log(writer, from, options, false)?,
        Format::Pairs => pairs::import(writer, from, &options.reading())?,
    }
    import_writer.finish()
}

/// Imports a log. `has_items` says that its catalogue was imported before.
fn import_log(writer: &mut ImportWriter, from: &Path, options: &Options, has_items: bool) -> Result<()> {
    let files = search_log::log_files(writer, from)?;
    if let Some(data) = &options.catalogue {
        ubi::import_catalogue(writer, &folder::require_file(data, "corpus.jsonl")?, &files)?;
    }
    let num_before = writer.num_rows();
    let log_options = LogOptions { reading: &options.reading(), events: &options.events };
    search_log::import(writer, &files, &log_options, has_items || options.catalogue.is_some())?;
    writer.summary.log_rows_read = writer.num_rows() - num_before;
    Ok(())
}

/// Checks that `from` exists and is a file or a folder as the format requires.
fn check_kind(format: Format, from: &Path) -> Result<()> {
    let problem = match format {
        _ if !from.exists() => "does not exist".to_owned(),
        format if format.is_folder() && !from.is_dir() => {
            let folder = from.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            format!("is a file, but {format} needs a folder: use --from {}", folder.display())
        }
        Format::Csv if from.is_dir() => {
            format!(
                "is a folder, but {format} needs one file; the folder has: {}",
                folder::file_names(from)?.join(", ")
            )
        }
        _ => return Ok(()),
    };
    Err(Error::config(from.display(), problem))
}
