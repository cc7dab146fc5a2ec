//! Settings of a Milvus server: checks them and derives names and addresses. Never shows a password.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use souk_io::address::Address;
use souk_io::error::{Error, Result};

/// Milvus' maximum length of a name.
const MAX_NAME: usize = 255;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct MilvusSettings {
    /// `http://HOST:PORT`, or `https://HOST:PORT` for TLS; credentials go before the host: `USER:PASSWORD@` or
    /// `:TOKEN@`.
    pub address: Address,
    /// Timeout of one call in seconds.
    pub timeout_seconds: u64,
    /// Prefix of collection and alias names, so that several shops can share a server.
    pub collection_prefix: String,
    /// Alias of the served collection.
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

/// Address and credentials.
#[cfg_attr(not(feature = "milvus"), allow(dead_code, reason = "used by the client only"))]
pub(super) struct ClientTarget {
    pub uri: String,
    /// `USER:PASSWORD` or a token.
    pub token: Option<String>,
}

impl MilvusSettings {
    pub fn check(&self) -> Result<()> {
        if self.timeout_seconds == 0 {
            return Err(Error::config("milvus.timeout_seconds", "is 0: set it to 1 or more"));
        }
        self.name(&self.alias)?;
        self.target().map(drop)
    }

    /// Name of a collection or alias on the server.
    pub(super) fn name(&self, name: &str) -> Result<String> {
        let full = format!("{}{name}", self.collection_prefix);
        let starts_well = full.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        let is_plain = full.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if name.is_empty() || !starts_well || !is_plain || full.len() > MAX_NAME {
            let problem =
                "is not a valid Milvus name: use letters, digits and `_`, not a digit first, at most 255 characters";
            return Err(Error::config(format!("milvus: `{full}`"), problem));
        }
        Ok(full)
    }

    pub(super) fn target(&self) -> Result<ClientTarget> {
        let wrong = |problem| Err(Error::config("milvus.address", problem));
        let secret = self.address.secret();
        let Some((scheme, rest)) = secret.split_once("://").filter(|(scheme, _)| ["http", "https"].contains(scheme))
        else {
            return wrong("is not a Milvus address: set it to http://HOST:PORT");
        };
        let (credentials, host) =
            rest.rsplit_once('@').map_or((None, rest), |(credentials, host)| (Some(credentials), host));
        if host.is_empty() || host.contains(['/', '?', '#']) || host.contains(char::is_whitespace) {
            return wrong("must have only a host and a port: set it to http://HOST:PORT");
        }
        let token = match credentials.map(|credentials| credentials.split_once(':')) {
            None => None,
            Some(None | Some((_, ""))) => return wrong("has no password: write USER:PASSWORD@ or :TOKEN@"),
            Some(Some(("", token))) => Some(percent_decode(token)),
            Some(Some((user, password))) => Some(format!("{}:{}", percent_decode(user), percent_decode(password))),
        };
        Ok(ClientTarget { uri: format!("{scheme}://{host}"), token })
    }
}

/// Decodes percent-encoding (`%40` is `@`).
fn percent_decode(text: &str) -> String {
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
    fn parses_address_and_credentials() {
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
    fn rejects_invalid_settings_and_hides_passwords() {
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
