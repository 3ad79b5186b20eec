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
mod kafka;
mod sink;
mod support;
