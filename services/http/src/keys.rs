//! Who may ask: bearer keys, compared by digest in a time that does not tell how much of one was right. Keys are never
//! logged or kept as they are.

use std::path::Path;

use axum::http::{HeaderMap, header};
use sha2::{Digest, Sha256};
use souk::{Error, Result};

/// What a key's holder may do; an admin may do all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    Read,
    Admin,
}

/// What stands before an admin's key.
const ADMIN: &str = "admin:";

/// Without any, everybody may do all.
#[derive(Clone, Default)]
pub struct Keys {
    digests: Vec<([u8; 32], Role)>,
}

impl Keys {
    /// From the text of a variable or a file: one key or several, between white space or commas, an admin's after `admin:`.
    pub fn parse(text: &str) -> Self {
        let keys = text.split(|letter: char| letter.is_whitespace() || letter == ',');
        let keys = keys.map(|key| match key.strip_prefix(ADMIN) {
            Some(key) => (key, Role::Admin),
            None => (key, Role::Read),
        });
        Self { digests: keys.filter(|(key, _)| !key.is_empty()).map(|(key, role)| (digest(key), role)).collect() }
    }

    /// Those of `file` and of a variable of the environment. One that is named and holds no key is a mistake, not an open
    /// door.
    pub fn open(file: Option<&Path>, variable: &str) -> Result<Self> {
        let mut all = Self::default();
        if let Some(file) = file {
            let text = std::fs::read_to_string(file).map_err(Error::store(file, "read the keys"))?;
            all.add(Self::parse(&text), &file.display().to_string())?;
        }
        if let Some(text) = std::env::var_os(variable) {
            let text = text.into_string().map_err(|_| Error::config(variable, "is not valid UTF-8"))?;
            all.add(Self::parse(&text), variable)?;
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

    /// What the key of a request allows.
    pub fn role(&self, headers: &HeaderMap) -> Option<Role> {
        if self.is_empty() {
            return Some(Role::Admin);
        }
        let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let (scheme, key) = given.and_then(|value| value.split_once(' '))?;
        let given = digest(key.trim());
        // every key is looked at, whichever fits
        let known = self.digests.iter().fold(None, |known, (digest, role)| {
            let role = same(digest, &given).then_some(*role);
            known.max(role)
        });
        known.filter(|_| scheme.eq_ignore_ascii_case("bearer"))
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
        let keys = Keys::parse("one, two\nadmin:three\n");
        let admits = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            keys.role(&headers)
        };
        assert_eq!([admits("Bearer one"), admits("Bearer  two")], [Some(Role::Read); 2]);
        assert_eq!(admits("bearer three"), Some(Role::Admin));
        for value in ["Bearer on", "Bearer", "Bearer ", "Basic one", "one", "Bearer one,two", "Bearer admin:three"] {
            assert_eq!(admits(value), None, "{value}");
        }
        assert_eq!(keys.role(&HeaderMap::new()), None);
        assert_eq!(Keys::default().role(&HeaderMap::new()), Some(Role::Admin));
    }

    #[test]
    fn an_empty_file_of_keys_opens_no_door() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(Keys::open(Some(file.path()), "SOUK_NO_SUCH_KEYS").is_err());
        std::fs::write(file.path(), "secret\n").unwrap();
        assert!(!Keys::open(Some(file.path()), "SOUK_NO_SUCH_KEYS").unwrap().is_empty());
    }
}
