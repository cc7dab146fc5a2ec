//! Serving: vector indexes ([`index`]), building them from catalogues of any size ([`indexing`]), and search over a
//! model and its index, which are swapped as one unit ([`search`]).

pub mod index;
pub mod indexing;
pub mod search;
