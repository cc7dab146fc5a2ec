//! Durable state of a lane: a chain of commits, each an atomically created folder, numbered without gaps.
//!
//! A commit holds the joined part of the log from the end of its predecessor, and the state needed to resume at its
//! end. The chain is therefore the only record of what was consumed. If two writers own one lane, only one can create
//! the next number, and `commit` returns false to the other.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::join::{JoinCounts, Joiner, JoinerState, WaitingEvent, Window};
use super::shard::{CommitBuffer, QUERIES, SEEN, WAITING, read_queries, read_seen};
use super::strength::Strength;
use crate::log::{Lane, Position};
use souk_io::atomic_dir::{create_folder, write_json_atomic};
use souk_io::checksummed::{Checksum, read_json_lines};
use souk_io::error::{Error, Result};

const FORMAT: u32 = 1;
const COMMIT: &str = "commit.json";
const PART: &str = ".part-";
const SWEPT: &str = ".swept-";
/// File with the number of the first retained commit; absent if all are retained.
const FIRST: &str = "first.json";
/// Age at which a half-written commit counts as abandoned; writing one takes seconds.
const ABANDONED_AFTER: Duration = Duration::from_secs(60);

/// Metadata of a commit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Commit {
    format: u32,
    pub lane: String,
    pub number: u64,
    pub from: Position,
    pub to: Position,
    /// Names of the parts that the examples' column `part` refers to.
    pub parts: Vec<String>,
    /// The first offset of each part among the examples.
    pub low: BTreeMap<String, u64>,
    /// The first offset of each part among the events still waiting at its end.
    pub low_waiting: BTreeMap<String, u64>,
    pub counts: JoinCounts,
    pub num_seen: u64,
    pub waiting: u64,
    /// State of the joiner at its end.
    pub state: JoinerState,
    /// Weights of the examples' strength.
    pub strength: Strength,
    pub files: BTreeMap<String, Checksum>,
}

impl Commit {
    /// Reads a commit's metadata; its other files are checked when opened.
    pub fn load(folder: &Path) -> Result<Self> {
        let path = folder.join(COMMIT);
        let remedy = "remove this folder and those after it, and that part of the log is read again";
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::data(&path, None, format!("is missing: {remedy}")));
            }
            Err(e) => return Err(Error::store(&path, "read it")(e)),
        };
        let commit: Self = serde_json::from_slice(&text)
            .map_err(|e| Error::data(&path, None, format!("is damaged: {remedy}")).because(e))?;
        if commit.format != FORMAT {
            let problem = format!("has format {}, but this version reads {FORMAT}", commit.format);
            return Err(Error::data(&path, None, problem));
        }
        Ok(commit)
    }

    pub fn sum(&self, folder: &Path, name: &str) -> Result<Checksum> {
        let sum = self.files.get(name).copied();
        sum.ok_or_else(|| Error::data(&folder.join(COMMIT), None, format!("does not list the file `{name}`")))
    }
}

fn first_offsets<'a>(waiting: impl Iterator<Item = &'a WaitingEvent>) -> BTreeMap<String, u64> {
    let mut low = BTreeMap::new();
    for event in waiting {
        let first = low.entry(event.part.clone()).or_insert(event.offset);
        *first = event.offset.min(*first);
    }
    low
}

/// Commits of a lane, in order.
#[derive(Debug, Default)]
pub struct Commits {
    /// Number of the first retained commit; earlier ones were pruned.
    pub first: u64,
    folders: Vec<PathBuf>,
}

impl Commits {
    /// Lists the commits; a new lane has none.
    pub fn list(lane: &Path) -> Result<Self> {
        let entries = match fs::read_dir(lane) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(e) => return Err(Error::store(lane, "list the commits")(e)),
        };
        let mut numbers: Vec<u64> = Vec::new();
        for entry in entries {
            let entry = entry.map_err(Error::store(lane, "list the commits"))?;
            numbers.extend(entry.file_name().to_str().and_then(|name| name.parse::<u64>().ok()));
        }
        // read after listing, so commits pruned meanwhile are skipped
        let first = first_retained(lane)?;
        numbers.retain(|number| *number >= first);
        numbers.sort_unstable();
        if let Some((expected, found)) = (first..).zip(&numbers).find(|(expected, found)| expected != *found) {
            let problem = format!("has commit {found} but not {expected}: restore it, or remove those after it");
            return Err(Error::data(lane, None, problem));
        }
        Ok(Self { first, folders: numbers.into_iter().map(|number| lane.join(folder_name(number))).collect() })
    }

    /// Number of the next commit.
    pub fn end(&self) -> u64 {
        self.first + self.folders.len() as u64
    }

    pub fn numbered(&self) -> impl DoubleEndedIterator<Item = (u64, &Path)> {
        self.folders.iter().enumerate().map(|(at, folder)| (self.first + at as u64, folder.as_path()))
    }

    pub fn newest_first(&self) -> impl Iterator<Item = &Path> {
        self.folders.iter().rev().map(PathBuf::as_path)
    }

    /// Newest commits, newest first, as many as the joiner needs to resume.
    fn needed(&self) -> Result<Vec<(&Path, Commit)>> {
        let (mut needed, mut num_queries, mut num_seen) = (Vec::<(&Path, Commit)>::new(), 0, 0);
        for folder in self.newest_first() {
            if needed.first().is_some_and(|(_, tail)| num_queries >= tail.state.queries && num_seen >= tail.state.seen)
            {
                break;
            }
            let commit = Commit::load(folder)?;
            num_queries = u64::saturating_add(num_queries, commit.counts.queries);
            num_seen = u64::saturating_add(num_seen, commit.num_seen);
            needed.push((folder, commit));
        }
        Ok(needed)
    }
}

fn first_retained(lane: &Path) -> Result<u64> {
    let path = lane.join(FIRST);
    match fs::read_to_string(&path) {
        Ok(text) => {
            let number = text.trim().parse();
            number.map_err(|e| Error::data(&path, None, "is not the number of a commit").because(e))
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(0),
        Err(e) => Err(Error::store(&path, "read it")(e)),
    }
}

/// Deletes the commits of every lane below `home` that ended more than `age` (in log time) before the lane's newest,
/// except those needed to resume. Returns their number. Examples are deleted with their dead letters; spans that start
/// with them can no longer be opened.
pub fn prune(home: &Path, age: Duration) -> Result<u64> {
    let mut num = 0;
    for entry in fs::read_dir(home).map_err(Error::store(home, "open the examples"))? {
        let lane = entry.map_err(Error::store(home, "list the lanes"))?.path();
        if lane.is_dir() {
            num += prune_lane(&lane, age)?;
        }
    }
    Ok(num)
}

fn prune_lane(lane: &Path, age: Duration) -> Result<u64> {
    let commits = Commits::list(lane)?;
    let needed = commits.needed()?;
    let Some((_, tail)) = needed.first() else { return Ok(0) };
    let oldest = tail.state.now.saturating_sub(i64::try_from(age.as_millis()).unwrap_or(i64::MAX));
    let end = commits.end() - needed.len() as u64;
    let mut first = commits.first;
    for (number, folder) in commits.numbered().take_while(|(number, _)| *number < end) {
        if Commit::load(folder)?.state.now >= oldest {
            break;
        }
        first = number + 1;
    }
    if first > commits.first {
        // recorded before deleting, so the next run completes an interrupted prune
        write_json_atomic(&lane.join(FIRST), &first)?;
    }
    for entry in fs::read_dir(lane).map_err(Error::store(lane, "list the commits"))? {
        let path = entry.map_err(Error::store(lane, "list the commits"))?.path();
        let number = path.file_name().and_then(|name| name.to_str()?.parse::<u64>().ok());
        if number.is_some_and(|number| number < first) {
            fs::remove_dir_all(&path).map_err(Error::store(&path, "delete it"))?;
        }
    }
    Ok(first - commits.first)
}

fn folder_name(number: u64) -> String {
    format!("{number:08}")
}

/// Durable position of a lane; `None` for a new lane.
pub fn position(home: &Path, lane: &Lane) -> Result<Option<Position>> {
    let commits = Commits::list(&home.join(lane.name()))?;
    commits.newest_first().next().map(|folder| Commit::load(folder).map(|commit| commit.to)).transpose()
}

/// Position of a lane at the end of the last commit before a log time, or where the retained commits begin; `None` for the beginning.
pub fn position_before(home: &Path, lane: &Lane, time: i64) -> Result<Option<Position>> {
    let commits = Commits::list(&home.join(lane.name()))?;
    let mut first = None;
    for folder in commits.newest_first() {
        let commit = Commit::load(folder)?;
        if commit.state.now < time {
            return Ok(Some(commit.to));
        }
        first = Some(commit.from);
    }
    Ok(first.filter(|_| commits.first > 0))
}

/// End of a lane's chain, where the next commit is added.
pub struct Chain {
    folder: PathBuf,
    lane: Lane,
    commits: Commits,
    position: Position,
}

impl Chain {
    /// Opens the chain at its end and restores the joiner's state.
    pub fn open(home: &Path, lane: &Lane, window: &Window, strength: &Strength) -> Result<(Self, Joiner)> {
        let folder = home.join(lane.name());
        create_folder(&folder)?;
        remove_abandoned(&folder)?;
        let commits = Commits::list(&folder)?;
        let mut joiner = Joiner::new(lane.clone(), window.clone(), strength.clone());
        let mut chain = Self { folder, lane: lane.clone(), commits, position: Position::default() };
        chain.restore(&mut joiner)?;
        Ok((chain, joiner))
    }

    pub fn position(&self) -> &Position {
        &self.position
    }

    /// Commits, newest first.
    pub fn newest_first(&self) -> impl Iterator<Item = &Path> {
        self.commits.newest_first()
    }

    /// Makes joined data durable. Returns false, with nothing written, if another writer took over the lane.
    pub fn commit(&mut self, buffer: &mut CommitBuffer, joiner: &mut Joiner, to: &Position) -> Result<bool> {
        let number = self.commits.end();
        // the time as well, because processes on two machines can share an id
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let aside = self.folder.join(format!("{PART}{}-{now:x}", std::process::id()));
        fs::create_dir(&aside).map_err(Error::store(&aside, "create the folder"))?;
        let written = buffer.write(&aside, joiner.waiting()).and_then(|files| {
            let commit = Commit {
                format: FORMAT,
                lane: self.lane.name().into(),
                number,
                from: self.position.clone(),
                to: to.clone(),
                parts: buffer.parts.clone(),
                low: buffer.low.clone(),
                low_waiting: first_offsets(joiner.waiting()),
                counts: joiner.counts.clone(),
                num_seen: buffer.num_seen,
                waiting: joiner.waiting().len() as u64,
                state: joiner.state(),
                strength: joiner.strength().clone(),
                files,
            };
            write_durably(&aside.join(COMMIT), format!("{}\n", serde_json::json!(commit)).as_bytes())
        });
        let place = self.folder.join(folder_name(number));
        let placed = written.and_then(|()| put_in_place(&aside, &place));
        if !matches!(placed, Ok(true)) {
            // the lane's new owner may have removed the temporary folder
            let is_removed = !aside.exists();
            drop(fs::remove_dir_all(&aside));
            return if is_removed { Ok(false) } else { placed };
        }
        self.commits.folders.push(place);
        self.position = to.clone();
        joiner.counts = JoinCounts::default();
        Ok(true)
    }

    fn restore(&mut self, joiner: &mut Joiner) -> Result<()> {
        let needed = self.commits.needed()?;
        let Some((last, tail)) = needed.first() else { return Ok(()) };
        let (mut queries, mut seen) = (Vec::new(), Vec::new());
        for (folder, commit) in needed.iter().rev() {
            queries.extend(read_queries(&folder.join(QUERIES), commit.sum(folder, QUERIES)?)?);
            seen.extend(read_seen(&folder.join(SEEN), commit.sum(folder, SEEN)?)?);
        }
        let waiting: Vec<WaitingEvent> = read_json_lines(&last.join(WAITING), tail.sum(last, WAITING)?)?;
        joiner.restore(&tail.state, &queries, &seen, &waiting);
        self.position = tail.to.clone();
        Ok(())
    }
}

/// Removes temporary folders of killed writers. Renames each first, so that with a writer still alive either its commit
/// completes or the whole folder is removed, never half of it.
fn remove_abandoned(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder).map_err(Error::store(folder, "list the commits"))? {
        let entry = entry.map_err(Error::store(folder, "list the commits"))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let age = entry.metadata().and_then(|data| data.modified()).ok().and_then(|changed| changed.elapsed().ok());
        let renamed = folder.join(format!("{SWEPT}{name}"));
        let is_renamed = name.starts_with(PART)
            && age.is_some_and(|age| age > ABANDONED_AFTER)
            && fs::rename(entry.path(), &renamed).is_ok();
        if is_renamed || name.starts_with(SWEPT) {
            // another process may be removing it as well
            drop(fs::remove_dir_all(if is_renamed { renamed } else { entry.path() }));
        }
    }
    Ok(())
}

pub fn write_durably(path: &Path, bytes: &[u8]) -> Result<()> {
    let written = File::create(path).and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()));
    written.map_err(Error::store(path, "write it to disk"))
}

/// Moves a complete folder into place, unless the name is taken.
fn put_in_place(aside: &Path, place: &Path) -> Result<bool> {
    sync_folder(aside)?;
    match fs::rename(aside, place) {
        Ok(()) => {}
        // the name is taken, or the lane's new owner removed the folder
        Err(e) if place.exists() || e.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(Error::store(place, "move the commit into place")(e)),
    }
    sync_folder(place.parent().unwrap_or(place))?;
    Ok(true)
}

fn sync_folder(folder: &Path) -> Result<()> {
    File::open(folder).and_then(|file| file.sync_all()).map_err(Error::store(folder, "write it to disk"))
}
