//! Rounds on disk: `rounds/000001/round.json` when a round begins, `ended.json` when it has ended, and between them the files of its
//! stages and measurements. Writes are durable; a round that began and did not end is resumed.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use souk::atomic_dir::{AtomicDir, create_folder, write_json_atomic};
use souk::dataset::{Extent, Span};
use souk::error::{Error, Result};

const ROUNDS: &str = "rounds";
const BEGUN: &str = "round.json";
const ENDED: &str = "ended.json";
/// Rounds whose records are kept after their models were removed.
const REMEMBERED: usize = 1000;

/// A round, as it was when it began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Round {
    pub number: u64,
    /// Seconds since 1970.
    pub began_at: i64,
    /// The served version whose model it starts from; none if nothing was served.
    pub parent: Option<String>,
    pub model: String,
    #[serde(rename = "lessons")]
    pub stages: Vec<StageSpan>,
    /// Part of the log that the round's model was trained on, by stage: its parent's extent, then its own spans.
    pub learned: BTreeMap<String, Extent>,
    /// Log time from which on the newest days are held out, in milliseconds since 1970, if the gate's judgements come from them.
    #[serde(default)]
    pub held_out_from: Option<i64>,
}

/// One stage of a round, and the examples it trains on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageSpan {
    pub stage: String,
    pub span: Span,
    /// Examples in it that the parent was not trained on.
    pub fresh: u64,
    /// Why the stage was due.
    pub why: String,
}

/// Outcome of a round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RoundOutcome {
    pub ended_at: i64,
    /// The model's version in the registry; none if there is none.
    pub version: Option<String>,
    pub passed: bool,
    /// Why it did not pass.
    pub reasons: Vec<String>,
}

/// All rounds of one state folder, newest last.
pub struct Rounds {
    folder: PathBuf,
    known: Vec<(Round, Option<RoundOutcome>)>,
}

impl Rounds {
    pub fn open(state: &Path) -> Result<Self> {
        let folder = state.join(ROUNDS);
        create_folder(&folder)?;
        let mut numbers = Vec::new();
        for entry in fs::read_dir(&folder).map_err(Error::store(&folder, "list the rounds"))? {
            let entry = entry.map_err(Error::store(&folder, "list the rounds"))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            match name.parse::<u64>() {
                Ok(number) => numbers.push(number),
                // left by a killed process
                Err(_) if name.ends_with(".part") => remove(&entry.path())?,
                Err(_) => {}
            }
        }
        numbers.sort_unstable();
        let mut known = Vec::new();
        for number in numbers {
            let place = folder.join(name_of(number));
            // reserved by a process that was killed before it wrote the round
            if fs::remove_dir(&place).is_ok() {
                continue;
            }
            let missing = || Error::data(&place.join(BEGUN), None, "is missing: remove the round's folder");
            let round = read(&place.join(BEGUN))?.ok_or_else(missing)?;
            known.push((round, read(&place.join(ENDED))?));
        }
        Ok(Self { folder, known })
    }

    /// The number of the next round.
    pub fn next(&self) -> u64 {
        self.known.last().map_or(1, |(round, _)| round.number + 1)
    }

    /// The round that began and has not ended.
    pub fn unfinished(&self) -> Option<&Round> {
        self.known.last().filter(|(_, ended)| ended.is_none()).map(|(round, _)| round)
    }

    pub fn begin(&mut self, round: Round) -> Result<()> {
        let atomic_dir = AtomicDir::new(&self.place(round.number))?;
        write_json_atomic(&atomic_dir.staging.join(BEGUN), &round)?;
        atomic_dir.finish()?;
        self.known.push((round, None));
        Ok(())
    }

    /// Ends the unfinished round.
    pub fn end(&mut self, ended: RoundOutcome) -> Result<()> {
        let place = self.known.last().map(|(round, _)| self.place(round.number));
        let begun = || Error::input("there is no unfinished round to end");
        write_json_atomic(&place.ok_or_else(begun)?.join(ENDED), &ended)?;
        if let Some((_, last)) = self.known.last_mut() {
            *last = Some(ended);
        }
        Ok(())
    }

    pub fn place(&self, number: u64) -> PathBuf {
        self.folder.join(name_of(number))
    }

    /// Newest first.
    pub fn ended(&self) -> impl Iterator<Item = (&Round, &RoundOutcome)> {
        self.known.iter().rev().filter_map(|(round, ended)| Some((round, ended.as_ref()?)))
    }

    /// Part of the log that a version was trained on, by stage; empty for a model from elsewhere.
    pub fn learned(&self, version: Option<&str>) -> BTreeMap<String, Extent> {
        let made = self.ended().find(|(_, ended)| ended.version.is_some() && ended.version.as_deref() == version);
        made.map(|(round, _)| round.learned.clone()).unwrap_or_default()
    }

    /// The end of a stage's last span, and when that round ended.
    pub fn tried(&self, stage: &str) -> Option<(&Extent, i64)> {
        self.ended().find_map(|(round, ended)| {
            let stage = round.stages.iter().find(|span| span.stage == stage)?;
            Some((&stage.span.to, ended.ended_at))
        })
    }

    /// Removes the files of old rounds, except for the `keep` newest models and `needed` versions, and the records of very old
    /// rounds. Calls `going` with a version before its model is removed.
    pub fn tidy(
        &mut self,
        keep: usize,
        needed: impl Fn(&str) -> bool,
        going: impl Fn(&str) -> Result<()>,
    ) -> Result<()> {
        for (round, ended) in self.ended().skip(keep) {
            if ended.version.as_deref().is_some_and(&needed) {
                continue;
            }
            let place = self.place(round.number);
            let entries = fs::read_dir(&place).and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect());
            let mut folders: Vec<PathBuf> = entries.map_err(Error::store(&place, "list it"))?;
            folders.retain(|path| path.is_dir());
            if let Some(version) = ended.version.as_deref().filter(|_| !folders.is_empty()) {
                going(version)?;
            }
            folders.iter().try_for_each(|folder| remove(folder))?;
        }
        let surplus = self.known.len().saturating_sub(REMEMBERED.max(keep + 1));
        let is_old = |known: &(Round, Option<RoundOutcome>)| {
            let version = known.1.as_ref().and_then(|ended| ended.version.as_deref());
            !version.is_some_and(&needed)
        };
        let old: Vec<u64> =
            self.known[..surplus].iter().filter(|known| is_old(known)).map(|(round, _)| round.number).collect();
        for number in &old {
            remove(&self.place(*number))?;
        }
        self.known.retain(|(round, _)| !old.contains(&round.number));
        Ok(())
    }
}

/// Records of the newest rounds, newest first. Another thread may write them meanwhile.
pub fn newest(state: &Path, num: usize) -> Result<Vec<(Round, Option<RoundOutcome>)>> {
    let folder = state.join(ROUNDS);
    let entries = fs::read_dir(&folder).map_err(Error::store(&folder, "list the rounds"))?;
    let name = |entry: std::io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse::<u64>().ok();
    let mut numbers: Vec<u64> = entries.filter_map(name).collect();
    numbers.sort_unstable_by(|a, b| b.cmp(a));
    numbers.into_iter().take(num).filter_map(|number| find(state, number).transpose()).collect()
}

/// Record of a round, if there is one.
pub fn find(state: &Path, number: u64) -> Result<Option<(Round, Option<RoundOutcome>)>> {
    let place = place_of(state, number);
    match read(&place.join(BEGUN))? {
        Some(round) => Ok(Some((round, read(&place.join(ENDED))?))),
        None => Ok(None),
    }
}

/// Folder of a round.
pub fn place_of(state: &Path, number: u64) -> PathBuf {
    state.join(ROUNDS).join(name_of(number))
}

fn name_of(number: u64) -> String {
    format!("{number:06}")
}

fn remove(path: &Path) -> Result<()> {
    fs::remove_dir_all(path).map_err(Error::store(path, "remove it"))
}

fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::store(path, "read it")(error)),
    };
    let broken = |e| Error::data(path, None, "is not a round's record: remove the round's folder").because(e);
    serde_json::from_slice(&text).map(Some).map_err(broken)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn extent(end: u64) -> Extent {
        [("lane".to_owned(), end)].into()
    }

    fn round(number: u64, parent: Option<&str>, to: u64) -> Round {
        let span = Span { from: extent(0), to: extent(to) };
        let stage = StageSpan { stage: "sft".into(), span, fresh: to, why: "enough".into() };
        let learned = [("sft".to_owned(), extent(to))].into();
        let (parent, model) = (parent.map(Into::into), "m".into());
        Round { number, began_at: 5, parent, model, stages: vec![stage], learned, held_out_from: None }
    }

    fn ended(version: &str, passed: bool) -> RoundOutcome {
        RoundOutcome { ended_at: 9, version: Some(version.into()), passed, reasons: Vec::new() }
    }

    #[test]
    fn a_round_that_was_begun_is_gone_on_with_and_one_that_ended_is_not() {
        let home = tempfile::tempdir().unwrap();
        let mut rounds = Rounds::open(home.path()).unwrap();
        assert_eq!((rounds.next(), rounds.unfinished()), (1, None));
        rounds.begin(round(1, None, 10)).unwrap();
        fs::create_dir(rounds.place(2).with_extension("part")).unwrap();
        fs::create_dir(rounds.place(2)).unwrap();
        let mut again = Rounds::open(home.path()).unwrap();
        assert_eq!(again.unfinished(), Some(&round(1, None, 10)));
        assert!(!again.place(2).with_extension("part").exists(), "what was half written is removed");
        again.end(ended("r1", true)).unwrap();
        let again = Rounds::open(home.path()).unwrap();
        assert_eq!((again.next(), again.unfinished()), (2, None));
        assert_eq!(again.tried("sft"), Some((&extent(10), 9)));
        assert_eq!(again.tried("other"), None);
        assert_eq!(again.learned(Some("r1"))["sft"], extent(10));
        assert!(again.learned(None).is_empty() && again.learned(Some("first")).is_empty());
    }

    #[test]
    fn models_go_and_what_is_needed_stays() {
        let home = tempfile::tempdir().unwrap();
        let mut rounds = Rounds::open(home.path()).unwrap();
        for number in 1..=4 {
            rounds.begin(round(number, None, number)).unwrap();
            fs::create_dir(rounds.place(number).join("1-sft")).unwrap();
            rounds.end(ended(&format!("r{number}"), true)).unwrap();
        }
        let told = RefCell::new(Vec::new());
        let going = |version: &str| {
            told.borrow_mut().push(version.to_owned());
            Ok(())
        };
        rounds.tidy(1, |version| version == "r2", going).unwrap();
        assert_eq!(told.take(), ["r3", "r1"]);
        let left: Vec<bool> = (1..=4).map(|number| rounds.place(number).join("1-sft").exists()).collect();
        assert_eq!(left, [false, true, false, true]);
        assert_eq!(rounds.learned(Some("r1"))["sft"], extent(1), "what it was is still known");
        rounds.tidy(1, |version| version == "r2", going).unwrap();
        assert!(told.take().is_empty(), "once is enough");
    }

    #[test]
    fn a_damaged_record_is_named() {
        let home = tempfile::tempdir().unwrap();
        let mut rounds = Rounds::open(home.path()).unwrap();
        rounds.begin(round(1, None, 1)).unwrap();
        fs::write(rounds.place(1).join(BEGUN), "{").unwrap();
        let error = Rounds::open(home.path()).err().unwrap().to_string();
        assert!(error.contains("round.json: is not a round's record"), "{error}");
    }

    #[test]
    fn records_are_listed_newest_first() {
        let home = tempfile::tempdir().unwrap();
        let mut rounds = Rounds::open(home.path()).unwrap();
        assert!(newest(home.path(), 9).unwrap().is_empty());
        for number in 1..=3 {
            rounds.begin(round(number, None, number)).unwrap();
            if number < 3 {
                rounds.end(ended(&format!("r{number}"), true)).unwrap();
            }
        }
        let listed = newest(home.path(), 2).unwrap();
        let listed: Vec<_> = listed.iter().map(|(round, ended)| (round.number, ended.is_some())).collect();
        assert_eq!(listed, [(3, false), (2, true)]);
        assert_eq!(find(home.path(), 4).unwrap(), None);
    }
}
