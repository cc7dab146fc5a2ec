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
        .chain(listed("docker/helm/souk"))
        .chain(listed("docker/helm/souk/templates"))
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

/// Name and text of each literal block (`NAME: |`) of a YAML file, of those whose text is indented by four spaces.
fn literal_blocks(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let Some(name) = line.strip_suffix(": |") else { continue };
        let mut block = String::new();
        while let Some(inner) = lines.peek().and_then(|line| line.strip_prefix("    ")) {
            block += &format!("{inner}\n");
            lines.next();
        }
        found.push((name.trim().to_owned(), block));
    }
    found
}

#[test]
fn settings_in_a_config_map_and_in_the_charts_values_load() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("souk.toml");
    for file in ["docker/kubernetes/settings.yaml", "docker/helm/souk/values.yaml"] {
        let blocks = literal_blocks(&read(file));
        assert_eq!(blocks.len(), 3, "{file}");
        let mut num_stages = 0;
        for (name, text) in blocks {
            fs::write(&path, text).unwrap();
            let config = Config::load(Some(&path), &[]).unwrap_or_else(|e| panic!("{file}: {name}: {e}"));
            num_stages += config.trainer.stage.len();
            if !config.trainer.stage.is_empty() {
                config.trainer.check().unwrap();
            }
            for stage in &config.trainer.stage {
                config.of_stage(stage, "model").unwrap().train.check().unwrap();
            }
        }
        assert_eq!(num_stages, 2, "{file}");
    }
}

/// The chart is the manifests with values, so what has no value must be the same in both.
#[test]
fn the_chart_has_the_probes_ports_mounts_and_security_of_the_manifests() {
    let mut num = 0;
    for name in ["search.yaml", "trainer.yaml", "servers.yaml"] {
        let template = read(&format!("docker/helm/souk/templates/{name}"));
        let in_chart: BTreeSet<&str> = template.lines().map(str::trim).collect();
        let manifest = read(&format!("docker/kubernetes/{name}"));
        let is_fixed = |line: &&str| {
            let fixed = ["image: ", "Probe: ", "securityContext: ", "ports: [", "- { name: "];
            let by_values = ["image: souk:", "claimName"];
            fixed.iter().any(|part| line.contains(part)) && !by_values.iter().any(|part| line.contains(part))
        };
        for line in manifest.lines().map(str::trim).filter(is_fixed) {
            assert!(in_chart.contains(line), "the chart's {name} lacks `{line}`");
            num += 1;
        }
    }
    assert!(num > 40, "{num}");
}

#[test]
fn the_chart_names_the_current_version() {
    let version = format!("\nappVersion: {}\n", env!("CARGO_PKG_VERSION"));
    assert!(read("docker/helm/souk/Chart.yaml").contains(&version), "Chart.yaml lacks `{}`", version.trim());
}

#[test]
fn probes_ask_for_routes_that_exist() {
    let routes = ["search", "trainer", "relevance"].map(|service| read(&format!("services/{service}/src/routes.rs")));
    let routes = routes.concat();
    for path in manifests() {
        let text = fs::read_to_string(&path).unwrap();
        for probe in text.split("path: /").skip(1) {
            let route: String = probe.chars().take_while(|letter| letter.is_ascii_alphanumeric()).collect();
            assert!(routes.contains(&format!("\"/{route}\"")), "{} asks for /{route}", path.display());
        }
    }
}

/// Whoever starts a manifest as it is gets an error, not a service with a password that everybody knows. The chart has no secret at all.
#[test]
fn there_are_no_default_secrets() {
    let settings = read("docker/kubernetes/settings.yaml");
    let secret = settings.split("stringData:").nth(1).unwrap().split("---").next().unwrap();
    let values: Vec<&str> =
        secret.lines().filter_map(|line| line.trim().split_once(": ")).map(|(_, value)| value).collect();
    assert_eq!(values.len(), 4);
    assert!(values.iter().all(|value| *value == "\"\""), "{values:?}");
    for path in manifests().into_iter().filter(|path| path.parent().unwrap().ends_with("templates")) {
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains("kind: Secret"), "{} creates a secret", path.display());
    }
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
fn every_host_in_a_kubernetes_manifest_and_in_the_chart_is_a_service() {
    for folder in ["docker/kubernetes", "docker/helm"] {
        let folder = root().join(folder);
        let manifests = manifests().into_iter().filter(|path| path.starts_with(&folder));
        assert_hosts_are_services(
            &manifests.map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect::<Vec<_>>(),
        );
    }
}

fn assert_hosts_are_services(texts: &[(PathBuf, String)]) {
    let documents = texts.iter().flat_map(|(_, text)| text.split("\n---\n"));
    let names = documents.filter(|text| text.contains("\nkind: Service\n")).map(|text| {
        let name = text.split("\nmetadata: { name: ").nth(1).unwrap();
        name.split([' ', ',']).next().unwrap().to_owned()
    });
    let services: BTreeSet<String> = names.collect();
    assert!(services.len() > 3, "{services:?}");
    for (path, text) in texts {
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
