//! What a verb has to say, on standard output.

use std::io::{Write, stdout};

use crate::Shared;

/// Prints lines for people, or one JSON object for machines. A reader who has left is an error of the pipe, no panic.
pub fn print(shared: &Shared, json: &serde_json::Value, text: &str) -> anyhow::Result<()> {
    let mut out = stdout().lock();
    match shared.json {
        true => writeln!(out, "{json}")?,
        false => writeln!(out, "{text}")?,
    }
    Ok(out.flush()?)
}
