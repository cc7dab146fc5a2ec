//! Origin checks for services without keys. A browser sends requests from any page it shows, to this machine too, so without
//! keys only the service's own pages may send requests.

use std::net::IpAddr;

use axum::http::uri::Authority;
use axum::http::{HeaderMap, header};

use crate::fault::Fault;

/// Rejects requests from foreign pages, and requests to a DNS name that an attacker may have pointed at this machine.
pub(crate) fn check(headers: &HeaderMap) -> Result<(), Fault> {
    // every browser sends Host
    let host = headers.get(header::HOST).map(|host| host.to_str().unwrap_or_default());
    if host.is_some_and(|host| !is_local(host)) {
        return Err(Fault::foreign(
            "without keys this service answers only to an IP address or a name without a dot: set keys, or use \
             `localhost`",
        ));
    }
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let page = origin.to_str().ok().and_then(|origin| Some(origin.split_once("://")?.1));
    if page.zip(host).is_some_and(|(page, host)| page.eq_ignore_ascii_case(host)) {
        return Ok(());
    }
    Err(Fault::foreign(
        "without keys this service answers only to its own pages, and the headers Origin and Host differ: set keys, or \
         let the proxy forward Host unchanged",
    ))
}

/// An IP address, or a name without a dot: names of this machine, of containers, of a cluster.
fn is_local(host: &str) -> bool {
    let Ok(authority) = Authority::try_from(host) else { return false };
    let name = authority.host();
    !name.contains('.') || name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_pages_are_allowed() {
        let admits = |host: &str, origin: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().unwrap());
            origin.map(|origin| headers.insert(header::ORIGIN, origin.parse().unwrap()));
            check(&headers).is_ok()
        };
        for host in ["localhost:8080", "127.0.0.1:8080", "[::1]:8080", "[::ffff:10.0.0.7]", "10.0.0.7", "search:80"] {
            assert!(admits(host, None), "{host}");
            assert!(admits(host, Some(&format!("http://{host}"))) && admits(host, Some(&format!("https://{host}"))));
            for origin in ["null", "http://evil.example", "http://localhost:8081", "http://", "localhost:8080", ""] {
                assert!(!admits(host, Some(origin)), "{host} {origin}");
            }
        }
        // DNS rebinding: such a name may point at this machine after its page was loaded
        for host in ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "", "a b"] {
            assert!(!admits(host, None) && !admits(host, Some(&format!("http://{host}"))), "{host}");
        }
        assert!(check(&HeaderMap::new()).is_ok());
    }
}
