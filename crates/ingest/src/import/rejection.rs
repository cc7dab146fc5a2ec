//! Rejected rows: the reason a row was not imported and its location in the source file.

use std::borrow::Cow;
use std::path::Path;

/// Reason for rejecting a row: a countable reason and an optional detail about this row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    pub reason: Cow<'static, str>,
    pub detail: Option<String>,
}

/// Rejection of a line or row longer than [`souk_io::beir::MAX_LINE_BYTES`].
pub const TOO_LONG: Rejection = Rejection { reason: Cow::Borrowed("longer than 16 MiB"), detail: None };

impl Rejection {
    pub fn with(reason: &'static str, detail: impl ToString) -> Self {
        Self { reason: reason.into(), detail: Some(detail.to_string()) }
    }
}

impl From<&'static str> for Rejection {
    fn from(reason: &'static str) -> Self {
        Self { reason: reason.into(), detail: None }
    }
}

/// Location of a row in its source file.
#[derive(Clone, Copy)]
pub struct RowLocation<'a> {
    pub file: &'a Path,
    /// Line number, or row number in a Parquet file; starts at 1.
    pub row: u64,
    /// First bytes of the row.
    pub start: &'a [u8],
}
