//! What tests of several crates share: a fake judge on a real socket, databases of a test's own, an HTTP client that sends exact
//! bytes, a small shop with its search log, and the golden files. Never part of a program.
#![expect(clippy::unwrap_used, reason = "a test stops at the first thing that is wrong")]

pub mod databases;
pub mod fake_judge;
pub mod http_client;
pub mod small_shop;

use std::path::{Path, PathBuf};

/// The root of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A file or folder of `tests/golden`.
pub fn golden(name: &str) -> PathBuf {
    repository().join("tests/golden").join(name)
}
