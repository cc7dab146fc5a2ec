//! The simulated shop: a catalogue, shoppers, an oracle and a search log, all from one seed.
//!
//! The way of the data: `world` (what there is) → `catalogue` (what each item is) → `seller` (how it is written) and
//! `shopper` (what is wanted) → `phrase` (how it is asked) → `intent` (how well they meet); then `channel` (what the shop
//! shows) → `sessions` (what shoppers do). Nothing after `catalogue` changes what an item is, and no judgement reads a word.

mod catalogue;
mod channel;
mod dice;
mod intent;
mod oracle;
mod phrase;
mod quality;
mod requests;
mod rewrite;
mod seller;
mod sessions;
mod shopper;
mod slip;
mod world;
mod write;

pub use catalogue::{Catalogue, Traits};
pub use intent::{Intent, Wish};
pub use oracle::{Oracle, Plan};
pub use requests::{Request, Split};
pub use shopper::Slice;
pub use write::{Step, write};
