//! Process of the service: opens the serving state and the registry, listens, and shuts down on a signal.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use souk::config::{Config, SharedLedger};
use souk::search::{BuildProgress, OpenGeneration, ServingState};
use souk_http::{Endpoint, Entrance, Keys};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::{JoinSet, spawn_blocking};

use crate::events::EventWriter;
use crate::registry::ModelRegistry;
use crate::webhook::Webhook;
use crate::{SearchService, background, router};

/// Variable with keys, separated by commas or spaces.
const KEYS: &str = "SOUK_SEARCH_KEYS";

/// Serves the shop that the configuration describes, which is loaded again on SIGHUP. `on_build` gets the progress of a first
/// build; `ready` gets the address and the served generation once requests are answered. Returns after a signal, when running
/// requests are finished.
pub fn serve(
    load: impl Fn() -> souk::Result<Config> + Send + 'static,
    on_build: impl FnOnce(Arc<BuildProgress>) + Send + 'static,
    ready: impl FnOnce(Endpoint, &OpenGeneration) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let config = load()?;
    let settings = &config.search;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start threads")?;
    let entrance = Entrance {
        section: "search",
        listen: &settings.listen,
        metrics_listen: settings.metrics_listen.as_deref(),
        tls: settings.tls.as_ref(),
        key_file: settings.key_file.as_deref(),
        key_variable: KEYS,
        allow_no_keys: settings.allow_no_keys,
    };
    let open = async |_: Endpoint, keys: Keys| {
        let service = SearchService::open(&config, keys, on_build).await?;
        let mut tasks = background::start(&service);
        tasks.spawn(reload_on_hangup(service.clone(), load));
        Ok((router(service.clone()), (tasks, service)))
    };
    let ready = |endpoint, (_, service): &(JoinSet<()>, Arc<SearchService>)| ready(endpoint, &service.serving.served());
    let served = runtime.block_on(async {
        let (background, service) = souk_http::serve(&entrance, open, ready).await?;
        drop(background);
        // write the accepted events
        service.event_writer.close().await;
        Ok(())
    });
    // a running build is abandoned
    runtime.shutdown_background();
    served
}

/// Loads the configuration again at each SIGHUP. One with a mistake changes nothing.
async fn reload_on_hangup(service: Arc<SearchService>, load: impl Fn() -> souk::Result<Config> + Send + 'static) {
    let mut hangups = match signal(SignalKind::hangup()) {
        Ok(hangups) => hangups,
        Err(error) => return tracing::warn!(%error, "cannot listen for SIGHUP: settings are not read again"),
    };
    while hangups.recv().await.is_some() {
        match load().and_then(|config| service.reload(&config.search)) {
            Ok(true) => tracing::info!("read the settings again"),
            Ok(false) => tracing::warn!(
                "read the settings again; some changes need a restart (docs/configuration.md marks those that do not)"
            ),
            Err(error) => tracing::error!(?error, "the settings have a mistake: the former ones stay in effect"),
        }
    }
}

impl SearchService {
    /// Opens the generation served last, or builds the first one, without blocking the runtime.
    pub async fn open(
        config: &Config,
        keys: Keys,
        on_build: impl FnOnce(Arc<BuildProgress>) + Send + 'static,
    ) -> anyhow::Result<Arc<Self>> {
        config.search.check()?;
        let event_writer = EventWriter::open(&config.search.events, &config.log)?;
        let ledger = Arc::new(SharedLedger::new(config.store.clone()));
        let webhook = config.search.promotion_webhook.as_ref().map(Webhook::open).transpose()?;
        let registry = Arc::new(ModelRegistry::new(ledger.clone(), webhook));
        let (version, path) = initial_model(config, &registry).await?;
        let deps = config.service_deps(config.open_catalogue_stream(ledger)?)?;
        let opening = spawn_blocking(move || ServingState::open(deps, &version, &path, on_build));
        let serving = Arc::new(opening.await.context("cannot open the serving state")??);
        let served = serving.served().record().path.clone();
        // a model that came with a backup is another copy of it
        let is_copy =
            std::path::absolute(&config.search.state).is_ok_and(|state| Path::new(&served).starts_with(state));
        if let Some(note) = ignored_model_note(config.model.path.as_deref(), &served)
            && !is_copy
        {
            tracing::warn!("{note}");
        }
        if let Err(error) = registry.introduce(&serving.served()).await {
            if matches!(error, souk::Error::Config { .. }) {
                return Err(error.into());
            }
            // logged repeatedly until it is fixed; searches continue
            tracing::warn!(?error, "cannot register the served version: searches continue");
        }
        Ok(Arc::new(Self::new(serving, registry, event_writer, keys)))
    }
}

/// First version and its model: from the registry, or from the configuration.
async fn initial_model(config: &Config, registry: &ModelRegistry) -> anyhow::Result<(String, String)> {
    match registry.served().await {
        Ok(Some((served, version))) => return Ok((served.version, version.path)),
        Ok(None) => {}
        Err(error @ souk::Error::Upstream { .. }) => tracing::warn!(?error, "cannot reach the registry"),
        Err(error) => return Err(error.into()),
    }
    let path =
        config.model.path.clone().context("no model: give --model DIR, or set [model] path in the configuration")?;
    let folder = Path::new(&path).file_name().map(|name| name.to_string_lossy().into_owned());
    Ok((config.search.version.clone().or(folder).unwrap_or_else(|| "first".into()), path))
}

/// Note for the log when the configured model is not the served one.
fn ignored_model_note(configured: Option<&str>, served: &str) -> Option<String> {
    let configured = configured.filter(|configured| *configured != served)?;
    Some(format!(
        "{configured} is used on the first start only; serving {served}, which was served last: use POST /models to \
         change it"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_a_model_that_is_not_served() {
        assert_eq!(ignored_model_note(Some("BASE"), "BASE"), None);
        assert_eq!(ignored_model_note(None, "BASE"), None);
        assert!(
            ignored_model_note(Some("BASE"), "rounds/7")
                .unwrap()
                .starts_with("BASE is used on the first start only; serving rounds/7")
        );
    }
}
