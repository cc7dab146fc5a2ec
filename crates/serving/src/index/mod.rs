//! The vectors of a catalogue, searched while items come and go. A `Snapshot` is what was built, `Live` is a snapshot and
//! what changed since; `Milvus` is the same on a server. A `Journal` keeps the changes. Vectors never meet those of another
//! model.

mod ask;
mod builder;
mod columns;
mod filter;
mod fresh;
mod graph;
mod items;
mod journal;
mod live;
mod manifest;
mod milvus;
mod snapshot;
mod space;

use souk_io::domain::Item;
use souk_io::error::Answer;
use souk_io::error::Result;

pub use self::ask::Ask;
pub use self::builder::Builder;
pub use self::columns::{Count, Field};
pub use self::filter::{Condition, Filter, texts_of};
pub use self::journal::{Change, Journal, JournalReader};
pub use self::live::Live;
pub use self::manifest::{IndexSettings, Kind, Manifest};
#[cfg(feature = "milvus")]
pub use self::milvus::Milvus;
pub use self::milvus::MilvusSettings;
pub use self::snapshot::Snapshot;

/// An item that was found, and how near it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    pub score: f32,
    pub item: Item,
}

/// Some items of an index, and the mark that the next page follows.
pub struct Page {
    pub items: Vec<(Item, Vec<f32>)>,
    pub next: Option<String>,
}

/// Items and their vectors, behind one model.
pub trait Index: Send + Sync {
    /// Whether a filter can be meant.
    fn check<'a>(&'a self, filter: &'a Filter) -> Answer<'a, ()> {
        Box::pin(async { filter.check() })
    }

    /// The items nearest to a vector that pass the filter, best first.
    fn nearest<'a>(&'a self, ask: Ask<'a>, filter: Option<&'a Filter>) -> Answer<'a, Vec<Found>>;

    /// The items whose texts share terms with the query, best first; nothing where the index keeps no texts to search.
    fn lexical<'a>(&'a self, query: &'a str, k: usize, filter: Option<&'a Filter>) -> Answer<'a, Option<Vec<Found>>>;

    fn get<'a>(&'a self, ids: &'a [String]) -> Answer<'a, Vec<Option<Item>>>;

    /// Whether these changes could be made: none of them is refused later.
    fn takes(&self, changes: &[Change]) -> Result<()>;

    /// Makes changes, in their order; the next search knows of them. Gives how many items were there before. What was
    /// done already may be done again.
    fn apply<'a>(&'a self, changes: &'a [Change]) -> Answer<'a, usize>;

    fn num_items(&self) -> Answer<'_, usize>;

    /// All items with their vectors, so many at a time. One that changes meanwhile may come twice.
    fn page<'a>(&'a self, after: Option<&'a str>, limit: usize) -> Answer<'a, Page>;

    /// What can be filtered by, with the commonest values.
    fn fields(&self) -> Answer<'_, Vec<Field>>;

    /// The share of the query's terms, weighed by how rare they are, that a text has; nothing where terms are not known.
    fn overlap(&self, query: &str, text: &str) -> Option<f32>;

    /// The share of the `k` nearest to these vectors that a search finds.
    fn recall<'a>(&'a self, vectors: &'a [Vec<f32>], k: usize) -> Answer<'a, f64>;
}
