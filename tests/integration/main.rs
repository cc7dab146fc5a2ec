//! Rules of the code base, shipped configurations, deployment files and generative encoders.
#![expect(clippy::unwrap_used, reason = "a test stops at the first thing that is wrong")]

mod architecture;
mod configs;
mod deployment;
mod examples;
mod generative;
mod house;
mod modules;
mod toolchain;
