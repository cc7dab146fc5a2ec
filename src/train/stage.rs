//! A training stage: its settings, and opening its pairs.

use serde_json::Value;

use super::TrainSettings;
use crate::candidates::CandidateSettings;
use crate::checkpoint::CheckpointState;
use crate::objective::Objective;
use souk_ingest::dataset::{PairSource, Pairs, Span};
use souk_io::beir::DataFolder;
use souk_io::catalogue::Catalogue;
use souk_io::error::{Error, Result};
use souk_nn::collective::{Collective, gather_json};
use souk_nn::encoder::Encoder;
use souk_reward::Blend;

/// Definition of a training stage.
pub struct Stage {
    /// In f32, not frozen.
    pub encoder: Encoder,
    /// The `[train]` section.
    pub settings: TrainSettings,
    /// The `[objective]` section.
    pub objective: Objective,
    /// Computes products in bf16 (autocast); weights stay in f32.
    pub bf16: bool,
    /// For objectives that learn from rewards.
    pub rewards: Option<StageRewards>,
    /// Encoders that do not learn.
    pub frozen: FrozenEncoders,
    /// The range of examples to train on; none: all there are when the stage begins.
    pub span: Option<Span>,
    /// The resolved configuration, kept with every checkpoint.
    pub config: Value,
}

/// Encoders that do not learn, for the objectives that need them.
#[derive(Default)]
pub struct FrozenEncoders {
    /// Decides which items are no negatives (`objective.guide`).
    pub guide: Option<Encoder>,
    /// The reference policy: the model that the stage begins with, opened again.
    pub reference: Option<Encoder>,
}

/// Inputs of objectives that learn from rewards, besides pairs.
pub struct StageRewards {
    /// The judge, and the weights of the reward.
    pub blend: Blend,
    /// The `[candidates]` section.
    pub candidates: CandidateSettings,
    /// The model that the stage begins with, opened again to encode the catalogue beside training when candidates come from there.
    pub model_copy: Option<Encoder>,
}

impl Stage {
    /// The pairs that a resumed stage began with, or those that the first process finds now.
    pub(super) fn open_pairs(
        &self,
        data: &DataFolder,
        catalogue: &Catalogue,
        resumed: Option<&CheckpointState>,
        collective: &dyn Collective,
    ) -> Result<Pairs> {
        let (source, split) = (&self.settings.pairs, self.settings.training_split());
        if *source == PairSource::Excerpts && !matches!(self.objective, Objective::InfoNce(_)) {
            let problem =
                "is `excerpts`, which only `objective.type = \"info_nce\"` learns from: set that, or other pairs";
            return Err(Error::config("train.pairs", problem));
        }
        let again = |span: Option<&Span>| {
            let source = match (span, source) {
                (Some(_), _) => PairSource::Examples,
                (None, PairSource::Items | PairSource::Excerpts) => *source,
                (None, _) => PairSource::Qrels,
            };
            Pairs::open(data, catalogue, source, split, span)
        };
        if let Some(state) = resumed {
            return again(state.span.as_ref());
        }
        let first = collective.rank() == 0;
        let open = || Pairs::open(data, catalogue, *source, split, self.span.as_ref());
        let own = first.then(open).transpose()?;
        let spans = gather_json(collective, &own.as_ref().and_then(Pairs::span).cloned())?;
        own.map_or_else(|| again(spans[0].as_ref()), Ok)
    }
}
