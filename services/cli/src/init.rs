//! `souk init`: writes a new model folder from a configuration and a catalogue.

use std::path::PathBuf;

use clap::Args;
use souk::error::Error;

use crate::GlobalArgs;
use crate::output::print;

/// Create a model with random weights
///
/// Trains the tokenizer on a catalogue. [scratch] of the configuration sets the architecture, the seed and the size of
/// the vocabulary; see configs/scratch-bert.toml.
#[derive(Args)]
pub struct InitCommand {
    /// Data folder with corpus.jsonl
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Output folder (new)
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

impl InitCommand {
    pub fn run(&self, globals: &GlobalArgs) -> anyhow::Result<()> {
        let config = globals.load(Vec::new())?;
        let missing =
            || Error::config("[scratch]", "is missing: give --config FILE, such as configs/scratch-bert.toml");
        let item_text = config.item_text();
        let scratch = config.scratch.as_ref().ok_or_else(missing)?;
        let data = config.open_data(&self.data)?;
        let mut texts = Vec::new();
        for item in data.items()? {
            texts.push(item_text.render(&item?.1));
        }
        let num_items = texts.len();
        scratch.write(texts.into_iter(), &item_text, &self.out)?;
        let json = serde_json::json!({"out": self.out, "num_items": num_items});
        print(globals, &json, &format!("wrote {}; tokenizer trained on {num_items} items", self.out.display()))
    }
}
