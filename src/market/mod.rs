//! The simulated shop: a catalogue, shoppers, an oracle and a search log, all from one seed.
//!
//! The way of the data: `world` (what there is) → `catalogue` (what each item is) → `seller` (how it is written) and
//! `shopper` (what is wanted) → `phrase` (how it is asked) → `oracle` (how well they meet); then `channel` (what the shop
//! shows) → `sessions` (what shoppers do). Nothing after `catalogue` changes what an item is, and the oracle reads no word.

mod catalogue;
mod dice;
mod oracle;
mod phrase;
mod quality;
mod requests;
mod seller;
mod shopper;
mod slip;
mod world;
