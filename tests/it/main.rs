//! Hermetic tests: no service, no network beyond loopback.

mod admin;
mod admin_docs;
mod admin_follow;
mod admin_input;
mod admin_limits;
mod admin_security;
mod admin_world;
mod logs;
