//! The gate's judgements from the newest days of the log. They are derived once in each round, into a data folder of their own with
//! the shop's catalogue, and nothing of these days was trained on in that round.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use souk::atomic_dir::{AtomicDir, write_json_atomic};
use souk::beir::DataFolder;
use souk::config::{Config, LogConfig};
use souk::dataset::position_before;
use souk::held_out::HELD_OUT;
use souk::judgements::{JudgedLog, JudgementSource, Splits, UnclickedQuery};
use souk::log::{Lane, OnGap};
use souk::{Error, Result, time};

use crate::measure::JudgedSplit;

const DAY_MILLIS: f64 = 86_400_000.0;
/// Data folder in a round's folder.
const FOLDER: &str = "newest-days";
/// Queries without clicks, in a round's folder.
pub const UNCLICKED: &str = "unclicked.json";
const MAX_UNCLICKED: usize = 100;

pub struct NewestDays<'a> {
    pub config: &'a Config,
    pub data: &'a DataFolder,
    /// Commits of the log that was read.
    pub examples: &'a Path,
    /// Beginning of the newest days, in milliseconds since 1970.
    pub from: i64,
}

impl NewestDays<'_> {
    /// Derives the judgements into the folder of a round, unless that was done before.
    pub fn judge(&self, round: &Path) -> Result<JudgedSplit> {
        let (out, split) = (round.join(FOLDER), self.split());
        if !out.join(HELD_OUT).exists() {
            let folder = AtomicDir::new(&out)?;
            let unclicked = self.derive(&folder.staging, &split)?;
            write_json_atomic(&round.join(UNCLICKED), &unclicked)?;
            folder.finish()?;
        }
        Ok(JudgedSplit { data: DataFolder::open(&out)?, split })
    }

    /// Name of the split, such as `log-2026-11-24T0930`.
    fn split(&self) -> String {
        format!("log-{}", time::format(self.from).chars().filter(|letter| *letter != ':').take(15).collect::<String>())
    }

    /// Writes the judgements. Returns the queries without clicks.
    fn derive(&self, folder: &Path, split: &str) -> Result<Vec<UnclickedQuery>> {
        let corpus = self.data.corpus();
        let corpus = corpus.canonicalize().map_err(Error::store(&corpus, "find it"))?;
        let link = folder.join(corpus.file_name().unwrap_or_default());
        symlink(&corpus, &link).map_err(Error::store(&link, "link to the catalogue"))?;
        let data = DataFolder::open(folder)?;
        let gate = &self.config.trainer.gate;
        let (home, begin) = (self.examples.to_path_buf(), self.from - millis(gate.history_days));
        // what a topic no longer has is not waited for
        let log = LogConfig { on_gap: OnGap::Skip, ..self.config.log.once("gate") };
        let log = log.open(Arc::new(move |lane: &Lane| position_before(&home, lane, begin)))?;
        let source = JudgementSource {
            data: &data,
            log,
            name: "the log".into(),
            strength: &self.config.ingest.strength,
            splits: Splits::Since { time: self.from, name: split },
        };
        let judged = JudgedLog::read(source, &self.config.judgements, &mut |_| ())?;
        let report = judged.write()?;
        let written = &report.splits[split];
        tracing::info!(split, from = written.from, to = written.to, queries = written.queries, "judged the log");
        Ok(judged.unclicked(MAX_UNCLICKED))
    }
}

pub fn millis(days: f64) -> i64 {
    (days * DAY_MILLIS) as i64
}

#[cfg(test)]
mod tests {
    use std::fs;

    use souk_testing::small_shop::{messages, shop};

    use super::*;

    #[test]
    fn a_killed_derivation_begins_again_and_a_finished_one_stays() {
        let home = shop();
        let (log, round) = (home.path().join("log.ndjson"), home.path().join("round"));
        fs::write(&log, messages(0..400).map(|(_, line)| line + "\n").collect::<String>()).unwrap();
        for left in ["newest-days", "newest-days.souk.part/qrels"] {
            fs::create_dir_all(round.join(left)).unwrap();
        }
        let mut config = Config::default();
        config.log.paths = vec![log.clone()];
        let data = DataFolder::open(&home.path().join("data")).unwrap();
        // 300 s after the first search
        let from = 1_700_000_300_000;
        let newest = NewestDays { config: &config, data: &data, examples: &home.path().join("none"), from };
        let judged = newest.judge(&round).unwrap();
        assert_eq!(judged.split, "log-2023-11-14T2218");
        assert_eq!(judged.data.judgements(&judged.split).unwrap().count(), 60, "a hundred searches for sixty items");
        assert!(!round.join("newest-days.souk.part").exists());
        fs::remove_file(&log).unwrap();
        assert_eq!(newest.judge(&round).unwrap().split, judged.split, "the log is not read again");
    }
}
