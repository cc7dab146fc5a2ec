//! `souk average`: writes a model whose weights are the mean of several models'.

use std::path::PathBuf;

use clap::Args;
use souk::config::Change;
use souk::encoder::Encoder;
use souk::error::Error;
use souk::model_card::{ModelRecord, StageRecord, folder_name};

use crate::GlobalArgs;
use crate::output::print;

/// Average the weights of models with one base
///
/// A fine-tuned model and the model that it started from, or runs with different seeds. The average often finds more than each of
/// them. Choose the shares on queries that no model was trained on. Pooling, prompts and other settings are those of the first
/// model.
///
/// Example: souk average RUN=0.7 intfloat/e5-small-v2=0.3 --out AVERAGE
#[derive(Args)]
pub struct AverageCommand {
    /// Models with their shares, DIR=SHARE; without a share it is 1
    #[arg(required = true, num_args = 2.., value_name = "DIR=SHARE")]
    models: Vec<String>,
    /// Output folder (new)
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

impl AverageCommand {
    pub fn run(&self, globals: &GlobalArgs) -> anyhow::Result<()> {
        let mut encoders = Vec::with_capacity(self.models.len());
        for model in &self.models {
            encoders.push(open(globals, model)?);
        }
        let shares = encoders.iter().map(|(encoder, share)| (folder_name(encoder.dir()), *share)).collect();
        let (mut first, share) = encoders.remove(0);
        first.average(share, &mut encoders)?;
        let record = ModelRecord::of_model(first.dir(), "").followed_by(StageRecord::Averaged { models: shares });
        let name = folder_name(&self.out);
        first.export_with(&self.out, |encoder, folder| record.write(folder, &name, encoder))?;
        let json = serde_json::json!({"out": self.out, "models": self.models.len()});
        print(globals, &json, &format!("wrote {}, the average of {} models", self.out.display(), self.models.len()))
    }
}

fn open(globals: &GlobalArgs, model: &str) -> anyhow::Result<(Encoder, f64)> {
    let (dir, share) = match model.rsplit_once('=') {
        Some((dir, text)) => {
            let unreadable = |_| Error::input(format!("`{text}` of `{model}` is not a number: write DIR=SHARE"));
            (dir, text.parse().map_err(unreadable)?)
        }
        None => (model, 1.0),
    };
    let config = globals.load(vec![Change::text("model.path", "souk average", dir)])?;
    Ok((config.open_encoder()?, share))
}
