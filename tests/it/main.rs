//! Hermetic tests: no service, no network beyond loopback.
#![allow(clippy::unwrap_used, reason = "clippy sees the tests themselves, not their helpers")]

mod cli;
mod config;
mod elector;
mod engine;
mod hooks;
mod quickstart;
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
