//! Milvus as an index: a collection on a shared server holds items and vectors, and an alias points to the served one.
//! Takes the server's address, gives an `Index`. `client` calls the server, `layout` maps items to rows, `expression`
//! translates filters, `terms` searches by terms, `reading` reads whole collections. Needs the feature `milvus`, except for the settings.

#[cfg(feature = "milvus")]
mod client;
#[cfg(feature = "milvus")]
mod collection;
#[cfg(feature = "milvus")]
mod expression;
#[cfg(feature = "milvus")]
mod layout;
#[cfg(feature = "milvus")]
mod reading;
mod settings;
#[cfg(feature = "milvus")]
mod terms;

#[cfg(feature = "milvus")]
pub use self::collection::{CollectionContent, Milvus};
pub use self::settings::MilvusSettings;
