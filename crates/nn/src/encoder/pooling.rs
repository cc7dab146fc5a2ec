//! Pooling: one vector per text from the hidden states of its packed tokens. Prompt tokens may be excluded; packed tokens
//! have no padding.

use schemars::JsonSchema;
use tch::{Device, Kind, Tensor};

use souk_io::error::Result;

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Pooling {
    /// Mean of all tokens.
    Mean,
    /// The first token.
    Cls,
    /// The last token.
    LastToken,
    /// Maximum of each dimension.
    Max,
    /// Mean over the penultimate layer.
    PenultimateMean,
}

/// Token ranges to pool: `starts` as in a packed batch, `skip` prompt tokens excluded at the start of each text.
pub struct Spans<'a> {
    pub starts: &'a [i64],
    pub skip: &'a [i64],
}

impl Pooling {
    /// Vectors `[b, d]` in f32. `states` computes the hidden states of all tokens, or of those whose indices it gets.
    pub fn pool(
        self,
        spans: &Spans,
        device: Device,
        states: impl FnOnce(Option<&Tensor>) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let vectors = match self {
            Self::Mean | Self::PenultimateMean => mean(&states(None)?.to_kind(Kind::Float), spans)?,
            Self::Cls => states(Some(&spans.at(|start, _| start).to_device(device)))?,
            Self::LastToken => states(Some(&spans.at(|_, end| end - 1).to_device(device)))?,
            Self::Max => {
                let states = states(None)?;
                let rows: Vec<Tensor> =
                    spans.iter().map(|(start, end)| states.narrow(0, start, end - start).amax(0, false)).collect();
                Tensor::stack(&rows, 0)
            }
        };
        Ok(vectors.to_kind(Kind::Float))
    }
}

impl Spans<'_> {
    /// First pooled token and end of each text. A text that is only a prompt is pooled whole: it must have a vector.
    fn iter(&self) -> impl Iterator<Item = (i64, i64)> {
        self.starts.windows(2).zip(self.skip).map(|(w, &skip)| {
            let start = if w[0] + skip < w[1] { w[0] + skip } else { w[0] };
            (start, w[1])
        })
    }

    fn at(&self, pick: impl Fn(i64, i64) -> i64) -> Tensor {
        Tensor::from_slice(&self.iter().map(|(start, end)| pick(start, end)).collect::<Vec<_>>())
    }
}

fn mean(states: &Tensor, spans: &Spans) -> Result<Tensor> {
    let counts: Vec<f32> = spans.iter().map(|(start, end)| (end - start) as f32).collect();
    if !states.requires_grad() && states.device() == Device::Cpu {
        let skip: Vec<i64> = spans.iter().zip(spans.starts).map(|((start, _), &head)| start - head).collect();
        return Ok(souk_native::segment_mean(states, spans.starts, &skip)?);
    }
    let mut owner = vec![-1_i64; states.size()[0] as usize];
    for (text, (start, end)) in spans.iter().enumerate() {
        owner[start as usize..end as usize].fill(text as i64);
    }
    // prompt tokens are summed in an extra row, which is dropped
    let texts = counts.len() as i64;
    let owner = Tensor::from_slice(&owner).to_device(states.device());
    let owner = owner.where_self(&owner.ge(0), &owner.full_like(texts));
    let sums =
        Tensor::zeros([texts + 1, states.size()[1]], (Kind::Float, states.device())).index_add(0, &owner, states);
    let counts = Tensor::from_slice(&counts).to_device(states.device()).unsqueeze(1);
    Ok(sums.narrow(0, 0, texts) / counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pooled(pooling: Pooling, skip: &[i64]) -> Vec<Vec<f32>> {
        let states = Tensor::from_slice(&[1_f32, 2.0, 3.0, 6.0, 5.0, 4.0, 9.0, 8.0]).view([4, 2]);
        let spans = Spans { starts: &[0, 3, 4], skip };
        let pool = |states: Tensor| {
            let select =
                |rows: Option<&Tensor>| Ok(rows.map_or(states.shallow_clone(), |rows| states.index_select(0, rows)));
            pooling.pool(&spans, Device::Cpu, select).unwrap()
        };
        let vectors = pool(states.shallow_clone());
        let trained = pool(states.set_requires_grad(true));
        assert!((&vectors - trained).abs().max().double_value(&[]) < 1e-6, "frozen and trained paths agree");
        Vec::try_from(&vectors).unwrap()
    }

    #[test]
    fn poolings_equal_hand_computed_numbers() {
        assert_eq!(pooled(Pooling::Mean, &[0, 0]), [[3.0, 4.0], [9.0, 8.0]]);
        assert_eq!(pooled(Pooling::Cls, &[0, 0]), [[1.0, 2.0], [9.0, 8.0]]);
        assert_eq!(pooled(Pooling::LastToken, &[0, 0]), [[5.0, 4.0], [9.0, 8.0]]);
        assert_eq!(pooled(Pooling::Max, &[0, 0]), [[5.0, 6.0], [9.0, 8.0]]);
    }

    #[test]
    fn excludes_the_prompt_but_never_the_whole_text() {
        assert_eq!(pooled(Pooling::Mean, &[1, 1]), [[4.0, 5.0], [9.0, 8.0]]);
        assert_eq!(pooled(Pooling::Cls, &[1, 1]), [[3.0, 6.0], [9.0, 8.0]]);
    }
}
