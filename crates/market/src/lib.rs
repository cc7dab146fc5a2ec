//! Simulated shop: catalogue, queries, graded relevance and a search log, all from one seed.
//!
//! Data flow: `world` (categories and attributes) → `catalogue` (traits of each item) → `seller` (titles and descriptions)
//! and `shopper` (constraints of a query) → `phrase` (query text) → `intent` (relevance of an item); then `shop_search`
//! (ranked hits) → `sessions` (clicks and purchases). Nothing after `catalogue` changes an item's traits, and no relevance
//! judgement depends on text.

mod catalogue;
mod dice;
mod intent;
mod oracle;
mod phrase;
mod quality;
mod requests;
mod rewrite;
mod seller;
mod sessions;
mod shop_search;
mod shopper;
mod slice;
mod world;
mod write;

pub use catalogue::{MarketCatalogue, Traits};
pub use intent::{Constraint, Intent};
pub use oracle::{MarketSpec, Oracle};
pub use requests::{Request, Split};
pub use slice::QuerySlice;
pub use write::{WriteStep, write};
