//! The trainer daemon: reads a shop's search log, trains on new examples in rounds, measures each candidate against the served
//! model, and offers it to the search service if it passes the gate. After a kill it resumes where it was.
//!
//! `log_reader` reads the log, `round_loop` runs the rounds and their stages, and `ranks` trains a stage on several processes.
//! `round_catalogue` gives each round the items as they are when it begins,
//! `newest_days` judges the log for the gate, `measure` compares a candidate with the served model, `exposure` finds sellers whose
//! share of the hits has grown, `drift` compares new examples with older ones, and `registry` writes to the ledger.
//! `watchdog` raises alarms, `status` and `round_details` hold what `routes` shows, and `serve` is the process. `rounds` defines when a round begins
//! and records it; the gate itself is in `souk::report`.

mod drift;
mod exposure;
mod log_reader;
mod measure;
mod newest_days;
mod ranks;
mod registry;
mod round_catalogue;
mod round_details;
mod round_loop;
mod rounds;
mod routes;
mod serve;
mod signals;
mod status;
mod watchdog;

pub use self::registry::{Offer, Registry};
pub use self::round_loop::check_stages;
pub use self::serve::serve;
