//! `souk import`: converts catalogues, judgements and logs in other formats to a data folder.

use std::path::PathBuf;

use clap::Args;
use clap::builder::PossibleValuesParser;
use serde_json::json;
use souk::error::{Error, Result};
use souk::import::{
    Column, Encoding, EventName, Format, Guesses, Options, REJECTED_FILE, Scale, Summary, guess_items, guess_log,
    guess_pairs, import,
};
use souk::objects;

use crate::GlobalArgs;
use crate::output::print;
use crate::progress::ProgressDisplay;

const EXAMPLES: &str = "\
Formats:
  items       product files as shops have them: CSV, TSV, JSON, Parquet or Arrow, one file or a folder, text also gzipped.
              Which column is the id, title, text, category, brand and price is guessed from names and values,
              also without a header; the guess is printed first. The first row of an id stays, later ones are rejected
  log         search logs as shops have them: such a table with a row per event, whose time, session, query, item,
              position and event are guessed, or UBI 1.3 as JSON lines. Without an event column every row is a click.
              A search is a session's query; a gap of more than 30 minutes starts a new one
  pairs       training pairs as sentence-transformers has them: such a table with the columns query (or anchor), positive
              and any number of negatives, by name or in this order. Each distinct text becomes an item; positives are
              level 4 and negatives level 1 in split train
  beir        folder with corpus.jsonl, queries.jsonl, qrels/*.tsv, optionally gzipped. Scores map to levels by the
              largest score: 0..1 or only 1s as 0=1,1=4; 0..2 as 0=1,1=3,2=4; 0..3 as 0=1,1=2,2=3,3=4; 1..4 are
              levels; others need --levels
  home-depot  Kaggle's folder: train.csv, optionally test.csv, product_descriptions.csv, attributes.csv.
              Relevance 2.6 and above is level 4, 2.2 and above 3, 1.6 and above 2; one query in eight is in split dev
  wands       Wayfair's folder: product.csv, query.csv, label.csv. Exact=4,Partial=2,Irrelevant=1, split test
  esci        Amazon's folder: shopping_queries_dataset_{products,examples}.parquet, optionally ..._sources.csv.
              E=4,S=3,C=2,I=1
  icecat      folder with Chorus's products.jsonl, and queries and qrels as in beir
  csv         one table of items; columns are found by common header names, or set with --columns
  ubi         logs: UBI 1.3 as JSON lines, or CSV with the columns user, sku, query, click_time, query_time (optionally
              category); a file or a folder. Items are those named in the log, unless --catalogue is given

Invalid rows are listed in rejected.jsonl with file, line and reason.

Examples:
  souk import --format items --from products.csv.gz --out ITEMS
  souk import --format log --from searches.csv --catalogue ITEMS --out SHOP
  souk import --format log --from searches.csv --columns query=phrase,item=nr --events wishlist=add_to_cart --out LOG
  souk import --format pairs --from triplets.parquet --out PAIRS
  souk import --format beir --from scifact --out SCIFACT
  souk import --format csv --from toys.csv --no-header --columns id=0,title=1,category=2,brand=3,price=4 --out TOYS
  souk import --format ubi --from events.ndjson.gz --catalogue TOYS --out TOYS_WITH_LOG";

/// Convert a catalogue, judgements or a search log to a data folder
///
/// Example: souk import --format beir --from scifact --out SCIFACT
#[derive(Args)]
#[command(after_long_help = EXAMPLES)]
pub struct ImportCommand {
    /// Input format
    #[arg(long, value_parser = PossibleValuesParser::new(Format::ALL.map(Format::name)))]
    format: String,
    /// Input folder; for csv a file, for items, log, pairs and ubi a file or a folder. An address such as s3://BUCKET/FOLDER is fetched
    #[arg(long, value_name = "PATH")]
    from: PathBuf,
    /// Output folder (new)
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Text encoding; auto reads rows that are not UTF-8 as latin-1 (windows-1252) and counts them
    #[arg(long, default_value = "auto", value_parser = PossibleValuesParser::new(Encoding::NAMES))]
    encoding: String,
    /// Relevance level (1 to 4) of each grade, such as 0=1,1=4 or Exact=4,Partial=3,Irrelevant=1
    #[arg(long, value_name = "GRADE=LEVEL,...")]
    levels: Option<String>,
    /// Locale, for esci (default: us)
    #[arg(long, value_name = "us|es|jp")]
    locale: Option<String>,
    /// Column mapping by name or by number from 0. For csv and items: id, title, text, category, brand, price, others.
    /// For log: time, session, query, item, position, event, and others named in an error. For pairs: query, positive, negative. `-`
    /// leaves a field out
    #[arg(long, value_name = "FIELD=COLUMN,...", value_delimiter = ',')]
    columns: Vec<String>,
    /// Meaning of event names, for log: impression, click, add_to_cart, purchase or search
    #[arg(long, value_name = "NAME=ACTION,...", value_delimiter = ',')]
    events: Vec<String>,
    /// No header line, for csv, items, log and pairs: the first line is a row
    #[arg(long)]
    no_header: bool,
    /// Delimiter, for csv, items, log and pairs: one character or `tab` (default: detected)
    #[arg(long, value_name = "CHARACTER")]
    delimiter: Option<String>,
    /// Catalogue, for ubi and log: data folder with the items of the log
    #[arg(long, value_name = "DIR")]
    catalogue: Option<PathBuf>,
}

impl ImportCommand {
    pub fn run(&self, globals: &GlobalArgs) -> anyhow::Result<()> {
        let format: Format = self.format.parse()?;
        let options = self.options()?;
        let from = match self.from.to_str().filter(|address| objects::is_remote(address)) {
            Some(address) => objects::fetch_folder(address)?,
            None => self.from.clone(),
        };
        let guesses = match format {
            Format::Items => Some(guess_items(&from, &options)?),
            Format::Log => Some(guess_log(&from, &options)?),
            Format::Pairs => Some(guess_pairs(&from, &options)?),
            _ => None,
        };
        guesses.iter().for_each(print_guesses);
        let progress = ProgressDisplay::start("rows", None);
        let summary = import(format, &options, &from, &self.out, &mut |rows| progress.add(rows));
        progress.finish();
        let summary = summary?;
        let mut json = serde_json::to_value(&summary)?;
        json["format"] = json!(format.name());
        json["out"] = json!(self.out);
        json["num_rejected"] = json!(summary.num_rejected());
        if let Some(guesses) = guesses {
            json["guess"] = json!(guesses);
        }
        print(globals, &json, &self.text(&summary))
    }

    fn options(&self) -> Result<Options> {
        Ok(Options {
            encoding: self.encoding.parse()?,
            scale: self.levels.as_deref().map(str::parse::<Scale>).transpose()?,
            locale: self.locale.clone(),
            columns: self.columns.iter().map(|column| column.parse::<Column>()).collect::<Result<_>>()?,
            columns_option: None,
            events: self.events.iter().map(|event| event.parse::<EventName>()).collect::<Result<_>>()?,
            no_header: self.no_header,
            separator: self.delimiter.as_deref().map(separator).transpose()?,
            catalogue: self.catalogue.clone(),
        })
    }

    fn text(&self, summary: &Summary) -> String {
        let counts = &summary.counts;
        let mut lines: Vec<String> = summary.warnings.iter().map(|warning| format!("warning: {warning}")).collect();
        lines.push(format!("wrote {}", self.out.display()));
        let mut add = |count: u64, what: &str| {
            if count > 0 {
                lines.push(format!("{count:>10} {what}"));
            }
        };
        add(summary.rows_read - summary.log_rows_read, "rows read");
        add(summary.log_rows_read, "log rows read");
        add(counts.items, "items");
        add(counts.queries, "queries");
        for (split, count) in &counts.judgements {
            add(*count, &format!("judgements in {split}"));
        }
        add(summary.searches, "searches");
        for (action, count) in &summary.events {
            add(*count, &format!("events `{action}`"));
        }
        add(counts.log_lines, "log lines");
        if !summary.levels.is_empty() {
            let levels: Vec<String> = summary.levels.iter().map(|(grade, level)| format!("{grade}={level}")).collect();
            lines.push(format!("levels: {}", levels.join(",")));
        }
        let list = self.out.join(REJECTED_FILE);
        let rejected = format!("rejected, listed in {}", list.display());
        for (title, counts) in
            [(rejected.as_str(), &summary.rejected), ("skipped", &summary.left_out), ("notes", &summary.noted)]
        {
            if !counts.is_empty() {
                lines.push(format!("{title}:"));
                lines.extend(counts.iter().map(|(what, count)| format!("{count:>10} {what}")));
            }
        }
        if !summary.unread_files.is_empty() {
            lines.push(format!("unused files: {}", summary.unread_files.join(", ")));
        }
        lines.join("\n")
    }
}

#[expect(clippy::print_stderr, reason = "the guess goes to standard error, so that --json stays clean")]
fn print_guesses(guesses: &Guesses) {
    eprintln!("{guesses}");
}

fn separator(text: &str) -> Result<u8> {
    match text.as_bytes() {
        [byte] if byte.is_ascii() && !matches!(byte, b'"' | b'\n' | b'\r') => Ok(*byte),
        b"tab" | b"\\t" => Ok(b'\t'),
        _ => Err(Error::input(format!("--delimiter {text:?}: set it to one character, or `tab`"))),
    }
}
