//! JSON over HTTP to one address. Failures say whether a retry may help. The key is never shown, redirects are not followed,
//! and the answer's size is limited.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use ureq::http::{HeaderMap, Response, StatusCode, Uri};
use ureq::{Agent, Body, Proxy, RequestBuilder};

use super::{Failure, FailureKind, shown};
use souk_io::address::Address;
use souk_io::error::{Error, Result};

/// Connect timeout.
const CONNECT: Duration = Duration::from_secs(5);
const MAX_BYTES: u64 = 8 << 20;
/// Maximum bytes of an error body.
const MAX_ERROR_BYTES: u64 = 64 << 10;
/// Maximum `Retry-After` that is honoured.
const MAX_RETRY_AFTER: f64 = 600.0;

pub struct Http {
    agent: Agent,
    url: String,
    key: Option<Key>,
    /// True after the first success: address, key and model are then known to be right.
    proven: AtomicBool,
}

/// No `Debug`, so the key is never printed.
struct Key {
    variable: String,
    secret: String,
    /// Value of the header `authorization`.
    header: String,
}

impl Http {
    /// `route` is appended to the address unless it is empty or the address ends with it. `key_env` names the environment variable with the
    /// key.
    pub fn open(address: &Address, route: &str, key_env: Option<&str>) -> Result<Self> {
        let url = endpoint(address, route)?;
        let key = key_env.map(|name| Key::open(name, std::env::var(name).ok())).transpose()?;
        let host = url.split("://").nth(1).unwrap_or_default();
        let here = ["localhost", "127.", "[::1]"].iter().any(|name| host.starts_with(name));
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // a redirect could send the key elsewhere
            .max_redirects(0)
            .max_redirects_will_error(false)
            .max_idle_connections_per_host(256)
            .max_idle_connections(256)
            .proxy(if here { None } else { Proxy::try_from_env() })
            .user_agent(concat!("souk/", env!("CARGO_PKG_VERSION")));
        Ok(Self { agent: config.build().new_agent(), url, key, proven: AtomicBool::new(false) })
    }

    /// Sends the key as the password of `user`, not as a bearer token.
    #[must_use]
    pub fn with_user(mut self, user: &str) -> Self {
        if let Some(key) = &mut self.key {
            key.header = format!("Basic {}", STANDARD.encode(format!("{user}:{}", key.secret)));
        }
        self
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn post(&self, question: &Value, patience: Duration) -> std::result::Result<Value, Failure> {
        let request = self.prepared(self.agent.post(&self.url), patience).content_type("application/json");
        self.answer(request.send(question.to_string()), patience)
    }

    /// Fetches a path below the address; none if the server has no such thing.
    pub fn get(&self, path: &str, patience: Duration) -> std::result::Result<Option<Value>, Failure> {
        let response = self.prepared(self.agent.get(format!("{}/{path}", self.url)), patience).call();
        if response.as_ref().is_ok_and(|response| response.status() == StatusCode::NOT_FOUND) {
            return Ok(None);
        }
        self.answer(response, patience).map(Some)
    }

    fn prepared<B>(&self, request: RequestBuilder<B>, patience: Duration) -> RequestBuilder<B> {
        let config = request.config().timeout_global(Some(patience)).timeout_connect(Some(patience.min(CONNECT)));
        match &self.key {
            Some(key) => config.build().header("authorization", &key.header),
            None => config.build(),
        }
    }

    fn answer(
        &self,
        response: std::result::Result<Response<Body>, ureq::Error>,
        patience: Duration,
    ) -> std::result::Result<Value, Failure> {
        let failed = |e: &ureq::Error| failure(e, patience);
        let mut response = response.map_err(|e| failed(&e))?;
        let status = response.status().as_u16();
        let limit = if (200..300).contains(&status) { MAX_BYTES } else { MAX_ERROR_BYTES };
        let body = response.body_mut().with_config().limit(limit).read_to_vec();
        if !(200..300).contains(&status) {
            let retry_after = retry_after(response.headers());
            return Err(Failure { retry_after, ..self.unwilling(status, &body.unwrap_or_default()) });
        }
        let body = body.map_err(|e| failed(&e))?;
        let answer = serde_json::from_slice(&body).map_err(|_| {
            let text = self.quoted(&String::from_utf8_lossy(&body));
            Failure::broken(format!("did not answer with JSON: `{text}`"))
        })?;
        self.proven.store(true, Ordering::Relaxed);
        Ok(answer)
    }

    /// Failure for an HTTP status other than success.
    fn unwilling(&self, status: u16, body: &[u8]) -> Failure {
        let body = String::from_utf8_lossy(body);
        let parsed: Value = serde_json::from_str(&body).unwrap_or_default();
        let said = self.quoted(message(&parsed).unwrap_or(&body));
        let said = if said.is_empty() { status.to_string() } else { format!("{status}, `{said}`") };
        // after a success, these are transient or caused by one text
        let proven = self.proven.load(Ordering::Relaxed);
        match (status, &self.key) {
            (408 | 425 | 429 | 500..=599, _) => Failure::passing(format!("answered {said}")),
            (404 | 405, _) if proven => Failure::passing(format!("answered {said}")),
            (403, _) if proven => Failure::refused(format!("answered {said}")),
            (401 | 403, Some(Key { variable, .. })) => {
                Failure::fatal(format!("rejected the key in {variable} ({said}): set a valid key"))
            }
            (401 | 403, None) => {
                let problem =
                    format!("requires a key ({said}): set `key_env` to the name of the variable that holds it");
                Failure::fatal(problem)
            }
            (300..=399 | 404 | 405, _) => {
                let problem = format!("has no such route or model ({said}): check `url` and `model`");
                Failure::fatal(problem)
            }
            (400, _) if blames_settings(&parsed) => {
                Failure::fatal(format!("rejected the request ({said}): check the settings"))
            }
            _ => Failure::refused(format!("answered {said}")),
        }
    }

    /// The server's error message, with the key removed if the server repeats it.
    fn quoted(&self, text: &str) -> String {
        match &self.key {
            Some(key) => shown(&text.replace(&key.header, "***").replace(&key.secret, "***")),
            None => shown(text),
        }
    }
}

impl Key {
    fn open(variable: &str, value: Option<String>) -> Result<Self> {
        let place = format!("key_env `{variable}`");
        let problem = "is not set in the environment: export it, or leave `key_env` out where no key is needed";
        let secret = value.map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
        let secret = secret.ok_or_else(|| Error::config(&place, problem))?;
        if secret.contains(|c: char| !c.is_ascii_graphic()) {
            return Err(Error::config(&place, "is not a valid key: it contains spaces or non-ASCII characters"));
        }
        let header = format!("Bearer {secret}");
        Ok(Self { variable: variable.into(), secret, header })
    }
}

fn endpoint(address: &Address, route: &str) -> Result<String> {
    let shown = address.to_string();
    let host = ["http://", "https://"].iter().find_map(|scheme| shown.strip_prefix(scheme));
    let Some(host) = host.filter(|host| !host.is_empty() && !host.starts_with(['/', ':'])) else {
        return Err(Error::config(address, "is not a service address: use http://HOST:PORT or https://HOST"));
    };
    if host.contains(['@', '?', '#']) {
        let problem = "has more than a host and a path: keys and passwords go into a variable that `key_env` names";
        return Err(Error::config(address, problem));
    }
    let url = shown.trim_end_matches('/');
    let is_whole = route.is_empty() || url.ends_with(&format!("/{route}"));
    let url = if is_whole { url.to_owned() } else { format!("{url}/{route}") };
    url.parse::<Uri>().map_err(|e| Error::config(address, "is not a URL").because(e))?;
    Ok(url)
}

/// Failure without a complete answer.
fn failure(error: &ureq::Error, patience: Duration) -> Failure {
    use ureq::Error as Wire;
    let kind = match error {
        Wire::BadUri(_) | Wire::Http(_) | Wire::InvalidProxyUrl | Wire::Tls(_) | Wire::TlsRequired => {
            FailureKind::Fatal
        }
        Wire::BodyExceedsLimit(_) | Wire::LargeResponseHeader(..) | Wire::Decompress(..) => FailureKind::Broken,
        _ => FailureKind::Passing,
    };
    let problem = match error {
        Wire::Timeout(ureq::Timeout::Connect) => "cannot be reached: no connection in time".into(),
        Wire::Timeout(_) => format!("did not answer within {:.1} s", patience.as_secs_f64()),
        Wire::HostNotFound => "its host is not found".into(),
        Wire::BodyExceedsLimit(_) => format!("its answer is larger than {} MiB", MAX_BYTES >> 20),
        Wire::Io(e) => shown(&e.to_string()),
        other => shown(&other.to_string()),
    };
    Failure { kind, problem, retry_after: None }
}

/// Error message in OpenAI's, TEI's or Cohere's format.
fn message(body: &Value) -> Option<&str> {
    let error = &body["error"];
    [&error["message"], error, &body["message"], &body["detail"]].into_iter().find_map(Value::as_str)
}

/// True if an OpenAI error names a request field that comes from the settings, not from the data.
fn blames_settings(body: &Value) -> bool {
    let error = &body["error"];
    let fields = ["model", "response_format", "logprobs", "top_logprobs", "max_tokens", "temperature"];
    error["code"] == "model_not_found" || error["param"].as_str().is_some_and(|param| fields.contains(&param))
}

/// Seconds; a date is ignored.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds: f64 = headers.get("retry-after")?.to_str().ok()?.trim().parse().ok()?;
    (seconds >= 0.0).then(|| Duration::from_secs_f64(seconds.min(MAX_RETRY_AFTER)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_gets_its_route_once_and_holds_no_secret() {
        for (url, full) in [
            ("http://judge:8090", "http://judge:8090/score"),
            ("http://judge:8090/", "http://judge:8090/score"),
            ("https://judge/a/score", "https://judge/a/score"),
            ("http://[::1]:80/x/", "http://[::1]:80/x/score"),
        ] {
            assert_eq!(endpoint(&Address::new(url), "score").unwrap(), full);
        }
        assert_eq!(endpoint(&Address::new("http://engine/hook/"), "").unwrap(), "http://engine/hook");
        for url in [
            "judge:8090",
            "ftp://judge",
            "http://",
            "http:///score",
            "http://a b/",
            "http://me:secret@judge",
            "http://judge/?key=secret",
            "secret",
        ] {
            let error = endpoint(&Address::new(url), "score").unwrap_err();
            assert!(matches!(error, Error::Config { .. }), "{url}");
            assert!(url == "secret" || !format!("{error:?}").contains("secret"), "{error:?}");
        }
    }

    #[test]
    fn a_key_is_there_and_is_one() {
        assert_eq!(Key::open("K", Some(" sk-1\n".into())).ok().unwrap().secret, "sk-1");
        for value in [None, Some(""), Some(" \n"), Some("a\nsecret"), Some("sécret")] {
            let error = Key::open("JUDGE_KEY", value.map(String::from)).err().unwrap().to_string();
            assert!(error.contains("`JUDGE_KEY`") && !error.contains("cret"), "{error}");
        }
    }

    #[test]
    fn a_wait_is_read_in_seconds() {
        let wait = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("retry-after", value.parse().unwrap());
            retry_after(&headers)
        };
        assert_eq!(wait(" 2 "), Some(Duration::from_secs(2)));
        assert_eq!(wait("1e300"), Some(Duration::from_secs(600)));
        for none in ["", "-1", "NaN", "Wed, 21 Oct 2015 07:28:00 GMT"] {
            assert_eq!(wait(none), None, "{none}");
        }
    }
}
