//! Background tasks: follow the catalogue stream, rebuild snapshots, follow the registry, adopt a trainer's versions,
//! measure recall. A task that fails is retried later and does not affect the others.

use std::sync::Arc;
use std::time::Duration;

use souk::disk::free_bytes;
use souk::telemetry::SEARCH;
use tokio::runtime::Handle;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::sleep;

use crate::SearchService;
use crate::state::NUM_RECENT;

const RECALL_K: usize = 10;
/// Time before a failed read of the catalogue stream is tried again.
const STREAM_RETRY: Duration = Duration::from_millis(300);
/// Maximum seconds between retries of a failing task.
const MAX_PAUSE: u64 = 60;

/// Starts the tasks, which run until the set is dropped.
pub fn start(service: &Arc<SearchService>) -> JoinSet<()> {
    let settings = service.settings();
    let mut tasks = JoinSet::new();
    tasks.spawn(follow_stream(service.clone()));
    tasks.spawn(every(service.clone(), 1, "maintaining the index", maintain));
    tasks.spawn(every(service.clone(), 1, "rebuilding the index", rebuild));
    tasks.spawn(every(service.clone(), settings.registry_seconds, "following the registry", follow));
    if settings.adopt {
        tasks.spawn(every(service.clone(), settings.registry_seconds, "adopting a trainer's version", adopt));
    }
    tasks.spawn(every(service.clone(), settings.recall_seconds, "measuring recall", measure));
    tasks
}

async fn every(
    service: Arc<SearchService>,
    seconds: u64,
    name: &str,
    task: impl AsyncFn(&Arc<SearchService>) -> souk::Result<()>,
) {
    if seconds == 0 {
        return;
    }
    let mut pause = seconds;
    loop {
        pause = match task(&service).await {
            Ok(()) => seconds,
            Err(error) => {
                // a failed attempt may have been expensive
                let later = (2 * pause).min(seconds.max(MAX_PAUSE));
                tracing::warn!(?error, "{name} failed: next try in {later} s");
                later
            }
        };
        sleep(Duration::from_secs(pause)).await;
    }
}

/// Applies changes of the catalogue as they come.
async fn follow_stream(service: Arc<SearchService>) {
    let mut last_problem = None;
    loop {
        let problem = match service.serving.follow_stream().await {
            Ok(()) => None,
            Err(error) => {
                let problem = error.with_causes();
                // logged when it changes, not on every attempt
                if last_problem.as_ref() != Some(&problem) {
                    tracing::warn!(?error, "cannot follow the catalogue stream: searches continue");
                }
                sleep(STREAM_RETRY).await;
                Some(problem)
            }
        };
        if problem.is_none() && last_problem.is_some() {
            tracing::info!("following the catalogue stream again");
        }
        last_problem = problem;
    }
}

async fn maintain(service: &Arc<SearchService>) -> souk::Result<()> {
    let serving = &service.serving;
    let served = serving.served();
    SEARCH.items.set(served.index().num_items().await? as i64);
    SEARCH.catalogue.set(served.catalogue() as i64);
    SEARCH.changed.set(serving.num_changed() as i64);
    SEARCH.free_bytes.set(free_bytes(&serving.settings().state)? as i64);
    serving.grow_graphs().await?;
    serving.trim_journal().await
}

/// Builds a new snapshot if there are many changes, which can take long.
async fn rebuild(service: &Arc<SearchService>) -> souk::Result<()> {
    if service.serving.rebuild().await? {
        SEARCH.rebuilds.inc();
    }
    Ok(())
}

async fn follow(service: &Arc<SearchService>) -> souk::Result<()> {
    service.registry.introduce(&service.serving.served()).await?;
    service.registry.follow(&service.serving).await
}

/// Builds the index first, which can take long.
async fn adopt(service: &Arc<SearchService>) -> souk::Result<()> {
    service.registry.adopt(&service.serving).await
}

/// Measures recall with recent queries, and widens searches if it is too low.
async fn measure(service: &Arc<SearchService>) -> souk::Result<()> {
    let served = service.serving.served();
    let recent = service.recent(&served.record().model);
    // not measured on a server: that would download all vectors
    if !recent.is_empty() && served.record().recall.is_some() {
        // brute force over all items for each query: run it outside of the request threads
        let runtime = Handle::current();
        // a few queries measure too little to change anything by them
        let asked = if recent.len() < NUM_RECENT { 0.0 } else { service.settings().recall };
        let recall = spawn_blocking(move || runtime.block_on(served.index().hold_recall(&recent, RECALL_K, asked)));
        SEARCH
            .recall
            .set(recall.await.map_err(|e| souk::Error::input("recall measurement was interrupted").because(e))??);
    }
    Ok(())
}
