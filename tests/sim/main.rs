//! The seeded world: the scheduler against text scripts and naive models, with faults.
#![allow(clippy::unwrap_used, reason = "clippy sees the tests themselves, not their helpers")]

mod history;
mod limits;
mod model;
mod random;
mod scenario;
mod world;
