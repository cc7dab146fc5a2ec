//! Named tensors, read from and written to `model.safetensors` (one file or shards), or initialised from a seed. Headers are
//! validated before any data is read; a missing tensor, a wrong shape or an unknown tensor is an error that names file and
//! tensor. Tensors keep their hub names, so a loaded model is saved in the same layout.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use safetensors::SafeTensorError;
use safetensors::tensor::{Dtype, Metadata, TensorInfo, View};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use tch::{Device, Kind, Tensor};

use souk_io::error::{Error, Result};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// The hub's size limit for one shard.
pub const SHARD_BYTES: usize = 5_000_000_000;
/// The format's size limit of a header.
const MAX_HEADER: u64 = 100_000_000;

/// Initialisation of a tensor that is not read from a file.
#[derive(Clone, Copy, Debug)]
pub enum Init {
    Normal(f64),
    Zeros,
    Ones,
}

/// Tensors of a model by hub name, handed out while the model is built.
pub struct Parameters {
    source: Source,
    named: BTreeMap<String, Tensor>,
    device: Device,
    kind: Kind,
}

enum Source {
    Folder(Folder),
    Seed(u64),
}

impl Parameters {
    /// Opens `model.safetensors` in `dir`, or the shards of its index.
    pub fn open(dir: &Path, device: Device, kind: Kind) -> Result<Self> {
        Ok(Self { source: Source::Folder(Folder::open(dir)?), named: BTreeMap::new(), device, kind })
    }

    /// Initialises tensors from a seed; the same seed and name give the same tensor, in any order.
    pub fn seeded(seed: u64, device: Device, kind: Kind) -> Self {
        Self { source: Source::Seed(seed), named: BTreeMap::new(), device, kind }
    }

    /// First of the prefixes `candidates` under which `probe` is stored: hub folders of one architecture differ in it.
    pub fn prefix<'a>(&self, candidates: &[&'a str], probe: &str) -> Result<&'a str> {
        match &self.source {
            Source::Seed(_) => Ok(candidates[0]),
            Source::Folder(folder) => {
                let found = candidates.iter().find(|c| folder.locate(&format!("{c}{probe}")).is_some());
                found.copied().ok_or_else(|| {
                    Error::weights(&folder.path, format!("no tensor `{probe}`: these are another model's weights"))
                })
            }
        }
    }

    /// Whether the folder has this tensor; always true with a seed.
    pub fn has(&self, name: &str) -> bool {
        match &self.source {
            Source::Seed(_) => true,
            Source::Folder(folder) => folder.locate(name).is_some(),
        }
    }

    /// Whether the folder has this tensor in this shape; always true with a seed.
    pub fn fits(&self, name: &str, shape: &[i64]) -> bool {
        match &self.source {
            Source::Seed(_) => true,
            Source::Folder(folder) => folder
                .locate(name)
                .is_some_and(|(_, info, _)| info.shape.iter().map(|size| *size as i64).eq(shape.iter().copied())),
        }
    }

    /// Returns one tensor, checked against the architecture's shape.
    pub fn tensor(&mut self, name: &str, shape: &[i64], init: Init) -> Result<Tensor> {
        let tensor = match &self.source {
            Source::Folder(folder) => folder.read(name, shape)?,
            Source::Seed(seed) => draw(*seed, name, shape, init)?,
        };
        if !tensor.is_floating_point() {
            let problem = format!("tensor `{name}` is {:?}: weights must be floating point", tensor.kind());
            return Err(Error::weights(self.path(), problem));
        }
        let tensor = tensor.f_to_device(self.device)?.f_to_kind(self.kind)?;
        self.named.insert(name.into(), tensor.shallow_clone());
        Ok(tensor)
    }

    /// Returns an error if the folder has unused tensors, except those whose name contains one of `expected`.
    pub fn check_leftovers(&self, expected: &[&str]) -> Result<()> {
        let Source::Folder(folder) = &self.source else { return Ok(()) };
        let mut unknown: Vec<&str> = folder
            .names()
            .filter(|name| !self.named.contains_key(&current_name(name)))
            .filter(|name| !expected.iter().any(|part| name.contains(part)))
            .collect();
        unknown.sort_unstable();
        let Some(first) = unknown.first() else { return Ok(()) };
        let problem = format!("tensor `{first}` ({} in all) does not belong to this architecture", unknown.len());
        Err(Error::weights(&folder.path, problem))
    }

    pub fn named(&self) -> &BTreeMap<String, Tensor> {
        &self.named
    }

    pub fn device(&self) -> Device {
        self.device
    }

    /// Path for errors about these weights.
    pub fn path(&self) -> &Path {
        match &self.source {
            Source::Folder(folder) => &folder.path,
            Source::Seed(_) => Path::new("(weights from a seed)"),
        }
    }

    /// Saves in the hub's layout: the model's tensors with their current values, and unused tensors unchanged.
    pub fn save(&self, dir: &Path, shard_bytes: usize) -> Result<()> {
        let mut tensors: BTreeMap<String, Tensor> =
            self.named.iter().map(|(name, t)| (name.clone(), t.shallow_clone())).collect();
        if let Source::Folder(folder) = &self.source {
            for name in folder.names() {
                if !tensors.contains_key(&current_name(name)) {
                    tensors.insert(name.into(), folder.read_any(name)?);
                }
            }
        }
        save_tensors(dir, tensors, shard_bytes)
    }
}

/// Current name of a tensor: the first BERT checkpoints called a norm's weight and bias `gamma` and `beta`.
fn current_name(name: &str) -> String {
    match name.strip_suffix("LayerNorm.gamma").map(|p| (p, "weight")) {
        Some((path, end)) => format!("{path}LayerNorm.{end}"),
        None => match name.strip_suffix("LayerNorm.beta") {
            Some(path) => format!("{path}LayerNorm.bias"),
            None => name.into(),
        },
    }
}

fn draw(seed: u64, name: &str, shape: &[i64], init: Init) -> Result<Tensor> {
    let options = (Kind::Float, Device::Cpu);
    Ok(match init {
        Init::Zeros => Tensor::f_zeros(shape, options)?,
        Init::Ones => Tensor::f_ones(shape, options)?,
        Init::Normal(std) => {
            let digest = Sha256::new().chain_update(seed.to_le_bytes()).chain_update(name).finalize();
            let bytes: [u8; 8] = std::array::from_fn(|i| digest[i]);
            tch::manual_seed(i64::from_le_bytes(bytes));
            Tensor::f_randn(shape, options)? * std
        }
    })
}

/// Safetensors files of one model folder.
struct Folder {
    path: PathBuf,
    shards: Vec<Shard>,
    /// Index of each tensor's shard.
    shard_of: HashMap<String, usize>,
}

#[derive(Deserialize)]
struct ShardIndex {
    weight_map: BTreeMap<String, String>,
}

impl Folder {
    fn open(dir: &Path) -> Result<Self> {
        let single = dir.join(SINGLE);
        let index = dir.join(INDEX);
        if !single.exists() && !index.exists() && dir.join("pytorch_model.bin").exists() {
            let hint = "is missing; pytorch_model.bin is not read because it can run code: convert it with \
                        transformers, from_pretrained(DIR).save_pretrained(NEW)";
            return Err(Error::weights(&single, hint));
        }
        if single.exists() || !index.exists() {
            let shard = Shard::open(&single)?;
            let shard_of = shard.metadata.offset_keys().into_iter().map(|name| (name, 0)).collect();
            return Ok(Self { path: single, shards: vec![shard], shard_of });
        }
        let text = fs::read(&index).map_err(Error::store(&index, "read it"))?;
        let parsed: ShardIndex =
            serde_json::from_slice(&text).map_err(|e| Error::weights(&index, "not an index of shards").because(e))?;
        let mut files: Vec<&String> = parsed.weight_map.values().collect();
        files.sort_unstable();
        files.dedup();
        let mut shards = Vec::new();
        for file in &files {
            if Path::new(file).components().count() != 1 {
                return Err(Error::weights(&index, format!("shard `{file}` is outside the folder")));
            }
            shards.push(Shard::open(&dir.join(file))?);
        }
        let mut shard_of = HashMap::new();
        for (name, file) in &parsed.weight_map {
            let at = files.iter().position(|f| *f == file).unwrap_or(0);
            if shards[at].metadata.info(name).is_none() {
                let problem = format!("no tensor `{name}`, but {INDEX} lists it");
                return Err(Error::weights(&shards[at].path, problem));
            }
            shard_of.insert(name.clone(), at);
        }
        Ok(Self { path: index, shards, shard_of })
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.shard_of.keys().map(String::as_str)
    }

    fn locate(&self, name: &str) -> Option<(&Shard, &TensorInfo, String)> {
        let old = name
            .strip_suffix("LayerNorm.weight")
            .map(|p| format!("{p}LayerNorm.gamma"))
            .or_else(|| name.strip_suffix("LayerNorm.bias").map(|p| format!("{p}LayerNorm.beta")));
        for candidate in std::iter::once(name.to_string()).chain(old) {
            if let Some(&at) = self.shard_of.get(&candidate) {
                let shard = &self.shards[at];
                return shard.metadata.info(&candidate).map(|info| (shard, info, candidate));
            }
        }
        None
    }

    fn read(&self, name: &str, shape: &[i64]) -> Result<Tensor> {
        let Some((shard, info, stored)) = self.locate(name) else {
            return Err(Error::weights(&self.path, format!("tensor `{name}` is missing")));
        };
        let found: Vec<i64> = info.shape.iter().map(|&n| n as i64).collect();
        if found != shape {
            let problem = format!("tensor `{stored}` has shape {found:?}, but config.json needs {shape:?}");
            return Err(Error::weights(&shard.path, problem));
        }
        shard.read(&stored, info)
    }

    fn read_any(&self, name: &str) -> Result<Tensor> {
        let shard = &self.shards[self.shard_of[name]];
        match shard.metadata.info(name) {
            Some(info) => shard.read(name, info),
            None => Err(Error::weights(&shard.path, format!("tensor `{name}` is missing"))),
        }
    }
}

/// Open safetensors file with a validated header; data is read tensor by tensor.
struct Shard {
    path: PathBuf,
    file: File,
    metadata: Metadata,
    data_start: u64,
}

impl Shard {
    fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(Error::store(path, "open the weights"))?;
        let size = file.metadata().map_err(Error::store(path, "read its size"))?.len();
        let mut length = [0_u8; 8];
        file.read_exact_at(&mut length, 0).map_err(|e| {
            Error::weights(path, "is shorter than a safetensors header: it may be truncated").because(e)
        })?;
        let length = u64::from_le_bytes(length);
        if length > MAX_HEADER || length.saturating_add(8) > size {
            let problem =
                format!("declares a header of {length} bytes in a file of {size}: not safetensors, or truncated");
            return Err(Error::weights(path, problem));
        }
        let mut header = vec![0_u8; length as usize];
        file.read_exact_at(&mut header, 8).map_err(Error::store(path, "read the header"))?;
        let metadata: Metadata = serde_json::from_slice(&header)
            .map_err(|e| Error::weights(path, "the safetensors header is malformed").because(e))?;
        let declared = (metadata.data_len() as u64).saturating_add(8 + length);
        if declared != size {
            let problem = format!("is {size} bytes long, but its header declares {declared}: download it again");
            return Err(Error::weights(path, problem));
        }
        Ok(Self { path: path.into(), file, metadata, data_start: 8 + length })
    }

    fn read(&self, name: &str, info: &TensorInfo) -> Result<Tensor> {
        let Some(kind) = kind_of(info.dtype) else {
            return Err(Error::weights(&self.path, format!("tensor `{name}` is {:?}: not supported", info.dtype)));
        };
        let (start, end) = info.data_offsets;
        let mut bytes = vec![0_u8; end - start];
        self.file
            .read_exact_at(&mut bytes, self.data_start + start as u64)
            .map_err(Error::store(&self.path, "read a tensor"))?;
        let shape: Vec<i64> = info.shape.iter().map(|&n| n as i64).collect();
        Ok(Tensor::f_from_data_size(&bytes, &shape, kind)?)
    }
}

/// Paths of a folder's weight files.
pub fn weight_files(dir: &Path) -> Result<Vec<PathBuf>> {
    Ok(Folder::open(dir)?.shards.into_iter().map(|shard| shard.path).collect())
}

/// Reads all tensors of one safetensors file to the CPU, in their stored kind.
pub fn read_tensors(path: &Path) -> Result<BTreeMap<String, Tensor>> {
    let shard = Shard::open(path)?;
    let infos = shard.metadata.tensors();
    infos.into_iter().map(|(name, info)| Ok((name.clone(), shard.read(&name, info)?))).collect()
}

/// Writes one safetensors file atomically: to a temporary file, synced, then renamed.
pub fn write_tensors(path: &Path, tensors: &BTreeMap<String, Tensor>) -> Result<()> {
    let views = tensors.iter().map(|(name, t)| Ok((name.as_str(), Bytes::of(t)?))).collect::<Result<Vec<_>>>()?;
    // transformers rejects files without the framework in their metadata
    let info = HashMap::from([("format".to_string(), "pt".to_string())]);
    safetensors::serialize_to_file(views, Some(info), path).map_err(|e| match e {
        // an I/O error is the disk's fault, not the weights', so it may be retried
        SafeTensorError::IoError(e) => Error::store(path, "write the weights")(e),
        e => Error::weights(path, "cannot write the weights").because(e),
    })?;
    // the crate's temporary file is readable by its owner only; a model folder is shared
    let readable = fs::Permissions::from_mode(0o644);
    fs::set_permissions(path, readable).map_err(Error::store(path, "make it readable"))?;
    File::open(path).and_then(|f| f.sync_all()).map_err(Error::store(path, "sync it"))
}

/// Writes a folder's weights in the hub's layout, in shards of at most `shard_bytes`.
pub fn save_tensors(dir: &Path, tensors: BTreeMap<String, Tensor>, shard_bytes: usize) -> Result<()> {
    let mut shards: Vec<BTreeMap<String, Tensor>> = vec![BTreeMap::new()];
    let (mut filled, mut total) = (0, 0);
    for (name, tensor) in tensors {
        let bytes = tensor.numel() * tensor.kind().elt_size_in_bytes();
        if filled > 0 && filled + bytes > shard_bytes {
            shards.push(BTreeMap::new());
            filled = 0;
        }
        filled += bytes;
        total += bytes;
        if let Some(last) = shards.last_mut() {
            last.insert(name, tensor);
        }
    }
    if let [only] = shards.as_slice() {
        return write_tensors(&dir.join(SINGLE), only);
    }
    let mut weight_map = BTreeMap::new();
    for (i, shard) in shards.iter().enumerate() {
        let file = format!("model-{:05}-of-{:05}.safetensors", i + 1, shards.len());
        write_tensors(&dir.join(&file), shard)?;
        weight_map.extend(shard.keys().map(|name| (name.clone(), file.clone())));
    }
    let index = serde_json::json!({"metadata": {"total_size": total}, "weight_map": weight_map});
    let path = dir.join(INDEX);
    fs::write(&path, format!("{index:#}\n")).map_err(Error::store(&path, "write it"))
}

/// Tensor as safetensors bytes, copied only while it is written.
struct Bytes<'a> {
    tensor: &'a Tensor,
    dtype: Dtype,
    shape: Vec<usize>,
}

impl<'a> Bytes<'a> {
    fn of(tensor: &'a Tensor) -> Result<Self> {
        let dtype = DTYPES.iter().find(|(_, kind)| *kind == tensor.kind()).map(|(dtype, _)| *dtype);
        let dtype = dtype.ok_or_else(|| Error::device(format!("cannot save a tensor of {:?}", tensor.kind())))?;
        Ok(Self { tensor, dtype, shape: tensor.size().iter().map(|&n| n as usize).collect() })
    }
}

impl View for Bytes<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let tensor = self.tensor.detach().to_device(Device::Cpu).contiguous();
        let mut bytes = vec![0_u8; self.data_len()];
        tensor.copy_data_u8(&mut bytes, tensor.numel());
        bytes.into()
    }

    fn data_len(&self) -> usize {
        self.tensor.numel() * self.tensor.kind().elt_size_in_bytes()
    }
}

const DTYPES: [(Dtype, Kind); 9] = [
    (Dtype::F32, Kind::Float),
    (Dtype::BF16, Kind::BFloat16),
    (Dtype::F16, Kind::Half),
    (Dtype::F64, Kind::Double),
    (Dtype::I64, Kind::Int64),
    (Dtype::I32, Kind::Int),
    (Dtype::I8, Kind::Int8),
    (Dtype::U8, Kind::Uint8),
    (Dtype::BOOL, Kind::Bool),
];

fn kind_of(dtype: Dtype) -> Option<Kind> {
    DTYPES.iter().find(|(d, _)| *d == dtype).map(|(_, kind)| *kind)
}
