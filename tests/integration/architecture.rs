//! `ARCHITECTURE.md` is true: its picture has the dependencies of the `Cargo.toml` files, and its table has every crate.

use std::collections::BTreeSet;
use std::fs;

use crate::house::root;

/// Left out of the picture: nearly every crate uses them, or only tests do.
const LEFT_OUT: [&str; 3] = ["io", "native", "testing"];

fn crates() -> Vec<(String, String)> {
    let inside = |folder: &str| -> Vec<(String, String)> {
        let entries = fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().file_name());
        entries.map(|name| name.into_string().unwrap()).map(|name| (name.clone(), format!("{folder}/{name}"))).collect()
    };
    let single = [
        ("souk", "src"),
        ("native", "native"),
        ("native-allocator", "native/allocator"),
        ("native-kafka", "native/kafka"),
    ];
    let single = single.map(|(name, folder)| (name.to_owned(), folder.to_owned()));
    [inside("crates"), inside("services"), single.to_vec()].concat()
}

/// `a --> b` for each crate `b` that depends on `a`.
fn dependencies() -> BTreeSet<String> {
    let mut edges = BTreeSet::new();
    for (name, folder) in crates() {
        let manifest = if name == "souk" { "Cargo.toml".into() } else { format!("{folder}/Cargo.toml") };
        let text = fs::read_to_string(root().join(manifest)).unwrap();
        let section =
            text.split("\n[dependencies]\n").nth(1).and_then(|rest| rest.split("\n[").next()).unwrap_or_default();
        for line in section.lines().filter_map(|line| line.strip_prefix("souk")) {
            let end = line.find(['.', ' ']).unwrap();
            let used = line[..end].strip_prefix('-').unwrap_or("souk");
            if !LEFT_OUT.contains(&used) && !LEFT_OUT.contains(&name.as_str()) {
                edges.insert(format!("{used} --> {name}"));
            }
        }
    }
    edges
}

#[test]
fn the_picture_has_the_dependencies_of_the_manifests() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let picture = text.split("```mermaid").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let drawn: BTreeSet<String> =
        picture.lines().map(|line| line.trim().to_owned()).filter(|line| line.contains("-->")).collect();
    assert!(drawn.len() > 20);
    assert_eq!(drawn, dependencies());
}

#[test]
fn the_table_has_every_crate() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    for (name, folder) in crates() {
        let row = text.lines().find(|line| line.starts_with(&format!("| `{folder}/`")));
        let row = row.unwrap_or_else(|| panic!("ARCHITECTURE.md has no row for {name} (`{folder}/`)"));
        assert!(
            row.split('|').filter(|cell| cell.trim().len() > 3).count() >= 3,
            "the row of {name} is not complete: {row}"
        );
    }
}
