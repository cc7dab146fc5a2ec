//! Takes a URL, gives what may be shown of it: its password never reaches an error, a log or a written configuration.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

/// A URL that may hold a password. However it is shown or written, the password is `***`.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Address(String);

impl Address {
    pub fn new(url: impl Into<String>) -> Self {
        Self(url.into())
    }

    /// The whole of it, for the one who connects.
    pub(super) fn secret(&self) -> &str {
        &self.0
    }

    /// What stands before the first colon.
    pub fn scheme(&self) -> &str {
        self.0.split_once(':').map_or(self.0.as_str(), |(scheme, _)| scheme)
    }

    /// The server as errors name it: masked, and without parameters.
    pub(super) fn server(&self) -> String {
        let shown = masked(&self.0);
        shown.split('?').next().unwrap_or_default().to_owned()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&masked(&self.0))
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Address {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The text with the password of every URL in it as `***`. A malformed URL may lose more than its password, never less.
pub fn masked(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, url) = rest.split_at(at + 3);
        let end = url.find(|c: char| c.is_whitespace() || "`\"'".contains(c)).unwrap_or(url.len());
        shown.push_str(before);
        shown.push_str(&without_password(&url[..end]));
        rest = &url[end..];
    }
    shown + rest
}

/// `user:password@host`, after the scheme, and `password=` among the parameters.
fn without_password(url: &str) -> String {
    let mut shown = match (url.find(':'), url.rfind('@')) {
        (Some(colon), Some(at)) if colon < at => format!("{}:***{}", &url[..colon], &url[at..]),
        _ => url.to_owned(),
    };
    if let Some(at) = shown.to_ascii_lowercase().find("password=") {
        let begin = at + "password=".len();
        let end = shown[begin..].find('&').map_or(shown.len(), |length| begin + length);
        shown.replace_range(begin..end, "***");
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_form_of_a_url_shows_its_password() {
        for (url, shown) in [
            ("postgres://souk:secret@db:5432/souk", "postgres://souk:***@db:5432/souk"),
            ("postgres://souk@db/souk?user=a&password=secret&x=1", "postgres://souk@db/souk?user=a&password=***&x=1"),
            ("redis://:secret@cache/0", "redis://:***@cache/0"),
            ("postgres://souk:se/cr?e@t:secret@db", "postgres://souk:***@db"),
            (
                "--set x=postgres://a:secret@b and `redis://c:secret@d`",
                "--set x=postgres://a:***@b and `redis://c:***@d`",
            ),
            ("sqlite:souk.db", "sqlite:souk.db"),
            ("redis://cache:6379/0", "redis://cache:6379/0"),
        ] {
            assert_eq!(masked(url), shown);
            let address = Address::new(url);
            for form in [address.to_string(), format!("{address:?}"), serde_json::to_string(&address).unwrap()] {
                assert!(!form.contains("secret"), "{form}");
            }
            assert!(!address.server().contains("secret"));
        }
    }
}
