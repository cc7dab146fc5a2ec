//! Free space of disks.

use std::path::Path;

use nix::sys::statvfs::statvfs;

use crate::error::{Error, Result};

/// Free bytes for this user on the disk of a folder.
pub fn free_bytes(folder: &Path) -> Result<u64> {
    let disk = statvfs(folder).map_err(|e| Error::store(folder, "read the free space")(e.into()))?;
    Ok(disk.blocks_available() * disk.fragment_size())
}

/// Why too little is free on the disk of a folder, if that is so. A disk that cannot be asked counts as empty.
pub fn missing_space(folder: &Path, needed: u64) -> Option<String> {
    let free = free_bytes(folder).ok().filter(|free| *free < needed)?;
    Some(format!("{}: {} MiB are free, {} MiB are needed", folder.display(), free >> 20, needed >> 20))
}
