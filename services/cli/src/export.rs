//! `souk export`: writes a model folder for other programs.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::output::print;
use crate::{GlobalArgs, ModelArgs};

/// Export a model folder for other programs
///
/// SentenceTransformer(DIR) gives the same vectors. A LoRA adapter (--set model.adapter=DIR) is merged.
#[derive(Args)]
pub struct ExportCommand {
    #[command(flatten)]
    model: ModelArgs,
    /// Target library
    #[arg(long, value_enum, default_value = "sentence-transformers")]
    to: Target,
    /// Output folder (new)
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

#[derive(Clone, Copy, ValueEnum)]
enum Target {
    SentenceTransformers,
}

impl ExportCommand {
    pub fn run(&self, globals: &GlobalArgs) -> anyhow::Result<()> {
        let config = globals.load(self.model.changes())?;
        let mut encoder = config.open_encoder()?;
        match self.to {
            Target::SentenceTransformers => {
                encoder.check_foreign()?;
                encoder.export(&self.out)?;
            }
        }
        let out = self.out.display();
        let json = serde_json::json!({"out": self.out, "dimensions": encoder.dimensions()});
        print(globals, &json, &format!("wrote {out}; load it with SentenceTransformer(\"{out}\")"))
    }
}
