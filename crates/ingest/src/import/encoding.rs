//! Text encodings of imported files. Takes the bytes of a row, gives text; never drops bytes silently.

use std::borrow::Cow;
use std::str::FromStr;

use super::rejection::Rejection;
use souk_io::error::{Error, Result};

/// Remark on rows that [`Encoding::Auto`] does not read as UTF-8.
pub const READ_AS_1252: &str = "rows that are not UTF-8, read as windows-1252";

/// Character encoding of the input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// UTF-8; rows that are not UTF-8 are read as windows-1252 and counted.
    #[default]
    Auto,
    /// UTF-8; other rows are rejected.
    Utf8,
    /// Windows-1252, the actual encoding of files labelled latin-1.
    Latin1,
}

impl Encoding {
    pub const NAMES: [&'static str; 3] = ["auto", "utf-8", "latin-1"];

    /// Decodes a row; returns the text and whether it fell back to windows-1252.
    pub fn decode(self, bytes: &[u8]) -> std::result::Result<(Cow<'_, str>, bool), Rejection> {
        let as_1252 = || encoding_rs::WINDOWS_1252.decode_without_bom_handling(bytes).0;
        match (self, std::str::from_utf8(bytes)) {
            (Self::Latin1, _) => Ok((as_1252(), false)),
            (_, Ok(text)) => Ok((Cow::Borrowed(text), false)),
            (Self::Auto, Err(_)) => Ok((as_1252(), true)),
            (Self::Utf8, Err(e)) => Err(Rejection::with("not valid UTF-8", e)),
        }
    }
}

impl FromStr for Encoding {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "auto" => Ok(Self::Auto),
            "utf-8" => Ok(Self::Utf8),
            "latin-1" => Ok(Self::Latin1),
            _ => Err(Error::input(format!("unknown encoding `{name}`: use {}", Self::NAMES.join(", ")))),
        }
    }
}
