//! Settings of TLS, which all services share.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Certificate chain and key, both PEM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tls {
    pub certificate: PathBuf,
    pub key: PathBuf,
}
