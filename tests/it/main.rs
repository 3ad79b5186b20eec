//! Hermetic tests: no service, no network beyond loopback.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests, which the exceptions for tests do not see"
)]

mod admin;
mod admin_docs;
mod admin_engine;
mod admin_follow;
mod admin_input;
mod admin_limits;
mod admin_metrics;
mod admin_page;
mod admin_security;
mod admin_world;
mod cli;
mod client;
mod config;
mod elector;
mod engine;
mod engine_blocked;
mod engine_events;
mod engine_load;
mod engine_panics;
mod engine_records;
mod engine_renewal;
mod engine_results;
mod engine_stop;
mod engine_streams;
mod engine_telemetry;
mod engine_terms;
mod engine_world;
mod hooks;
mod logs;
#[cfg(feature = "otlp")]
mod otlp;
#[cfg(feature = "otlp")]
mod otlp_collector;
mod quickstart;
mod recorder;
mod run;
mod run_secrets;
mod run_signals;
mod run_world;
mod store;
mod store_conformance;
mod store_crash;
mod store_file;
mod streams;
mod streams_engine;
mod streams_example;
mod streams_resync;
mod streams_sink;
mod support;
mod tidy;
