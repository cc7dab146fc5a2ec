//! Everything that `docker/` names exists: settings load, metrics are exported, routes and hosts exist. Containers are not run.

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

/// Whoever starts a manifest as it is gets an error, not a service with a password that everybody knows.
#[test]
fn there_are_no_default_secrets() {
    let settings = read("docker/kubernetes/settings.yaml");
    let secret = settings.split("stringData:").nth(1).unwrap().split("---").next().unwrap();
    let values: Vec<&str> =
        secret.lines().filter_map(|line| line.trim().split_once(": ")).map(|(_, value)| value).collect();
    assert_eq!(values.len(), 3);
    assert!(values.iter().all(|value| *value == "\"\""), "{values:?}");
    let compose = read("docker/compose.yaml");
    let is_secret = |name: &str| ["PASSWORD", "KEYS", "ACCESS_KEY"].iter().any(|end| name.ends_with(end));
    let mut num = 0;
    for line in compose.lines().filter(|line| !line.trim().starts_with('#')) {
        let fields = line.split(['{', '}', ',']).chain([line]).filter_map(|field| field.split_once(": "));
        for (name, value) in fields.filter(|(name, _)| is_secret(name.trim())) {
            let value = value.trim().trim_matches('"');
            assert!(value.starts_with('$') || value.is_empty(), "{name}: {value}");
            num += 1;
        }
    }
    assert!(num >= 6, "{num}");
    for default in compose.split(":-").skip(1).map(|rest| rest.split('}').next().unwrap()) {
        assert!(["", "unset"].contains(&default), "a default that would work: {default}");
    }
}

/// Hosts in `http://host`, `postgres://user@host/database`, `host:9092` and the like, without this machine's own.
fn hosts(text: &str) -> BTreeSet<String> {
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || "-.".contains(letter);
    let lines = text.lines().map(|line| line.trim()).filter(|line| !line.starts_with('#'));
    let mut found = BTreeSet::new();
    for line in lines {
        for (at, _) in line.match_indices("://").filter(|(at, _)| !line[..*at].ends_with("s3")) {
            let rest: &str = line[at + 3..].split(|letter: char| !is_name(letter) && letter != '@').next().unwrap();
            found.insert(rest.rsplit('@').next().unwrap().to_owned());
        }
        for word in line.split(|letter: char| !is_name(letter) && letter != ':') {
            let (host, port) = word.split_once(':').unwrap_or((word, ""));
            if port.len() >= 4 && port.chars().all(|letter| letter.is_ascii_digit()) {
                found.insert(host.to_owned());
            }
        }
    }
    found.retain(|host| host.starts_with(|letter: char| letter.is_ascii_lowercase()) && host != "localhost");
    found
}

/// Name, profile and text of each service of a compose file.
fn compose_services(text: &str) -> Vec<(&str, &str, String)> {
    let services = text.split("\nservices:\n").nth(1).and_then(|rest| rest.split("\nvolumes:").next()).unwrap();
    let mut found: Vec<(&str, &str, String)> = Vec::new();
    for line in services.lines() {
        match line
            .strip_prefix("  ")
            .and_then(|line| line.strip_suffix(':'))
            .filter(|name| !name.starts_with([' ', '#']))
        {
            Some(name) => found.push((name, "", String::new())),
            None => {
                let Some((_, profile, text)) = found.last_mut() else { continue };
                if let Some(named) = line.trim().strip_prefix("profiles: [") {
                    *profile = named.trim_end_matches(']');
                }
                *text += &format!("{line}\n");
            }
        }
    }
    found
}

#[test]
fn every_host_in_the_compose_file_is_a_service_of_the_same_profile() {
    let text = read("docker/compose.yaml");
    let services = compose_services(&text);
    let named = |profile: &str| -> BTreeSet<String> {
        services.iter().filter(|(_, own, _)| *own == profile).map(|(name, ..)| (*name).to_owned()).collect()
    };
    assert_eq!(named("small").into_iter().collect::<Vec<_>>(), ["search-small", "trainer-small"]);
    assert_eq!(named("small").len() + named("full").len(), services.len(), "every service has one of the two profiles");
    let files =
        ["docker/prometheus/prometheus.yml", "docker/grafana/datasource.yaml"].map(|file| (file, "full", read(file)));
    let mut num = 0;
    for (name, profile, text) in services.iter().chain(&files) {
        let hosts = hosts(text);
        num += hosts.len();
        let services = named(profile);
        let missing: Vec<_> = hosts.difference(&services).collect();
        assert!(missing.is_empty(), "{name} names {missing:?}, which profile `{profile}` does not start");
    }
    assert!(num > 10, "{num}");
}

#[test]
fn every_host_in_a_kubernetes_manifest_is_a_service() {
    let manifests = manifests().into_iter().filter(|path| path.parent().unwrap().ends_with("kubernetes"));
    let texts: Vec<(PathBuf, String)> =
        manifests.map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect();
    let documents = texts.iter().flat_map(|(_, text)| text.split("\n---\n"));
    let names = documents.filter(|text| text.contains("\nkind: Service\n")).map(|text| {
        let name = text.split("\nmetadata: { name: ").nth(1).unwrap();
        name.split([' ', ',']).next().unwrap().to_owned()
    });
    let services: BTreeSet<String> = names.collect();
    assert!(services.len() > 3, "{services:?}");
    for (path, text) in &texts {
        let hosts = hosts(text);
        let missing: Vec<_> = hosts.difference(&services).collect();
        assert!(missing.is_empty(), "{} names {missing:?}, which no manifest defines", path.display());
    }
}

#[test]
fn the_rule_finds_hosts() {
    let text = "# http://comment\n  - --kafka=kafka:9092\n  url: http://judge\n  - \"postgres://souk@db/souk\"\n\
                voters: 1@quorum:9093\n image: souk:cpu\n ports: [\"8080:8080\"]\n test: http://localhost:8080/x\n\
                listeners: PLAINTEXT://:9092\n - --from=s3://bucket/catalogue\n - --listen=0.0.0.0:8080\n";
    assert_eq!(hosts(text).into_iter().collect::<Vec<_>>(), ["db", "judge", "kafka", "quorum"]);
}
