//! Everything that `docker/` names exists: settings load, metrics are exported, routes exist. Containers are not run.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use souk::config::{Change, Config};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

fn manifests() -> Vec<PathBuf> {
    let listed = |folder: &str| fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
    listed("docker")
        .chain(listed("docker/kubernetes"))
        .filter(|path| path.extension().is_some_and(|e| e == "yaml"))
        .collect()
}

/// Names that start with `souk_`.
fn metrics_in(text: &str) -> BTreeSet<String> {
    let name = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
    text.split(|letter: char| !name(letter)).filter(|word| word.starts_with("souk_")).map(str::to_owned).collect()
}

#[test]
fn alerts_and_the_dashboard_name_metrics_that_are_exported() {
    let mut exported = metrics_in(&read("crates/io/src/telemetry.rs"));
    for service in ["search", "trainer", "relevance"] {
        exported.insert(format!("souk_{service}_requests_total"));
        exported.insert(format!("souk_{service}_request_seconds"));
    }
    for file in ["docker/prometheus/alerts.yml", "docker/grafana/souk.json", "docs/operations.md"] {
        let named = metrics_in(&read(file));
        assert!(!named.is_empty());
        for name in named {
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(&name);
            assert!(exported.contains(base), "{file} names `{name}`, which nobody exports");
        }
    }
    let dashboard: serde_json::Value = serde_json::from_str(&read("docker/grafana/souk.json")).unwrap();
    assert!(dashboard["panels"].as_array().unwrap().len() > 10);
}

#[test]
fn every_setting_that_a_manifest_gives_is_one() {
    let mut num = 0;
    for path in manifests() {
        let text = fs::read_to_string(&path).unwrap();
        // each argument list starts with its command
        let (mut file, mut changes) = (None, Vec::new());
        for line in text.lines().chain(["- end"]) {
            let Some(argument) = line.trim().strip_prefix("- ") else { continue };
            if let Some(name) = argument.strip_prefix("--config=/opt/souk/") {
                file = Some(root().join(name));
            } else if let Some(set) = argument.strip_prefix("--set=") {
                changes.push(Change::parse(set).unwrap());
                num += 1;
            } else if !argument.starts_with("--") {
                Config::load(file.take().as_deref(), &changes).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
                changes.clear();
            }
        }
    }
    assert!(num > 5, "{num}");
}

#[test]
fn settings_in_a_config_map_load() {
    let text = read("docker/kubernetes/settings.yaml");
    let home = tempfile::tempdir().unwrap();
    let mut files: Vec<(String, String)> = Vec::new();
    for line in text.lines() {
        match line.strip_prefix("    ") {
            Some(inner) if !files.is_empty() => files.last_mut().unwrap().1 += &format!("{inner}\n"),
            _ => {
                let name = line.trim().strip_suffix(": |").filter(|name| name.ends_with(".toml"));
                files.extend(name.map(|name| (name.to_owned(), String::new())));
            }
        }
    }
    assert_eq!(files.len(), 3);
    for (name, text) in files {
        let path = home.path().join(&name);
        fs::write(&path, text).unwrap();
        let config = Config::load(Some(&path), &[]).unwrap_or_else(|e| panic!("{name}: {e}"));
        if name == "trainer.toml" {
            config.trainer.check().unwrap();
            for stage in &config.trainer.stage {
                config.of_stage(stage, "model").unwrap().train.check().unwrap();
            }
        }
    }
}

#[test]
fn probes_ask_for_routes_that_exist() {
    let routes = read("services/search/src/routes.rs") + &read("services/trainer/src/routes.rs");
    for path in manifests() {
        let text = fs::read_to_string(&path).unwrap();
        for probe in text.split("path: /").skip(1) {
            let route: String = probe.chars().take_while(|letter| letter.is_ascii_alphanumeric()).collect();
            assert!(routes.contains(&format!("\"/{route}\"")), "{} asks for /{route}", path.display());
        }
    }
}
