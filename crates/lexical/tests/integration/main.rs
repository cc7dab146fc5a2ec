//! BM25 against golden results.
#![expect(clippy::unwrap_used, reason = "a test stops at the first thing that is wrong")]

mod lexical;
