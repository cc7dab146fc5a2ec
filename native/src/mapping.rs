//! A file seen as memory, read-only: pages come from disk when they are touched and leave when memory is short.

use std::fs::File;
use std::io;
use std::path::Path;

/// The bytes of a file that nobody changes any more.
///
/// A file that is cut short while it is mapped ends the process (SIGBUS); map only files that are written once, aside,
/// and renamed into place.
#[derive(Debug)]
pub struct Mapping {
    bytes: Option<memmap2::Mmap>,
}

impl Mapping {
    /// Maps the whole file; an empty file is an empty mapping.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        if file.metadata()?.len() == 0 {
            return Ok(Self { bytes: None });
        }
        // SAFETY: the mapping is private to this process and read-only. Bytes that another process changes underneath
        // would be seen changed; callers map only files that are immutable once they have their name.
        let bytes = unsafe { memmap2::Mmap::map(&file)? };
        Ok(Self { bytes: Some(bytes) })
    }
}

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_deref().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_seen_whole_and_an_empty_one_too() {
        let path = std::env::temp_dir().join(format!("souk-mapping-{}", std::process::id()));
        for bytes in [&b"souk"[..], b""] {
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(Mapping::open(&path).unwrap().as_ref(), bytes);
        }
        std::fs::remove_file(&path).unwrap();
        assert!(Mapping::open(&path).is_err());
    }
}
