//! What happens by itself: what was written and not yet applied is applied, worn snapshots are renewed, the registry is
//! followed, recall is measured. A chore that fails is tried again, and stops no other.

use std::sync::Arc;
use std::time::Duration;

use souk::telemetry::SEARCH;
use tokio::runtime::Handle;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::sleep;

use crate::Service;

const RECALL_K: usize = 10;
/// Seconds until what failed again and again is tried again.
const MAX_PAUSE: u64 = 60;

/// Runs until the set is dropped.
pub fn start(service: &Arc<Service>) -> JoinSet<()> {
    let settings = service.settings();
    let mut chores = JoinSet::new();
    chores.spawn(every(service.clone(), 1, "looking after the index", tend));
    chores.spawn(every(service.clone(), settings.registry_seconds, "following the registry", follow));
    if settings.adopt {
        chores.spawn(every(service.clone(), settings.registry_seconds, "serving what a trainer offers", adopt));
    }
    chores.spawn(every(service.clone(), settings.recall_seconds, "measuring recall", measure));
    chores
}

async fn every(
    service: Arc<Service>,
    seconds: u64,
    what: &str,
    chore: impl AsyncFn(&Arc<Service>) -> souk::Result<()>,
) {
    if seconds == 0 {
        return;
    }
    let mut pause = seconds;
    loop {
        pause = match chore(&service).await {
            Ok(()) => seconds,
            Err(error) => {
                // what fails may have cost much
                let later = (2 * pause).min(seconds.max(MAX_PAUSE));
                tracing::warn!(?error, "{what} failed: tried again in {later} s");
                later
            }
        };
        sleep(Duration::from_secs(pause)).await;
    }
}

async fn tend(service: &Arc<Service>) -> souk::Result<()> {
    let shop = &service.shop;
    shop.catch_up().await?;
    let served = shop.served();
    SEARCH.items.set(served.index().num_items().await? as i64);
    SEARCH.catalogue.set(served.catalogue() as i64);
    SEARCH.changed.set(shop.num_changed() as i64);
    shop.tend().await?;
    shop.let_go().await?;
    if shop.renew().await? {
        SEARCH.rebuilds.inc();
    }
    Ok(())
}

async fn follow(service: &Arc<Service>) -> souk::Result<()> {
    service.registry.introduce(&service.shop.served()).await?;
    service.registry.follow(&service.shop).await
}

/// Its index is built first, which may take long.
async fn adopt(service: &Arc<Service>) -> souk::Result<()> {
    service.registry.adopt(&service.shop).await
}

/// By what shoppers asked for lately.
async fn measure(service: &Arc<Service>) -> souk::Result<()> {
    let served = service.shop.served();
    let recent = service.recent(&served.record().model);
    // of a server it is not measured: all its vectors would have to come here
    if !recent.is_empty() && served.record().recall.is_some() {
        // a look at all items, for each query: beside what answers requests
        let runtime = Handle::current();
        let recall = spawn_blocking(move || runtime.block_on(served.index().recall(&recent, RECALL_K)));
        SEARCH.recall.set(recall.await.map_err(|e| souk::Error::input("recall was not measured").because(e))??);
    }
    Ok(())
}
