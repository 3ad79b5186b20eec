//! Tests against real services, which `make test` sets up.
//!
//! Without them these tests fail and say so. `EVENKEEL_TEST_SKIP_SERVICES=1` passes them over instead, and each says
//! that it did.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests, which the exceptions for tests do not see"
)]

mod broker;
mod browser;
mod engine;
mod engine_kill;
mod engine_states;
mod engine_world;
#[cfg(feature = "etcd")]
mod etcd;
mod kafka;
#[cfg(feature = "otlp")]
mod otelcol;
#[cfg(feature = "otlp")]
mod otlp;
mod page;
#[path = "../it/recorder.rs"]
mod recorder;
#[path = "../it/run_world.rs"]
mod run_world;
mod sink;
mod support;
