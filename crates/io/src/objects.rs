//! Files by address: a local path, or `s3://BUCKET/PREFIX`, `gs://…`, `az://…` in an object store. Credentials come
//! from the usual environment variables (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, GOOGLE_SERVICE_ACCOUNT,
//! AZURE_STORAGE_ACCOUNT_NAME, …). Lists files, reads byte ranges, copies whole folders. Calls block, and never without
//! a timeout.

use std::collections::HashSet;
use std::fs::{self, File};
use std::future::Future;
use std::io::{Read, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use object_store::aws::AmazonS3Builder;
use object_store::path::Path as Key;
use object_store::{Error as StoreError, ObjectMeta, ObjectStore, ObjectStoreExt, WriteMultipart};
#[cfg(feature = "clouds")]
use object_store::{azure::MicrosoftAzureBuilder, gcp::GoogleCloudStorageBuilder};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::runtime::Runtime;

use crate::atomic_dir::{AtomicDir, write_json_atomic};
use crate::error::{Error, Result};

/// Bytes per transfer.
const PART_BYTES: u64 = 16 << 20;
/// Parts of one file that are uploaded in parallel.
const PARALLEL_UPLOADS: usize = 4;
/// Fetched folders kept in the local cache.
const MAX_CACHED_FOLDERS: usize = 8;
const LISTING: &str = ".souk-fetched.json";

/// File at an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// Name relative to the address.
    pub name: String,
    pub bytes: u64,
    /// Time of the last change, in milliseconds since 1970. A different time means a different file.
    pub changed: i64,
}

/// Address of a file or of a folder of files.
pub struct Objects {
    address: String,
    location: Location,
}

enum Location {
    Local(PathBuf),
    Remote { store: Arc<dyn ObjectStore>, prefix: Key },
}

/// Returns whether the address is in an object store.
pub fn is_remote(address: &str) -> bool {
    address.contains("://")
}

impl Objects {
    pub fn open(address: &str) -> Result<Self> {
        let location = match address.split_once("://") {
            None => Location::Local(address.into()),
            Some((scheme, rest)) => {
                let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
                let bad = |problem: String| Error::config(address, problem);
                if bucket.is_empty() {
                    return Err(bad(format!("has no bucket: use {scheme}://BUCKET/PREFIX")));
                }
                let prefix = Key::parse(prefix.trim_end_matches('/'))
                    .map_err(|e| bad("is not a valid address".into()).because(e))?;
                Location::Remote { store: connect(scheme, address)?, prefix }
            }
        };
        Ok(Self { address: address.trim_end_matches('/').into(), location })
    }

    /// Full address of a file, for messages.
    pub fn name(&self, object: &str) -> String {
        if object.is_empty() { self.address.clone() } else { format!("{}/{object}", self.address) }
    }

    /// All files below the address, sorted by name. If the address is a file, its name is empty.
    pub fn list(&self) -> Result<Vec<Object>> {
        let found = self.list_or_empty()?;
        if found.is_empty() {
            return Err(Error::config(&self.address, "has no files: check the address"));
        }
        Ok(found)
    }

    /// The same, without an error if an object store has no files there.
    pub fn list_or_empty(&self) -> Result<Vec<Object>> {
        let mut found = Vec::new();
        match &self.location {
            Location::Local(root) => walk(root, "", &mut found)?,
            Location::Remote { store, prefix } => {
                let listed = wait(async {
                    if !prefix.as_ref().is_empty() {
                        match store.head(prefix).await {
                            Ok(meta) => return Ok(vec![meta]),
                            Err(StoreError::NotFound { .. }) => {}
                            Err(error) => return Err(error),
                        }
                    }
                    all(store.as_ref(), prefix).await
                })?;
                for meta in listed.map_err(|e| self.failed("", "list it", e))? {
                    let name = meta.location.prefix_match(prefix).into_iter().flatten();
                    let name = name.map(|part| part.as_ref().to_owned()).collect::<Vec<_>>().join("/");
                    found.push(Object { name, bytes: meta.size, changed: meta.last_modified.timestamp_millis() });
                }
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        // some tools create an empty object named like the folder
        let folders: HashSet<String> = found.iter().flat_map(|object| folders_of(&object.name)).collect();
        found.retain(|object| object.bytes > 0 || !folders.contains(&object.name));
        Ok(found)
    }

    /// Bytes of a file; fewer if the file ends within the range.
    pub fn read(&self, object: &str, range: Range<u64>) -> Result<Bytes> {
        match &self.location {
            Location::Local(root) => {
                let path = if object.is_empty() { root.clone() } else { root.join(object) };
                let file = File::open(&path).map_err(Error::store(&path, "open it"))?;
                let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap_or(usize::MAX)];
                let mut filled = 0;
                while filled < bytes.len() {
                    let read = file.read_at(&mut bytes[filled..], range.start + filled as u64);
                    match read.map_err(Error::store(&path, "read it"))? {
                        0 => break,
                        more => filled += more,
                    }
                }
                bytes.truncate(filled);
                Ok(bytes.into())
            }
            Location::Remote { store, prefix } => {
                let key = key(prefix, object);
                wait(store.get_range(&key, range))?.map_err(|e| self.failed(object, "read it", e))
            }
        }
    }

    /// Copies all files into an existing folder. A file that is the address itself keeps its name.
    fn copy_to(&self, folder: &Path, objects: &[Object]) -> Result<()> {
        for Object { name, bytes, .. } in objects {
            let own_name = self.address.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
            let path = folder.join(if name.is_empty() { own_name } else { name });
            let created = path.parent().map_or(Ok(()), fs::create_dir_all);
            created.map_err(Error::store(&path, "create its folder"))?;
            let mut file = File::create(&path).map_err(Error::store(&path, "create it"))?;
            self.read_parts(name, *bytes, |part| file.write_all(part).map_err(Error::store(&path, "write it")))?;
        }
        Ok(())
    }

    /// Passes on the bytes of a file, in order, in parts.
    pub fn read_parts(&self, object: &str, bytes: u64, mut pass_on: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let mut at = 0;
        while at < bytes {
            let part = self.read(object, at..(at + PART_BYTES).min(bytes))?;
            if part.is_empty() {
                return Err(Error::data(Path::new(&self.name(object)), None, "was truncated while it was read"));
            }
            pass_on(&part)?;
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Copies a local folder to the address, in the place of what is there. On a local disk it appears whole and durable, or not at all.
    pub fn send(&self, folder: &Path) -> Result<()> {
        let mut files = Vec::new();
        walk(folder, "", &mut files)?;
        match &self.location {
            Location::Local(root) => {
                root.parent().map_or(Ok(()), fs::create_dir_all).map_err(Error::store(root, "create its folder"))?;
                self.remove()?;
                let out = AtomicDir::new(root)?;
                for Object { name, .. } in files {
                    let (from, to) = (folder.join(&name), out.staging.join(&name));
                    let copied = to.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::copy(&from, &to));
                    copied.map_err(Error::store(&to, "write it"))?;
                }
                out.finish()
            }
            Location::Remote { store, prefix } => {
                files.iter().try_for_each(|file| self.upload(store.as_ref(), prefix, folder, &file.name))
            }
        }
    }

    fn upload(&self, store: &dyn ObjectStore, prefix: &Key, folder: &Path, name: &str) -> Result<()> {
        let (from, failed) = (folder.join(name), |e| self.failed(name, "write it", e));
        let mut file = File::open(&from).map_err(Error::store(&from, "open it"))?;
        let upload = wait(store.put_multipart(&key(prefix, name)))?.map_err(failed)?;
        let mut upload = WriteMultipart::new_with_chunk_size(upload, PART_BYTES as usize);
        loop {
            let mut part = Vec::new();
            let read = Read::by_ref(&mut file).take(PART_BYTES).read_to_end(&mut part);
            if read.map_err(Error::store(&from, "read it"))? == 0 {
                break;
            }
            wait(upload.wait_for_capacity(PARALLEL_UPLOADS))?.map_err(failed)?;
            wait(async { upload.put(part.into()) })?;
        }
        wait(upload.finish())?.map_err(failed).map(drop)
    }

    /// Deletes all files below the address, if any.
    pub fn remove(&self) -> Result<()> {
        match &self.location {
            Location::Local(root) if !root.exists() => Ok(()),
            Location::Local(root) => fs::remove_dir_all(root).map_err(Error::store(root, "remove it")),
            Location::Remote { store, prefix } => {
                let removed = wait(async {
                    for meta in all(store.as_ref(), prefix).await? {
                        store.delete(&meta.location).await?;
                    }
                    Ok(())
                })?;
                removed.map_err(|e| self.failed("", "remove it", e))
            }
        }
    }

    fn failed(&self, object: &str, action: &str, error: StoreError) -> Error {
        let name = self.name(object);
        match &error {
            StoreError::NotFound { .. } => Error::config(name, "does not exist: check the address").because(error),
            StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => {
                let problem = format!(
                    "no permission to {action}: check the credentials in the environment (AWS_ACCESS_KEY_ID, …)"
                );
                Error::config(name, problem).because(error)
            }
            _ => Error::Upstream {
                service: name,
                problem: format!(
                    "cannot {action}: check credentials and endpoint in the environment \
                     (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, …)"
                ),
                retryable: true,
                source: Some(error.into()),
            },
        }
    }
}

/// Path of a local copy of a folder in an object store, or of a folder with the one file that is there. Downloads it unless the cached copy has the same files. If they
/// cannot be listed, returns the last copy.
pub fn fetch_folder(address: &str) -> Result<PathBuf> {
    let objects = Objects::open(address)?;
    let home = cache_folder()?;
    fs::create_dir_all(&home).map_err(Error::store(&home, "create the folder"))?;
    let digest = Sha256::digest(address.as_bytes());
    let folder = home.join(digest[..8].iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    let lock = folder.with_extension("lock");
    let lock_file = File::create(&lock).map_err(Error::store(&lock, "create it"))?;
    lock_file.lock().map_err(Error::store(&lock, "lock it"))?;
    let known = fs::read(folder.join(LISTING)).ok().and_then(|text| serde_json::from_slice::<Vec<Object>>(&text).ok());
    let listed = match (objects.list(), &known) {
        (Ok(listed), _) => listed,
        // unreachable, or it does not let this process in any more
        (Err(error), Some(_)) => {
            tracing::warn!(?error, address, "cannot list the object store: using the copy fetched before");
            return Ok(folder);
        }
        (Err(error), _) => return Err(error),
    };
    if known.as_ref() != Some(&listed) {
        if folder.exists() {
            // left by a process that was killed, or outdated
            fs::remove_dir_all(&folder).map_err(Error::store(&folder, "remove it"))?;
        }
        tracing::info!(address, "fetching");
        let atomic_dir = AtomicDir::new(&folder)?;
        objects.copy_to(&atomic_dir.staging, &listed)?;
        write_json_atomic(&atomic_dir.staging.join(LISTING), &listed)?;
        atomic_dir.finish()?;
    }
    evict(&home, &folder)?;
    Ok(folder)
}

/// Removes the least recently used folders except `current`.
fn evict(home: &Path, current: &Path) -> Result<()> {
    let entries = fs::read_dir(home).map_err(Error::store(home, "list the folder"))?;
    let locks = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
    let locks = locks.filter(|path| path.extension().is_some_and(|extension| extension == "lock"));
    let used = |path: &PathBuf| fs::metadata(path).and_then(|data| data.modified()).ok();
    let mut locks: Vec<PathBuf> = locks.filter(|lock| lock.with_extension("") != current).collect();
    locks.sort_by_key(|lock| std::cmp::Reverse(used(lock)));
    for lock in locks.into_iter().skip(MAX_CACHED_FOLDERS - 1) {
        let folder = lock.with_extension("");
        // a process that is fetching the folder holds its lock
        if File::open(&lock).is_ok_and(|file| file.try_lock().is_ok()) && folder.exists() {
            fs::remove_dir_all(&folder).map_err(Error::store(&folder, "remove it"))?;
        }
    }
    Ok(())
}

fn cache_folder() -> Result<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = variable("SOUK_CACHE").or_else(|| variable("XDG_CACHE_HOME").map(|cache| cache.join("souk")));
    let cache = cache.or_else(|| variable("HOME").map(|home| home.join(".cache/souk")));
    let problem = "neither HOME nor SOUK_CACHE is set: set SOUK_CACHE to a folder for downloads";
    cache.map(|cache| cache.join("fetched")).ok_or_else(|| Error::config("HOME", problem))
}

fn connect(scheme: &str, address: &str) -> Result<Arc<dyn ObjectStore>> {
    // rustls needs one crypto provider; another part of the program may have installed it already
    drop(rustls::crypto::ring::default_provider().install_default());
    let store: object_store::Result<Arc<dyn ObjectStore>> = match scheme {
        "s3" | "s3a" => AmazonS3Builder::from_env().with_url(address).build().map(|store| Arc::new(store) as _),
        #[cfg(feature = "clouds")]
        "gs" => GoogleCloudStorageBuilder::from_env().with_url(address).build().map(|store| Arc::new(store) as _),
        #[cfg(feature = "clouds")]
        "az" | "abfs" | "abfss" => {
            MicrosoftAzureBuilder::from_env().with_url(address).build().map(|store| Arc::new(store) as _)
        }
        #[cfg(not(feature = "clouds"))]
        "gs" | "az" | "abfs" | "abfss" => {
            let problem = "this build supports only S3: build with `--features souk-cli/full`";
            return Err(Error::config(address, problem));
        }
        _ => {
            let problem =
                format!("`{scheme}://` is not a supported object store: use s3://, gs:// or az://, or a path");
            return Err(Error::config(address, problem));
        }
    };
    store.map_err(|e| {
        Error::config(address, "cannot be opened with the credentials and endpoint in the environment").because(e)
    })
}

/// Parent folders of a file: for `a/b/c`, `a/b`, `a` and the root (empty).
fn folders_of(name: &str) -> impl Iterator<Item = String> {
    let parents = std::iter::successors(Path::new(name).parent(), |folder| folder.parent());
    parents.map(|folder| folder.to_string_lossy().into_owned())
}

fn key(prefix: &Key, object: &str) -> Key {
    object.split('/').filter(|part| !part.is_empty()).fold(prefix.clone(), |key, part| key.join(part))
}

async fn all(store: &dyn ObjectStore, prefix: &Key) -> object_store::Result<Vec<ObjectMeta>> {
    let mut folders = vec![prefix.clone()];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        let listed = store.list_with_delimiter(Some(&folder)).await?;
        found.extend(listed.objects);
        folders.extend(listed.common_prefixes);
    }
    Ok(found)
}

/// Appends the files below `root`, following links. If `root` is a file, its name is empty.
fn walk(root: &Path, name: &str, found: &mut Vec<Object>) -> Result<()> {
    let path = if name.is_empty() { root.to_path_buf() } else { root.join(name) };
    let data = fs::metadata(&path).map_err(Error::store(&path, "read its metadata"))?;
    if data.is_file() {
        let changed = data.modified().ok().and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
        let changed = changed.map_or(0, |since| since.as_millis() as i64);
        found.push(Object { name: name.into(), bytes: data.len(), changed });
        return Ok(());
    }
    for entry in fs::read_dir(&path).map_err(Error::store(&path, "list the folder"))? {
        let entry = entry.map_err(Error::store(&path, "list the folder"))?.file_name();
        let entry = entry.to_string_lossy();
        let name = if name.is_empty() { entry.into_owned() } else { format!("{name}/{entry}") };
        walk(root, &name, found)?;
    }
    Ok(())
}

/// Blocks on a future, on a runtime of its own. The calling thread must not belong to another runtime.
fn wait<T>(work: impl Future<Output = T>) -> Result<T> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    let runtime = match RUNTIME.get() {
        Some(runtime) => runtime,
        None => {
            let built = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
            let built = built.map_err(|e| Error::device("cannot start a thread to read objects").because(e))?;
            RUNTIME.get_or_init(|| built)
        }
    };
    Ok(runtime.block_on(work))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_listed_read_and_copied() {
        let home = tempfile::tempdir().unwrap();
        let (from, to) = (home.path().join("a b%20"), home.path().join("to"));
        fs::create_dir_all(from.join("inner")).unwrap();
        fs::write(from.join("inner/x.txt"), "hello").unwrap();
        fs::write(from.join("y.txt"), "").unwrap();
        let objects = Objects::open(from.to_str().unwrap()).unwrap();
        let listed = objects.list().unwrap();
        let names: Vec<(&str, u64)> = listed.iter().map(|object| (object.name.as_str(), object.bytes)).collect();
        assert_eq!(names, [("inner/x.txt", 5), ("y.txt", 0)]);
        assert_eq!(objects.read("inner/x.txt", 1..3).unwrap(), "el");
        assert_eq!(objects.read("inner/x.txt", 3..99).unwrap(), "lo");
        Objects::open(to.to_str().unwrap()).unwrap().send(&from).unwrap();
        assert_eq!(fs::read_to_string(to.join("inner/x.txt")).unwrap(), "hello");
        // sent again, without a file: nothing of the first time is left
        fs::remove_file(from.join("y.txt")).unwrap();
        Objects::open(to.to_str().unwrap()).unwrap().send(&from).unwrap();
        assert!(!to.join("y.txt").exists() && to.join("inner/x.txt").exists());
        let file = Objects::open(to.join("inner/x.txt").to_str().unwrap()).unwrap();
        assert_eq!((file.list().unwrap()[0].name.as_str(), file.read("", 0..2).unwrap()), ("", "he".into()));
        Objects::open(to.to_str().unwrap()).unwrap().remove().unwrap();
        assert!(!to.exists());
    }

    #[test]
    fn errors_on_invalid_addresses_name_valid_ones() {
        for (address, expected) in
            [("ftp://x/y", "s3://"), ("s3:///x", "BUCKET"), ("s3://b/a//c", "not a valid address")]
        {
            let error = Objects::open(address).err().unwrap().to_string();
            assert!(error.contains(expected) && error.contains(address), "{error}");
        }
        let empty = tempfile::tempdir().unwrap();
        let error = Objects::open(empty.path().to_str().unwrap()).unwrap().list().unwrap_err().to_string();
        assert!(error.contains("no files"), "{error}");
    }
}
