//! Read-only memory-mapped files: pages are loaded on access and evicted under memory pressure.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;

/// Bytes of a memory-mapped file that is no longer changed.
///
/// Truncating a mapped file kills the process (SIGBUS), so map only files that are written once, under another name, and then
/// renamed.
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
        // SAFETY: the mapping is private and read-only. Changes by another process would be visible, so callers map only files
        // that are immutable once renamed.
        let bytes = unsafe { memmap2::Mmap::map(&file)? };
        Ok(Self { bytes: Some(bytes) })
    }
}

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_deref().unwrap_or_default()
    }
}

/// Number type without padding or invalid bit patterns; machine and files are little-endian.
pub trait Number: sealed::Sealed + Copy + Send + Sync + 'static {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for u32 {}
    impl Sealed for i8 {}
}

impl Number for f32 {}
impl Number for u32 {}
impl Number for i8 {}

/// Numbers in memory or in a mapped file.
pub enum Numbers<T: Number> {
    /// Owned numbers.
    Owned(Vec<T>),
    /// Mapped file with a whole count of numbers.
    Mapped(Mapping),
}

impl<T: Number> Numbers<T> {
    /// `None` if the mapping's length is not a multiple of the number's size.
    pub fn of(mapping: Mapping) -> Option<Self> {
        mapping.as_ref().len().is_multiple_of(size_of::<T>()).then_some(Self::Mapped(mapping))
    }

    /// The numbers as bytes, as in a file.
    pub fn bytes(&self) -> &[u8] {
        bytes_of(self)
    }
}

impl<T: Number> Deref for Numbers<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Owned(numbers) => numbers,
            Self::Mapped(mapping) => {
                let bytes = mapping.as_ref();
                // SAFETY: any bits are a valid number, a mapping starts at a page (an empty one has no numbers), and the count
                // is rounded down.
                let (before, numbers, _) = unsafe { bytes.align_to::<T>() };
                debug_assert!(before.is_empty());
                numbers
            }
        }
    }
}

impl<T: Number> From<Vec<T>> for Numbers<T> {
    fn from(numbers: Vec<T>) -> Self {
        Self::Owned(numbers)
    }
}

impl<T: Number> fmt::Debug for Numbers<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} numbers", self.len())
    }
}

/// Numbers as bytes, as in a file.
pub fn bytes_of<T: Number>(numbers: &[T]) -> &[u8] {
    // SAFETY: numbers have no padding, and any byte may be read.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str) -> std::path::PathBuf {
        std::env::temp_dir().join(format!("souk-{name}-{}", std::process::id()))
    }

    #[test]
    fn a_file_is_seen_whole_and_an_empty_one_too() {
        let path = file("mapping");
        for bytes in [&b"souk"[..], b""] {
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(Mapping::open(&path).unwrap().as_ref(), bytes);
        }
        std::fs::remove_file(&path).unwrap();
        assert!(Mapping::open(&path).is_err());
    }

    #[test]
    fn numbers_come_back_from_their_file() {
        let path = file("numbers");
        let open = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            Mapping::open(&path).unwrap()
        };
        let numbers = Numbers::from(vec![0.5_f32, -2.0, f32::MAX]);
        assert_eq!(*Numbers::<f32>::of(open(numbers.bytes())).unwrap(), [0.5, -2.0, f32::MAX]);
        assert_eq!(*Numbers::<i8>::of(open(&[0, 1, 255, 128, 7])).unwrap(), [0, 1, -1, -128, 7]);
        assert!(Numbers::<u32>::of(open(&[0, 1, 255, 128, 7])).is_none());
        assert!(Numbers::<u32>::of(open(b"")).unwrap().is_empty());
        std::fs::remove_file(&path).unwrap();
    }
}
