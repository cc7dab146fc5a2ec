//! Rules of the code base, shipped configurations, deployment files and generative encoders.
#![expect(clippy::unwrap_used, reason = "a test stops at the first thing that is wrong")]

mod configs;
mod deployment;
mod generative;
mod house;
