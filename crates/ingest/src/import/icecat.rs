//! Chorus's copy of the Icecat catalogue: `products.jsonl`, and beside it queries and judgements as BEIR has them.
//! Gives items whose `attributes` are the `attr_t_`, `attr_n_` and `attr_b_` keys without these marks, and whose price is
//! in units, not cents. Further keys are kept as they are.

use std::path::Path;

use serde_json::{Map, Value};

use super::beir::{QRELS, needed, queries_and_judgements, unread};
use super::fields::{OWN_NAMES, object, put_number, take_text};
use super::intake::{Intake, Refusal};
use super::lines::each_line;
use super::scale::Scale;
use souk_io::domain::Item;
use souk_io::error::Result;

const MARKS: [&str; 3] = ["attr_t_", "attr_n_", "attr_b_"];

pub fn import(intake: &mut Intake, folder: &Path, scale: Option<&Scale>) -> Result<()> {
    let products = needed(folder, "products.jsonl")?;
    each_line(intake, &products, |intake, line, place| {
        let item = object(line).and_then(|product| item(product, intake));
        intake.item(item, place)
    })?;
    queries_and_judgements(intake, folder, scale)?;
    unread(intake, folder, &["products.jsonl", "queries.jsonl", "slices.tsv", QRELS])
}

/// Whole numbers are cents, in a text too; a text with a point or a currency says units.
fn price(fields: &mut Map<String, Value>, intake: &mut Intake) {
    let text = fields.get("price").and_then(Value::as_str).map(str::to_owned);
    let cents = match &text {
        Some(text) => text.trim().parse::<u32>().ok().map(f64::from),
        None => fields.get("price").and_then(Value::as_f64),
    };
    match (cents, text) {
        (Some(cents), _) => drop(fields.insert("price".into(), (cents / 100.0).into())),
        (None, Some(text)) if !put_number(fields, "price", &text) => {
            intake.note("prices that are no number, kept as text");
        }
        _ => {}
    }
}

fn item(mut product: Map<String, Value>, intake: &mut Intake) -> std::result::Result<Item, Refusal> {
    let id = take_text(&mut product, "id")?.unwrap_or_default();
    let title = take_text(&mut product, "title")?.unwrap_or_default();
    let text = take_text(&mut product, "short_description")?.unwrap_or_default();
    let brand = take_text(&mut product, "supplier")?;
    let mut attributes = Map::new();
    let mut fields = Map::new();
    for (name, value) in product {
        let marked = MARKS.iter().find_map(|mark| Some((name.strip_prefix(mark)?, &mark[5..6])));
        let Some((attribute, kind)) = marked.filter(|(attribute, _)| !attribute.is_empty()) else {
            fields.insert(name, value);
            continue;
        };
        if !attributes.contains_key(attribute) {
            attributes.insert(attribute.into(), value);
            continue;
        }
        intake.note("attributes of one name and two kinds, the second under its name and kind");
        match format!("{attribute} ({kind})") {
            taken if attributes.contains_key(&taken) => drop(fields.insert(name, value)),
            both => drop(attributes.insert(both, value)),
        }
    }
    price(&mut fields, intake);
    if let Some(brand) = brand {
        fields.insert("brand".into(), brand.into());
    }
    if !attributes.is_empty() {
        fields.insert("attributes".into(), attributes.into());
    }
    // what an item calls its own is taken above under Icecat's names
    for name in OWN_NAMES {
        if let Some(value) = fields.remove(name) {
            fields.insert(format!("icecat{}{name}", if name.starts_with('_') { "" } else { "_" }), value);
        }
    }
    Ok(Item { id, title, text, fields })
}
