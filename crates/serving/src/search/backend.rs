//! Storage of a generation's index: embedded files, or a Milvus collection. Takes the items of a new generation, opens
//! its index, and deletes it when unused.

use std::path::Path;
use std::sync::Arc;

use super::model::LoadedModel;
use super::record::GenerationRecord;
use super::settings::{IndexBackend, SearchSettings};
use crate::index::{Builder, Index, IndexSettings, Live, Snapshot};
use souk_io::domain::Item;
use souk_io::error::Result;
use souk_io::item_text::ItemText;
use souk_lexical::LexicalOptions;

/// An open index.
pub enum OpenIndex {
    Embedded(Arc<Live>),
    /// The server stores changes itself: there is no snapshot to rebuild.
    Remote(Arc<dyn Index>),
}

impl OpenIndex {
    /// Opens the index that the record in `dir` names. Blocks; needs a Tokio runtime.
    pub fn open(
        dir: &Path,
        record: &GenerationRecord,
        settings: &SearchSettings,
        item_text: &ItemText,
    ) -> Result<Self> {
        match &settings.index {
            IndexBackend::Embedded {} => {
                let live = Live::open(&dir.join(&record.snapshot), &record.model, record.dimensions, item_text)?;
                if let Some(base_ef) = record.base_ef {
                    live.snapshot().set_base_ef(base_ef);
                }
                Ok(Self::Embedded(Arc::new(live)))
            }
            IndexBackend::Milvus(milvus) => remote::open(milvus, record, settings, item_text).map(Self::Remote),
        }
    }

    pub fn index(&self) -> Arc<dyn Index> {
        match self {
            Self::Embedded(live) => live.clone(),
            Self::Remote(index) => index.clone(),
        }
    }

    pub fn live(&self) -> Option<&Arc<Live>> {
        match self {
            Self::Embedded(live) => Some(live),
            Self::Remote(_) => None,
        }
    }
}

/// Writer of a new generation's items.
pub enum IndexWriter {
    Embedded(Box<Builder>),
    Remote(Box<remote::CollectionWriter>),
}

impl IndexWriter {
    pub fn open(
        dir: &Path,
        record: &GenerationRecord,
        model: &LoadedModel,
        settings: &SearchSettings,
        index: &IndexSettings,
    ) -> Result<Self> {
        match &settings.index {
            IndexBackend::Embedded {} => {
                let builder = Snapshot::builder(
                    &dir.join(&record.snapshot),
                    model.fingerprint.clone(),
                    model.dimensions,
                    index.clone(),
                )?;
                Ok(Self::Embedded(Box::new(builder)))
            }
            IndexBackend::Milvus(milvus) => {
                let writer = remote::CollectionWriter::open(milvus, record, model, settings.lexical, index)?;
                Ok(Self::Remote(Box::new(writer)))
            }
        }
    }

    pub fn add(&mut self, item: Item, vector: &[f32]) -> Result<()> {
        match self {
            Self::Embedded(builder) => builder.add(&item, vector),
            Self::Remote(writer) => writer.add(item, vector),
        }
    }

    pub fn finish(self) -> Result<()> {
        match self {
            Self::Embedded(builder) => builder.write(&mut |_| ()).map(drop),
            Self::Remote(writer) => writer.finish(),
        }
    }
}

/// Points the server's alias to the served collection.
pub async fn point_alias(record: &GenerationRecord, settings: &SearchSettings) -> Result<()> {
    match &settings.index {
        IndexBackend::Embedded {} => Ok(()),
        IndexBackend::Milvus(milvus) => remote::point_alias(milvus, record).await,
    }
}

/// Deletes data outside of the generation's folder.
pub async fn remove_remote(generation: &str, settings: &SearchSettings) -> Result<()> {
    match &settings.index {
        IndexBackend::Embedded {} => Ok(()),
        IndexBackend::Milvus(milvus) => remote::remove_remote(milvus, generation).await,
    }
}

/// Milvus collections, named after the generation in characters that Milvus allows.
#[cfg(feature = "milvus")]
mod remote {
    use tokio::runtime::Handle;

    use super::*;
    use crate::index::{CollectionContent, ItemChange, Milvus, MilvusSettings};

    const BATCH: usize = 500;

    pub struct CollectionWriter {
        index: Milvus,
        pending: Vec<ItemChange>,
    }

    impl CollectionWriter {
        pub fn open(
            settings: &MilvusSettings,
            record: &GenerationRecord,
            model: &LoadedModel,
            lexical: Option<LexicalOptions>,
            index: &IndexSettings,
        ) -> Result<Self> {
            let (name, item_text) = (collection(&record.generation), model.item_text());
            let (model, dimensions) = (model.fingerprint.as_str(), model.dimensions);
            let content = CollectionContent { model, dimensions, item_text, lexical };
            let create = Milvus::create(settings, &name, content, index);
            Ok(Self { index: Handle::current().block_on(create)?, pending: Vec::new() })
        }

        pub fn add(&mut self, item: Item, vector: &[f32]) -> Result<()> {
            self.pending.push(ItemChange::Put(item, vector.to_vec()));
            if self.pending.len() < BATCH { Ok(()) } else { self.send() }
        }

        pub fn finish(mut self) -> Result<()> {
            self.send()
        }

        fn send(&mut self) -> Result<()> {
            let changes = std::mem::take(&mut self.pending);
            Handle::current().block_on(self.index.apply(&changes)).map(drop)
        }
    }

    pub fn open(
        milvus: &MilvusSettings,
        record: &GenerationRecord,
        settings: &SearchSettings,
        item_text: &ItemText,
    ) -> Result<Arc<dyn Index>> {
        let (model, dimensions, lexical) = (record.model.as_str(), record.dimensions, settings.lexical);
        let (name, content) =
            (collection(&record.generation), CollectionContent { model, dimensions, item_text, lexical });
        Ok(Arc::new(Handle::current().block_on(Milvus::open(milvus, &name, content))?))
    }

    pub async fn point_alias(settings: &MilvusSettings, record: &GenerationRecord) -> Result<()> {
        Milvus::point_alias(settings, &collection(&record.generation), &settings.alias).await
    }

    pub async fn remove_remote(settings: &MilvusSettings, generation: &str) -> Result<()> {
        Milvus::remove(settings, &collection(generation)).await
    }

    fn collection(generation: &str) -> String {
        generation.chars().map(|character| if character.is_ascii_alphanumeric() { character } else { '_' }).collect()
    }
}

/// Without the feature `milvus`, every call is an error.
#[cfg(not(feature = "milvus"))]
mod remote {
    use super::*;
    use crate::index::MilvusSettings;
    use souk_io::error::Error;

    pub enum CollectionWriter {}

    impl CollectionWriter {
        pub fn open(
            _: &MilvusSettings,
            _: &GenerationRecord,
            _: &LoadedModel,
            _: Option<LexicalOptions>,
            _: &IndexSettings,
        ) -> Result<Self> {
            Err(missing())
        }

        pub fn add(&mut self, _: Item, _: &[f32]) -> Result<()> {
            match *self {}
        }

        pub fn finish(self) -> Result<()> {
            match self {}
        }
    }

    pub fn open(_: &MilvusSettings, _: &GenerationRecord, _: &SearchSettings, _: &ItemText) -> Result<Arc<dyn Index>> {
        Err(missing())
    }

    pub async fn point_alias(_: &MilvusSettings, _: &GenerationRecord) -> Result<()> {
        Err(missing())
    }

    pub async fn remove_remote(_: &MilvusSettings, _: &str) -> Result<()> {
        Err(missing())
    }

    fn missing() -> Error {
        let problem = "is milvus, which this build lacks: cargo build --release --workspace --features souk-cli/milvus";
        Error::config("search.index.type", problem)
    }
}
