//! The rules of the house, each a test: which room may import which, where a foreign crate lives, what documents may
//! name, where `unsafe` may stand, and how files begin, are called and how long they get. Each rule is a function of one
//! file, and is itself tried on an example that breaks it.

#![expect(clippy::unwrap_used, reason = "a test stops at the first thing that is wrong")]

use std::fs;
use std::path::Path;

/// In the order data flows: a room imports only from rooms that stand before it.
const ROOMS: [&str; 31] = [
    "error",
    "domain",
    "telemetry",
    "worker",
    "claim",
    "summed",
    "objects",
    "beir",
    "lexical",
    "log",
    "import",
    "market",
    "store",
    "dataset",
    "backbone",
    "encoder",
    "candidates",
    "reward",
    "objective",
    "collective",
    "optimizer",
    "checkpoint",
    "train",
    "relevance",
    "plan",
    "index",
    "indexing",
    "search",
    "report",
    "rounds",
    "config",
];

/// A foreign crate and the modules that may name it, so that replacing it is a change in one place.
const HOMES: [(&str, &[&str]); 26] = [
    ("arrow", &["src/dataset", "src/import/shards"]),
    ("axum", &["services"]),
    ("csv", &["src/import"]),
    ("hf_hub", &["src/backbone/hub"]),
    ("hnsw_rs", &["src/candidates/hnsw"]),
    ("hyper", &["services/http/src/listen"]),
    ("hyper_util", &["services/http/src/listen"]),
    ("milvus", &["src/index/milvus"]),
    ("minijinja", &["src/backbone/chat"]),
    ("minijinja_contrib", &["src/backbone/chat"]),
    ("object_store", &["src/objects"]),
    ("opentelemetry", &["src/telemetry/traces"]),
    ("parquet", &["src/import"]),
    ("prometheus", &["src/telemetry"]),
    ("rdkafka", &["src/log/kafka"]),
    ("redis", &["src/store/redis"]),
    ("rustls", &["src/objects"]),
    ("safetensors", &["src/backbone/weights"]),
    ("sqlx", &["src/store"]),
    ("tantivy", &["src/lexical"]),
    ("tikv_jemallocator", &["native/src/memory"]),
    ("tokenizers", &["src/backbone/tokenizer"]),
    ("toml", &["src/config", "src/market/world"]),
    ("tokio_rustls", &["services/http/src/tls"]),
    ("ureq", &["src/reward/wire/http", "src/telemetry/traces"]),
    ("utoipa", &["services/search"]),
];

const GRAB_BAGS: [&str; 7] = ["utils", "common", "helpers", "manager", "core", "base", "types"];
const RUST_FOLDERS: [&str; 5] = ["src", "services", "native", "tests", "benches"];
const DOCUMENTED_FOLDERS: [&str; 11] = [
    ".ci/",
    "benches/",
    "configs/",
    "docker/",
    "docs/",
    "migrations/",
    "native/",
    "scripts/",
    "services/",
    "src/",
    "tests/",
];
const MOST_LINES: usize = 500;

#[test]
fn a_room_imports_only_from_rooms_before_it() {
    assert_kept("Move what is shared to an earlier room, or turn the dependency round.", rust_files(), later_imports);
}

#[test]
fn a_foreign_crate_has_one_home() {
    assert_kept("Give its home a function that does what is needed, and call that.", rust_files(), strayed_crates);
}

#[test]
fn documents_name_only_paths_that_exist() {
    assert_kept("Correct the document, or the file's name.", documents(), |path, text| {
        missing_paths(path, text, &|named| root().join(named).exists())
    });
}

#[test]
fn unsafe_code_lives_in_native() {
    assert_kept("Move it to native/, behind a safe function.", rust_files(), unsafe_code);
}

#[test]
fn a_file_says_first_what_it_is() {
    assert_kept("Begin with `//!`: what it takes, what it gives, what it never does.", rust_files(), no_introduction);
}

#[test]
fn no_name_is_a_grab_bag() {
    assert_kept("Name it after the one thing it does.", rust_files(), grab_bags);
}

#[test]
fn files_are_short() {
    assert_kept("Split it where it does a second thing.", rust_files(), too_long);
}

fn assert_kept(remedy: &str, files: Vec<(String, String)>, rule: impl Fn(&str, &str) -> Vec<String>) {
    let broken: Vec<String> = files
        .iter()
        .flat_map(|(path, text)| rule(path, text).into_iter().map(move |problem| format!("  {path}: {problem}\n")))
        .collect();
    assert!(broken.is_empty(), "\n{}{remedy}\n", broken.concat());
}

fn later_imports(path: &str, text: &str) -> Vec<String> {
    let Some(inside) = path.strip_prefix("src/").filter(|inside| *inside != "lib.rs") else { return Vec::new() };
    let room = inside.split(['/', '.']).next().unwrap_or_default();
    let Some(place) = ROOMS.iter().position(|name| *name == room) else {
        return vec![format!("the room `{room}` has no place in the order (ROOMS in tests/house.rs)")];
    };
    imported_from_crate(&code_only(text))
        .into_iter()
        .filter(|name| !ROOMS[..=place].contains(&name.as_str()))
        .map(|name| format!("imports `crate::{name}`, which is not a room before `{room}`"))
        .collect()
}

/// The first names after `crate::`, in paths and in groups: `crate::a::X` and `crate::{a::X, b}`.
fn imported_from_crate(code: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        if code[..at].ends_with(is_name) {
            continue;
        }
        let rest = &code[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            Some(group) => names.extend(group_members(group).iter().map(|member| first_name(member))),
            None => names.push(first_name(rest)),
        }
    }
    names.retain(|name| !name.is_empty());
    names
}

/// The members of `a::{b, c}, d}` up to the brace that closes it: `a::{b, c}` and `d`.
fn group_members(group: &str) -> Vec<&str> {
    let (mut members, mut depth, mut begin) = (Vec::new(), 0, 0);
    for (at, letter) in group.char_indices() {
        match letter {
            '{' => depth += 1,
            ',' | '}' if depth == 0 => {
                members.push(&group[begin..at]);
                begin = at + 1;
                if letter == '}' {
                    break;
                }
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    members
}

fn strayed_crates(path: &str, text: &str) -> Vec<String> {
    if !path.starts_with("src/") && !path.starts_with("services/") || path.contains("/tests/") {
        return Vec::new();
    }
    let code = code_only(text);
    let lives_here = |home: &&str| path.strip_prefix(*home).is_some_and(|rest| rest.starts_with(['/', '.']));
    HOMES
        .iter()
        .filter(|(name, homes)| names_crate(&code, name) && !homes.iter().any(lives_here))
        .map(|(name, homes)| format!("names the crate `{name}`, whose home is {}", homes.join(" and ")))
        .collect()
}

/// Whether a path begins with the crate. A module of the same name, declared in this file, is another thing.
fn names_crate(code: &str, name: &str) -> bool {
    if code.contains(&format!("mod {name};")) {
        return false;
    }
    words(code, name).any(|at| {
        let before = code[..at].trim_end();
        let begins = match before.strip_suffix("::") {
            Some(before) => !before.ends_with(|letter| is_name(letter) || letter == '>'),
            None => true,
        };
        begins && (code[at + name.len()..].starts_with("::") || before.ends_with("use"))
    })
}

fn missing_paths(path: &str, text: &str, exists: &dyn Fn(&str) -> bool) -> Vec<String> {
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let links = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#', ' ']).next());
    let links = links.filter(|link| !link.is_empty() && !link.contains("://") && !link.starts_with("mailto:"));
    let links = links.map(|link| joined(folder, link));
    let named = text
        .split(|letter: char| letter.is_whitespace() || "`()[]\"'|,;".contains(letter))
        .filter(|word| DOCUMENTED_FOLDERS.iter().any(|folder| word.starts_with(folder)))
        .filter(|word| !word.contains(['*', '<', '{', '$', '…']))
        .filter_map(|word| word.split([':', '#']).next())
        .map(|word| word.trim_end_matches('.').to_owned());
    let mut missing: Vec<String> = links.chain(named).filter(|named| !exists(named)).collect();
    missing.sort();
    missing.dedup();
    missing.iter().map(|named| format!("names `{named}`, which does not exist")).collect()
}

/// `docs/decisions` and `../../src` give `src`; a link that begins with `/` counts from the repository root.
fn joined(folder: &str, link: &str) -> String {
    let mut parts: Vec<&str> = if link.starts_with('/') { Vec::new() } else { folder.split('/').collect() };
    for part in link.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." => {}
            part => parts.push(part),
        }
    }
    parts.retain(|part| !part.is_empty());
    parts.join("/")
}

fn unsafe_code(path: &str, text: &str) -> Vec<String> {
    let found = !path.starts_with("native/") && words(&code_only(text), "unsafe").next().is_some();
    found.then(|| "has `unsafe` code".to_owned()).into_iter().collect()
}

fn no_introduction(path: &str, text: &str) -> Vec<String> {
    let ours = ["src/", "services/", "native/src/"].iter().any(|folder| path.starts_with(folder));
    (ours && !text.starts_with("//!")).then(|| "does not begin with `//!`".to_owned()).into_iter().collect()
}

fn grab_bags(path: &str, _: &str) -> Vec<String> {
    let parts = path.split(['/', '.']).filter(|part| GRAB_BAGS.contains(part));
    parts.map(|part| format!("`{part}` says nothing about what is in it")).collect()
}

fn too_long(_: &str, text: &str) -> Vec<String> {
    let lines = text.lines().count();
    (lines > MOST_LINES).then(|| format!("has {lines} lines, more than {MOST_LINES}")).into_iter().collect()
}

/// Rust without its comments, strings and characters, in which words could be anything.
fn code_only(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        let skipped = match letter {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |end| end + 2),
            '"' => string_length(rest),
            'r' if !code.ends_with(is_name) => raw_string_length(rest),
            '\'' => character_length(rest),
            _ => 0,
        };
        if skipped == 0 {
            code.push(letter);
            rest = &rest[letter.len_utf8()..];
        } else {
            rest = &rest[skipped..];
        }
    }
    code
}

fn string_length(text: &str) -> usize {
    let mut escaped = false;
    for (at, letter) in text.char_indices().skip(1) {
        match letter {
            '"' if !escaped => return at + 1,
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    text.len()
}

/// Of `r"…"` or `r#"…"#`; 0 where there is none.
fn raw_string_length(text: &str) -> usize {
    let hashes = text[1..].chars().take_while(|letter| *letter == '#').count();
    let begin = 1 + hashes + 1;
    if !text[1 + hashes..].starts_with('"') {
        return 0;
    }
    let end = format!("\"{}", "#".repeat(hashes));
    text[begin..].find(&end).map_or(text.len(), |at| begin + at + end.len())
}

/// Of `'x'` or `'\n'`; 0 for a lifetime.
fn character_length(text: &str) -> usize {
    let mut letters = text.char_indices().skip(1);
    match letters.next() {
        Some((_, '\\')) => text[3.min(text.len())..].find('\'').map_or(0, |at| 3 + at + 1),
        Some(_) => letters.next().filter(|(_, letter)| *letter == '\'').map_or(0, |(at, _)| at + 1),
        None => 0,
    }
}

fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.match_indices(word)
        .map(|(at, _)| at)
        .filter(move |at| !code[..*at].ends_with(is_name) && !code[at + word.len()..].starts_with(is_name))
}

fn first_name(text: &str) -> String {
    text.trim_start().chars().take_while(|letter| is_name(*letter)).collect()
}

fn is_name(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn rust_files() -> Vec<(String, String)> {
    let mut files = Vec::new();
    for folder in RUST_FOLDERS {
        collect(folder, "rs", &mut files);
    }
    assert!(files.iter().any(|(path, _)| path == "src/lib.rs"), "the library is not where the rules look for it");
    files
}

fn documents() -> Vec<(String, String)> {
    let mut files = Vec::new();
    for name in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"] {
        if let Ok(text) = fs::read_to_string(root().join(name)) {
            files.push((name.to_owned(), text));
        }
    }
    collect("docs", "md", &mut files);
    files
}

fn collect(folder: &str, extension: &str, files: &mut Vec<(String, String)>) {
    let Ok(entries) = fs::read_dir(root().join(folder)) else { return };
    for entry in entries {
        let entry = entry.unwrap();
        let path = format!("{folder}/{}", entry.file_name().into_string().unwrap());
        if entry.file_type().unwrap().is_dir() {
            collect(&path, extension, files);
        } else if path.rsplit_once('.').is_some_and(|(_, end)| end == extension) {
            files.push((path, fs::read_to_string(entry.path()).unwrap()));
        }
    }
}

#[test]
fn the_import_rule_sees_every_form_of_import() {
    let flat = "use crate::domain::Item;\nuse crate::train::run;\n";
    assert_eq!(
        later_imports("src/reward/mod.rs", flat),
        ["imports `crate::train`, which is not a room before `reward`"]
    );
    let group = "use crate::{\n    domain::{self, Item},\n    report::html,\n    search,\n};";
    assert_eq!(later_imports("src/train.rs", group).len(), 2, "report and search");
    assert_eq!(later_imports("src/domain.rs", "fn f() { crate::config::load() }").len(), 1);
    assert_eq!(
        later_imports("src/kitchen/knife.rs", ""),
        ["the room `kitchen` has no place in the order (ROOMS in tests/house.rs)"]
    );
    let kept =
        "// not crate::config\nuse crate::error::Error;\nconst S: &str = \"crate::config\";\npub(crate) fn f() {}";
    assert!(later_imports("src/domain.rs", kept).is_empty());
    assert!(later_imports("src/lib.rs", "pub use crate::config::Config;").is_empty());
}

#[test]
fn the_rule_on_foreign_crates_tells_a_crate_from_a_module() {
    for (path, text) in [
        ("src/search.rs", "use redis::Client;"),
        ("src/search.rs", "use redis;"),
        ("src/store/mod.rs", "fn f() -> ::redis::Client {}"),
        ("src/store/redis_like.rs", "use redis::Client;"),
        ("src/search.rs", "use axum::Router;"),
        ("services/search/src/main.rs", "let c: redis::Client = open();"),
    ] {
        assert_eq!(strayed_crates(path, text).len(), 1, "{path}: {text}");
    }
    for (path, text) in [
        ("src/store/redis.rs", "use redis::Client;"),
        ("src/store/redis/pool.rs", "use redis::Client;"),
        ("services/search/src/main.rs", "use axum::Router;"),
        ("services/search/tests/routes.rs", "use redis::Client;"),
        ("src/store/mod.rs", "mod redis;\npub use redis::RedisCache;"),
        ("src/search.rs", "use crate::store::redis::RedisCache; let redis = 1; // redis::Client"),
    ] {
        assert!(strayed_crates(path, text).is_empty(), "{path}: {text}");
    }
}

#[test]
fn the_rule_on_documents_reads_code_and_links() {
    let text = "See `src/lib.rs`, [why](decisions/1.md#top), [gone](../gone.md) and https://host/docs/x.\n\
                ```\nsouk train --config configs/none.toml\n```\n`src/*/mod.rs`, `tests/house.rs:7`.";
    let exists = |path: &str| ["src/lib.rs", "docs/decisions/1.md", "tests/house.rs"].contains(&path);
    let missing = missing_paths("docs/guide.md", text, &exists);
    assert_eq!(missing, ["names `configs/none.toml`, which does not exist", "names `gone.md`, which does not exist"]);
}

#[test]
fn the_rules_on_one_file_find_what_breaks_them() {
    assert_eq!(unsafe_code("src/index/flat.rs", "fn f() { unsafe { g() } }").len(), 1);
    assert!(unsafe_code("native/src/lib.rs", "unsafe fn f() {}").is_empty());
    assert!(
        unsafe_code("src/a.rs", "// unsafe\n#![deny(unsafe_code)]\nlet a = r#\"unsafe\"#; let b = '\"';").is_empty()
    );
    assert_eq!(no_introduction("services/cli/src/main.rs", "use std::fs;\n").len(), 1);
    assert!(no_introduction("src/a.rs", "//! What it is.\n").is_empty());
    assert_eq!(grab_bags("src/backbone/utils.rs", "").len(), 1);
    assert_eq!(grab_bags("src/core/mod.rs", "").len(), 1);
    assert!(grab_bags("src/encoder/score_core_set.rs", "").is_empty());
    assert_eq!(too_long("src/a.rs", &"\n".repeat(MOST_LINES + 1)).len(), 1);
    assert!(too_long("src/a.rs", &"\n".repeat(MOST_LINES)).is_empty());
}

#[test]
fn comments_and_strings_are_no_code() {
    let text = "a // b\n/* c */ d \"e \\\" f\" g r#\"h \" i\"# j '\\'' k '\"' l <'m> 'n' for_r\"o\"";
    assert_eq!(code_only(text).split_whitespace().collect::<Vec<_>>().join(" "), "a d g j k l <'m> for_r");
}
