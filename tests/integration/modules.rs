//! Module rules that Cargo does not enforce: sibling modules of a crate do not import each other in a circle, and signatures have
//! real parameters instead of tuple patterns.

use std::collections::{BTreeMap, BTreeSet};

use crate::house::{code_only, root, rust_files};

/// A module's path within its crate; empty for the root.
type Module = Vec<String>;

#[test]
fn sibling_modules_do_not_import_each_other_in_a_circle() {
    let mut crates: BTreeMap<String, BTreeMap<Module, String>> = BTreeMap::new();
    for (path, text) in rust_files() {
        let Some((krate, file)) = split_source(&path) else { continue };
        if !file.ends_with("tests.rs") {
            crates.entry(krate).or_default().insert(module_of(&file), without_tests(&text));
        }
    }
    assert!(crates.len() > 10, "the crates are not where the rule looks for them");
    let found: Vec<String> = crates
        .iter()
        .flat_map(|(krate, modules)| circles(modules).into_iter().map(move |circle| format!("  {krate}: {circle}\n")))
        .collect();
    assert!(found.is_empty(), "\n{}Move what they share to a module that both import.\n", found.concat());
}

#[test]
fn signatures_have_no_tuple_patterns() {
    let found: Vec<String> = rust_files()
        .iter()
        .flat_map(|(path, text)| {
            tuple_patterns(&code_only(text)).into_iter().map(move |name| format!("  {path}: fn {name}\n"))
        })
        .collect();
    assert!(found.is_empty(), "\n{}Use parameters with names, or a struct.\n", found.concat());
}

/// `crates/io/src/a/b.rs` as `crates/io` and `a/b.rs`.
fn split_source(path: &str) -> Option<(String, String)> {
    let (krate, file) = path.strip_prefix("src/").map(|file| ("souk", file)).or_else(|| path.split_once("/src/"))?;
    Some((krate.to_owned(), file.to_owned()))
}

fn module_of(file: &str) -> Module {
    let mut parts: Module = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if parts.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
        parts.pop();
    }
    parts
}

fn without_tests(text: &str) -> String {
    let code = code_only(text);
    match code.find("#[cfg(test)]\nmod tests {") {
        Some(at) => code[..at].to_owned(),
        None => code,
    }
}

/// Every path of the code that begins with `crate`, `super` or `self`: from `use` groups, and from expressions.
fn paths(code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut rest = code;
    while let Some(at) = ["crate::", "super::", "self::"].iter().filter_map(|start| rest.find(start)).min() {
        let is_start = !rest[..at].ends_with(|letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':');
        let end = rest[at..].find(|letter: char| !(letter.is_alphanumeric() || "_:".contains(letter)));
        let end = end.map_or(rest.len(), |end| at + end);
        if is_start {
            let prefix: Vec<String> =
                rest[at..end].split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
            if rest[at..end].ends_with("::") && rest[end..].starts_with('{') {
                expand(&prefix, group(&rest[end..]), &mut found);
            } else {
                found.push(prefix);
            }
        }
        rest = &rest[end.max(at + 1)..];
    }
    found
}

/// The inside of the braces that the text begins with.
fn group(text: &str) -> &str {
    let mut depth = 0;
    for (at, letter) in text.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 1 => return &text[1..at],
            '}' => depth -= 1,
            _ => {}
        }
    }
    ""
}

fn expand(prefix: &[String], inside: &str, found: &mut Vec<Vec<String>>) {
    let (mut depth, mut start) = (0, 0);
    for (at, letter) in inside.char_indices().chain([(inside.len(), ',')]) {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let member = inside[start..at].trim();
                start = at + 1;
                let head = member.split('{').next().unwrap_or_default();
                let path = head.split(" as ").next().unwrap_or_default();
                let parts = path.split("::").map(str::trim).filter(|part| !part.is_empty() && *part != "self");
                let path: Vec<String> = prefix.iter().cloned().chain(parts.map(str::to_owned)).collect();
                match member.find('{') {
                    Some(open) => expand(&path, group(&member[open..]), found),
                    None if !member.is_empty() => found.push(path),
                    None => {}
                }
            }
            _ => {}
        }
    }
}

/// A path as seen from a module, from the root of the crate.
fn absolute(module: &Module, path: &[String]) -> Vec<String> {
    let mut base = module.clone();
    let mut rest = path;
    match rest[0].as_str() {
        "crate" => (base, rest) = (Vec::new(), &rest[1..]),
        "self" => rest = &rest[1..],
        _ => {
            while rest.first().is_some_and(|part| part == "super") {
                base.pop();
                rest = &rest[1..];
            }
        }
    }
    base.extend(rest.iter().cloned());
    base
}

/// The module that a path leads to, through re-exports.
fn target(modules: &BTreeMap<Module, String>, exports: &BTreeMap<(Module, String), Module>, path: &[String]) -> Module {
    let mut at = path.len();
    while at > 0 && !modules.contains_key(&path[..at]) {
        at -= 1;
    }
    let module = path[..at].to_vec();
    match path.get(at).and_then(|name| exports.get(&(module.clone(), name.clone()))) {
        Some(inner) if *inner != module => inner.clone(),
        _ => module,
    }
}

/// The tree of a `pub use`, given what follows `pub`.
fn re_export(rest: &str) -> Option<String> {
    let rest = if rest.starts_with('(') { rest.split_once(')')?.1 } else { rest };
    let tree = rest.trim_start().strip_prefix("use ")?.split(';').next()?;
    let is_local = ["self::", "super::", "crate::"].iter().any(|start| tree.starts_with(start));
    Some(if is_local { tree.to_owned() } else { format!("self::{tree}") })
}

/// Circles among siblings, as `a -> b -> a`.
fn circles(modules: &BTreeMap<Module, String>) -> Vec<String> {
    let mut exports = BTreeMap::new();
    for (module, code) in modules {
        for path in code.split("pub").skip(1).filter_map(re_export).flat_map(|tree| paths(&tree)) {
            let full = absolute(module, &path);
            if let Some(name) = full.last() {
                exports.insert((module.clone(), name.clone()), target(modules, &BTreeMap::new(), &full));
            }
        }
    }
    let mut edges: BTreeMap<Module, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for (module, code) in modules {
        for path in paths(code) {
            let to = target(modules, &exports, &absolute(module, &path));
            let shared = module.iter().zip(&to).take_while(|(a, b)| a == b).count();
            if shared < module.len() && shared < to.len() {
                let siblings = edges.entry(module[..shared].to_vec()).or_default();
                siblings.entry(module[shared].clone()).or_default().insert(to[shared].clone());
            }
        }
    }
    edges.values().filter_map(circle).collect()
}

/// One circle of a graph, if there is one.
fn circle(edges: &BTreeMap<String, BTreeSet<String>>) -> Option<String> {
    fn walk(
        edges: &BTreeMap<String, BTreeSet<String>>,
        at: &str,
        path: &mut Vec<String>,
        done: &mut BTreeSet<String>,
    ) -> bool {
        if path.iter().any(|seen| seen == at) {
            path.push(at.to_owned());
            return true;
        }
        if !done.insert(at.to_owned()) {
            return false;
        }
        path.push(at.to_owned());
        let found = edges.get(at).into_iter().flatten().any(|next| walk(edges, next, path, done));
        if !found {
            path.pop();
        }
        found
    }
    let mut done = BTreeSet::new();
    edges.keys().find_map(|start| {
        let mut path = Vec::new();
        walk(edges, start, &mut path, &mut done).then(|| {
            let first = path.iter().position(|module| module == path.last().expect("it has a circle")).unwrap_or(0);
            path[first..].join(" -> ")
        })
    })
}

/// Functions with a parameter that is a tuple pattern.
fn tuple_patterns(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        let rest = &code[at + 3..];
        let name: String = rest.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect();
        let is_item = !code[..at].ends_with(|letter: char| letter.is_alphanumeric() || letter == '_');
        let Some(open) = rest.find('(').filter(|_| is_item && !name.is_empty()) else { continue };
        let (mut depth, mut previous) = (0, '(');
        for letter in rest[open..].chars() {
            match letter {
                '(' if depth == 1 && ['(', ','].contains(&previous) => {
                    found.push(name.clone());
                    break;
                }
                '(' | '[' | '{' => depth += 1,
                ')' | ']' | '}' if depth == 1 => break,
                ')' | ']' | '}' => depth -= 1,
                _ => {}
            }
            if !letter.is_whitespace() {
                previous = letter;
            }
        }
    }
    found
}

#[test]
fn the_rule_on_circles_follows_re_exports() {
    let modules = |files: &[(&str, &str)]| {
        files.iter().map(|(file, code)| (module_of(file), (*code).to_owned())).collect::<BTreeMap<_, _>>()
    };
    let direct = [("lib.rs", ""), ("a.rs", "use crate::b::X;"), ("b.rs", "fn f() { super::a::g() }")];
    assert_eq!(circles(&modules(&direct)), ["a -> b -> a"]);
    let hidden =
        [("r/mod.rs", "pub use self::b::X;"), ("r/a.rs", "use super::X;"), ("r/b.rs", "use super::{a::{Y}, c};")];
    assert_eq!(circles(&modules(&hidden)), ["a -> b -> a"]);
    let none = [
        ("lib.rs", "pub struct P;"),
        ("a.rs", "use super::{P, b};"),
        ("b.rs", "use crate::P;"),
        ("b/c.rs", "use super::super::P;"),
    ];
    assert!(circles(&modules(&none)).is_empty());
    assert!(root().join("Cargo.toml").exists());
}

#[test]
fn the_rule_on_signatures_tells_patterns_from_types() {
    assert_eq!(tuple_patterns("pub fn f<'a>((a, b): (u8, u8)) {}"), ["f"]);
    assert_eq!(tuple_patterns("fn f(\n    x: u8,\n    (a, b): (u8, u8),\n) {}"), ["f"]);
    assert!(tuple_patterns("fn f(pair: (u8, u8), g: impl Fn((u8, u8))) { g(|(a, b)| a) }").is_empty());
    assert!(tuple_patterns("fn f(call: fn(u8)) {}").is_empty());
}
