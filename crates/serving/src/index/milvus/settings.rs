//! What can be set of Milvus: takes what a configuration says, gives names and addresses that a server understands, or
//! says what to write instead. Never shows a password.

use serde::{Deserialize, Serialize};

use souk_io::address::Address;
use souk_io::error::{Error, Result};

/// What Milvus allows.
const MAX_NAME: usize = 255;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MilvusSettings {
    /// `http://HOST:PORT`, with TLS `https://HOST:PORT`; before the host `USER:PASSWORD@`, or `:TOKEN@`.
    pub address: Address,
    /// Seconds that one call may take.
    pub timeout_seconds: u64,
    /// Names of collections and aliases begin with it on the server, so that shops can share one.
    pub collection_prefix: String,
    /// Names the collection that is served.
    pub alias: String,
}

impl Default for MilvusSettings {
    fn default() -> Self {
        Self {
            address: Address::new("http://127.0.0.1:19530"),
            timeout_seconds: 10,
            collection_prefix: "souk_".into(),
            alias: "served".into(),
        }
    }
}

/// Whom to call, and what proves who calls.
#[cfg_attr(not(feature = "milvus"), allow(dead_code, reason = "without the client nobody is called"))]
pub(super) struct Target {
    pub uri: String,
    /// `USER:PASSWORD` or a token.
    pub token: Option<String>,
}

impl MilvusSettings {
    pub fn check(&self) -> Result<()> {
        if self.timeout_seconds == 0 {
            return Err(Error::config("milvus.timeout_seconds", "is 0: nothing would be answered; say 1 or more"));
        }
        self.name(&self.alias)?;
        self.target().map(drop)
    }

    /// A collection or an alias as the server calls it.
    pub(super) fn name(&self, name: &str) -> Result<String> {
        let whole = format!("{}{name}", self.collection_prefix);
        let begins = whole.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        let fits = whole.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if name.is_empty() || !begins || !fits || whole.len() > MAX_NAME {
            let problem = "is no name for Milvus: say letters, digits and `_`, no digit first, 255 at most";
            return Err(Error::config(format!("milvus: `{whole}`"), problem));
        }
        Ok(whole)
    }

    pub(super) fn target(&self) -> Result<Target> {
        let wrong = |problem| Err(Error::config("milvus.address", problem));
        let secret = self.address.secret();
        let Some((scheme, rest)) = secret.split_once("://").filter(|(scheme, _)| ["http", "https"].contains(scheme))
        else {
            return wrong("is no address of Milvus: say http://HOST:PORT");
        };
        let (proof, host) = rest.rsplit_once('@').map_or((None, rest), |(proof, host)| (Some(proof), host));
        if host.is_empty() || host.contains(['/', '?', '#']) || host.contains(char::is_whitespace) {
            return wrong("has more or less than a host and a port: say http://HOST:PORT");
        }
        let token = match proof.map(|proof| proof.split_once(':')) {
            None => None,
            Some(None | Some((_, ""))) => return wrong("names no password: say USER:PASSWORD@ or :TOKEN@"),
            Some(Some(("", token))) => Some(decoded(token)),
            Some(Some((user, password))) => Some(format!("{}:{}", decoded(user), decoded(password))),
        };
        Ok(Target { uri: format!("{scheme}://{host}"), token })
    }
}

/// `%40` is `@`, as in every URL.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..2).and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()).filter(|_| *first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str) -> MilvusSettings {
        MilvusSettings { address: Address::new(address), ..MilvusSettings::default() }
    }

    #[test]
    fn an_address_says_whom_to_call_and_who_calls() {
        for (address, uri, token) in [
            ("http://127.0.0.1:19530", "http://127.0.0.1:19530", None),
            ("https://root:Mil%40vus@h:1", "https://h:1", Some("root:Mil@vus")),
            ("https://root:a@b:c@h:1", "https://h:1", Some("root:a@b:c")),
            ("https://:t%k@h", "https://h", Some("t%k")),
        ] {
            let target = at(address).target().unwrap();
            assert_eq!((target.uri.as_str(), target.token.as_deref()), (uri, token));
            assert!(at(address).check().is_ok());
        }
    }

    #[test]
    fn what_is_wrong_is_named_and_no_password_is_shown() {
        for address in ["h:1", "milvus://h", "http://", "http://h:1/x", "http://secret@h", "http://u:@h", "http://h?a"]
        {
            let error = at(address).check().unwrap_err().to_string();
            assert!(error.starts_with("milvus.address") && !error.contains("secret"), "{error}");
        }
        let shown = format!("{:?}", at("http://root:secret@h:1"));
        assert!(shown.contains("root:***@h:1") && !shown.contains("secret"), "{shown}");
        assert!(MilvusSettings { timeout_seconds: 0, ..at("http://h") }.check().is_err());
        for (prefix, alias) in [("", "1st"), ("a-", "b"), ("", ""), ("souk_", "ä"), ("a", &"b".repeat(255))] {
            let settings = MilvusSettings { collection_prefix: prefix.into(), alias: alias.into(), ..at("http://h") };
            assert!(settings.check().is_err(), "{prefix}{alias}");
        }
        assert_eq!(at("http://h").name("g12").unwrap(), "souk_g12");
        assert!(serde_json::from_str::<MilvusSettings>(r#"{"adress":"http://h"}"#).is_err());
    }
}
