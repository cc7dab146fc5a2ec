//! `souk import`: other people's catalogues, judgements and logs as a data folder.

use std::path::PathBuf;

use clap::Args;
use clap::builder::PossibleValuesParser;
use serde_json::json;
use souk::error::{Error, Result};
use souk::import::{Column, Encoding, Format, Options, REJECTED_FILE, Scale, Summary, import};

use crate::Shared;
use crate::output::print;
use crate::progress::bar;

const EXAMPLES: &str = "\
Formats:
  beir        a folder with corpus.jsonl, queries.jsonl, qrels/*.tsv, each perhaps gzipped. Scores become levels by the
              largest of the folder: 0..1 or only 1s as 0=1,1=4; 0..2 as 0=1,1=3,2=4; 0..3 as 0=1,1=2,2=3,3=4; 1..4 are
              levels; others need --levels
  home-depot  Kaggle's folder: train.csv and, where they are, test.csv, product_descriptions.csv, attributes.csv.
              Relevance from 2.6 on is level 4, from 2.2 on 3, from 1.6 on 2; one query in eight is in the split dev
  wands       Wayfair's folder: product.csv, query.csv, label.csv. Exact=4,Partial=2,Irrelevant=1, in the split test
  esci        Amazon's folder: shopping_queries_dataset_{products,examples}.parquet, perhaps ..._sources.csv. E=4,S=3,C=2,I=1
  icecat      a folder with products.jsonl of Chorus, and queries and qrels as in beir
  csv         one table of items; --columns says what is where, otherwise headers with usual names are found
  ubi         logs: UBI 1.3 as JSON lines, or a CSV with the columns user, sku, query, click_time, query_time (perhaps
              category); a file, or a folder of them. The items are those that the log names, unless there is --catalogue

A row that cannot be taken is listed in rejected.jsonl with its place and the reason.

Examples:
  souk import --format beir --from scifact --out SCIFACT
  souk import --format csv --from toys.csv --no-header --columns id=0,title=1,category=2,brand=3,price=4 --out TOYS
  souk import --format ubi --from events.ndjson.gz --catalogue TOYS --out TOYS_WITH_LOG";

/// Make a data folder of a catalogue, judgements or a search log
///
/// Example: souk import --format beir --from scifact --out SCIFACT
#[derive(Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Import {
    /// Whose files they are
    #[arg(long, value_parser = PossibleValuesParser::new(Format::ALL.map(Format::name)))]
    format: String,
    /// The folder, or for csv and ubi the file
    #[arg(long, value_name = "PATH")]
    from: PathBuf,
    /// A new folder
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// auto reads rows that are not UTF-8 as latin-1 (windows-1252) and counts them
    #[arg(long, default_value = "auto", value_parser = PossibleValuesParser::new(Encoding::NAMES))]
    encoding: String,
    /// Which level (1 to 4) each grade stands for, such as 0=1,1=4 or Exact=4,Partial=3,Irrelevant=1
    #[arg(long, value_name = "GRADE=LEVEL,...")]
    levels: Option<String>,
    /// esci: the market; us where it is not said
    #[arg(long, value_name = "us|es|jp")]
    locale: Option<String>,
    /// csv: which column is what, by place (the first is 0) or by name: id, title, text, category, brand, price, others
    #[arg(long, value_name = "FIELD=COLUMN,...", value_delimiter = ',')]
    columns: Vec<String>,
    /// csv: the first line is an item already
    #[arg(long)]
    no_header: bool,
    /// csv: what stands between cells, one character or `tab`; found out where it is not said
    #[arg(long, value_name = "CHARACTER")]
    delimiter: Option<String>,
    /// ubi: a data folder with the items that the log is about
    #[arg(long, value_name = "DIR")]
    catalogue: Option<PathBuf>,
}

impl Import {
    pub fn run(&self, shared: &Shared) -> anyhow::Result<()> {
        let format: Format = self.format.parse()?;
        let progress = bar("rows", None);
        let summary = import(format, &self.options()?, &self.from, &self.out, &mut |rows| progress.inc(rows));
        progress.finish_and_clear();
        let summary = summary?;
        let mut json = serde_json::to_value(&summary)?;
        json["format"] = json!(format.name());
        json["out"] = json!(self.out);
        json["num_rejected"] = json!(summary.num_rejected());
        print(shared, &json, &self.told(&summary))
    }

    fn options(&self) -> Result<Options> {
        Ok(Options {
            encoding: self.encoding.parse()?,
            scale: self.levels.as_deref().map(str::parse::<Scale>).transpose()?,
            locale: self.locale.clone(),
            columns: self.columns.iter().map(|column| column.parse::<Column>()).collect::<Result<_>>()?,
            no_header: self.no_header,
            separator: self.delimiter.as_deref().map(separator).transpose()?,
            catalogue: self.catalogue.clone(),
        })
    }

    fn told(&self, summary: &Summary) -> String {
        let counts = &summary.counts;
        let mut lines = vec![format!("wrote {}", self.out.display())];
        let mut told = |count: u64, what: &str| {
            if count > 0 {
                lines.push(format!("{count:>10} {what}"));
            }
        };
        told(counts.items, "items");
        told(counts.queries, "queries");
        for (split, count) in &counts.judgements {
            told(*count, &format!("judgements in {split}"));
        }
        told(counts.log_lines, "lines of the log");
        if !summary.levels.is_empty() {
            let levels: Vec<String> = summary.levels.iter().map(|(grade, level)| format!("{grade}={level}")).collect();
            lines.push(format!("levels: {}", levels.join(",")));
        }
        let list = self.out.join(REJECTED_FILE);
        let rejected = format!("rejected, listed in {}", list.display());
        for (title, counts) in
            [(rejected.as_str(), &summary.rejected), ("left out", &summary.left_out), ("noted", &summary.noted)]
        {
            if !counts.is_empty() {
                lines.push(format!("{title}:"));
                lines.extend(counts.iter().map(|(what, count)| format!("{count:>10} {what}")));
            }
        }
        if !summary.unread_files.is_empty() {
            lines.push(format!("files that were not read: {}", summary.unread_files.join(", ")));
        }
        lines.join("\n")
    }
}

fn separator(text: &str) -> Result<u8> {
    match text.as_bytes() {
        [byte] if byte.is_ascii() && !matches!(byte, b'"' | b'\n' | b'\r') => Ok(*byte),
        b"tab" | b"\\t" => Ok(b'\t'),
        _ => Err(Error::input(format!("--delimiter {text:?}: say one character, or `tab`"))),
    }
}
