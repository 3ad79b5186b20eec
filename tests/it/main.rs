//! Hermetic tests: no service, no network beyond loopback.

mod logs;
