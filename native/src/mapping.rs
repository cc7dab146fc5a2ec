//! A file seen as memory, read-only: pages come from disk when they are touched and leave when memory is short.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Deref;
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

/// What every pattern of bits is one of, without gaps; this machine and the files are little-endian.
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

/// Numbers in memory, or a file of nothing else that is mapped.
pub enum Numbers<T: Number> {
    /// Their own.
    Owned(Vec<T>),
    /// The bytes of a file, as many as make whole numbers.
    Mapped(Mapping),
}

impl<T: Number> Numbers<T> {
    /// Of a file whose length is a multiple of theirs, or nothing.
    pub fn of(mapping: Mapping) -> Option<Self> {
        mapping.as_ref().len().is_multiple_of(size_of::<T>()).then_some(Self::Mapped(mapping))
    }

    /// As a file has them.
    pub fn bytes(&self) -> &[u8] {
        let numbers: &[T] = self;
        // SAFETY: a number has no gaps, and any byte may be read.
        unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
    }
}

impl<T: Number> Deref for Numbers<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Owned(numbers) => numbers,
            Self::Mapped(mapping) => {
                let bytes = mapping.as_ref();
                // SAFETY: any bits are a number, a mapping begins with a page (an empty one has no numbers), and only whole
                // numbers are counted.
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
