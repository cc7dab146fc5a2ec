//! Where items and vectors are: in this process, from files of its own, or on a Milvus server that outgrows it. Takes the
//! items of a new generation, gives the index that they make, and lets go of it when nobody needs it any more.

use std::path::Path;
use std::sync::Arc;

use super::build::Model;
use super::generation::Record;
use super::settings::{Place, SearchSettings};
use crate::index::{Builder, Index, IndexSettings, Live, Snapshot};
use souk_io::domain::Item;
use souk_io::error::Result;

/// An index that is open.
pub enum Held {
    Embedded(Arc<Live>),
    /// Changes live on the server; there is no snapshot to renew.
    Remote(Arc<dyn Index>),
}

impl Held {
    /// Opens what the record of the generation in `dir` names. Blocks; needs a runtime around it.
    pub fn open(dir: &Path, record: &Record, settings: &SearchSettings) -> Result<Self> {
        match &settings.index {
            Place::Embedded {} => {
                let live = Live::open(&dir.join(&record.snapshot), &record.model, record.dimensions)?;
                Ok(Self::Embedded(Arc::new(live)))
            }
            Place::Milvus(milvus) => remote::open(milvus, record).map(Self::Remote),
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

/// Takes the items of a generation that is being built.
pub enum Taker {
    Embedded(Box<Builder>),
    Remote(remote::Taker),
}

impl Taker {
    pub fn open(
        dir: &Path,
        record: &Record,
        model: &Model,
        (settings, index): (&SearchSettings, &IndexSettings),
    ) -> Result<Self> {
        let made_by = (model.fingerprint.clone(), model.dimensions);
        match &settings.index {
            Place::Embedded {} => {
                let builder = Snapshot::builder(&dir.join(&record.snapshot), made_by, index.clone())?;
                Ok(Self::Embedded(Box::new(builder)))
            }
            Place::Milvus(milvus) => remote::Taker::open(milvus, record, made_by, index).map(Self::Remote),
        }
    }

    pub fn add(&mut self, item: Item, vector: &[f32]) -> Result<()> {
        match self {
            Self::Embedded(builder) => builder.add(&item, vector),
            Self::Remote(taker) => taker.add(item, vector),
        }
    }

    pub fn finish(self) -> Result<()> {
        match self {
            Self::Embedded(builder) => builder.write(&mut |_| ()).map(drop),
            Self::Remote(taker) => taker.finish(),
        }
    }
}

/// Lets the other services of a server know which collection is served.
pub async fn announce(record: &Record, settings: &SearchSettings) -> Result<()> {
    match &settings.index {
        Place::Embedded {} => Ok(()),
        Place::Milvus(milvus) => remote::announce(milvus, record).await,
    }
}

/// Removes what lies elsewhere than in the generation's folder.
pub async fn forget(generation: &str, settings: &SearchSettings) -> Result<()> {
    match &settings.index {
        Place::Embedded {} => Ok(()),
        Place::Milvus(milvus) => remote::forget(milvus, generation).await,
    }
}

/// A generation's collection: its name in letters that Milvus takes.
#[cfg(feature = "milvus")]
mod remote {
    use tokio::runtime::Handle;

    use super::*;
    use crate::index::{Change, Milvus, MilvusSettings};

    const AT_ONCE: usize = 500;

    pub struct Taker {
        index: Milvus,
        waiting: Vec<Change>,
    }

    impl Taker {
        pub fn open(
            settings: &MilvusSettings,
            record: &Record,
            (model, dimensions): (String, i64),
            index: &IndexSettings,
        ) -> Result<Self> {
            let name = collection(&record.generation);
            let create = Milvus::create(settings, &name, (&model, dimensions), index);
            Ok(Self { index: Handle::current().block_on(create)?, waiting: Vec::new() })
        }

        pub fn add(&mut self, item: Item, vector: &[f32]) -> Result<()> {
            self.waiting.push(Change::Put(item, vector.to_vec()));
            if self.waiting.len() < AT_ONCE { Ok(()) } else { self.send() }
        }

        pub fn finish(mut self) -> Result<()> {
            self.send()
        }

        fn send(&mut self) -> Result<()> {
            let changes = std::mem::take(&mut self.waiting);
            Handle::current().block_on(self.index.apply(&changes)).map(drop)
        }
    }

    pub fn open(settings: &MilvusSettings, record: &Record) -> Result<Arc<dyn Index>> {
        Ok(Arc::new(Handle::current().block_on(find(settings, record))?))
    }

    pub async fn announce(settings: &MilvusSettings, record: &Record) -> Result<()> {
        find(settings, record).await?.serve_as(settings, &settings.alias).await
    }

    pub async fn forget(settings: &MilvusSettings, generation: &str) -> Result<()> {
        Milvus::remove(settings, &collection(generation)).await
    }

    async fn find(settings: &MilvusSettings, record: &Record) -> Result<Milvus> {
        Milvus::open(settings, &collection(&record.generation), &record.model, record.dimensions).await
    }

    fn collection(generation: &str) -> String {
        generation.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '_' }).collect()
    }
}

/// A program that was built without Milvus says so, wherever it is asked for it.
#[cfg(not(feature = "milvus"))]
mod remote {
    use super::*;
    use crate::index::MilvusSettings;
    use souk_io::error::Error;

    pub enum Taker {}

    impl Taker {
        pub fn open(_: &MilvusSettings, _: &Record, _: (String, i64), _: &IndexSettings) -> Result<Self> {
            Err(missing())
        }

        pub fn add(&mut self, _: Item, _: &[f32]) -> Result<()> {
            match *self {}
        }

        pub fn finish(self) -> Result<()> {
            match self {}
        }
    }

    pub fn open(_: &MilvusSettings, _: &Record) -> Result<Arc<dyn Index>> {
        Err(missing())
    }

    pub async fn announce(_: &MilvusSettings, _: &Record) -> Result<()> {
        Err(missing())
    }

    pub async fn forget(_: &MilvusSettings, _: &str) -> Result<()> {
        Err(missing())
    }

    fn missing() -> Error {
        let problem = "is milvus, which this program was built without: cargo build --release --workspace --features souk-cli/milvus";
        Error::config("search.index.type", problem)
    }
}
