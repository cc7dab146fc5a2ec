//! The relevance model as a judge in this process. It reads only texts, so it has a verdict on every pair.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use super::model::CrossEncoder;
use super::reader::{PairReader, PairText};
use souk_io::error::Result;
use souk_nn::encoder::Placement;
use souk_nn::worker::Model;
use souk_reward::{Question, RewardSource, Verdict};

pub struct CrossEncoderJudge {
    id: String,
    reader: Arc<PairReader>,
    // libtorch tensors are not shared between threads
    model: Mutex<CrossEncoder>,
    batch_tokens: usize,
}

impl CrossEncoderJudge {
    /// Tokens per batch; verdicts do not depend on it.
    pub fn new(model: CrossEncoder, batch_tokens: usize) -> Self {
        let (id, reader) = (model.id().into(), model.reader());
        Self { id, reader, model: Mutex::new(model), batch_tokens }
    }

    /// Opens a folder written by `souk relevance train`.
    pub fn open(dir: &Path, placement: Placement, batch_tokens: usize) -> Result<Self> {
        Ok(Self::new(CrossEncoder::open(dir, placement)?.freeze()?, batch_tokens))
    }
}

impl RewardSource for CrossEncoderJudge {
    fn id(&self) -> &str {
        &self.id
    }

    fn judge(&self, asked: &[Question<'_>]) -> Result<Vec<Option<Verdict>>> {
        let pairs = asked.iter().map(|asked| self.reader.read(asked.query, asked.item)).collect::<Result<Vec<_>>>()?;
        // a panic in a forward pass leaves the model unchanged
        let model = self.model.lock().unwrap_or_else(PoisonError::into_inner);
        let mut verdicts = vec![None; pairs.len()];
        for batch in batches(&pairs, self.batch_tokens) {
            let texts: Vec<&PairText> = batch.iter().map(|place| &pairs[*place]).collect();
            for (place, verdict) in batch.iter().zip(model.run(&texts)?) {
                verdicts[*place] = Some(verdict);
            }
        }
        Ok(verdicts)
    }
}

/// Indices of pairs, sorted by length and cut into full batches.
pub(super) fn batches(pairs: &[PairText], max_tokens: usize) -> Vec<Vec<usize>> {
    let mut places: Vec<usize> = (0..pairs.len()).collect();
    places.sort_by_key(|place| pairs[*place].ids.len());
    let (mut batches, mut filled): (Vec<Vec<usize>>, usize) = (Vec::new(), 0);
    for place in places {
        let tokens = pairs[place].ids.len();
        match batches.last_mut().filter(|_| filled + tokens <= max_tokens) {
            Some(batch) => batch.push(place),
            None => {
                batches.push(vec![place]);
                filled = 0;
            }
        }
        filled += tokens;
    }
    batches
}
