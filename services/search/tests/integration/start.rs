//! Start of the service: errors are reported before any index is built, and the printed URL is correct.

use std::net::TcpListener;
use std::path::Path;

use crate::client::{config, shop};
use souk_search::serve;

/// Address that the service reports before it takes requests, and the error that stops it there.
fn started(home: &Path, sets: &[&str]) -> (Option<String>, String) {
    let mut said = None;
    let config = config(home, sets);
    let ended = serve(
        move || Ok(config.clone()),
        |_| (),
        |endpoint, _| {
            said = Some(endpoint.to_string());
            anyhow::bail!("seen")
        },
    );
    (said, ended.unwrap_err().to_string())
}

#[test]
fn reports_errors_before_building_the_index() {
    let home = shop();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = format!("search.listen={}", taken.local_addr().unwrap());
    let (said, ended) = started(home.path(), &[&listen]);
    assert!(said.is_none() && ended.contains("cannot listen"), "{ended}");
    let tls = r#"search.tls={certificate="/nowhere/chain.pem", key="/nowhere/key.pem"}"#;
    let (said, ended) = started(home.path(), &["search.listen=127.0.0.1:0", tls]);
    assert!(said.is_none() && ended.contains("chain.pem"), "{ended}");
    assert!(!home.path().join("state").exists());
}

#[test]
fn printed_url_has_the_scheme() {
    let home = shop();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (certificate, key) = (home.path().join("chain.pem"), home.path().join("key.pem"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let tls = format!("search.tls={{certificate={certificate:?}, key={key:?}}}");
    let (said, ended) = started(home.path(), &["search.listen=127.0.0.1:0", &tls]);
    assert_eq!(ended, "seen");
    assert!(said.unwrap().starts_with("https://127.0.0.1:"));
    let (said, _) = started(home.path(), &["search.listen=127.0.0.1:0"]);
    assert!(said.unwrap().starts_with("http://127.0.0.1:"));
}
