//! API keys (bearer tokens) with roles and limits, compared by digest in constant time. Keys are never logged or kept in plain text.
//! A changed key file is read again while the service runs.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use axum::http::{HeaderMap, header};
use sha2::{Digest, Sha256};
use souk_io::{Error, Result};

use crate::fault::Fault;
use crate::role::Role;

/// Interval at which the key file is looked at.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// All known keys. Without any, everybody has full access.
#[derive(Default)]
pub struct Keys {
    /// Keys that do not change.
    fixed: Vec<Key>,
    file: Option<KeyFile>,
}

struct Key {
    digest: [u8; 32],
    name: String,
    roles: Vec<Role>,
    limit: Option<RateLimit>,
}

/// Requests that a key may send in a second, and as many at once after a pause.
struct RateLimit {
    per_second: f64,
    /// Requests left, as of a time.
    left: Mutex<(f64, Instant)>,
}

struct KeyFile {
    path: PathBuf,
    keys: RwLock<Vec<Key>>,
    seen: Mutex<Seen>,
}

struct Seen {
    /// When the file was looked at.
    at: Instant,
    /// Its time of change and length then.
    state: Option<(SystemTime, u64)>,
}

impl Keys {
    /// Parses keys separated by white space or commas, each as `[[NAME=]ROLE+ROLE[@RATE]:]KEY`. Lines that begin with `#` are
    /// comments. `admin` stands for all roles; without roles, a key may search, vote and tell events.
    pub fn parse(text: &str) -> Result<Self> {
        Ok(Self { fixed: parse(text, "the keys")?, file: None })
    }

    /// Reads keys from `file` and an environment variable. Either one without a key is an error, because no keys mean full
    /// access.
    pub fn open(file: Option<&Path>, variable: &str) -> Result<Self> {
        let mut all = Self { fixed: Vec::new(), file: file.map(KeyFile::open).transpose()? };
        if let Some(text) = std::env::var_os(variable) {
            let text = text.into_string().map_err(|_| Error::config(variable, "is not valid UTF-8"))?;
            all.fixed = parse_some(&text, variable)?;
        }
        Ok(all)
    }

    pub fn is_empty(&self) -> bool {
        self.fixed.is_empty() && self.file.is_none()
    }

    /// Checks that a request's key has a role and keeps its limit. Returns the key's name; empty if no keys are asked for.
    pub(crate) fn check(&self, headers: &HeaderMap, role: Role) -> std::result::Result<String, Fault> {
        if self.is_empty() {
            return Ok(String::new());
        }
        let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let (scheme, key) = given.and_then(|value| value.split_once(' ')).ok_or_else(Fault::unknown_key)?;
        let given = digest(key.trim());
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(Fault::unknown_key());
        }
        let check = |keys: &[Key]| find(keys, &given).map(|key| key.check(role));
        let found = match &self.file {
            Some(file) => {
                file.refresh();
                check(&file.keys.read().unwrap_or_else(PoisonError::into_inner))
            }
            None => None,
        };
        found.or_else(|| check(&self.fixed)).unwrap_or_else(|| Err(Fault::unknown_key()))
    }
}

impl Key {
    fn check(&self, role: Role) -> std::result::Result<String, Fault> {
        if !self.roles.contains(&role) {
            return Err(Fault::forbidden(&self.name, role));
        }
        match &self.limit {
            Some(limit) if !limit.takes() => {
                let (name, rate) = (&self.name, limit.per_second);
                Err(Fault::busy(format!("the key `{name}` may send {rate} requests in a second: send fewer")))
            }
            _ => Ok(self.name.clone()),
        }
    }
}

impl RateLimit {
    fn new(per_second: f64) -> Self {
        Self { per_second, left: Mutex::new((per_second.max(1.0), Instant::now())) }
    }

    /// Whether another request is within the limit; counts it then.
    fn takes(&self) -> bool {
        let mut left = lock(&self.left);
        let (num, since) = *left;
        let num = (num + since.elapsed().as_secs_f64() * self.per_second).min(self.per_second.max(1.0));
        let takes = num >= 1.0;
        *left = (if takes { num - 1.0 } else { num }, Instant::now());
        takes
    }
}

impl KeyFile {
    fn open(path: &Path) -> Result<Self> {
        // before reading, so that a change meanwhile is seen later
        let seen = Seen { at: Instant::now(), state: state(path) };
        let keys = read(path)?;
        Ok(Self { path: path.into(), keys: RwLock::new(keys), seen: Mutex::new(seen) })
    }

    /// Reads the file again if it has changed. A file with a mistake changes nothing.
    fn refresh(&self) {
        let mut seen = lock(&self.seen);
        if seen.at.elapsed() < CHECK_INTERVAL {
            return;
        }
        seen.at = Instant::now();
        let found = state(&self.path);
        if found == seen.state {
            return;
        }
        seen.state = found;
        match read(&self.path) {
            Ok(keys) => {
                tracing::info!(path = %self.path.display(), num = keys.len(), "read the changed keys");
                *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
            }
            Err(error) => tracing::error!(?error, "cannot read the changed keys: the ones before stay"),
        }
    }
}

fn state(path: &Path) -> Option<(SystemTime, u64)> {
    let data = path.metadata().ok()?;
    Some((data.modified().ok()?, data.len()))
}

fn read(path: &Path) -> Result<Vec<Key>> {
    let text = std::fs::read_to_string(path).map_err(Error::store(path, "read the keys"))?;
    parse_some(&text, &path.display().to_string())
}

fn parse_some(text: &str, place: &str) -> Result<Vec<Key>> {
    let keys = parse(text, place)?;
    if keys.is_empty() {
        return Err(Error::config(place, "contains no key: add one, or unset it"));
    }
    Ok(keys)
}

fn parse(text: &str, place: &str) -> Result<Vec<Key>> {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    let words = lines.flat_map(|line| line.split(|letter: char| letter.is_whitespace() || letter == ','));
    words.filter(|word| !word.is_empty()).map(|word| parse_key(word, place)).collect()
}

fn parse_key(word: &str, place: &str) -> Result<Key> {
    let (head, key) = word.split_once(':').unwrap_or(("", word));
    let digest = digest(key);
    let (name, head) = match head.split_once('=') {
        Some((name, head)) => (name.to_owned(), head),
        None => (format!("{:02x}{:02x}{:02x}{:02x}", digest[0], digest[1], digest[2], digest[3]), head),
    };
    let (roles, rate) = match head.split_once('@') {
        Some((roles, rate)) => (roles, Some(rate)),
        None => (head, None),
    };
    // the key itself is not shown
    let wrong = |problem: String| Error::config(place, format!("has a key that begins with `{head}:`, {problem}"));
    let roles = match roles {
        "" => vec![Role::Search, Role::Vote, Role::Events],
        "admin" => Role::ALL.to_vec(),
        roles => {
            let role = |name: &str| Role::ALL.into_iter().find(|role| role.name() == name);
            let unknown = |name| {
                let known = Role::ALL.map(Role::name).join(", ");
                wrong(format!("but `{name}` is not a role: use {known} or admin"))
            };
            roles.split('+').map(|name| role(name).ok_or_else(|| unknown(name))).collect::<Result<_>>()?
        }
    };
    let limit = rate.map(|rate| {
        let per_second = rate.parse::<f64>().ok().filter(|rate| *rate > 0.0 && rate.is_finite());
        per_second
            .map(RateLimit::new)
            .ok_or_else(|| wrong(format!("but `{rate}` is not a number of requests a second")))
    });
    if key.is_empty() {
        return Err(wrong("but nothing follows".into()));
    }
    Ok(Key { digest, name, roles, limit: limit.transpose()? })
}

/// Compares with every key, so that the time does not depend on which one fits.
fn find<'a>(keys: &'a [Key], given: &[u8; 32]) -> Option<&'a Key> {
    keys.iter().fold(None, |found, key| if same(&key.digest, given) { Some(key) } else { found })
}

fn digest(key: &str) -> [u8; 32] {
    Sha256::digest(key).into()
}

fn same(a: &[u8; 32], b: &[u8; 32]) -> bool {
    a.iter().zip(b).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name of the key, or the code of the error.
    fn admitted(keys: &Keys, value: &str, role: Role) -> std::result::Result<String, String> {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, value.parse().unwrap());
        keys.check(&headers, role).map_err(|fault| format!("{fault:?}"))
    }

    #[test]
    fn only_whole_keys_are_admitted() {
        let keys = Keys::parse("# the shop's\nshop=search:one, two==\nadmin:three\n").unwrap();
        let is_known = |value: &str| admitted(&keys, value, Role::Search).is_ok();
        assert!(["Bearer one", "Bearer  two==", "bearer three"].into_iter().all(is_known));
        for value in ["Bearer on", "Bearer", "Bearer ", "Basic one", "one", "Bearer one,two", "Bearer admin:three"] {
            assert!(!is_known(value), "{value}");
        }
        assert!(keys.check(&HeaderMap::new(), Role::Search).is_err());
        assert_eq!(Keys::default().check(&HeaderMap::new(), Role::Operate).unwrap(), "");
    }

    #[test]
    fn a_key_has_the_roles_that_it_names() {
        let keys = Keys::parse("plain  feed=write:feed  ops=write+operate:ops  boss=admin:boss").unwrap();
        let roles = |key: &str| {
            let value = format!("Bearer {key}");
            let has = |role: &Role| admitted(&keys, &value, *role).is_ok();
            Role::ALL.into_iter().filter(has).collect::<Vec<_>>()
        };
        assert_eq!(roles("plain"), [Role::Search, Role::Vote, Role::Events]);
        assert_eq!(roles("feed"), [Role::Write]);
        assert_eq!(roles("ops"), [Role::Write, Role::Operate]);
        assert_eq!(roles("boss"), Role::ALL);
        assert_eq!(admitted(&keys, "Bearer boss", Role::Operate).unwrap(), "boss");
        assert!(admitted(&keys, "Bearer feed", Role::Operate).unwrap_err().contains("`feed` has no role `operate`"));
        for (wrong, problem) in
            [("read:k", "`read` is not a role"), ("a=write@x:k", "`x` is not"), ("write:", "nothing")]
        {
            let error = Keys::parse(wrong).err().unwrap().to_string();
            assert!(error.contains(problem), "{error}");
        }
    }

    #[test]
    fn a_key_keeps_its_limit() {
        let keys = Keys::parse("jobs=search@2:jobs free").unwrap();
        let num = (0..50).filter(|_| admitted(&keys, "Bearer jobs", Role::Search).is_ok()).count();
        assert!((2..50).contains(&num), "{num}");
        let error = loop {
            match admitted(&keys, "Bearer jobs", Role::Search) {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert!(error.contains("`jobs` may send 2 requests in a second"), "{error}");
        assert!((0..50).all(|_| admitted(&keys, "Bearer free", Role::Search).is_ok()));
    }

    #[test]
    fn a_changed_file_is_read_again_unless_it_is_wrong() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(Keys::open(Some(file.path()), "SOUK_NO_SUCH_KEYS").is_err(), "no keys");
        std::fs::write(file.path(), "first\n").unwrap();
        let keys = Keys::open(Some(file.path()), "SOUK_NO_SUCH_KEYS").unwrap();
        let is_known = |key: &str| admitted(&keys, &format!("Bearer {key}"), Role::Search).is_ok();
        let follows = |text: &str, known: &str, gone: &str| {
            std::fs::write(file.path(), text).unwrap();
            let began = Instant::now();
            while !is_known(known) || is_known(gone) {
                assert!(began.elapsed() < Duration::from_secs(20), "{text}");
                std::thread::sleep(Duration::from_millis(50));
            }
        };
        follows("second-key\n", "second-key", "first");
        std::fs::write(file.path(), "nonsense:third").unwrap();
        std::thread::sleep(CHECK_INTERVAL + Duration::from_millis(200));
        assert!(is_known("second-key") && !is_known("third"));
        follows("fourth", "fourth", "second-key");
    }
}
