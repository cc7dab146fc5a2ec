//! API keys (bearer tokens) with roles, compared by digest in constant time. Keys are never logged or kept in plain text.

use std::path::Path;

use axum::http::{HeaderMap, header};
use sha2::{Digest, Sha256};
use souk_io::{Error, Result};

/// Permissions of a key; an admin may do everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    Read,
    Admin,
}

/// Prefix of an admin key.
const ADMIN: &str = "admin:";

/// All known keys. Without any, everybody has full access.
#[derive(Clone, Default)]
pub struct Keys {
    digests: Vec<([u8; 32], Role)>,
}

impl Keys {
    /// Parses keys separated by white space or commas; admin keys start with `admin:`.
    pub fn parse(text: &str) -> Self {
        let keys = text.split(|letter: char| letter.is_whitespace() || letter == ',');
        let keys = keys.map(|key| match key.strip_prefix(ADMIN) {
            Some(key) => (key, Role::Admin),
            None => (key, Role::Read),
        });
        Self { digests: keys.filter(|(key, _)| !key.is_empty()).map(|(key, role)| (digest(key), role)).collect() }
    }

    /// Reads keys from `file` and an environment variable. Either one without a key is an error, because no keys mean full
    /// access.
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
            return Err(Error::config(place, "contains no key: add one, or unset it"));
        }
        self.digests.extend(more.digests);
        Ok(())
    }

    pub fn is_empty(&self) -> bool {
        self.digests.is_empty()
    }

    /// Role of the request's key; none if the key is unknown.
    pub fn role(&self, headers: &HeaderMap) -> Option<Role> {
        if self.is_empty() {
            return Some(Role::Admin);
        }
        let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let (scheme, key) = given.and_then(|value| value.split_once(' '))?;
        let given = digest(key.trim());
        // compares with every key, so the time does not depend on which one fits
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
    a.iter().zip(b).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
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
    fn an_empty_key_file_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(Keys::open(Some(file.path()), "SOUK_NO_SUCH_KEYS").is_err());
        std::fs::write(file.path(), "secret\n").unwrap();
        assert!(!Keys::open(Some(file.path()), "SOUK_NO_SUCH_KEYS").unwrap().is_empty());
    }
}
