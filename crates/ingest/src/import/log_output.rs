//! Output of log importers besides the log: each query text once, and, without a catalogue, the items that the log
//! names. Counts the events on items that the catalogue lacks, and warns if those are most of them.

use std::collections::HashMap;

use serde_json::Map;
use sha2::{Digest, Sha256};

use super::import_writer::{ImportWriter, hash};
use super::rejection::RowLocation;
use souk_io::domain::{Item, Query};
use souk_io::error::Result;

pub const UNKNOWN_ITEMS: &str = "events on items missing from the catalogue";

#[derive(Default)]
pub struct LogOutput {
    pub has_catalogue: bool,
    /// Number of each query text, by its hash.
    texts: HashMap<u64, u64>,
    /// Whether some items came without a title. A later line may give one; otherwise they are written at the end.
    pub has_untitled_items: bool,
    num_known: u64,
    num_unknown: u64,
    /// First item that the catalogue lacks.
    unknown: Option<String>,
}

impl LogOutput {
    pub fn new(has_catalogue: bool) -> Self {
        Self { has_catalogue, ..Self::default() }
    }

    pub fn add_query(&mut self, writer: &mut ImportWriter, text: &str, location: &RowLocation) -> Result<()> {
        let next = self.texts.len() as u64 + 1;
        let text = text.trim();
        if self.texts.contains_key(&hash(text)) {
            return Ok(());
        }
        self.texts.insert(hash(text), next);
        writer.add_query(Ok(Query { id: format!("q{next}"), text: text.into() }), location)
    }

    /// Notes the item of an event; without a catalogue, writes it if it has a title.
    pub fn add_item(
        &mut self,
        writer: &mut ImportWriter,
        id: &str,
        title: Option<String>,
        location: &RowLocation,
    ) -> Result<()> {
        match title {
            _ if writer.has_item(id) => {
                self.num_known += 1;
                Ok(())
            }
            _ if self.has_catalogue => {
                self.num_unknown += 1;
                self.unknown.get_or_insert_with(|| id.to_owned());
                writer.note(UNKNOWN_ITEMS);
                Ok(())
            }
            None => {
                self.has_untitled_items = true;
                Ok(())
            }
            Some(title) => writer.add_item(Ok(item_with_title(id, title.trim())), location),
        }
    }

    /// Warns if the catalogue lacks the items of at least half of the events.
    pub fn warn(&self, writer: &mut ImportWriter) {
        let (Some(unknown), true) = (&self.unknown, self.num_unknown >= self.num_known) else { return };
        let how_many = match self.num_known {
            0 => "no event is on an item of the catalogue".to_owned(),
            known => format!("only {known} of {} events are on items of the catalogue", known + self.num_unknown),
        };
        let known = writer.first_item().unwrap_or_default();
        let warning = format!(
            "{how_many}: the log has ids like `{unknown}`, the catalogue ids like `{known}`. Check which columns have the \
             ids (id of the items, item of the log)"
        );
        writer.summary.warnings.push(warning);
    }
}

pub fn item_with_title(id: &str, title: &str) -> Item {
    Item { id: id.into(), title: title.into(), text: String::new(), fields: Map::new() }
}

/// Identifier of a search: a hash of what tells it from others.
pub fn search_id(key: &str) -> String {
    Sha256::digest(key)[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}
