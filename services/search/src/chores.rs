//! What happens by itself: what was written and not yet applied is applied, worn snapshots are renewed, the registry is
//! followed, recall is measured. A chore that fails is tried again, and stops no other.

use std::sync::Arc;
use std::time::Duration;

use souk::telemetry::SEARCH;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::Service;

const RECALL_K: usize = 10;

/// Runs until the set is dropped.
pub fn start(service: &Arc<Service>) -> JoinSet<()> {
    let settings = service.settings();
    let mut chores = JoinSet::new();
    chores.spawn(every(service.clone(), 1, "looking after the index", tend));
    chores.spawn(every(service.clone(), settings.registry_seconds, "following the registry", follow));
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
    let mut ticks = interval(Duration::from_secs(seconds));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Err(error) = chore(&service).await {
            tracing::warn!(?error, "{what} failed: tried again in {seconds} s");
        }
    }
}

async fn tend(service: &Arc<Service>) -> souk::Result<()> {
    let shop = &service.shop;
    shop.catch_up().await?;
    let served = shop.served();
    SEARCH.items.set(served.index().num_items().await? as i64);
    SEARCH.catalogue.set(served.catalogue() as i64);
    SEARCH.changed.set(shop.num_changed() as i64);
    shop.let_go().await?;
    if shop.is_worn() {
        shop.rebuild().await?;
        SEARCH.rebuilds.inc();
    }
    Ok(())
}

async fn follow(service: &Arc<Service>) -> souk::Result<()> {
    service.registry.introduce(&service.shop.served()).await?;
    service.registry.follow(&service.shop).await
}

/// By what shoppers asked for lately.
async fn measure(service: &Arc<Service>) -> souk::Result<()> {
    let (served, recent) = (service.shop.served(), service.recent());
    let width = served.record().dimensions as usize;
    let recent: Vec<Vec<f32>> = recent.into_iter().filter(|vector| vector.len() == width).collect();
    if !recent.is_empty() {
        SEARCH.recall.set(served.index().recall(&recent, RECALL_K).await?);
    }
    Ok(())
}
