//! Rounds: when one begins and which examples it trains on, what is written down of it so that it survives a kill, and how far the
//! examples and judgements have drifted. Takes counts and measurements, gives decisions; never trains, measures or publishes.

mod drift;
mod pace;
mod record;

pub use self::drift::{Mix, stability};
pub use self::pace::{Due, StageAttempt, due};
pub use self::record::{Round, RoundOutcome, Rounds, StageSpan, find, newest, place_of};
