//! Serving: vector indexes ([`index`]), building them from catalogues of any size ([`indexing`]), search over a model and its index,
//! which are swapped as one unit ([`search`]), and files of vectors for other engines ([`vector_export`]).

pub mod index;
pub mod indexing;
pub mod search;
pub mod vector_export;
