//! The binary: config, wiring, admin server, logs and metrics, command line.

pub mod admin;
pub mod cli;
pub mod client;
pub mod config;
pub mod telemetry;
pub mod wiring;
