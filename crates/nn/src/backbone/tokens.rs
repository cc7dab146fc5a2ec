//! Batches of token ids in one of two layouts, both supported by every backbone: *packed*, all texts one after the other
//! without padding (for reading texts), and *padded*, a rectangle with a mask (for continuing a KV cache, and for inputs
//! shaped as in `transformers`).
//!
//! Shape letters: b texts, l tokens of the longest text, t tokens of all texts, s slots (past and present), d width,
//! h heads, e width of a head.

use tch::{Device, Kind, Tensor};

use super::attention::{AttentionPlan, Visibility};
use souk_io::error::{Error, Result};

pub struct Tokens {
    /// `[t]` or `[b, l]`
    pub ids: Tensor,
    /// Position of each token in its text, shaped as `ids`.
    pub positions: Tensor,
    /// Token type (0 or 1), shaped as `ids`: the text of a pair; `None` for single texts. Decoders ignore it.
    pub types: Option<Tensor>,
    pub layout: Layout,
}

pub enum Layout {
    /// Text `i` has the tokens `starts[i]..starts[i + 1]`.
    Packed { starts: Vec<i64> },
    /// `[b, l]`, true where there is a token.
    Padded { mask: Tensor },
}

/// Side on which short texts are padded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Padding {
    Left,
    Right,
}

impl Tokens {
    /// Packs texts one after the other. Every text must have at least one token.
    pub fn packed(texts: &[&[u32]], device: Device) -> Result<Self> {
        let num_tokens = texts.iter().map(|t| t.len()).sum();
        let (mut ids, mut positions) = (Vec::with_capacity(num_tokens), Vec::with_capacity(num_tokens));
        let mut starts = vec![0];
        for (i, text) in texts.iter().enumerate() {
            if text.is_empty() {
                return Err(no_tokens(i));
            }
            ids.extend(text.iter().map(|&id| i64::from(id)));
            positions.extend(0..text.len() as i64);
            starts.push(ids.len() as i64);
        }
        if texts.is_empty() {
            return Err(Error::input("no texts to encode"));
        }
        Ok(Self {
            ids: Tensor::from_slice(&ids).to_device(device),
            positions: Tensor::from_slice(&positions).to_device(device),
            types: None,
            layout: Layout::Packed { starts },
        })
    }

    /// Sets the token types: 0 or 1 for each token.
    pub fn with_types(mut self, types: &[i64]) -> Result<Self> {
        if types.len() != self.ids.numel() {
            return Err(Error::input(format!("{} token types for {} tokens", types.len(), self.ids.numel())));
        }
        self.types = Some(Tensor::from_slice(types).view_as(&self.ids).to_device(self.ids.device()));
        Ok(self)
    }

    /// Pads texts to a rectangle with the id `pad` on one side.
    pub fn padded(texts: &[&[u32]], pad: u32, side: Padding, device: Device) -> Result<Self> {
        let longest = texts.iter().map(|t| t.len()).max().unwrap_or(0);
        let (mut ids, mut mask) = (Vec::new(), Vec::new());
        for (i, text) in texts.iter().enumerate() {
            if text.is_empty() {
                return Err(no_tokens(i));
            }
            let gap = longest - text.len();
            let before = if side == Padding::Left { gap } else { 0 };
            ids.extend(std::iter::repeat_n(i64::from(pad), before));
            ids.extend(text.iter().map(|&id| i64::from(id)));
            ids.extend(std::iter::repeat_n(i64::from(pad), gap - before));
            mask.extend((0..longest).map(|at| (before..before + text.len()).contains(&at)));
        }
        let shape = [texts.len() as i64, longest as i64];
        let ids = Tensor::from_slice(&ids).view(shape).to_device(device);
        let mask = Tensor::from_slice(&mask).view(shape).to_device(device);
        Ok(Self::masked(ids, mask))
    }

    /// Builds padded tokens from ids and mask, both `[b, l]`, as in `transformers`.
    pub fn masked(ids: Tensor, mask: Tensor) -> Self {
        let mask = mask.to_kind(Kind::Bool);
        let positions = (mask.cumsum(1, Kind::Int64) - 1).clamp_min(0);
        Self { ids, positions, types: None, layout: Layout::Padded { mask } }
    }

    /// Index of the last token of every packed text, `[b]`.
    pub fn ends(&self) -> Result<Tensor> {
        match &self.layout {
            Layout::Packed { starts } => Ok((Tensor::from_slice(&starts[1..]) - 1).to_device(self.ids.device())),
            Layout::Padded { .. } => Err(Error::input("`ends` needs packed tokens, not padded ones")),
        }
    }

    /// Number of tokens of the longest text.
    pub(super) fn longest(&self) -> i64 {
        match &self.layout {
            Layout::Packed { starts } => starts.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0),
            Layout::Padded { .. } => self.ids.size()[1],
        }
    }

    /// Attention plan for these tokens.
    pub(super) fn plan(&self, seen: Visibility) -> AttentionPlan<'_> {
        match &self.layout {
            Layout::Packed { starts } => AttentionPlan::packed(starts, seen, self.ids.device()),
            Layout::Padded { mask } => AttentionPlan::padded(mask, self.ids.size()[1], seen),
        }
    }
}

fn no_tokens(text: usize) -> Error {
    Error::input(format!("text {} has no tokens: this tokenizer adds none to an empty text", text + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn left_and_right_padding_place_the_same_positions() {
        let texts: [&[u32]; 2] = [&[5, 6, 7], &[8]];
        let right = Tokens::padded(&texts, 0, Padding::Right, Device::Cpu).unwrap();
        let left = Tokens::padded(&texts, 0, Padding::Left, Device::Cpu).unwrap();
        assert_eq!(Vec::<Vec<i64>>::try_from(&right.ids).unwrap(), [[5, 6, 7], [8, 0, 0]]);
        assert_eq!(Vec::<Vec<i64>>::try_from(&left.ids).unwrap(), [[5, 6, 7], [0, 0, 8]]);
        assert_eq!(left.positions.int64_value(&[1, 2]), 0);
        assert_eq!(right.positions.int64_value(&[0, 2]), 2);
    }

    #[test]
    fn rejects_a_text_without_tokens() {
        let error = Tokens::packed(&[&[1], &[]], Device::Cpu).err().unwrap();
        assert!(error.to_string().contains("text 2 has no tokens"), "{error}");
    }
}
