//! Chorus's copy of the Icecat catalogue: `products.jsonl`, plus queries and judgements in BEIR's layout. Gives items
//! whose `attributes` are the `attr_t_`, `attr_n_` and `attr_b_` keys without these prefixes, and whose price is in
//! units, not cents. Other keys are kept unchanged.

use std::path::Path;

use serde_json::{Map, Value};

use super::beir::queries_and_judgements;
use super::fields::{RESERVED_NAMES, object, put_number, take_text};
use super::folder::{QRELS, note_unread_files, require_file};
use super::import_writer::ImportWriter;
use super::lines::each_line;
use super::rejection::Rejection;
use super::scale::Scale;
use souk_io::domain::Item;
use souk_io::error::Result;

const PREFIXES: [&str; 3] = ["attr_t_", "attr_n_", "attr_b_"];

pub fn import(writer: &mut ImportWriter, folder: &Path, scale: Option<&Scale>) -> Result<()> {
    let products = require_file(folder, "products.jsonl")?;
    each_line(writer, &products, |writer, line, location| {
        let item = object(line).and_then(|product| item(product, writer));
        writer.add_item(item, location)
    })?;
    queries_and_judgements(writer, folder, scale)?;
    note_unread_files(writer, folder, &["products.jsonl", "queries.jsonl", "slices.tsv", QRELS])
}

/// Converts the price to units. Numbers, and texts of digits only, are cents; other texts are units.
fn convert_price(fields: &mut Map<String, Value>, writer: &mut ImportWriter) {
    let text = fields.get("price").and_then(Value::as_str).map(str::to_owned);
    let cents = match &text {
        Some(text) => text.trim().parse::<u32>().ok().map(f64::from),
        None => fields.get("price").and_then(Value::as_f64),
    };
    match (cents, text) {
        (Some(cents), _) => drop(fields.insert("price".into(), (cents / 100.0).into())),
        (None, Some(text)) if !put_number(fields, "price", &text) => {
            writer.note("non-numeric prices kept as text");
        }
        _ => {}
    }
}

fn item(mut product: Map<String, Value>, writer: &mut ImportWriter) -> std::result::Result<Item, Rejection> {
    let id = take_text(&mut product, "id")?.unwrap_or_default();
    let title = take_text(&mut product, "title")?.unwrap_or_default();
    let text = take_text(&mut product, "short_description")?.unwrap_or_default();
    let brand = take_text(&mut product, "supplier")?;
    let mut attributes = Map::new();
    let mut fields = Map::new();
    for (name, value) in product {
        let prefixed = PREFIXES.iter().find_map(|prefix| Some((name.strip_prefix(prefix)?, &prefix[5..6])));
        let Some((attribute, kind)) = prefixed.filter(|(attribute, _)| !attribute.is_empty()) else {
            fields.insert(name, value);
            continue;
        };
        if !attributes.contains_key(attribute) {
            attributes.insert(attribute.into(), value);
            continue;
        }
        writer.note("attributes with one name and two types, the second renamed to `name (type)`");
        match format!("{attribute} ({kind})") {
            taken if attributes.contains_key(&taken) => drop(fields.insert(name, value)),
            both => drop(attributes.insert(both, value)),
        }
    }
    convert_price(&mut fields, writer);
    if let Some(brand) = brand {
        fields.insert("brand".into(), brand.into());
    }
    if !attributes.is_empty() {
        fields.insert("attributes".into(), attributes.into());
    }
    // the item's own fields come from Icecat's names above
    for name in RESERVED_NAMES {
        if let Some(value) = fields.remove(name) {
            fields.insert(format!("icecat{}{name}", if name.starts_with('_') { "" } else { "_" }), value);
        }
    }
    Ok(Item { id, title, text, fields })
}
