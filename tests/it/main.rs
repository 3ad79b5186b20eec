//! Hermetic tests: no service, no network beyond loopback.
#![allow(clippy::unwrap_used, reason = "clippy sees the tests themselves, not their helpers")]

mod quickstart;
mod tidy;
