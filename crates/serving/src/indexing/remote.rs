//! A collection of Milvus that ranks fill side by side. What is sent twice is there once, so that a shard can be sent again.

#[cfg(feature = "milvus")]
mod there {
    use std::time::{Duration, Instant};

    use tokio::runtime::Runtime;

    use crate::index::{Change, Index, IndexSettings, Milvus, MilvusSettings};
    use crate::indexing::Writer;
    use crate::indexing::kept::Left;
    use souk_io::domain::Item;
    use souk_io::error::{Error, Result};

    const AT_ONCE: usize = 500;
    const POLL: Duration = Duration::from_millis(200);
    const PATIENCE: Duration = Duration::from_secs(60);

    pub struct Remote {
        runtime: Runtime,
        settings: MilvusSettings,
        index: Milvus,
    }

    impl Remote {
        /// The first rank makes the collection, unless an earlier run did; the others wait for it.
        pub fn open(
            (settings, collection): (&MilvusSettings, &str),
            (model, dimensions): (&str, i64),
            (index, first): (&IndexSettings, bool),
        ) -> Result<Self> {
            settings.check()?;
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
            let runtime =
                runtime.map_err(|e| Error::device("no thread can be started to call Milvus on").because(e))?;
            let began = Instant::now();
            let opened = loop {
                if first {
                    let made = runtime.block_on(Milvus::create(settings, collection, (model, dimensions), index));
                    // it is there: of a run before this one, or another's, which `finish` finds out
                    break match made {
                        Err(Error::Config { .. }) => {
                            runtime.block_on(Milvus::open(settings, collection, model, dimensions))
                        }
                        made => made,
                    };
                }
                match runtime.block_on(Milvus::open(settings, collection, model, dimensions)) {
                    Err(_) if began.elapsed() < PATIENCE => std::thread::sleep(POLL),
                    opened => break opened,
                }
            };
            Ok(Self { index: opened?, settings: settings.clone(), runtime })
        }

        pub fn writer(&self) -> Box<dyn Writer + '_> {
            Box::new(Sending { remote: self, waiting: Vec::new(), began: Instant::now() })
        }

        /// Counts, and gives the alias; the collection's name.
        pub fn finish(&self, items: u64, alias: Option<&str>) -> Result<String> {
            let name = self.index.name().to_owned();
            let held = self.runtime.block_on(self.index.num_items())? as u64;
            if held != items {
                let problem =
                    format!("holds {held} items, and {items} were sent: ids that come twice, or another's items");
                return Err(Error::config(format!("Milvus collection `{name}`"), problem));
            }
            if let Some(alias) = alias {
                self.runtime.block_on(self.index.serve_as(&self.settings, alias))?;
            }
            Ok(name)
        }
    }

    struct Sending<'a> {
        remote: &'a Remote,
        waiting: Vec<Change>,
        began: Instant,
    }

    impl Sending<'_> {
        fn send(&mut self) -> Result<()> {
            let changes = std::mem::take(&mut self.waiting);
            self.remote.runtime.block_on(self.remote.index.apply(&changes)).map(drop)
        }
    }

    impl Writer for Sending<'_> {
        fn add(&mut self, item: Item, vector: &[f32]) -> Result<()> {
            self.waiting.push(Change::Put(item, vector.to_vec()));
            if self.waiting.len() < AT_ONCE { Ok(()) } else { self.send() }
        }

        fn finish(&mut self, items: u64) -> Result<Left> {
            self.send()?;
            Ok(Left::elsewhere(items, self.began.elapsed().as_secs_f64()))
        }
    }
}

/// A program that was built without Milvus says so.
#[cfg(not(feature = "milvus"))]
mod there {
    use crate::index::{IndexSettings, MilvusSettings};
    use crate::indexing::Writer;
    use souk_io::error::{Error, Result};

    pub enum Remote {}

    impl Remote {
        pub fn open(_: (&MilvusSettings, &str), _: (&str, i64), _: (&IndexSettings, bool)) -> Result<Self> {
            let problem = "is Milvus', which this program was built without: cargo build --release --workspace --features souk-cli/milvus";
            Err(Error::config("--collection", problem))
        }

        pub fn writer(&self) -> Box<dyn Writer + '_> {
            match *self {}
        }

        pub fn finish(&self, _: u64, _: Option<&str>) -> Result<String> {
            match *self {}
        }
    }
}

pub use there::Remote;
