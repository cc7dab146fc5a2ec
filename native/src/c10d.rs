//! torch's collectives: a [`Store`] for rendezvous and a [`ProcessGroup`] that exchanges tensors through Gloo, or through NCCL
//! for CUDA tensors if it was joined; otherwise CUDA tensors go through the host.
//!
//! Every call blocks until it succeeds, fails or times out.

use crate::ffi::{self, SoukGroup, SoukGroupOptions, SoukStore};
use crate::tensor::bad;
use crate::{NativeError, NativeResult};
use std::ffi::CString;
use std::marker::PhantomData;
use std::path::Path;
use std::ptr::{null, null_mut};
use std::time::Duration;
use tch::Tensor;

/// Connection to torch's TCPStore: a key-value store shared by all processes of a job.
#[derive(Debug)]
pub struct Store {
    raw: *mut SoukStore,
}

// SAFETY: a TCPStore is not bound to a thread; it locks each request.
unsafe impl Send for Store {}

impl Store {
    /// Connects to the store's address; one process of the job must `serve`. Waits for the server.
    pub fn open(address: &str, port: u16, serve: bool, timeout: Duration) -> NativeResult<Self> {
        let address = text("address", address)?;
        let mut raw = null_mut();
        // SAFETY: the address is zero-terminated; on success the shim writes a pointer that it gives away.
        ffi::check(unsafe {
            ffi::souk_store_open(address.as_ptr(), port, i32::from(serve), milliseconds(timeout), &mut raw)
        })?;
        Ok(Self { raw })
    }

    /// Sets a value. Does not wait for the server, so another connection may read the old value until this one has received an
    /// answer to a later request.
    pub fn set(&self, key: &str, value: &[u8]) -> NativeResult<()> {
        let key = text("key", key)?;
        // SAFETY: the store lives as long as this object; key and value outlive the call.
        ffi::check(unsafe { ffi::souk_store_set(self.raw, key.as_ptr(), value.as_ptr(), value.len() as i64) })
    }

    /// Sets a value if the key is unset; returns the resulting value, ours or another's. An empty value sets nothing.
    pub fn set_if_absent(&self, key: &str, value: &[u8]) -> NativeResult<Vec<u8>> {
        let key = text("key", key)?;
        let (mut found, mut length) = (null(), 0);
        // SAFETY: as in `set`; the shim writes a pointer and a length.
        ffi::check(unsafe {
            let length = &mut length;
            ffi::souk_store_set_if_absent(
                self.raw,
                key.as_ptr(),
                value.as_ptr(),
                value.len() as i64,
                &mut found,
                length,
            )
        })?;
        // SAFETY: the answer to this thread's last request, which lives until its next one.
        Ok(unsafe { bytes(found, length) })
    }

    /// Returns the value, or none; does not wait for one.
    pub fn get(&self, key: &str) -> NativeResult<Option<Vec<u8>>> {
        let key = text("key", key)?;
        let (mut found, mut length) = (null(), 0);
        // SAFETY: as in `set_if_absent`.
        ffi::check(unsafe { ffi::souk_store_get(self.raw, key.as_ptr(), &mut found, &mut length) })?;
        // SAFETY: the answer to this thread's last request, which lives until its next one.
        Ok((length >= 0).then(|| unsafe { bytes(found, length) }))
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: created by the shim and freed once; a process group holds its own reference to the store.
        unsafe { ffi::souk_store_free(self.raw) }
    }
}

/// Address at which other processes reach this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network<'a> {
    /// The address that this machine's host name resolves to.
    Default,
    /// A network interface, such as `eth0`.
    Interface(&'a str),
    /// A host name or an address of this machine.
    Address(&'a str),
}

/// Processes that call the same operations in the same order.
#[derive(Debug)]
pub struct ProcessGroup {
    raw: *mut SoukGroup,
    rank: usize,
    size: usize,
    /// Not `Sync`: calls must be ordered.
    _one_thread: PhantomData<std::cell::Cell<()>>,
}

// SAFETY: a ProcessGroupGloo is not bound to a thread, and `PhantomData<Cell>` prevents concurrent calls.
unsafe impl Send for ProcessGroup {}

/// Rank and size of a group.
#[derive(Clone, Copy, Debug)]
pub struct GroupPosition {
    /// Rank of this process, from 0.
    pub rank: usize,
    /// Number of processes.
    pub size: usize,
}

impl ProcessGroup {
    /// Connects to all other processes; returns when all are connected. Groups on one store need different prefixes.
    pub fn connect(
        store: &Store,
        prefix: &str,
        member: GroupPosition,
        network: Network,
        timeout: Duration,
    ) -> NativeResult<Self> {
        let GroupPosition { rank, size } = member;
        if rank >= size || i32::try_from(size).is_err() {
            return bad("rank", format!("{rank} is not one of {size}"));
        }
        let prefix = text("prefix", prefix)?;
        let (interface, address) = match network {
            Network::Default => (None, None),
            Network::Interface(name) => (Some(text("interface", name)?), None),
            Network::Address(name) => (None, Some(text("address", name)?)),
        };
        let options = SoukGroupOptions {
            prefix: prefix.as_ptr(),
            rank: rank as i32,
            size: size as i32,
            interface: interface.as_ref().map_or(null(), |name| name.as_ptr()),
            address: address.as_ref().map_or(null(), |name| name.as_ptr()),
            timeout_ms: milliseconds(timeout),
        };
        let mut raw = null_mut();
        // SAFETY: all texts are zero-terminated and outlive the call; on success the shim gives the group away.
        ffi::check(unsafe { ffi::souk_group_open(store.raw, &options, &mut raw) })?;
        Ok(Self { raw, rank, size, _one_thread: PhantomData })
    }

    /// Sends CUDA tensors through NCCL from now on. `library` is compiled by `scripts/nccl.sh`; CUDA must be loaded.
    pub fn join_nccl(&mut self, store: &Store, prefix: &str, library: &Path, timeout: Duration) -> NativeResult<()> {
        let (prefix, library) = (text("prefix", prefix)?, text("library", &library.to_string_lossy())?);
        let options = SoukGroupOptions {
            prefix: prefix.as_ptr(),
            rank: self.rank as i32,
            size: self.size as i32,
            interface: null(),
            address: null(),
            timeout_ms: milliseconds(timeout),
        };
        // SAFETY: the group lives as long as this object and is ours alone; all texts are zero-terminated and outlive the call.
        ffi::check(unsafe { ffi::souk_group_join_nccl(self.raw, store.raw, &options, library.as_ptr()) })
    }

    /// All-gather: every rank's tensor, `[size, ...]`. All must have the same shape and type.
    pub fn all_gather(&self, x: &Tensor) -> NativeResult<Tensor> {
        dense("x", x)?;
        // SAFETY: the group lives as long as this object; the shim writes one tensor on success.
        ffi::tensor(|out| unsafe { ffi::souk_group_all_gather(self.raw, x.as_ptr(), out) })
    }

    /// All-reduce: the sum over ranks, in place.
    pub fn all_reduce(&self, x: &mut Tensor) -> NativeResult<()> {
        dense("x", x)?;
        // SAFETY: the group lives as long as this object; the tensor is dense and ours alone.
        ffi::check(unsafe { ffi::souk_group_all_reduce(self.raw, x.as_ptr()) })
    }

    /// Reduce-scatter: sums `x` `[size * n, ...]` over ranks and returns this rank's part `[n, ...]`.
    pub fn reduce_scatter(&self, x: &Tensor) -> NativeResult<Tensor> {
        dense("x", x)?;
        let mut shape = x.size();
        let size = self.size as i64;
        match shape.first_mut() {
            Some(rows) if *rows % size == 0 => *rows /= size,
            _ => return bad("x", format!("must have a multiple of {size} rows, has shape {shape:?}")),
        }
        let out =
            Tensor::f_zeros(&shape, (x.kind(), x.device())).map_err(|error| NativeError::Torch(error.to_string()))?;
        // SAFETY: as in `all_reduce`; the output has the shape of a part.
        ffi::check(unsafe { ffi::souk_group_reduce_scatter(self.raw, out.as_ptr(), x.as_ptr()) })?;
        Ok(out)
    }

    /// Broadcast: the root's tensor, in place on all ranks.
    pub fn broadcast(&self, x: &mut Tensor, root: usize) -> NativeResult<()> {
        dense("x", x)?;
        if root >= self.size {
            return bad("root", format!("{root} is not one of {}", self.size));
        }
        // SAFETY: as in `all_reduce`.
        ffi::check(unsafe { ffi::souk_group_broadcast(self.raw, x.as_ptr(), root as i32) })
    }

    /// Barrier: returns when all ranks have called it.
    pub fn barrier(&self) -> NativeResult<()> {
        // SAFETY: the group lives as long as this object.
        ffi::check(unsafe { ffi::souk_group_barrier(self.raw) })
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        // SAFETY: created by the shim and freed once; calls block, so none is in progress.
        unsafe { ffi::souk_group_free(self.raw) }
    }
}

fn dense(name: &'static str, x: &Tensor) -> NativeResult<()> {
    if !x.defined() || x.is_sparse() || !x.is_contiguous() {
        return bad(name, "is not a dense, contiguous tensor");
    }
    Ok(())
}

fn text(name: &'static str, text: &str) -> NativeResult<CString> {
    CString::new(text).or_else(|_| bad(name, "holds a zero byte"))
}

fn milliseconds(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// # Safety
/// `data` must be readable for `length` bytes; it may be null for none.
unsafe fn bytes(data: *const u8, length: i64) -> Vec<u8> {
    if data.is_null() || length <= 0 {
        return Vec::new();
    }
    // SAFETY: guaranteed by the caller.
    unsafe { std::slice::from_raw_parts(data, length as usize) }.to_vec()
}
