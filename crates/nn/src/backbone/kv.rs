//! KV cache of a decoder: keys and values of every layer for the tokens read so far. The caller owns it and passes it in,
//! so a prompt can be read once and continued in several ways. The first tokens may be packed; all later ones must be a
//! padded rectangle, without padding if a layer uses a sliding window.

use tch::{Device, Kind, Tensor};

use super::tokens::{Layout, Tokens};
use souk_io::error::{Error, Result};

#[derive(Default)]
pub struct KvCache {
    /// `[b, s]`, true where a slot holds a token.
    mask: Option<Tensor>,
    /// Slot of each token, `[t]`, row after row; set only while packed texts are read.
    slots: Option<Tensor>,
    /// Key and value per layer, each `[b, s, h, e]`.
    layers: Vec<(Tensor, Tensor)>,
}

impl KvCache {
    /// Tokens read so far, padding included.
    pub fn num_slots(&self) -> i64 {
        self.mask.as_ref().map_or(0, |mask| mask.size()[1])
    }

    /// Selects rows by index, `texts [n]`; an index may repeat.
    pub fn select(&self, texts: &Tensor) -> Self {
        let pick = |x: &Tensor| x.index_select(0, texts);
        Self {
            mask: self.mask.as_ref().map(pick),
            slots: None,
            layers: self.layers.iter().map(|(k, v)| (pick(k), pick(v))).collect(),
        }
    }

    /// Appends new tokens and returns them positioned after those already read; `None` leaves them unchanged.
    pub(super) fn extend(&mut self, new: &Tokens) -> Result<Option<Tokens>> {
        let mask = match &new.layout {
            Layout::Padded { mask } => mask,
            Layout::Packed { starts } if self.mask.is_none() => {
                self.init_packed(starts, new.ids.device());
                return Ok(None);
            }
            Layout::Packed { .. } => {
                return Err(Error::input("a KV cache must be continued by padded tokens, not packed ones"));
            }
        };
        self.slots = None;
        let whole = match &self.mask {
            None => mask.shallow_clone(),
            Some(past) if past.size()[0] != mask.size()[0] => {
                let (cached, given) = (past.size()[0], mask.size()[0]);
                return Err(Error::input(format!("the KV cache holds {cached} texts, but {given} continue it")));
            }
            Some(past) => Tensor::cat(&[past, mask], 1),
        };
        let read = self.mask.as_ref().map(|past| past.sum_dim_intlist(1, true, Kind::Int64));
        let positions = read.map_or_else(|| new.positions.shallow_clone(), |read| &new.positions + read);
        self.mask = Some(whole.shallow_clone());
        let layout = Layout::Padded { mask: whole };
        Ok(Some(Tokens { ids: new.ids.shallow_clone(), positions, types: None, layout }))
    }

    /// Assigns slots to packed texts as if they were padded on the left, so that all end in the same column.
    fn init_packed(&mut self, starts: &[i64], device: Device) {
        let lengths: Vec<i64> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let rows = lengths.iter().enumerate();
        let ends = rows.map(|(row, length)| ((row as i64 + 1) * longest, *length));
        let slots: Vec<i64> = ends.flat_map(|(end, length)| end - length..end).collect();
        let slots = Tensor::from_slice(&slots).to_device(device);
        let mask = Tensor::zeros([lengths.len() as i64 * longest], (Kind::Bool, device)).index_fill(0, &slots, 1);
        self.mask = Some(mask.view([-1, longest]));
        self.slots = Some(slots);
    }

    /// Appends one layer's new keys and values and returns all of them.
    pub(super) fn append(&mut self, layer: usize, k: Tensor, v: Tensor) -> (Tensor, Tensor) {
        if let (Some(slots), Some(mask)) = (&self.slots, &self.mask) {
            let placed = |x: &Tensor| {
                let [b, s] = [mask.size()[0], mask.size()[1]];
                let [h, e] = [x.size()[1], x.size()[2]];
                x.new_zeros([b * s, h, e], (x.kind(), x.device())).index_copy(0, slots, x).view([b, s, h, e])
            };
            self.layers.push((placed(&k), placed(&v)));
            return (k, v);
        }
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

impl Clone for KvCache {
    fn clone(&self) -> Self {
        let layers = self.layers.iter().map(|(k, v)| (k.shallow_clone(), v.shallow_clone())).collect();
        let copy = |x: &Option<Tensor>| x.as_ref().map(Tensor::shallow_clone);
        Self { mask: copy(&self.mask), slots: copy(&self.slots), layers }
    }
}
