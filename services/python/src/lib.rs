//! Python module `souk._native`: a model folder in, vectors out. `souk.Encoder` (python/souk/encoder.py) is the class that people use;
//! it loads libtorch before this module is imported.

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use souk::config::{Change, Config};
use souk::domain::TextKind;
use souk::encoder::{EncoderWorker, encode};
use souk::{Error, Result};

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<NativeEncoder>()
}

/// A model on its device. Threads may share it.
#[pyclass(frozen)]
struct NativeEncoder {
    worker: EncoderWorker,
    /// Dimensions of a vector.
    #[pyo3(get)]
    dimensions: i64,
    #[pyo3(get)]
    max_tokens: Option<usize>,
    /// The same for everyone who has this model, as `/info` shows it.
    #[pyo3(get)]
    fingerprint: String,
}

#[pymethods]
impl NativeEncoder {
    /// Opens a folder, a hub name or an address in an object store. `settings` are those of `souk embed --set`.
    #[new]
    fn open(py: Python<'_>, model: String, settings: Vec<(String, String)>) -> PyResult<Self> {
        py.detach(|| Self::start(&model, &settings)).map_err(raised)
    }

    /// Vectors of the texts in their order, as little-endian 32-bit floats. `kind` selects the prompt: query, item, or none.
    fn encode<'py>(&self, py: Python<'py>, texts: Vec<String>, kind: Option<&str>) -> PyResult<Bound<'py, PyBytes>> {
        let kind = match kind {
            None => None,
            Some("query") => Some(TextKind::Query),
            Some("item") => Some(TextKind::Item),
            Some(other) => return Err(PyValueError::new_err(format!("no kind `{other}`: use query or item"))),
        };
        let vectors = py.detach(|| self.vectors(texts, kind)).map_err(raised)?;
        Ok(PyBytes::new(py, &vectors))
    }
}

impl NativeEncoder {
    fn start(model: &str, settings: &[(String, String)]) -> Result<Self> {
        let mut changes = vec![Change::text("model.path", "model", model)];
        for (name, value) in settings {
            changes.push(Change::parse(&format!("{name}={value}"))?);
        }
        let config = Config::load(None, &changes)?;
        let encoder = config.open_encoder()?;
        let (dimensions, fingerprint) = (encoder.dimensions(), encoder.fingerprint()?);
        let worker = EncoderWorker::start(encoder.freeze()?, config.worker)?;
        let max_tokens = worker.reader().max_tokens();
        Ok(Self { worker, dimensions, max_tokens, fingerprint })
    }

    fn vectors(&self, texts: Vec<String>, kind: Option<TextKind>) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(texts.len() * self.dimensions as usize * size_of::<f32>());
        let lines = texts.into_iter().enumerate().map(Ok);
        let of = (|(_, text): &(usize, String)| text.clone(), |(at, _): &(usize, String)| format!("text {at}"));
        encode(&self.worker, kind, lines, of, |_, vector| {
            bytes.extend(vector.iter().flat_map(|x| x.to_le_bytes()));
            Ok::<(), Error>(())
        })?;
        Ok(bytes)
    }
}

/// Python's exception for an error: `ValueError` for what the caller gave, `OSError` for files and devices.
fn raised(error: Error) -> PyErr {
    let message = error.with_causes();
    match error {
        Error::Config { .. } | Error::Input { .. } => PyValueError::new_err(message),
        _ => PyOSError::new_err(message),
    }
}
