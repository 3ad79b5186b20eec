//! The service around the engine: config, wiring, admin server, telemetry, command line.

pub mod telemetry;
