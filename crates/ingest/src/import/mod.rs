//! Importers: catalogues, judgements and logs as other people keep them, to the data folder that everything here reads.
//! Takes a file or folder of a known [`Format`], gives the folder and a [`Summary`]. Never drops a row silently: what
//! cannot be taken is listed with its place and the reason in `rejected.jsonl` and counted, and so is what does not
//! belong. Files are streamed: what is remembered of a row is a hash or its place.

mod beir;
mod catalogue;
mod esci;
mod fields;
mod home_depot;
mod icecat;
mod intake;
mod lines;
mod page_guard;
mod parquet_rows;
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
pub use intake::{REJECTED_FILE, Summary};
pub use lines::Encoding;
pub use scale::Scale;
pub use shards::{ItemFiles, Shard};

use intake::Intake;
use souk_io::error::{Error, Result};
use table::Shape;

/// Whose files they are.
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

    /// Whether it is several files with known names, and not one with any.
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
            Error::input(format!("`{name}` is no format: say {}", known.join(", ")))
        };
        Self::ALL.into_iter().find(|format| format.name() == name).ok_or_else(unknown)
    }
}

/// What a format can be told. What it does not understand is refused.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub encoding: Encoding,
    /// Instead of the format's own (beir, wands, esci, icecat).
    pub scale: Option<Scale>,
    /// Of esci; `us` where it is not said.
    pub locale: Option<String>,
    /// Of csv.
    pub columns: Vec<Column>,
    pub no_header: bool,
    pub separator: Option<u8>,
    /// A data folder whose items a log (ubi) is about.
    pub catalogue: Option<PathBuf>,
}

impl Options {
    fn check(&self, format: Format) -> Result<()> {
        use Format::{Beir, Csv, Esci, Icecat, Ubi, Wands};
        let given: [(&str, bool, &[Format]); 6] = [
            ("--levels", self.scale.is_some(), &[Beir, Wands, Esci, Icecat]),
            ("--locale", self.locale.is_some(), &[Esci]),
            ("--columns", !self.columns.is_empty(), &[Csv]),
            ("--no-header", self.no_header, &[Csv]),
            ("--delimiter", self.separator.is_some(), &[Csv]),
            ("--catalogue", self.catalogue.is_some(), &[Ubi]),
        ];
        match given.iter().find(|(_, given, formats)| *given && !formats.contains(&format)) {
            Some((option, _, formats)) => {
                let formats: Vec<&str> = formats.iter().map(|format| format.name()).collect();
                Err(Error::input(format!("{option} is for {}, not for {format}", formats.join(", "))))
            }
            None => Ok(()),
        }
    }
}

/// Reads `from` and writes the data folder `out`, which must be new or empty. `progress` is told how many more rows have
/// been read.
pub fn import(
    (format, options): (Format, &Options),
    from: &Path,
    out: &Path,
    progress: &mut dyn FnMut(u64),
) -> Result<Summary> {
    options.check(format)?;
    check_kind(format, from)?;
    let mut intake = Intake::new(from, out, options.encoding, progress)?;
    let (intake_ref, scale) = (&mut intake, options.scale.as_ref());
    match format {
        Format::Beir => beir::import(intake_ref, from, scale)?,
        Format::HomeDepot => home_depot::import(intake_ref, from)?,
        Format::Wands => wands::import(intake_ref, from, scale)?,
        Format::Esci => {
            esci::import(intake_ref, from, options.locale.as_deref().unwrap_or(esci::DEFAULT_LOCALE), scale)?
        }
        Format::Icecat => icecat::import(intake_ref, from, scale)?,
        Format::Csv => {
            let shape = Shape { separator: options.separator, header: !options.no_header };
            catalogue::import(intake_ref, from, shape, &options.columns)?;
        }
        Format::Ubi => {
            let catalogue =
                options.catalogue.as_deref().map(|folder| beir::needed(folder, "corpus.jsonl")).transpose()?;
            ubi::import(intake_ref, from, catalogue.as_deref())?;
        }
    }
    intake.finish()
}

/// A file where a folder is expected, or the reverse.
fn check_kind(format: Format, from: &Path) -> Result<()> {
    let problem = match format {
        _ if !from.exists() => "is not there".to_owned(),
        format if format.is_folder() && !from.is_dir() => {
            let folder = from.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
            format!("is a file, and {format} is a folder of files: say --from {}", folder.display())
        }
        Format::Csv if from.is_dir() => {
            format!("is a folder, and {format} is one file; in the folder are: {}", beir::names(from)?.join(", "))
        }
        _ => return Ok(()),
    };
    Err(Error::config(from.display(), problem))
}
