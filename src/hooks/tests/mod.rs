//! Hooks against real sockets and real processes. They stand inside the crate because only it can make a
//! [`Run`](crate::Run).
#![cfg(feature = "cli")]

mod contract;
mod exec;
mod exec_end;
mod list;
mod secrets;
mod server;
mod support;
mod tls;
mod webhook;
mod webhook_faults;
