//! First and last layer of an encoder on packed tokens: embeddings, and mean pooling per segment.

use crate::NativeResult;
use crate::ffi::{self, pointer};
use crate::tensor::{Element, bad, matrix, segments, vector, vector_of};
use tch::Tensor;

/// Tables of a BERT-like embedding layer.
#[derive(Debug, Clone, Copy)]
pub struct Embeddings<'a> {
    /// `[vocabulary, D]`.
    pub word: &'a Tensor,
    /// `[positions, D]`.
    pub position: &'a Tensor,
    /// Row of the token-type table that all tokens use, `[D]`.
    pub token_type: Option<&'a Tensor>,
    /// LayerNorm weight, `[D]`.
    pub weight: &'a Tensor,
    /// LayerNorm bias, `[D]`.
    pub bias: &'a Tensor,
    /// Added to the variance.
    pub eps: f64,
}

/// `LayerNorm(word[id] + position[pos] + token_type)` for each token; `ids` and `positions` are i64 `[T]`.
pub fn embed_norm(ids: &Tensor, positions: &Tensor, tables: &Embeddings) -> NativeResult<Tensor> {
    let tokens = vector("ids", ids, Element::I64)?;
    if vector("positions", positions, Element::I64)? != tokens {
        return bad("positions", format!("must have {tokens} elements like ids"));
    }
    let (_, width) = matrix("word", tables.word)?;
    if matrix("position", tables.position)?.1 != width {
        return bad("position", format!("must have {width} columns like word"));
    }
    if let Some(row) = tables.token_type {
        vector_of("token_type", row, width)?;
    }
    vector_of("norm weight", tables.weight, width)?;
    vector_of("norm bias", tables.bias, width)?;
    // SAFETY: all tensors were checked to be dense, contiguous and of matching shape; the shim checks the indices.
    ffi::tensor(|out| unsafe {
        ffi::souk_embed_norm(
            ids.as_ptr(),
            positions.as_ptr(),
            tables.word.as_ptr(),
            tables.position.as_ptr(),
            pointer(tables.token_type),
            tables.weight.as_ptr(),
            tables.bias.as_ptr(),
            tables.eps,
            out,
        )
    })
}

/// Mean of each segment of `x` `[T, D]` without its first `skip` tokens; zeros if no token remains. Returns `[N, D]`.
pub fn segment_mean(x: &Tensor, starts: &[i64], skip: &[i64]) -> NativeResult<Tensor> {
    let (tokens, _) = matrix("x", x)?;
    let count = segments(starts, tokens)?;
    if skip.len() as i64 != count {
        return bad("skip", format!("must have one entry per segment, {count}"));
    }
    let lengths = starts.windows(2).map(|pair| pair[1] - pair[0]);
    if lengths.zip(skip).any(|(length, s)| !(0..=length).contains(s)) {
        return bad("skip", "must lie between 0 and the segment's length");
    }
    // SAFETY: the tensor, the offsets and the number of entries of `skip` were checked.
    ffi::tensor(|out| unsafe { ffi::souk_segment_mean(x.as_ptr(), starts.as_ptr(), skip.as_ptr(), count, out) })
}
