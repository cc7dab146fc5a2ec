//! Settings that had another name in versions before 0.1.0: an error says the new one.

use toml::{Table, Value};

/// The old and the new name of the first such setting.
pub fn find(table: &Table) -> Option<[String; 2]> {
    table.iter().find_map(|(name, value)| {
        let below = |name: &str, found: [String; 2]| found.map(|inner| format!("{name}.{inner}"));
        match value {
            Value::Table(inner) => {
                let by_section = match name.as_str() {
                    "candidates" => inner.contains_key("reach").then_some(["reach", "num_neighbors"]),
                    "reward" => inner.contains_key("asks").then_some(["asks", "max_attempts"]),
                    _ => None,
                };
                let found = by_section.map(|names| names.map(str::to_owned)).or_else(|| find(inner))?;
                Some(below(name, found))
            }
            Value::Array(entries) => {
                let found = entries.iter().filter_map(Value::as_table).find_map(find)?;
                Some(below(name, found))
            }
            _ => {
                let new = name.strip_prefix("most_").map(|rest| format!("max_{rest}"));
                let new = new.or_else(|| name.strip_prefix("least_").map(|rest| format!("min_{rest}")));
                new.map(|new| [name.clone(), new])
            }
        }
    })
}
