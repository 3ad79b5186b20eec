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
mod etcd;
mod failover;
mod kafka;
mod member;
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
#[path = "../it/store_conformance.rs"]
mod store_conformance;
mod support;
