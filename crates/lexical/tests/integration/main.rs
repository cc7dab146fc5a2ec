//! Golden tests of BM25.
#![expect(clippy::unwrap_used, reason = "tests stop at the first failure")]

mod lexical;
