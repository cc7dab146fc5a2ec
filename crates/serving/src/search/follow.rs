//! How a service follows the catalogue stream: it reads changes, encodes new texts, copies both to its journal and applies
//! them. A write is appended to the stream, and answered when this service has applied it.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::OwnedMutexGuard;
use tokio::task::spawn_blocking;

use super::generation::{OpenGeneration, worker_lost};
use super::serving_state::ServingState;
use super::stream_position::StreamLag;
use crate::index::{ItemChange, Journal};
use souk_io::catalogue_stream::{Mutation, lost_stream};
use souk_io::domain::Item;
use souk_io::error::{Error, Result};
use souk_io::telemetry::SEARCH;

/// Mutations applied at once.
const PAGE: usize = 256;
/// Time that a read waits for news.
const PATIENCE: Duration = Duration::from_secs(1);

/// Result of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WriteReceipt {
    /// Number of ids that were present before.
    pub num_existing: usize,
    /// Position of the last change.
    pub catalogue: u64,
}

impl ServingState {
    /// Appends mutations to the stream, in order, and waits until searches here see them. Does nothing and returns none if one of
    /// their items has changed after the position `unchanged_since`. After an error they may be in the stream.
    pub async fn apply(&self, mutations: Vec<Mutation>, unchanged_since: Option<u64>) -> Result<Option<WriteReceipt>> {
        self.check_not_lost()?;
        mutations.iter().try_for_each(Mutation::check)?;
        let generation = self.served();
        // reject what an index would not accept while its writer still listens
        let changes = resolve(&generation, &mutations).await?;
        generation.index().check_changes(&changes)?;
        let ids: BTreeSet<String> = mutations.iter().map(|mutation| mutation.id().to_owned()).collect();
        let ids: Vec<String> = ids.into_iter().collect();
        let num_new = generation.index().get(&ids).await?.iter().filter(|found| found.is_none()).count();
        let num_existing = mutations.len() - num_new;
        let appended = match unchanged_since {
            None => Some(self.deps.stream.append(&mutations).await?),
            Some(position) => self.deps.stream.append_if(&mutations, position).await?,
        };
        let Some(catalogue) = appended else { return Ok(None) };
        self.wait_for(catalogue).await;
        Ok(Some(WriteReceipt { num_existing, catalogue }))
    }

    /// Appends mutations to the stream without encoding them first or waiting for them; returns the position of the last.
    pub async fn append(&self, mutations: &[Mutation]) -> Result<u64> {
        mutations.iter().try_for_each(Mutation::check)?;
        self.deps.stream.append(mutations).await
    }

    /// Waits until searches see the change at this position.
    pub async fn wait_for(&self, position: u64) {
        self.position.wait_for(position).await;
    }

    pub fn stream_lag(&self) -> StreamLag {
        self.position.lag()
    }

    /// Applies the next changes of the stream, or waits a second for some.
    pub async fn follow_stream(&self) -> Result<()> {
        let _alone = self.follow_lock.lock().await;
        let followed = self.apply_page().await;
        if let Err(error) = &followed {
            self.position.note_problem(error);
            // a database that comes back may be another one
            self.is_stream_known.store(false, Ordering::Relaxed);
        }
        let lag = self.stream_lag();
        SEARCH.stream_end.set(lag.end as i64);
        SEARCH.stream_lag.set(lag.seconds.unwrap_or(-1.0));
        followed
    }

    async fn apply_page(&self) -> Result<()> {
        self.check_not_lost()?;
        // changes that were written but not applied, such as after an error of an index server
        self.catch_up().await?;
        let after = self.journal.lock().await.last();
        self.position.see(after);
        self.check_stream(after).await?;
        let page = self.deps.stream.read(after, PAGE, PATIENCE).await?;
        if page.end < after {
            // it may grow beyond this position again, with other changes
            return Err(self.lose_stream(after, &format!("the catalogue stream ends at change {}", page.end))?);
        }
        let mutations: Vec<Mutation> = page.mutations.iter().map(|(_, mutation)| mutation.clone()).collect();
        match self.apply_mutations(&mutations, page.reached).await {
            Err(Error::Input { .. }) => self.apply_one_by_one(&page.mutations, page.reached).await?,
            done => done?,
        }
        self.position.note_end(page.reached, page.end);
        Ok(())
    }

    /// Finds out whether the stream is the one that this catalogue is a copy of.
    async fn check_stream(&self, position: u64) -> Result<()> {
        if self.is_stream_known.load(Ordering::Relaxed) {
            return Ok(());
        }
        let id = self.deps.stream.id().await?;
        match self.deps.noted_stream()? {
            None => self.deps.note_stream(&id)?,
            Some(noted) if noted == id => {}
            Some(noted) => {
                let problem = format!("the catalogue stream was replaced by another one (`{id}` instead of `{noted}`)");
                return Err(self.lose_stream(position, &problem)?);
            }
        }
        self.is_stream_known.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Notes that this catalogue cannot follow the stream; returns the error that says so from now on.
    fn lose_stream(&self, position: u64, problem: &str) -> Result<Error> {
        let (lost, note) = (lost_stream("catalogue", position, problem), self.deps.lost_note());
        fs::write(&note, lost.to_string()).map_err(Error::store(&note, "write it"))?;
        Ok(lost)
    }

    fn check_not_lost(&self) -> Result<()> {
        let note = self.deps.lost_note();
        match fs::read_to_string(&note) {
            Ok(problem) => {
                let problem = format!("{problem}. If the stream was restored, remove this file");
                Err(Error::config(note.display(), problem))
            }
            Err(_) => Ok(()),
        }
    }

    /// Skips mutations that this service's model or index does not accept.
    async fn apply_one_by_one(&self, mutations: &[(u64, Mutation)], reached: u64) -> Result<()> {
        for (position, mutation) in mutations {
            match self.apply_mutations(std::slice::from_ref(mutation), *position).await {
                Err(error @ Error::Input { .. }) => {
                    SEARCH.changes_skipped.inc();
                    tracing::error!(?error, position, id = mutation.id(), "skipping a catalogue change");
                    self.apply_mutations(&[], *position).await?;
                }
                done => done?,
            }
        }
        self.apply_mutations(&[], reached).await
    }

    /// Applies mutations that follow the journal's last one; then the journal has reached this position.
    async fn apply_mutations(&self, mutations: &[Mutation], reached: u64) -> Result<()> {
        loop {
            let generation = self.served();
            let journal = self.journal.lock().await;
            if reached <= journal.last() {
                return Ok(());
            }
            // updates depend on what is there
            generation.catch_up(journal.reader()).await?;
            drop(journal);
            let changes = resolve(&generation, mutations).await?;
            let journal = self.journal.clone().lock_owned().await;
            // vectors must be from the model that is served when the change is written
            if !Arc::ptr_eq(&generation, &self.served()) {
                continue;
            }
            // never write a change that cannot be applied: every replay would fail on it
            generation.index().check_changes(&changes)?;
            let model = generation.record().model.clone();
            let (_journal, changes) = append_to_journal(journal, model, changes, reached).await?;
            generation.apply(&changes, reached).await?;
            self.position.see(reached);
            return Ok(());
        }
    }
}

/// Changes that mutations make, with vectors: those of unchanged texts from the index, the others from the cache or the model.
async fn resolve(generation: &OpenGeneration, mutations: &[Mutation]) -> Result<Vec<ItemChange>> {
    let updated = mutations.iter().filter(|mutation| matches!(mutation, Mutation::Update(..)));
    let ids: Vec<String> = updated.map(|mutation| mutation.id().to_owned()).collect();
    let found = if ids.is_empty() { Vec::new() } else { generation.index().get(&ids).await? };
    let mut current: HashMap<String, Option<Item>> = ids.into_iter().zip(found).collect();
    let (mut changes, mut items) = (Vec::with_capacity(mutations.len()), Vec::new());
    for mutation in mutations {
        let after = mutation.apply(current.get(mutation.id()).cloned().flatten());
        match (&after, mutation) {
            (Some(item), _) => {
                items.push(item.clone());
                changes.push(ItemChange::Put(item.clone(), Vec::new()));
            }
            (None, Mutation::Delete(id)) => changes.push(ItemChange::Delete(id.clone())),
            (None, _) => {}
        }
        if let Some(known) = current.get_mut(mutation.id()) {
            *known = after;
        }
    }
    let mut vectors = generation.item_vectors(&items).await?.into_iter();
    for change in &mut changes {
        if let ItemChange::Put(_, vector) = change {
            *vector = vectors.next().unwrap_or_default();
        }
    }
    Ok(changes)
}

/// Writes to the journal on a blocking thread; the journal stays locked even if the caller stops waiting.
async fn append_to_journal(
    mut journal: OwnedMutexGuard<Journal>,
    model: String,
    changes: Vec<ItemChange>,
    reached: u64,
) -> Result<(OwnedMutexGuard<Journal>, Vec<ItemChange>)> {
    let write = move || {
        journal.append(&model, &changes, reached)?;
        Ok((journal, changes))
    };
    spawn_blocking(write).await.map_err(worker_lost)?
}
