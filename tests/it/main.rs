//! Hermetic tests: no service, no network beyond loopback.
#![allow(clippy::unwrap_used, reason = "clippy sees the tests themselves, not their helpers")]

mod admin;
mod admin_docs;
mod admin_engine;
mod admin_follow;
mod admin_input;
mod admin_limits;
mod admin_metrics;
mod admin_security;
mod admin_world;
mod cli;
mod client;
mod config;
mod logs;
mod quickstart;
mod tidy;
