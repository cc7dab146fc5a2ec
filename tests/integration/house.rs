//! Rules of the code base that Cargo does not enforce, each a test: paths in documents, `unsafe`, file headers, names and
//! lengths. Each rule is a function of one file and is tested on an example that breaks it.

use std::fs;
use std::path::Path;

const GRAB_BAGS: [&str; 7] = ["utils", "common", "helpers", "manager", "core", "base", "types"];
const RUST_FOLDERS: [&str; 6] = ["src", "crates", "services", "native", "tests", "benches"];
const DOCUMENTED_FOLDERS: [&str; 14] = [
    ".ci/",
    "benches/",
    "configs/",
    "crates/",
    "docker/",
    "docs/",
    "examples/",
    "migrations/",
    "native/",
    "python/",
    "scripts/",
    "services/",
    "src/",
    "tests/",
];
const MAX_LINES: usize = 500;

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

/// `docs/decisions` and `../../src` give `src`; a link that starts with `/` is relative to the repository root.
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
    let ours = ["src/", "crates/", "services/", "native/src/", "native/kafka/src/"]
        .iter()
        .any(|folder| path.starts_with(folder));
    (ours && !text.starts_with("//!")).then(|| "does not begin with `//!`".to_owned()).into_iter().collect()
}

fn grab_bags(path: &str, _: &str) -> Vec<String> {
    let parts = path.split(['/', '.']).filter(|part| GRAB_BAGS.contains(part));
    parts.map(|part| format!("`{part}` says nothing about what is in it")).collect()
}

fn too_long(_: &str, text: &str) -> Vec<String> {
    let lines = text.lines().count();
    (lines > MAX_LINES).then(|| format!("has {lines} lines, more than {MAX_LINES}")).into_iter().collect()
}

/// Rust code without comments, strings and characters, which may contain any word.
pub fn code_only(text: &str) -> String {
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

/// Length of `r"…"` or `r#"…"#`; 0 if there is none.
fn raw_string_length(text: &str) -> usize {
    let hashes = text[1..].chars().take_while(|letter| *letter == '#').count();
    let begin = 1 + hashes + 1;
    if !text[1 + hashes..].starts_with('"') {
        return 0;
    }
    let end = format!("\"{}", "#".repeat(hashes));
    text[begin..].find(&end).map_or(text.len(), |at| begin + at + end.len())
}

/// Length of `'x'` or `'\n'`; 0 for a lifetime.
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

fn is_name(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub fn rust_files() -> Vec<(String, String)> {
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
    assert_eq!(too_long("src/a.rs", &"\n".repeat(MAX_LINES + 1)).len(), 1);
    assert!(too_long("src/a.rs", &"\n".repeat(MAX_LINES)).is_empty());
}

#[test]
fn comments_and_strings_are_no_code() {
    let text = "a // b\n/* c */ d \"e \\\" f\" g r#\"h \" i\"# j '\\'' k '\"' l <'m> 'n' for_r\"o\"";
    assert_eq!(code_only(text).split_whitespace().collect::<Vec<_>>().join(" "), "a d g j k l <'m> for_r");
}
