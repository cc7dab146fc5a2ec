//! `souk index`: the vectors of a catalogue.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

use clap::Args;
use souk::domain::{Item, TextKind};
use souk::encoder::Worker;
use souk::error::Error;
use souk::index::Index;

use crate::lines::{Lines, encode};
use crate::progress::bar;
use crate::{ModelArgs, Shared};

/// Encode a catalogue and write an index of it
///
/// The index remembers its model: another model's queries are refused.
#[derive(Args)]
pub struct IndexVerb {
    #[command(flatten)]
    model: ModelArgs,
    /// Data folder with corpus.jsonl, one {"_id", "title", "text"} per line
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// A new folder
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

impl IndexVerb {
    #[expect(clippy::print_stdout, reason = "the result of the verb")]
    pub fn run(&self, shared: &Shared) -> anyhow::Result<()> {
        let mut config = shared.load(&self.model.flags())?;
        config.encoder.normalize = Some(true);
        let encoder = config.open_encoder()?.freeze()?;
        let mut builder = Index::builder(encoder.fingerprint()?, encoder.dimensions());
        let worker = Worker::start(encoder, config.worker)?;
        let corpus = self.data.join("corpus.jsonl");
        let open = || File::open(&corpus).map_err(Error::store(&corpus, "open the catalogue"));
        let num_lines = std::io::BufRead::split(BufReader::new(open()?), b'\n').count();
        let progress = bar("items", Some(num_lines as u64));
        let lines = Lines::new(BufReader::new(open()?), &corpus);
        let items = lines.map(|line| line.and_then(|(number, json)| Item::parse(json.as_bytes(), &corpus, number)));
        encode(&worker, Some(TextKind::Item), items, Item::passage, |item, vector| {
            builder.add(&item, &vector);
            progress.inc(1);
            Ok(())
        })?;
        progress.finish_and_clear();
        let manifest = builder.write(&self.out)?;
        match shared.json {
            true => println!("{}", serde_json::to_string(&manifest)?),
            false => println!(
                "indexed {} items of {} dimensions in {}",
                manifest.num_items,
                manifest.dimensions,
                self.out.display()
            ),
        }
        Ok(())
    }
}
