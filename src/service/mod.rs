//! The binary: config, wiring, admin server, logs and metrics, command line.

pub mod cli;
pub mod client;
pub mod telemetry;
