//! Changes to a configuration: single values from the command line, and files layered on files.

use toml::{Table, Value};

use souk_io::error::{Error, Result};

/// One value that a user changes on the command line.
#[derive(Clone)]
pub struct Change {
    pub(super) names: Vec<String>,
    value: Value,
    /// As the user wrote it, for errors.
    pub(super) said: String,
}

impl Change {
    /// Reads `a.b=c`; what is not a TOML value is taken as text, and a name with dots in it stands in quotes.
    pub fn parse(said: &str) -> Result<Self> {
        let wrong = || Error::input(format!("--set `{said}`: use name.name=value"));
        let (path, text) = said.split_once('=').ok_or_else(wrong)?;
        let parsed = format!("v = {text}").parse::<Table>().ok().and_then(|mut parsed| parsed.remove("v"));
        let value = parsed.unwrap_or_else(|| Value::String(text.into()));
        let names = names(path);
        if names.iter().any(String::is_empty) {
            return Err(wrong());
        }
        Ok(Self { names, value, said: format!("--set {said}") })
    }

    /// Value of a dedicated flag: always text.
    pub fn text(path: &str, flag: &str, text: &str) -> Self {
        Self { names: names(path), value: Value::String(text.into()), said: format!("{flag} {text}") }
    }

    /// A flag that may be given several times.
    pub fn texts(path: &str, flag: &str, texts: &[String]) -> Self {
        let value = Value::Array(texts.iter().cloned().map(Value::String).collect());
        Self { names: names(path), value, said: format!("{flag} {}", texts.join(" ")) }
    }

    /// Sets a boolean, for a command-line flag.
    pub fn truth(path: &str, flag: &str, truth: bool) -> Self {
        Self { names: names(path), value: Value::Boolean(truth), said: flag.into() }
    }

    /// Sets a number, for a command-line flag.
    pub fn number(path: &str, flag: &str, number: i64) -> Self {
        Self { names: names(path), value: Value::Integer(number), said: format!("{flag} {number}") }
    }

    pub(super) fn apply(&self, table: &mut Table) -> Result<()> {
        let Some((last, names)) = self.names.split_last() else { return Ok(()) };
        let mut at = table;
        for name in names {
            let below = at.entry(name).or_insert_with(|| Value::Table(Table::new()));
            let problem = format!("`{name}` is a value, not a table");
            at = below.as_table_mut().ok_or_else(|| Error::config(&self.said, problem))?;
        }
        at.insert(last.into(), self.value.clone());
        Ok(())
    }
}

/// The names between the dots; a dot in quotes is part of its name.
fn names(path: &str) -> Vec<String> {
    let mut quoted = false;
    let parts = path.split(|letter| {
        quoted ^= letter == '"';
        letter == '.' && !quoted
    });
    parts.map(|name| name.trim().trim_matches('"').to_owned()).collect()
}

/// Puts one table on top of another.
pub(super) fn overlay(below: &mut Table, above: Table) {
    for (name, value) in above {
        match (below.get_mut(&name), value) {
            (Some(Value::Table(below)), Value::Table(above)) => overlay(below, above),
            (_, value) => drop(below.insert(name, value)),
        }
    }
}
