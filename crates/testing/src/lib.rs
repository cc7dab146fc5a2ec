//! Test fixtures shared by several crates: a fake judge on a real socket, temporary databases, an HTTP client that
//! sends exact bytes, a small shop with its search log, and the golden files. Never part of a program.
#![expect(clippy::unwrap_used, reason = "tests stop at the first failure")]

pub mod databases;
pub mod fake_judge;
pub mod http_client;
pub mod small_shop;

use std::path::{Path, PathBuf};

/// Root of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Path of a file or folder in `tests/golden`.
pub fn golden(name: &str) -> PathBuf {
    repository().join("tests/golden").join(name)
}
