//! Who may ask: bearer keys, compared by digest in a time that does not tell how much of one was right. Keys are never
//! logged or kept as they are.

use std::path::Path;

use axum::http::{HeaderMap, header};
use sha2::{Digest, Sha256};
use souk::{Error, Result};

/// The variable with keys, between commas or spaces.
pub const VARIABLE: &str = "SOUK_RELEVANCE_KEYS";

/// Without any, everybody may ask.
#[derive(Clone, Default)]
pub struct Keys {
    digests: Vec<[u8; 32]>,
}

impl Keys {
    /// From the text of a variable or a file: one key or several, between white space or commas.
    pub fn parse(text: &str) -> Self {
        let keys = text.split(|letter: char| letter.is_whitespace() || letter == ',').filter(|key| !key.is_empty());
        Self { digests: keys.map(digest).collect() }
    }

    /// Those of `file` and of the environment. One that is named and holds no key is a mistake, not an open door.
    pub fn open(file: Option<&Path>) -> Result<Self> {
        let mut all = Self::default();
        if let Some(file) = file {
            let text = std::fs::read_to_string(file).map_err(Error::store(file, "read the keys"))?;
            all.add(Self::parse(&text), &file.display().to_string())?;
        }
        if let Some(text) = std::env::var_os(VARIABLE) {
            let text = text.into_string().map_err(|_| Error::config(VARIABLE, "is not valid UTF-8"))?;
            all.add(Self::parse(&text), VARIABLE)?;
        }
        Ok(all)
    }

    fn add(&mut self, more: Self, place: &str) -> Result<()> {
        if more.is_empty() {
            return Err(Error::config(place, "holds no key: write one, or do not name it"));
        }
        self.digests.extend(more.digests);
        Ok(())
    }

    pub fn is_empty(&self) -> bool {
        self.digests.is_empty()
    }

    pub fn admit(&self, headers: &HeaderMap) -> bool {
        if self.is_empty() {
            return true;
        }
        let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let Some((scheme, key)) = given.and_then(|value| value.split_once(' ')) else { return false };
        let given = digest(key.trim());
        // every key is looked at, whichever fits
        let known = self.digests.iter().fold(false, |known, digest| known | same(digest, &given));
        scheme.eq_ignore_ascii_case("bearer") && known
    }
}

fn digest(key: &str) -> [u8; 32] {
    Sha256::digest(key).into()
}

fn same(a: &[u8; 32], b: &[u8; 32]) -> bool {
    a.iter().zip(b).fold(0, |apart, (a, b)| apart | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_keys_are_admitted() {
        let keys = Keys::parse("one, two\nthree\n");
        let admits = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            keys.admit(&headers)
        };
        assert!(admits("Bearer one") && admits("bearer three") && admits("Bearer  two"));
        for value in ["Bearer on", "Bearer", "Bearer ", "Basic one", "one", "Bearer one,two"] {
            assert!(!admits(value), "{value}");
        }
        assert!(!keys.admit(&HeaderMap::new()));
        assert!(Keys::default().admit(&HeaderMap::new()));
    }

    #[test]
    fn an_empty_file_of_keys_opens_no_door() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(Keys::open(Some(file.path())).is_err());
        std::fs::write(file.path(), "secret\n").unwrap();
        assert!(!Keys::open(Some(file.path())).unwrap().is_empty());
    }
}
