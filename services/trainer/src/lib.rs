//! The trainer: reads a shop's search log without end, trains on what is new when it is time, measures what came of it, and
//! offers it to the search service if it passed its gate.
//!
//! `reader` brings the log in, `work` goes from round to round, `ranks` train a stage as one, `measure` holds a candidate against what
//! is served, `drift` what comes in against what came before, `registry` tells the ledger. `watch` looks whether all of them get on, `status` is what they say of themselves, `routes` who can ask
//! for it, `serve` the process. What a round is and when one begins is `rounds`; what a gate demands `souk::report`.
//! Whatever kills the process, it goes on where it was.

mod drift;
mod measure;
mod ranks;
mod reader;
mod registry;
mod rounds;
mod routes;
mod serve;
mod status;
mod watch;
mod work;

pub use self::serve::serve;
pub use self::work::check_stages;
