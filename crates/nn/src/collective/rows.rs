//! Gathers rows and small values over any [`Collective`], where each rank may have a different number of them, or none.
//! Validates sizes received from other ranks before using them.

use serde::Serialize;
use serde::de::DeserializeOwned;
use tch::{Kind, Tensor};

use super::Collective;
use souk_io::error::{Error, Result};

/// Upper bound of the bytes that one rank may send: for ids and names, not tensors.
const MAX_BYTES: usize = 64 << 20;

/// Rows of all ranks, by rank.
#[derive(Debug)]
pub struct Rows {
    /// `[N, d]`, without gradient.
    pub all: Tensor,
    /// First row of each rank, then the total: `[0, n_0, n_0 + n_1, ..., N]`.
    pub starts: Vec<i64>,
}

impl Rows {
    /// First row and number of rows of a rank.
    pub fn part(&self, rank: usize) -> (i64, i64) {
        part(&self.starts, rank)
    }
}

/// Gathers the rows `[n_r, d]` of every rank; `d` and the kind must be the same on all ranks.
pub fn gather_rows(collective: &dyn Collective, x: &Tensor) -> Result<Rows> {
    let [rows, columns] = x.size()[..] else {
        return Err(Error::input(format!("rows must have 2 dimensions, but the shape is {:?}", x.size())));
    };
    if collective.size() == 1 {
        return Ok(Rows { all: x.detach(), starts: vec![0, rows] });
    }
    let starts = exchange_shapes(collective, rows, columns, x.kind())?;
    let most = longest(&starts);
    let end = starts[starts.len() - 1];
    if end == 0 {
        return Ok(Rows { all: x.detach(), starts });
    }
    let blocks = collective.all_gather(&padded(&x.detach(), most)?)?;
    if starts.windows(2).all(|pair| pair[1] - pair[0] == most) {
        return Ok(Rows { all: blocks.f_view([end, columns])?, starts });
    }
    let mut parts = Vec::with_capacity(collective.size());
    for rank in 0..collective.size() {
        parts.push(blocks.f_select(0, rank as i64)?.f_narrow(0, 0, part(&starts, rank).1)?);
    }
    Ok(Rows { all: Tensor::f_cat(&parts, 0)?, starts })
}

/// Adjoint of [`gather_rows`]: each rank passes a gradient `[N, d]` of all rows and gets the sum over ranks of its own
/// rows, `[n_r, d]`.
pub fn return_rows(collective: &dyn Collective, gradient: &Tensor, starts: &[i64]) -> Result<Tensor> {
    let size = collective.size();
    let fits = starts.len() == size + 1 && gradient.dim() == 2 && gradient.size()[0] == starts[size];
    if !fits {
        let problem = format!(
            "gradients of shape {:?} do not match the rows gathered from {size} ranks, {starts:?}",
            gradient.size()
        );
        return Err(Error::input(problem));
    }
    let (most, own) = (longest(starts), part(starts, collective.rank()).1);
    if size == 1 || most == 0 {
        return Ok(gradient.detach());
    }
    let mut blocks = Vec::with_capacity(size);
    for rank in 0..size {
        let (first, rows) = part(starts, rank);
        blocks.push(padded(&gradient.detach().f_narrow(0, first, rows)?, most)?);
    }
    let sum = collective.reduce_scatter(&Tensor::f_cat(&blocks, 0)?)?;
    Ok(sum.f_narrow(0, 0, own)?)
}

/// Gathers the bytes of every rank, by rank.
pub fn gather_bytes(collective: &dyn Collective, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
    if bytes.len() > MAX_BYTES {
        let problem = format!("{} bytes are too many to send to all ranks: at most {MAX_BYTES}", bytes.len());
        return Err(Error::input(problem));
    }
    if collective.size() == 1 {
        return Ok(vec![bytes.to_vec()]);
    }
    let rows = gather_rows(collective, &Tensor::from_slice(bytes).f_view([bytes.len() as i64, 1])?)?;
    let all = Vec::<u8>::try_from(rows.all.f_view([-1])?)?;
    let cut = |pair: &[i64]| all[pair[0] as usize..pair[1] as usize].to_vec();
    Ok(rows.starts.windows(2).map(cut).collect())
}

/// Gathers a small value of every rank, by rank.
pub fn gather_json<T: Serialize + DeserializeOwned>(collective: &dyn Collective, value: &T) -> Result<Vec<T>> {
    let failed = |what: &str| format!("cannot {what} a value gathered over ranks as JSON");
    let bytes = serde_json::to_vec(value).map_err(|cause| Error::input(failed("write")).because(cause))?;
    let read = |bytes: Vec<u8>| serde_json::from_slice(&bytes).map_err(|e| Error::input(failed("read")).because(e));
    gather_bytes(collective, &bytes)?.into_iter().map(read).collect()
}

/// Offsets of each rank's rows. All ranks see the same shapes, so a mismatch is an error on all of them.
fn exchange_shapes(collective: &dyn Collective, rows: i64, columns: i64, kind: Kind) -> Result<Vec<i64>> {
    let shape = Tensor::from_slice(&[rows, columns, kind as i64]);
    let mut starts: Vec<i64> = vec![0];
    let mut first = None;
    let shapes = Vec::<i64>::try_from(collective.all_gather(&shape)?.f_view([-1])?)?;
    for (rank, &[rows, columns, kind]) in shapes.as_chunks().0.iter().enumerate() {
        let (want_columns, want_kind) = *first.get_or_insert((columns, kind));
        if (columns, kind) != (want_columns, want_kind) {
            let other = if kind == want_kind { "" } else { " and another kind of number" };
            let problem = format!(
                "rank {rank} has rows of {columns} columns{other}, rank 0 of {want_columns}: all ranks need the same model \
                 and configuration"
            );
            return Err(Error::input(problem));
        }
        let end = starts[rank].checked_add(rows).filter(|_| rows >= 0);
        starts.push(end.ok_or_else(|| Error::device(format!("rank {rank} sent an invalid number of rows: {rows}")))?);
    }
    Ok(starts)
}

fn part(starts: &[i64], rank: usize) -> (i64, i64) {
    (starts[rank], starts[rank + 1] - starts[rank])
}

fn longest(starts: &[i64]) -> i64 {
    starts.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0)
}

/// Pads with zero rows up to `rows`.
fn padded(x: &Tensor, rows: i64) -> Result<Tensor> {
    let short = rows - x.size()[0];
    match short {
        0 => Ok(x.f_contiguous()?),
        _ => Ok(x.f_constant_pad_nd([0, 0, 0, short])?),
    }
}

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;
    use crate::collective::Solo;

    #[test]
    fn rejects_mismatched_shapes_before_sending() {
        let x = Tensor::zeros([3, 2], (Kind::Float, Device::Cpu));
        assert!(gather_rows(&Solo, &x.view([6])).unwrap_err().to_string().contains("[6]"));
        for (gradient, starts) in [(&x, &[0, 2][..]), (&x, &[0, 1, 3]), (&x.view([6]), &[0, 6])] {
            assert!(return_rows(&Solo, gradient, starts).is_err(), "{starts:?}");
        }
        assert!(gather_bytes(&Solo, &vec![0; MAX_BYTES + 1]).is_err());
    }

    #[test]
    fn a_single_process_copies_nothing() {
        let x = Tensor::zeros([3, 2], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let rows = gather_rows(&Solo, &x).unwrap();
        assert_eq!((rows.all.data_ptr(), rows.part(0)), (x.data_ptr(), (0, 3)));
        assert!(!rows.all.requires_grad());
        assert_eq!(return_rows(&Solo, &x, &rows.starts).unwrap().data_ptr(), x.data_ptr());
    }
}
