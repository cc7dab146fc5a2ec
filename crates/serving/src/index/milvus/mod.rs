//! Milvus as an index: a collection of a server that many processes share holds items and vectors, and an alias names the
//! one that is served. Takes the server's address, gives an `Index`. `link` asks the server, `layout` says how an item lies
//! in a row, `expression` says a filter in Milvus' words. Built where the feature `milvus` is on; the settings always are.

#[cfg(feature = "milvus")]
mod collection;
#[cfg(feature = "milvus")]
mod expression;
#[cfg(feature = "milvus")]
mod layout;
#[cfg(feature = "milvus")]
mod link;
mod settings;

#[cfg(feature = "milvus")]
pub use self::collection::Milvus;
pub use self::settings::MilvusSettings;
