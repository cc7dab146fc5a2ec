//! URLs with passwords. Takes a URL, gives its masked form: the password never reaches an error, a log or a written
//! configuration.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

/// URL parameters that are never secret.
const HARMLESS: [&str; 13] = [
    "application_name",
    "dbname",
    "host",
    "hostaddr",
    "port",
    "protocol",
    "ssl-mode",
    "sslcert",
    "sslmode",
    "sslkey",
    "sslrootcert",
    "statement-cache-capacity",
    "user",
];

/// URL that may hold a password. `Display`, `Debug` and `Serialize` write the password as `***`.
#[derive(Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Address(String);

impl Address {
    pub fn new(url: impl Into<String>) -> Self {
        Self(url.into())
    }

    /// Full URL with its password, for connecting.
    pub fn secret(&self) -> &str {
        &self.0
    }

    /// Text before the first colon.
    pub fn scheme(&self) -> &str {
        self.0.split_once(':').map_or(self.0.as_str(), |(scheme, _)| scheme)
    }

    /// Masked URL without parameters, for error messages.
    pub fn server(&self) -> String {
        let shown = without_passwords(&self.0);
        shown.split('?').next().unwrap_or_default().to_owned()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&without_passwords(&self.0))
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

/// Replaces the password of every URL in a text by `***`. A malformed URL may lose more than its password.
pub fn masked(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, url) = rest.split_at(at);
        let end = url.find(|c: char| c.is_whitespace() || "`\"'".contains(c)).unwrap_or(url.len());
        shown.push_str(before);
        shown.push_str(&without_passwords(&url[..end]));
        rest = &url[end..];
    }
    shown + rest
}

/// Masks everything in one URL that may be a password: the text between the first `:` after the scheme and the last
/// `@`, and the value of every parameter not in `HARMLESS`.
fn without_passwords(url: &str) -> String {
    let (scheme, rest) = url.split_at(match url.split_once(':') {
        Some((scheme, after)) if after.starts_with("//") => scheme.len() + 3,
        // `user:password@host` also looks like a scheme
        _ => 0,
    });
    let path = rest.starts_with("sqlite:");
    let shown = match (rest.find(':'), rest.rfind('@')) {
        (Some(colon), Some(at)) if colon < at && !path => {
            let among_parameters = rest[..at].split_once('?').is_some_and(|(_, query)| query.contains('='));
            let host = if among_parameters { "@***" } else { &rest[at..] };
            format!("{}:***{host}", &rest[..colon])
        }
        _ => rest.to_owned(),
    };
    match shown.split_once('?') {
        None => format!("{scheme}{shown}"),
        Some((place, query)) => {
            let parameters: Vec<String> = query.split('&').map(without_secret).collect();
            format!("{scheme}{place}?{}", parameters.join("&"))
        }
    }
}

fn without_secret(parameter: &str) -> String {
    match parameter.split_once('=') {
        Some((name, _)) if HARMLESS.contains(&name) => parameter.to_owned(),
        Some((name, _)) => format!("{name}=***"),
        // the rest of a password with an unescaped `&`
        None => "***".into(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_form_of_a_url_masks_its_password() {
        for (url, shown) in [
            ("postgres://souk:secret@db:5432/souk", "postgres://souk:***@db:5432/souk"),
            ("postgres://souk@db/souk?user=a&password=secret&x=1", "postgres://souk@db/souk?user=a&password=***&x=***"),
            ("redis://:secret@cache/0", "redis://:***@cache/0"),
            ("postgres://souk:se/cr?e@t:secret@db", "postgres://souk:***@db"),
            (
                "--set x=postgres://a:secret@b and `redis://c:secret@d`",
                "--set x=postgres://a:***@b and `redis://c:***@d`",
            ),
            ("postgres://u@db:1/x?sslpassword=secret&password=a@secret", "postgres://u@db:***@***"),
            ("postgres://u@db/x?password=a:b@secret&secret&sslmode=off", "postgres://u@db/x?password=***"),
            ("postgres://u@db/x?a=secret&password=a&secret", "postgres://u@db/x?a=***&password=***&***"),
            ("redis://cache/0?protocol=resp3", "redis://cache/0?protocol=resp3"),
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

    #[test]
    fn an_address_is_a_single_url() {
        for (url, shown) in [
            ("postgres://u:se'secret@127.0.0.1:1/x", "postgres://u:***@127.0.0.1:1/x"),
            ("postgres://u:a b`\"\nsecret@h/x", "postgres://u:***@h/x"),
            ("postgres://u@h/x?password=a 'secret&sslmode=disable", "postgres://u@h/x?password=***&sslmode=disable"),
            ("postgres:u:secret@127.0.0.1:1/x", "postgres:***@127.0.0.1:1/x"),
            ("u:secret@h/x", "u:***@h/x"),
            ("u:secret://a@h/x", "u:***@h/x"),
            ("u:a://b:secret@h/x?sslpassword=secret&password=secret", "u:***@h/x?sslpassword=***&password=***"),
            ("sqlite:/shops/a:b@c/souk.db?key=secret", "sqlite:/shops/a:b@c/souk.db?key=***"),
            ("memory", "memory"),
        ] {
            assert_eq!(Address::new(url).to_string(), shown);
        }
        assert_eq!(Address::new("postgres://u:secret@h/x?sslmode=disable").server(), "postgres://u:***@h/x");
    }

    proptest! {
        #[test]
        fn passwords_of_any_characters_are_masked(before in "[a-z:/?#@&=' `%]{0,8}", after in "[a-z:/?#@&=' `%]{0,8}") {
            for scheme in ["postgres://", "postgres:"] {
                for url in [
                    format!("{scheme}user:{before}SECRET{after}@db:5432/shop?sslmode=disable&password=SECRET"),
                    format!("{scheme}db/shop?user=a&password={before}SECRET"),
                ] {
                    let address = Address::new(url);
                    for shown in [address.to_string(), address.server()] {
                        prop_assert!(!shown.contains("SECRET"), "{}", shown);
                    }
                }
            }
        }
    }
}
