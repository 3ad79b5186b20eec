//! Hermetic tests: no service, no network beyond loopback.

mod cli;
mod config;
