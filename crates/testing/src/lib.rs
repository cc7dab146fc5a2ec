//! Test fixtures shared by several crates: a fake judge on a real socket, temporary databases, an HTTP client that
//! sends exact bytes, a small shop with its search log, and the golden files. Never part of a program.
#![expect(clippy::unwrap_used, reason = "tests stop at the first failure")]

pub mod databases;
pub mod fake_judge;
pub mod http_client;
pub mod power_loss;
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

/// Name of the model that `make setup` downloads.
pub const MINILM: &str = "all-MiniLM-L6-v2";

/// Folder of all-MiniLM-L6-v2.
pub fn minilm() -> PathBuf {
    model(MINILM)
}

/// Folder of a model that `scripts/setup.sh` downloads.
pub fn model(name: &str) -> PathBuf {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let cache = std::env::var_os("XDG_CACHE_HOME").map_or(home.join(".cache"), PathBuf::from).join("souk");
    let cache = std::env::var_os("SOUK_CACHE").map_or(cache, PathBuf::from);
    cache.join("models").join(name)
}

/// Copies all that is in a folder into another one.
pub fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let from = entry.unwrap().path();
        let to = to.join(from.file_name().unwrap());
        if from.is_dir() {
            copy_folder(&from, &to);
        } else {
            std::fs::copy(from, to).unwrap();
        }
    }
}

/// Reports a test that cannot run here to scripts/test.sh.
pub fn skip(name: &str, reason: &str) {
    if let Some(file) = std::env::var_os("SOUK_SKIPPED") {
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(file).unwrap();
        std::io::Write::write_all(&mut file, format!("{name}: {reason}\n").as_bytes()).unwrap();
    }
}
