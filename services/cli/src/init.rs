//! `souk init`: a new model folder from a configuration and a catalogue.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

use clap::Args;
use souk::domain::Item;
use souk::error::Error;

use crate::Shared;
use crate::lines::Lines;

/// Make a model from scratch: a tokenizer trained on a catalogue, weights from a seed
///
/// The configuration's [scratch] says what model; configs/scratch-bert.toml is one to start from.
#[derive(Args)]
pub struct Init {
    /// Data folder with corpus.jsonl
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// A new folder
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

impl Init {
    #[expect(clippy::print_stdout, reason = "the result of the verb")]
    pub fn run(&self, shared: &Shared) -> anyhow::Result<()> {
        let config = shared.load(&[])?;
        let missing =
            || Error::config("[scratch]", "is missing: give --config FILE, such as configs/scratch-bert.toml");
        let scratch = config.scratch.ok_or_else(missing)?;
        let corpus = self.data.join("corpus.jsonl");
        let file = File::open(&corpus).map_err(Error::store(&corpus, "open the catalogue"))?;
        let mut passages = Vec::new();
        for line in Lines::new(BufReader::new(file), &corpus) {
            let (number, json) = line?;
            passages.push(Item::parse(json.as_bytes(), &corpus, number)?.passage());
        }
        let num_items = passages.len();
        scratch.write(passages.into_iter(), &self.out)?;
        match shared.json {
            true => println!("{}", serde_json::json!({"out": self.out, "num_items": num_items})),
            false => println!("wrote {} with a tokenizer of {num_items} items", self.out.display()),
        }
        Ok(())
    }
}
