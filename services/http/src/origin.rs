//! Which web pages may ask a service without keys. A browser sends the requests of any page it shows, also to this machine
//! itself, so that where no key is asked for, a page has to be the service's own.

use std::net::IpAddr;

use axum::http::uri::Authority;
use axum::http::{HeaderMap, header};

use crate::fault::Fault;

/// Refuses requests of pages from elsewhere: those that say so, and those to a name that a stranger may have pointed here.
pub(crate) fn check(headers: &HeaderMap) -> Result<(), Fault> {
    // no browser leaves it out
    let host = headers.get(header::HOST).map(|host| host.to_str().unwrap_or_default());
    if host.is_some_and(|host| !is_near(host)) {
        return Err(Fault::foreign(
            "without keys this service answers only to an address, or to a name without a dot: give it keys, or ask \
             `localhost`",
        ));
    }
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let page = origin.to_str().ok().and_then(|origin| Some(origin.split_once("://")?.1));
    match page.zip(host).is_some_and(|(page, host)| page.eq_ignore_ascii_case(host)) {
        true => Ok(()),
        false => Err(Fault::foreign(
            "without keys this service answers only to its own pages, and the headers Origin and Host differ: give it \
             keys, or let a proxy pass Host on as it came",
        )),
    }
}

/// An address, or a name that no page from elsewhere has: those of this machine, of containers, of a cluster.
fn is_near(host: &str) -> bool {
    let Ok(authority) = Authority::try_from(host) else { return false };
    let name = authority.host();
    !name.contains('.') || name.trim_matches(['[', ']']).parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pages_of_the_service_itself_may_ask() {
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
        // such a name may be pointed at this machine after its page was loaded
        for host in ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "", "a b"] {
            assert!(!admits(host, None) && !admits(host, Some(&format!("http://{host}"))), "{host}");
        }
        assert!(check(&HeaderMap::new()).is_ok());
    }
}
