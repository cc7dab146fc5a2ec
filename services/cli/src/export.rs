//! `souk export`: a model folder for other programs.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::output::print;
use crate::{ModelArgs, Shared};

/// Write a model folder that other programs load
///
/// The folder gives the same vectors in SentenceTransformer(DIR). An adapter (--set model.adapter=DIR) is merged.
#[derive(Args)]
pub struct Export {
    #[command(flatten)]
    model: ModelArgs,
    /// Which program is to load it
    #[arg(long, value_enum, default_value = "sentence-transformers")]
    to: Target,
    /// A new folder
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

#[derive(Clone, Copy, ValueEnum)]
enum Target {
    SentenceTransformers,
}

impl Export {
    pub fn run(&self, shared: &Shared) -> anyhow::Result<()> {
        let config = shared.load(self.model.changes())?;
        let mut encoder = config.open_encoder()?;
        match self.to {
            Target::SentenceTransformers => {
                encoder.check_foreign()?;
                encoder.export(&self.out)?;
            }
        }
        let out = self.out.display();
        let json = serde_json::json!({"out": self.out, "dimensions": encoder.dimensions()});
        print(shared, &json, &format!("wrote {out}; load it with SentenceTransformer(\"{out}\")"))
    }
}
