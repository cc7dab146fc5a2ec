//! Vector indexes of a catalogue that changes while it is searched. `Snapshot` is an immutable index on disk, `Live`
//! adds the changes since, and `Milvus` is an index on a server. `Journal` stores the changes. Vectors of different
//! models never mix.

mod builder;
mod columns;
mod delta;
mod filter;
mod frame;
mod graph;
mod hit;
mod item_file;
mod journal;
mod live;
mod manifest;
mod milvus;
mod snapshot;
mod space;
mod spool;
mod vector_query;

use souk_io::domain::Item;
use souk_io::error::Answer;
use souk_io::error::Result;
use souk_io::item_text::ItemText;
use souk_lexical::TermMatcher;

pub use self::builder::Builder;
pub use self::columns::{Field, ValueCount};
pub use self::filter::{Condition, Filter, field_texts};
pub use self::frame::{Frame, ItemChange};
pub use self::hit::{HitItem, HitKey, IndexHit};
pub use self::journal::{Journal, JournalReader};
pub use self::live::Live;
pub use self::manifest::{IndexKind, IndexSettings, Manifest};
pub use self::milvus::MilvusSettings;
#[cfg(feature = "milvus")]
pub use self::milvus::{CollectionContent, Milvus};
pub use self::snapshot::Snapshot;
pub use self::vector_query::VectorQuery;

/// A page of items, and the mark to request the next one.
pub struct Page {
    pub items: Vec<(Item, Vec<f32>)>,
    pub next: Option<String>,
}

/// Items and their vectors, all from one model.
pub trait Index: Send + Sync {
    /// Checks that a filter is valid.
    fn check<'a>(&'a self, filter: &'a Filter) -> Answer<'a, ()> {
        Box::pin(async { filter.check() })
    }

    /// Nearest items that match the filter, best first.
    fn nearest<'a>(&'a self, ask: VectorQuery<'a>, filter: Option<&'a Filter>) -> Answer<'a, Vec<IndexHit>>;

    /// Items that share terms with the query, best first; None if the index has no lexical search.
    fn lexical<'a>(&'a self, query: &'a str, k: usize, filter: Option<&'a Filter>)
    -> Answer<'a, Option<Vec<IndexHit>>>;

    fn get<'a>(&'a self, ids: &'a [String]) -> Answer<'a, Vec<Option<Item>>>;

    /// Vectors of items that the index has with the same id and text; the others have to be encoded.
    fn known_vectors<'a>(&'a self, items: &'a [Item], template: &'a ItemText) -> Answer<'a, Vec<Option<Vec<f32>>>>;

    /// Checks that `apply` would accept these changes.
    fn check_changes(&self, changes: &[ItemChange]) -> Result<()>;

    /// Applies changes in order; the next search sees them. Returns how many of the ids were present before. Applying a
    /// change twice is harmless.
    fn apply<'a>(&'a self, changes: &'a [ItemChange]) -> Answer<'a, usize>;

    fn num_items(&self) -> Answer<'_, usize>;

    /// Page of up to `limit` items with their vectors. An item that changes meanwhile can appear twice.
    fn page<'a>(&'a self, after: Option<&'a str>, limit: usize) -> Answer<'a, Page>;

    /// Up to `num` items from everywhere in the index, with their vectors. By default the first ones.
    fn sample(&self, num: usize) -> Answer<'_, Vec<(Item, Vec<f32>)>> {
        Box::pin(async move { Ok(self.page(None, num).await?.items) })
    }

    /// Up to `limit` items after an id, in byte order of ids.
    fn items_after<'a>(&'a self, id: &'a str, limit: usize) -> Answer<'a, Vec<Item>>;

    /// Filterable fields with their most frequent values.
    fn fields(&self) -> Answer<'_, Vec<Field>>;

    /// Prepares a query to be compared with texts; None if the index knows no terms.
    fn matcher(&self, query: &str) -> Option<TermMatcher>;

    /// Fraction of the exact `k` nearest neighbors of these vectors that a search finds.
    fn recall<'a>(&'a self, vectors: &'a [Vec<f32>], k: usize) -> Answer<'a, f64>;

    /// Measures it, and widens searches if they need that for the asked recall. Returns the recall from then on. By default, the width is
    /// not this program's.
    fn hold_recall<'a>(&'a self, vectors: &'a [Vec<f32>], k: usize, _asked: f64) -> Answer<'a, f64> {
        self.recall(vectors, k)
    }
}
