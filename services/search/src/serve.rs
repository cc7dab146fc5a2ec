//! The process: opens the shop and the registry, and the socket they are asked on.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use souk::config::Config;
use souk::search::{Building, Generation, Shop};
use souk_http::{Endpoint, Keys};
use tokio::task::{JoinSet, spawn_blocking};

use crate::events::Scribe;
use crate::registry::Registry;
use crate::{Service, chores, router};

/// The variable with keys, between commas or spaces.
const KEYS: &str = "SOUK_SEARCH_KEYS";

/// Serves the shop that the configuration describes. `told` hears of a first index that is being built, `ready` of where the
/// service is asked and what is served, once requests are answered. Returns after a signal, when what was begun is answered.
pub fn serve(
    config: &Config,
    told: impl FnOnce(Arc<Building>) + Send + 'static,
    ready: impl FnOnce(Endpoint, &Generation) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let settings = &config.search;
    let keys = Keys::open(settings.key_file.as_deref(), KEYS)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start threads")?;
    let open = async |endpoint: Endpoint| {
        if keys.is_empty() && !endpoint.address.ip().is_loopback() {
            tracing::warn!(%endpoint, "everybody who reaches this address may do all: give keys");
        }
        let service = Service::open(config, keys, told).await?;
        Ok((router(service.clone()), (chores::start(&service), service)))
    };
    let ready = |endpoint, (_, service): &(JoinSet<()>, Arc<Service>)| ready(endpoint, &service.shop.served());
    let listen = (settings.listen.as_str(), "search.listen");
    let served = runtime.block_on(async {
        let (chores, service) = souk_http::serve(listen, settings.tls.as_ref(), open, ready).await?;
        drop(chores);
        // what was taken is written down
        service.scribe.close().await;
        Ok(())
    });
    // a build that goes on is of no use to anybody now
    runtime.shutdown_background();
    served
}

impl Service {
    /// Opens what was served last, or makes the first index; blocks nobody meanwhile.
    pub async fn open(
        config: &Config,
        keys: Keys,
        told: impl FnOnce(Arc<Building>) + Send + 'static,
    ) -> anyhow::Result<Arc<Self>> {
        config.search.check()?;
        let scribe = Scribe::open(&config.search.events, &config.log)?;
        let registry = Arc::new(Registry::new(config.store.clone()));
        let (version, path) = first(config, &registry).await?;
        let parts = config.shop_parts()?;
        let opening = spawn_blocking(move || Shop::open(parts, (&version, &path), told));
        let shop = Arc::new(opening.await.context("the shop could not be opened")??);
        if let Some(note) = passed_over(config.model.path.as_deref(), &shop.served().record().path) {
            tracing::warn!("{note}");
        }
        if let Err(error) = registry.introduce(&shop.served()).await {
            if matches!(error, souk::Error::Config { .. }) {
                return Err(error.into());
            }
            // said again and again until it is right; searching goes on
            tracing::warn!(?error, "the registry does not know what is served");
        }
        Ok(Arc::new(Self::new(shop, registry, scribe, keys)))
    }
}

/// The version to begin with, and its model: what the registry serves, or what the configuration names.
async fn first(config: &Config, registry: &Registry) -> anyhow::Result<(String, String)> {
    match registry.served().await {
        Ok(Some((served, version))) => return Ok((served.version, version.path)),
        Ok(None) => {}
        Err(error @ souk::Error::Upstream { .. }) => tracing::warn!(?error, "the registry does not answer"),
        Err(error) => return Err(error.into()),
    }
    let path = config.model.path.clone().context("no model: give --model DIR, or [model] path in the configuration")?;
    let folder = Path::new(&path).file_name().map(|name| name.to_string_lossy().into_owned());
    Ok((config.search.version.clone().or(folder).unwrap_or_else(|| "first".into()), path))
}

/// What to say where another model is served than the configuration names.
fn passed_over(asked: Option<&str>, served: &str) -> Option<String> {
    let asked = asked.filter(|asked| *asked != served)?;
    Some(format!("{asked} is for a first start, and {served} was served last: POST /models takes another"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_is_not_served_is_named() {
        assert_eq!(passed_over(Some("BASE"), "BASE"), None);
        assert_eq!(passed_over(None, "BASE"), None);
        assert!(passed_over(Some("BASE"), "rounds/7").unwrap().starts_with("BASE is for a first start, and rounds/7"));
    }
}
