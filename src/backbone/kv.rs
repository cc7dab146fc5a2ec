//! What a decoder remembers of the tokens it has read: keys and values of every layer. A value that the caller owns
//! and passes in, so that a prompt can be read once and continued in several ways.

use tch::Tensor;

use super::tokens::{Layout, Tokens};
use crate::error::{Error, Result};

#[derive(Default)]
pub struct Cache {
    /// `[b, s]`, true where a slot holds a token.
    mask: Option<Tensor>,
    /// Per layer key and value, `[b, s, h, e]`.
    layers: Vec<(Tensor, Tensor)>,
}

impl Cache {
    /// Tokens read so far, padding included.
    pub fn num_slots(&self) -> i64 {
        self.mask.as_ref().map_or(0, |mask| mask.size()[1])
    }

    /// Of some of the texts, or of one several times: as many as `texts [n]` names.
    pub fn of(&self, texts: &Tensor) -> Self {
        let pick = |x: &Tensor| x.index_select(0, texts);
        Self {
            mask: self.mask.as_ref().map(pick),
            layers: self.layers.iter().map(|(k, v)| (pick(k), pick(v))).collect(),
        }
    }

    /// The new tokens, placed behind those already read.
    pub(super) fn extend(&mut self, new: &Tokens) -> Result<Tokens> {
        let Layout::Padded { mask } = &new.layout else {
            return Err(Error::input("a cache continues padded tokens, not packed ones"));
        };
        let whole = match &self.mask {
            None => mask.shallow_clone(),
            Some(past) if past.size()[0] != mask.size()[0] => {
                let (held, given) = (past.size()[0], mask.size()[0]);
                return Err(Error::input(format!("the cache holds {held} texts, {given} are to be continued")));
            }
            Some(past) => Tensor::cat(&[past, mask], 1),
        };
        let read = self.mask.as_ref().map(|past| past.sum_dim_intlist(1, true, tch::Kind::Int64));
        let positions = read.map_or_else(|| new.positions.shallow_clone(), |read| &new.positions + read);
        self.mask = Some(whole.shallow_clone());
        Ok(Tokens { ids: new.ids.shallow_clone(), positions, types: None, layout: Layout::Padded { mask: whole } })
    }

    /// Adds one layer's new keys and values and gives all of them.
    pub(super) fn append(&mut self, layer: usize, k: Tensor, v: Tensor) -> (Tensor, Tensor) {
        let (k, v) = match self.layers.get(layer) {
            None => (k, v),
            Some((past_k, past_v)) => (Tensor::cat(&[past_k, &k], 1), Tensor::cat(&[past_v, &v], 1)),
        };
        let both = (k.shallow_clone(), v.shallow_clone());
        if layer < self.layers.len() {
            self.layers[layer] = both;
        } else {
            self.layers.push(both);
        }
        (k, v)
    }
}

impl Clone for Cache {
    fn clone(&self) -> Self {
        let layers = self.layers.iter().map(|(k, v)| (k.shallow_clone(), v.shallow_clone())).collect();
        Self { mask: self.mask.as_ref().map(Tensor::shallow_clone), layers }
    }
}
