//! `souk init`: a new model folder from a configuration and a catalogue.

use std::path::PathBuf;

use clap::Args;
use souk::beir::DataFolder;
use souk::error::Error;

use crate::Shared;
use crate::output::print;

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
    pub fn run(&self, shared: &Shared) -> anyhow::Result<()> {
        let config = shared.load(Vec::new())?;
        let missing =
            || Error::config("[scratch]", "is missing: give --config FILE, such as configs/scratch-bert.toml");
        let scratch = config.scratch.ok_or_else(missing)?;
        let data = DataFolder::open(&self.data)?;
        let mut passages = Vec::new();
        for item in data.items()? {
            passages.push(item?.1.passage());
        }
        let num_items = passages.len();
        scratch.write(passages.into_iter(), &self.out)?;
        let json = serde_json::json!({"out": self.out, "num_items": num_items});
        print(shared, &json, &format!("wrote {} with a tokenizer of {num_items} items", self.out.display()))
    }
}
