//! evenkeel: reconciliation for everything that is not Kubernetes.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod contract;
pub mod engine;
#[cfg(feature = "hooks")]
pub mod hooks;
pub mod id;
#[cfg(feature = "kafka")]
pub mod kafka;
pub mod local;
pub mod scheduler;
#[cfg(feature = "cli")]
pub mod service;
pub mod testing;

pub use contract::*;
pub use engine::{Builder, Engine, EngineError, Handle, Limits, ReconcilerOptions, Sharding, Timing};
pub use scheduler::Retry;
