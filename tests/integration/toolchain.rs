//! The Rust version that `Cargo.toml` states is enough for every dependency, and all other places state the same.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::house::root;

/// Major and minor version.
type Version = (u32, u32);

fn version(text: &str) -> Version {
    let mut numbers = text.split('.').map(|number| number.parse().unwrap_or_else(|e| panic!("`{text}`: {e}")));
    (numbers.next().unwrap(), numbers.next().unwrap())
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

/// Text between the first `before` and the next `after`.
fn between<'a>(text: &'a str, before: &str, after: &str) -> &'a str {
    let found = text.split_once(before).and_then(|(_, rest)| rest.split_once(after));
    found.unwrap_or_else(|| panic!("nothing between `{before}` and `{after}`")).0
}

fn stated() -> String {
    between(&read("Cargo.toml"), "\nrust-version = \"", "\"").to_owned()
}

/// The dependencies of `cargo metadata` that need a newer Rust.
fn too_new(metadata: &serde_json::Value, stated: Version) -> Vec<String> {
    let packages = metadata["packages"].as_array().unwrap();
    let need = packages.iter().filter_map(|package| {
        let needed = package["rust_version"].as_str()?;
        (version(needed) > stated).then(|| format!("{} {} needs {needed}", package["name"], package["version"]))
    });
    need.collect()
}

#[test]
fn the_stated_rust_is_enough_for_every_dependency() {
    let rustc = Command::new(std::env::var("RUSTC").unwrap_or("rustc".into())).arg("-vV").output().unwrap();
    let rustc = String::from_utf8(rustc.stdout).unwrap();
    // packages of other platforms may not have been downloaded
    let host = between(&rustc, "\nhost: ", "\n");
    let mut cargo = Command::new(std::env::var("CARGO").unwrap_or("cargo".into()));
    cargo.args(["metadata", "--offline", "--locked", "--format-version=1", "--filter-platform", host]);
    let output = cargo.current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(metadata["packages"].as_array().unwrap().len() > 100);
    let too_new = too_new(&metadata, version(&stated()));
    assert!(too_new.is_empty(), "raise rust-version in Cargo.toml: {too_new:?}");
}

#[test]
fn every_place_states_the_same_rust() {
    let stated = stated();
    assert_eq!(between(&read("docker/Dockerfile"), "FROM rust:", "-"), stated, "docker/Dockerfile");
    assert_eq!(between(&read("README.md"), "[Rust](https://rustup.rs) ", " or newer"), stated, "README.md");
}

#[test]
fn setup_refuses_an_older_rust() {
    let (major, minor) = version(&stated());
    let home = tempfile::tempdir().unwrap();
    let cargo = home.path().join("cargo");
    fs::write(&cargo, format!("#!/bin/sh\necho 'cargo {major}.{}.9 (an old one)'\n", minor - 1)).unwrap();
    fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", home.path().display(), std::env::var("PATH").unwrap());
    let output = Command::new(root().join("scripts/setup.sh")).env("PATH", path).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    let expected = format!("cargo {major}.{}.9 is too old: Souk needs {major}.{minor} or newer", minor - 1);
    assert!(!output.status.success() && message.contains(&expected), "{message}");
}

#[test]
fn the_rule_finds_a_dependency_that_is_too_new() {
    let metadata = serde_json::json!({"packages": [
        {"name": "old", "version": "1.0.0", "rust_version": "1.93"},
        {"name": "same", "version": "1.0.0", "rust_version": "1.94.1"},
        {"name": "new", "version": "2.0.0", "rust_version": "1.95"},
        {"name": "silent", "version": "3.0.0", "rust_version": null},
    ]});
    assert_eq!(too_new(&metadata, (1, 94)), ["\"new\" \"2.0.0\" needs 1.95"]);
}
