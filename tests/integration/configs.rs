//! Every shipped configuration loads, and says what it promises.

use std::path::Path;

use souk::backbone::Architecture;
use souk::config::Config;

#[test]
fn every_shipped_toml_loads() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs");
    let mut loaded = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        // plans of experiments are `souk experiment`'s own, and tried beside it
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("experiment-")) {
            continue;
        }
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
