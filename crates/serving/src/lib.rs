//! Serving: vector indexes ([`index`]), building them from catalogues of any size ([`indexing`]), search over a model and its index,
//! which are swapped as one unit ([`search`]), files of vectors for other engines ([`vector_export`]), and a
//! picture of a catalogue ([`map`]).

pub mod index;
pub mod indexing;
pub mod map;
pub mod search;
pub mod vector_export;
