//! Examples of a data folder, mapped into memory. Gives query, item and strength of each, and the known positives of
//! each query, which a loss must not use as negatives. Never changes a file.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use souk_io::catalogue::Catalogue;

use super::chain::{Commit, Commits};
use super::positives::Positives;
use super::shard::{EXAMPLES, ExampleColumns};
use crate::log::Position;
use souk_io::domain::normalized_query;
use souk_io::error::{Error, Result};
use souk_io::shuffle::Order;
use souk_io::ubi::Action;

/// Item chosen after a query.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Example<'a> {
    /// Original text.
    pub query: &'a str,
    /// Number of the query; queries that differ only in case and spaces share it.
    pub query_number: u32,
    /// Row in the catalogue.
    pub item: u32,
    pub action: Action,
    pub strength: f32,
    /// Milliseconds since 1970.
    pub time: i64,
}

/// End of a range of commits: a commit number per lane.
pub type Extent = BTreeMap<String, u64>;

/// Range of commits. Examples from `from` up to `to` are drawn; earlier ones only count as known positives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Span {
    pub from: Extent,
    pub to: Extent,
}

pub struct Examples {
    shards: Vec<Shard>,
    /// First row of each shard, then the total number of rows.
    starts: Vec<u64>,
    span: Span,
    /// End position of each lane's last commit, and the first offsets of the events waiting there.
    ends: BTreeMap<String, (Position, BTreeMap<String, u64>)>,
    unknown_items: u64,
    num_held_out: u64,
    positives: Positives,
    crc32: u32,
}

struct Shard {
    commit: Commit,
    columns: ExampleColumns,
    /// Query numbers, in the file's own order.
    queries: Vec<u32>,
    /// Catalogue rows of the items, in the file's own order; `UNKNOWN` if missing from the catalogue.
    items: Vec<u32>,
    /// Rows whose item is in the catalogue; `None` if all are.
    usable: Option<Vec<u32>>,
}

const UNKNOWN: u32 = u32::MAX;

/// Commit to map.
struct SelectedCommit {
    /// Whether its examples are drawn; otherwise they only count as known positives.
    is_drawn: bool,
    commit: Commit,
    folder: PathBuf,
}

impl Examples {
    /// Maps the commits below `home`, or those of a span. Damaged files are errors.
    pub fn open(home: &Path, catalogue: &Catalogue, span: Option<&Span>) -> Result<Self> {
        Self::open_without(home, catalogue, span, &[])
    }

    /// The same without the examples of times that are held out, in milliseconds since 1970.
    pub fn open_without(
        home: &Path,
        catalogue: &Catalogue,
        span: Option<&Span>,
        held_out: &[Range<i64>],
    ) -> Result<Self> {
        let mut selected: Vec<SelectedCommit> = Vec::new();
        let mut opened = Span::default();
        for entry in
            fs::read_dir(home).map_err(Error::store(home, "open the examples (run `souk ingest` to write them)"))?
        {
            let entry = entry.map_err(Error::store(home, "list the lanes"))?;
            if !entry.path().is_dir() {
                continue;
            }
            let lane = entry.file_name().to_string_lossy().into_owned();
            let commits = Commits::list(&entry.path())?;
            let end_in = |extent: &Extent| extent.get(&lane).copied().unwrap_or_default();
            let (from, to) = span.map_or((commits.first, commits.end()), |span| (end_in(&span.from), end_in(&span.to)));
            if to > commits.end() || from.min(to) < commits.first.min(to) {
                let problem = format!(
                    "has commits {} to {}, but {from} to {to} are needed: some were deleted",
                    commits.first,
                    commits.end()
                );
                return Err(Error::data(&entry.path(), None, problem));
            }
            opened.from.insert(lane.clone(), from);
            opened.to.insert(lane.clone(), to);
            for (number, folder) in commits.numbered().take_while(|(number, _)| *number < to) {
                let commit = Commit::load(folder)?;
                selected.push(SelectedCommit { is_drawn: number >= from, commit, folder: folder.into() });
            }
        }
        // drawn commits last, in order of log time, then lane
        let key = |selected: &SelectedCommit| {
            let SelectedCommit { is_drawn, commit, .. } = selected;
            (*is_drawn, commit.state.now, commit.lane.clone(), commit.number)
        };
        selected.sort_by_cached_key(key);
        Self::map(selected, catalogue, opened, held_out)
    }

    fn map(selected: Vec<SelectedCommit>, catalogue: &Catalogue, span: Span, held_out: &[Range<i64>]) -> Result<Self> {
        let is_held_out = |time: i64| held_out.iter().any(|range| range.contains(&time));
        let mut numbers: HashMap<Box<str>, u32> = HashMap::new();
        let (mut before, mut shards, mut starts, mut unknown_items) = (Vec::new(), Vec::new(), vec![0_u64], 0);
        let (mut ends, mut crc, mut num_held_out) = (BTreeMap::new(), crc32fast::Hasher::new(), 0_u64);
        for SelectedCommit { is_drawn, commit, folder } in selected {
            let sum = commit.files.get(EXAMPLES).map_or(0, |sum| sum.crc32);
            crc.update(&[u8::from(is_drawn)]);
            crc.update(&sum.to_le_bytes());
            ends.insert(commit.lane.clone(), (commit.to.clone(), commit.low_waiting.clone()));
            let columns = ExampleColumns::open(&folder.join(EXAMPLES), commit.sum(&folder, EXAMPLES)?)?;
            let mut number = |query: &str| -> Result<u32> {
                let key = normalized_query(query);
                if let Some(number) = numbers.get(key.as_str()) {
                    return Ok(*number);
                }
                let next = u32::try_from(numbers.len());
                let next = next.map_err(|e| Error::data(&folder, None, "more than 4294967295 queries").because(e))?;
                numbers.insert(key.into(), next);
                Ok(next)
            };
            let queries =
                columns.queries.iter().map(|query| number(query.unwrap_or_default())).collect::<Result<_>>()?;
            let known = |id: Option<&str>| id.and_then(|id| catalogue.row(id)).unwrap_or(UNKNOWN);
            let items: Vec<u32> = columns.items.iter().map(known).collect();
            let hidden = columns.time.values().iter().filter(|time| is_held_out(**time)).count() as u64;
            let usable = (hidden > 0 || items.contains(&UNKNOWN)).then(|| {
                let rows = columns.item_keys.values().iter().zip(columns.time.values()).zip(0_u32..);
                let is_usable = |key: u32, time: i64| items[key as usize] != UNKNOWN && !is_held_out(time);
                rows.filter(|((key, time), _)| is_usable(**key, **time)).map(|(_, row)| row).collect::<Vec<u32>>()
            });
            let num_rows = usable.as_ref().map_or(columns.len(), Vec::len);
            let keys = columns.item_keys.values().iter();
            let num_unknown = keys.filter(|key| items[**key as usize] == UNKNOWN).count() as u64;
            let shard = Shard { commit, columns, queries, items, usable };
            if !is_drawn {
                before.push(shard);
                continue;
            }
            unknown_items += num_unknown;
            num_held_out += hidden;
            starts.push(starts.last().copied().unwrap_or_default() + num_rows as u64);
            shards.push(shard);
        }
        let positives = Positives::new(before.iter().chain(&shards).flat_map(Shard::pairs), numbers.len() as u32);
        if num_held_out > 0 {
            // which examples are drawn depends on it
            let times = held_out.iter().flat_map(|range| [range.start, range.end]);
            times.for_each(|time| crc.update(&time.to_le_bytes()));
        }
        Ok(Self { shards, starts, span, ends, unknown_items, num_held_out, positives, crc32: crc.finalize() })
    }

    /// Number of examples whose item is in the catalogue.
    pub fn len(&self) -> u64 {
        self.starts.last().copied().unwrap_or_default()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of examples dropped because their item is missing from the catalogue.
    pub fn num_unknown_items(&self) -> u64 {
        self.unknown_items
    }

    /// Number of examples that are not drawn because judgements were derived from their time of the log.
    pub fn num_held_out(&self) -> u64 {
        self.num_held_out
    }

    pub fn num_queries(&self) -> u32 {
        self.positives.num_queries()
    }

    /// Checksum of the examples and their order.
    pub fn crc32(&self) -> u32 {
        self.crc32
    }

    /// Span of the drawn commits, to open the same again.
    pub fn span(&self) -> &Span {
        &self.span
    }

    /// Returns an example; `row` must be below `len`.
    pub fn row(&self, row: u64) -> Example<'_> {
        let (shard, row) = self.locate(row);
        let (query, item) = (shard.columns.query_keys.value(row), shard.columns.item_keys.value(row));
        Example {
            query: shard.columns.queries.value(query as usize),
            query_number: shard.queries[query as usize],
            item: shard.items[item as usize],
            action: Action::ALL[usize::from(shard.columns.action.value(row)).min(Action::ALL.len() - 1)],
            strength: shard.columns.strength.value(row),
            time: shard.columns.time.value(row),
        }
    }

    /// Shard of a row, and the row within it.
    fn locate(&self, row: u64) -> (&Shard, usize) {
        let at = self.starts.partition_point(|start| *start <= row) - 1;
        let (shard, row) = (&self.shards[at], (row - self.starts[at]) as usize);
        (shard, shard.usable.as_ref().map_or(row, |usable| usable[row] as usize))
    }

    /// Known positives of a query, ascending.
    pub fn positives(&self, query_number: u32) -> &[u32] {
        self.positives.items(query_number)
    }

    /// Low-water mark of each lane after training on the first `drawn` draws: its first message not yet trained on.
    pub fn low_water(&self, order: Order, drawn: u64) -> BTreeMap<String, Position> {
        let mut marks: BTreeMap<String, Position> =
            self.ends.iter().map(|(lane, (to, _))| (lane.clone(), to.clone())).collect();
        let mut lower = |lane: &str, part: &str, offset: u64| {
            let mark = marks.entry(lane.into()).or_default().0.entry(part.into()).or_insert(offset);
            *mark = offset.min(*mark);
        };
        for (lane, (_, low_waiting)) in &self.ends {
            low_waiting.iter().for_each(|(part, offset)| lower(lane, part, *offset));
        }
        if self.is_empty() || drawn >= self.len() {
            return marks;
        }
        let (rest, later) = order.rest_of_block(drawn, self.len());
        let whole = self.starts.partition_point(|start| *start < later);
        let last = self.starts.get(whole).copied().unwrap_or(self.len()).min(self.len());
        for row in rest.chain(later..last) {
            let (shard, row) = self.locate(row);
            if let Some(part) = shard.commit.parts.get(usize::from(shard.columns.part.value(row))) {
                lower(&shard.commit.lane, part, shard.columns.offset.value(row));
            }
        }
        for shard in self.shards.iter().skip(whole) {
            shard.commit.low.iter().for_each(|(part, offset)| lower(&shard.commit.lane, part, *offset));
        }
        marks
    }
}

impl Shard {
    /// Query and item of each usable row.
    fn pairs(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let all = self.usable.is_none().then(|| 0..self.columns.len() as u32);
        let rows = self.usable.iter().flatten().copied().chain(all.into_iter().flatten());
        rows.map(|row| {
            let columns = &self.columns;
            let (query, item) = (columns.query_keys.value(row as usize), columns.item_keys.value(row as usize));
            (self.queries[query as usize], self.items[item as usize])
        })
    }
}
