//! A model opened for search: its encoder worker, fingerprint and dimensions. Never knows which index it serves.

use std::sync::Arc;

use souk_cross_encoder::Reranker;
use souk_io::error::Result;
use souk_io::item_text::ItemText;
use souk_lexical::ModelFusion;
use souk_nn::encoder::{Encoder, EncoderWorker, Limits};

/// Opens the model at a path for search.
pub type ModelLoader = Arc<dyn Fn(&str) -> Result<VersionModels> + Send + Sync>;

/// The models of a version.
pub struct VersionModels {
    pub encoder: Encoder,
    pub reranker: Option<Reranker>,
}

/// A loaded model.
pub struct LoadedModel {
    pub worker: Arc<EncoderWorker>,
    pub fingerprint: String,
    pub dimensions: i64,
    /// Weights of hybrid search that were fitted to the model.
    pub fusion: Option<ModelFusion>,
    pub reranker: Option<Arc<Reranker>>,
}

impl LoadedModel {
    pub fn open(load_model: &ModelLoader, path: &str, limits: Limits) -> Result<Self> {
        let VersionModels { encoder, reranker } = load_model(path)?;
        let reranker = reranker.map(Arc::new);
        let (fingerprint, dimensions) = (encoder.fingerprint()?, encoder.dimensions());
        let fusion = ModelFusion::load(encoder.dir())?;
        let worker = Arc::new(EncoderWorker::start(encoder, limits)?);
        Ok(Self { worker, fingerprint, dimensions, fusion, reranker })
    }

    /// Template of the items' texts.
    pub fn item_text(&self) -> &ItemText {
        self.worker.reader().item_text()
    }
}
