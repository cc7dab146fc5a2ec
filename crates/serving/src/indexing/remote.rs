//! Milvus collection that ranks fill in parallel. Upserts are idempotent, so a shard can be sent again.

use crate::index::{IndexSettings, MilvusSettings};
use souk_io::item_text::ItemText;

/// Collection to fill: its server, name, model and index settings.
#[cfg_attr(not(feature = "milvus"), allow(dead_code, reason = "used by the Milvus client only"))]
pub struct CollectionSpec<'a> {
    pub settings: &'a MilvusSettings,
    pub name: &'a str,
    pub model: &'a str,
    pub dimensions: i64,
    pub item_text: &'a ItemText,
    pub index: &'a IndexSettings,
    /// Whether this rank creates the collection; the others wait for it.
    pub is_first_rank: bool,
}

#[cfg(feature = "milvus")]
mod collection {
    use std::time::{Duration, Instant};

    use tokio::runtime::Runtime;

    use super::CollectionSpec;
    use crate::index::{CollectionContent, Index, ItemChange, Milvus, MilvusSettings};
    use crate::indexing::ShardWriter;
    use crate::indexing::shard_files::ShardResult;
    use souk_io::domain::Item;
    use souk_io::error::{Error, Result};
    use souk_lexical::LexicalOptions;

    const BATCH: usize = 500;
    const POLL: Duration = Duration::from_millis(200);
    const TIMEOUT: Duration = Duration::from_secs(60);

    pub struct RemoteCollection {
        runtime: Runtime,
        settings: MilvusSettings,
        /// Without the prefix.
        name: String,
        index: Milvus,
    }

    impl RemoteCollection {
        /// The first rank creates the collection unless an earlier run did; other ranks wait for it.
        pub fn open(spec: CollectionSpec<'_>) -> Result<Self> {
            let CollectionSpec { settings, name, model, dimensions, item_text, index, is_first_rank } = spec;
            let lexical = Some(LexicalOptions::default());
            let content = CollectionContent { model, dimensions, item_text, lexical };
            settings.check()?;
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
            let runtime = runtime.map_err(|e| Error::device("cannot start a thread for calls to Milvus").because(e))?;
            let started = Instant::now();
            let opened = loop {
                if is_first_rank {
                    let made = runtime.block_on(Milvus::create(settings, name, content, index));
                    // it exists: from an earlier run, or foreign, which `finish` detects
                    break match made {
                        Err(Error::Config { .. }) => runtime.block_on(Milvus::open(settings, name, content)),
                        made => made,
                    };
                }
                match runtime.block_on(Milvus::open(settings, name, content)) {
                    Err(_) if started.elapsed() < TIMEOUT => std::thread::sleep(POLL),
                    opened => break opened,
                }
            };
            Ok(Self { index: opened?, settings: settings.clone(), name: name.into(), runtime })
        }

        pub fn writer(&self) -> Box<dyn ShardWriter + '_> {
            Box::new(CollectionWriter { remote: self, pending: Vec::new(), started: Instant::now() })
        }

        /// Checks the number of items and moves the alias; returns the collection's name.
        pub fn finish(&self, items: u64, alias: Option<&str>) -> Result<String> {
            let name = self.index.name().to_owned();
            let num_stored = self.runtime.block_on(self.index.num_items())? as u64;
            if num_stored != items {
                let problem = format!(
                    "holds {num_stored} items, but {items} were sent: remove duplicate ids, or use a new collection"
                );
                return Err(Error::config(format!("Milvus collection `{name}`"), problem));
            }
            if let Some(alias) = alias {
                self.runtime.block_on(Milvus::point_alias(&self.settings, &self.name, alias))?;
            }
            Ok(name)
        }
    }

    struct CollectionWriter<'a> {
        remote: &'a RemoteCollection,
        pending: Vec<ItemChange>,
        started: Instant,
    }

    impl CollectionWriter<'_> {
        fn send(&mut self) -> Result<()> {
            let changes = std::mem::take(&mut self.pending);
            self.remote.runtime.block_on(self.remote.index.apply(&changes)).map(drop)
        }
    }

    impl ShardWriter for CollectionWriter<'_> {
        fn add(&mut self, item: Item, vector: &[f32]) -> Result<()> {
            self.pending.push(ItemChange::Put(item, vector.to_vec()));
            if self.pending.len() < BATCH { Ok(()) } else { self.send() }
        }

        fn finish(&mut self, items: u64) -> Result<ShardResult> {
            self.send()?;
            Ok(ShardResult::remote(items, self.started.elapsed().as_secs_f64()))
        }
    }
}

/// Without the feature `milvus`, opening a collection is an error.
#[cfg(not(feature = "milvus"))]
mod collection {
    use super::CollectionSpec;
    use crate::indexing::ShardWriter;
    use souk_io::error::{Error, Result};

    pub enum RemoteCollection {}

    impl RemoteCollection {
        pub fn open(_: CollectionSpec<'_>) -> Result<Self> {
            let problem =
                "needs Milvus, which this build lacks: cargo build --release --workspace --features souk-cli/milvus";
            Err(Error::config("--collection", problem))
        }

        pub fn writer(&self) -> Box<dyn ShardWriter + '_> {
            match *self {}
        }

        pub fn finish(&self, _: u64, _: Option<&str>) -> Result<String> {
            match *self {}
        }
    }
}

pub use collection::RemoteCollection;
