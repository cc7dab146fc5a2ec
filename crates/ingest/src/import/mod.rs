//! Importers for foreign catalogues, judgements and logs. Takes a file or folder of a known [`Format`], gives Souk's
//! data folder and a [`Summary`]. Never drops a row silently: rejected rows are counted and listed in `rejected.jsonl`
//! with location and reason, out-of-scope rows are counted. Files are streamed; memory holds a hash or an offset per
//! row.

mod beir;
mod catalogue;
mod corpus;
mod encoding;
mod esci;
mod fields;
mod folder;
mod home_depot;
mod icecat;
mod import_writer;
mod lines;
mod page_guard;
mod parquet_rows;
mod rejection;
mod scale;
mod shards;
mod table;
#[cfg(test)]
mod tests;
mod ubi;
mod wands;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

pub use catalogue::Column;
pub use encoding::Encoding;
pub use import_writer::{REJECTED_FILE, Summary};
pub use scale::Scale;
pub use shards::{ItemFiles, Shard};

use import_writer::ImportWriter;
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
}

impl Format {
    pub const ALL: [Self; 7] =
        [Self::Beir, Self::HomeDepot, Self::Wands, Self::Esci, Self::Icecat, Self::Csv, Self::Ubi];

    pub fn name(self) -> &'static str {
        match self {
            Self::Beir => "beir",
            Self::HomeDepot => "home-depot",
            Self::Wands => "wands",
            Self::Esci => "esci",
            Self::Icecat => "icecat",
            Self::Csv => "csv",
            Self::Ubi => "ubi",
        }
    }

    /// Whether the format is a folder of files with fixed names.
    fn is_folder(self) -> bool {
        !matches!(self, Self::Csv | Self::Ubi)
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
    /// csv only.
    pub columns: Vec<Column>,
    pub no_header: bool,
    pub separator: Option<u8>,
    /// ubi only: data folder with the items that the log refers to.
    pub catalogue: Option<PathBuf>,
}

impl Options {
    fn check(&self, format: Format) -> Result<()> {
        use Format::{Beir, Csv, Esci, Icecat, Ubi, Wands};
        let supported: [(&str, bool, &[Format]); 6] = [
            ("--levels", self.scale.is_some(), &[Beir, Wands, Esci, Icecat]),
            ("--locale", self.locale.is_some(), &[Esci]),
            ("--columns", !self.columns.is_empty(), &[Csv]),
            ("--no-header", self.no_header, &[Csv]),
            ("--delimiter", self.separator.is_some(), &[Csv]),
            ("--catalogue", self.catalogue.is_some(), &[Ubi]),
        ];
        match supported.iter().find(|(_, is_set, formats)| *is_set && !formats.contains(&format)) {
            Some((option, _, formats)) => {
                let formats: Vec<&str> = formats.iter().map(|format| format.name()).collect();
                Err(Error::input(format!("{option} applies to {}, not to {format}", formats.join(", "))))
            }
            None => Ok(()),
        }
    }
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
    }
    import_writer.finish()
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
