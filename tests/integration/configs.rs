//! Every shipped configuration loads, and says what it promises.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use souk::backbone::Architecture;
use souk::config::Config;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn shipped() -> impl Iterator<Item = PathBuf> {
    let paths = std::fs::read_dir(root().join("configs")).unwrap().map(|entry| entry.unwrap().path());
    // plans of experiments are `souk experiment`'s own, and tried beside it
    paths.filter(|path| !path.file_name().unwrap().to_string_lossy().starts_with("experiment-"))
}

/// Addresses of the search service, the trainer and the relevance service.
fn listeners(config: &Config) -> [&str; 3] {
    [&config.search.listen, &config.trainer.listen, &config.relevance.serve.listen]
}

#[test]
fn the_three_services_listen_on_different_ports() {
    let ports = |config: &Config| -> BTreeSet<String> {
        let port = |address: &str| address.rsplit_once(':').unwrap().1.to_owned();
        listeners(config).into_iter().map(port).collect()
    };
    let defaults = Config::default();
    assert_eq!(ports(&defaults).len(), 3, "{:?}", listeners(&defaults));
    for path in shipped() {
        let config = Config::load(Some(&path), &[]).unwrap();
        assert_eq!(ports(&config).len(), 3, "{}: {:?}", path.display(), listeners(&config));
    }
    let commands = ["serve", "trainer", "relevance"].map(|name| format!("services/cli/src/{name}.rs"));
    for (file, address) in commands.iter().zip(listeners(&defaults)) {
        let text = std::fs::read_to_string(root().join(file)).unwrap();
        assert!(text.contains(&format!("(default: {address})")), "the help in {file} does not name {address}");
    }
}

#[test]
fn every_shipped_toml_loads() {
    let mut loaded = 0;
    for path in shipped() {
        let config = Config::load(Some(&path), &[]).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let useful = config.model.path.is_some() || config.scratch.is_some() || !config.log.brokers.is_empty();
        assert!(useful, "{} names neither a model nor a log", path.display());
        if let Some(scratch) = config.scratch {
            let mut json = scratch.architecture;
            json["vocab_size"] = scratch.vocab.into();
            Architecture::read(json, &path.display().to_string(), Some(&[])).unwrap();
        }
        loaded += 1;
    }
    assert!(loaded >= 5, "only {loaded} configurations were found");
}
