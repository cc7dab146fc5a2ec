//! `souk export`: writes a model folder for other programs, with a model card.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use souk::encoder::Overrides;
use souk::model_card::{MeasurementRecord, ModelRecord, folder_name};
use souk::report::EvaluationRun;

use crate::output::print;
use crate::{GlobalArgs, ModelArgs};

/// Export a model folder for other programs
///
/// SentenceTransformer(DIR) gives the same vectors. A LoRA adapter (--set model.adapter=DIR) is merged. README.md is a model card
/// as the Hugging Face hub shows it: how to use the model, how it was trained, and its metrics.
///
/// Example: souk export --model SFT --report MEASURED --out FOR_THE_HUB
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
    /// Folders of `souk evaluate` whose metrics the model card shows
    #[arg(long, value_name = "RUN", num_args = 1..)]
    report: Vec<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Target {
    SentenceTransformers,
}

impl ExportCommand {
    pub fn run(&self, globals: &GlobalArgs) -> anyhow::Result<()> {
        let config = globals.load(self.model.changes())?;
        let mut encoder = config.open_encoder()?;
        let mut record = ModelRecord::of_model(encoder.dir(), config.model.path.as_deref().unwrap_or_default());
        if config.model.adapter.is_some() || config.encoder != Overrides::default() {
            // they were measured with other settings
            (record.measurements, record.gate) = (Vec::new(), None);
        }
        for folder in &self.report {
            record.measurements.push(MeasurementRecord::of(&EvaluationRun::load(folder)?.metrics));
        }
        match self.to {
            Target::SentenceTransformers => {
                encoder.check_foreign()?;
                let name = folder_name(&self.out);
                encoder.export_with(&self.out, |encoder, folder| record.write(folder, &name, encoder))?;
            }
        }
        let out = self.out.display();
        let json = serde_json::json!({"out": self.out, "dimensions": encoder.dimensions()});
        print(globals, &json, &format!("wrote {out}; load it with SentenceTransformer(\"{out}\")"))
    }
}
