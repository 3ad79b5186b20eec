//! Hermetic tests: no service, no network beyond loopback.

mod elector;
mod store;
mod store_conformance;
mod store_crash;
mod store_file;
mod streams;
mod streams_resync;
mod streams_sink;
mod support;
