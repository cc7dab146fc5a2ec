//! Output of a command's result: takes it as JSON and as text, prints one of them to standard output.

use std::io::{Write, stdout};

use crate::GlobalArgs;

/// Prints JSON with `--json`, text otherwise. A closed pipe is an error, not a panic.
pub fn print(globals: &GlobalArgs, json: &serde_json::Value, text: &str) -> anyhow::Result<()> {
    let mut out = stdout().lock();
    if globals.json {
        writeln!(out, "{json}")?;
    } else {
        writeln!(out, "{text}")?;
    }
    Ok(out.flush()?)
}
