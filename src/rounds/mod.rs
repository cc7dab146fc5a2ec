//! Rounds of a trainer that never ends: when one begins and what it learns from, what has to be written down of it so that
//! it goes on after a kill, and what the examples and the judge's verdicts look like beside what they were. Takes counts and
//! measurements, gives decisions; who trains, measures and publishes is the trainer service.

mod drift;
mod pace;
mod record;
mod settings;

pub use self::drift::{Mix, stability};
pub use self::pace::{Due, Tried, due};
pub use self::record::{Ended, Lesson, Round, Rounds};
pub use self::settings::{Alarms, Pace, StageSettings, TrainerSettings};
