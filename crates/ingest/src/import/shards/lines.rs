//! JSON lines, read by byte range. A line belongs to the range it starts in, so every line is read exactly once
//! wherever the file is cut.

use std::io::{BufRead, BufReader};
use std::path::Path;

use serde_json::{Map, Value};

use super::windowed_file::WindowedFile;
use super::{Column, Items, Mapping, ShardPart};
use souk_io::domain::Item;
use souk_io::error::{Error, Result};

pub fn parts(bytes: u64, max_bytes: u64) -> Vec<(ShardPart, u64)> {
    let max_bytes = max_bytes.max(1);
    let cuts = (0..bytes.div_ceil(max_bytes)).map(|at| (at * max_bytes, ((at + 1) * max_bytes).min(bytes)));
    cuts.map(|(from, to)| (ShardPart::Bytes { from, to }, to - from)).collect()
}

pub fn items<'a>(file: WindowedFile, from: u64, to: u64, columns: &'a [Column]) -> Result<Items<'a>> {
    let path = match from {
        0 => file.path.clone(),
        _ => format!("{}, after byte {from}", file.path.display()).into(),
    };
    // one byte earlier: a line starts at `from` only if the byte before ends one
    let mut input = BufReader::with_capacity(1 << 16, file.from(from.saturating_sub(1)));
    let mut at = from;
    if from > 0 {
        let mut rest = Vec::new();
        let read = input.read_until(b'\n', &mut rest).map_err(Error::store(&path, "read the catalogue"))?;
        at = from - 1 + read as u64;
    }
    let (mut number, mut line) = (0, Vec::new());
    Ok(Box::new(std::iter::from_fn(move || {
        while at < to {
            line.clear();
            let read = match input.read_until(b'\n', &mut line) {
                Ok(0) => return None,
                Ok(read) => read,
                Err(error) => return Some(Err(Error::store(&path, "read the catalogue")(error))),
            };
            at += read as u64;
            number += 1;
            let json = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&line).trim_ascii();
            if !json.is_empty() {
                return Some(item(json, &path, number, columns).map(|item| (number, item)));
            }
        }
        None
    })))
}

/// Parses a line in Souk's own layout, or by the given columns.
fn item(json: &[u8], path: &Path, number: u64, columns: &[Column]) -> Result<Item> {
    if columns.is_empty() {
        return Item::parse(json, path, number);
    }
    let row: Map<String, Value> =
        serde_json::from_slice(json).map_err(|e| Error::data(path, Some(number), "not a JSON object").because(e))?;
    let names: Vec<String> = row.keys().cloned().collect();
    // a line may lack columns that others have
    let present = columns.iter().filter(|column| column.field == "id" || row.contains_key(&column.from)).cloned();
    let mapping = Mapping::new(&present.collect::<Vec<_>>(), &names, &format!("{}, line {number}", path.display()))?;
    mapping.item(row).ok_or_else(|| Error::data(path, Some(number), "has no id"))
}
