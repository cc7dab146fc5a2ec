//! `judgements.json` of a data folder: which splits of judgements were derived from which time of the search log. Training draws no
//! example of the time of a split that is held out. What happened before or after may be trained on.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::atomic_dir::write_json_atomic;
use crate::beir::DataFolder;
use crate::error::{Error, Result};
use crate::time;

pub const HELD_OUT: &str = "judgements.json";

/// Content of `judgements.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeldOut {
    /// Kind of the judgements, for reports.
    pub kind: String,
    pub splits: BTreeMap<String, HeldOutSplit>,
    /// How they were made.
    #[serde(flatten)]
    pub details: Map<String, Value>,
}

/// Time of the log that a split was derived from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeldOutSplit {
    pub from: String,
    /// Last moment.
    pub to: String,
    /// Whether nothing of this time may be trained on.
    pub held_out: bool,
}

impl HeldOut {
    /// None if the folder has no judgements from its log.
    pub fn load(data: &DataFolder) -> Result<Option<Self>> {
        let file = data.path().join(HELD_OUT);
        if !file.exists() {
            return Ok(None);
        }
        let text = fs::read(&file).map_err(Error::store(&file, "read it"))?;
        let problem = "is not written by `souk judgements`: run it again, or remove the file";
        let held_out: Self = serde_json::from_slice(&text).map_err(|e| Error::data(&file, None, problem).because(e))?;
        held_out.ranges(&file)?;
        Ok(Some(held_out))
    }

    /// Held-out times of a folder's log, in milliseconds since 1970; empty if none is held out.
    pub fn times(data: &DataFolder) -> Result<Vec<Range<i64>>> {
        let file = data.path().join(HELD_OUT);
        Self::load(data)?.map_or(Ok(Vec::new()), |held_out| held_out.ranges(&file))
    }

    /// Sentence about a split for reports; none if it was not derived from the log.
    pub fn note(&self, split: &str) -> Option<String> {
        let HeldOutSplit { from, to, .. } = self.splits.get(split)?;
        let day = |time: &str| time.get(..10).unwrap_or(time).to_owned();
        Some(format!("{}, {} to {}", self.kind, day(from), day(to)))
    }

    /// Replaces the file atomically.
    pub fn save(&self, data: &DataFolder) -> Result<()> {
        write_json_atomic(&data.path().join(HELD_OUT), self)
    }

    fn ranges(&self, file: &Path) -> Result<Vec<Range<i64>>> {
        let parse = |text: &str| {
            time::parse(text)
                .ok_or_else(|| Error::data(file, None, format!("`{text}` is not a time: run `souk judgements` again")))
        };
        let splits = self.splits.values().filter(|split| split.held_out);
        splits.map(|split| Ok(parse(&split.from)?..parse(&split.to)? + 1)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_says_what_is_held_out() {
        let home = tempfile::tempdir().unwrap();
        fs::write(home.path().join("corpus.jsonl"), "").unwrap();
        let data = DataFolder::open(home.path()).unwrap();
        assert!(HeldOut::times(&data).unwrap().is_empty());
        let split = |from: &str, to: &str, held_out| {
            let time = |day: &str| format!("2026-01-{day}.999Z");
            HeldOutSplit { from: format!("2026-01-{from}T00:00:00.000Z"), to: time(to), held_out }
        };
        let train = split("01", "03T23:59:59", false);
        let dev = split("04", "05T23:59:59", true);
        let held_out = HeldOut {
            kind: "implicit, from the search log".into(),
            splits: BTreeMap::from([("train".to_owned(), train), ("dev".to_owned(), dev)]),
            details: Map::new(),
        };
        held_out.save(&data).unwrap();
        // date -u -d 2026-01-04 +%s
        let times = HeldOut::times(&data).unwrap();
        assert_eq!((times.len(), &times[0]), (1, &(1_767_484_800_000..1_767_657_600_000)));
        let loaded = HeldOut::load(&data).unwrap().unwrap();
        assert_eq!(loaded.note("dev").unwrap(), "implicit, from the search log, 2026-01-04 to 2026-01-05");
        assert_eq!(loaded.note("test"), None);
        fs::write(home.path().join(HELD_OUT), "{}").unwrap();
        assert!(HeldOut::load(&data).unwrap_err().to_string().contains("souk judgements"));
    }
}
