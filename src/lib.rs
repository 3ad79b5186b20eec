//! evenkeel: reconciliation for everything that is not Kubernetes.
//!
//! Say what should be, and a loop keeps making it so. Events from Kafka, a channel, HTTP or a periodic resync name
//! **ids** to look at; the engine calls a **reconciler** for each, once at a time per id, retries what fails with
//! growing delays, and tells the sources only then that an event is done. It is level-triggered: an event says "look
//! again", nothing more, so many events for one id become one run.
//!
//! ```
//! use std::time::Duration;
//!
//! use evenkeel::local::Resync;
//! use evenkeel::{Action, Engine, Failure, Reconciler, Run};
//!
//! struct Zones;
//!
//! impl Reconciler for Zones {
//!     async fn reconcile(&self, run: &Run) -> Result<Action, Failure> {
//!         let zone = std::fs::read_to_string(format!("zones/{}", run.id()))?; // any error is tried again
//!         if zone.is_empty() {
//!             return Err(Failure::terminal("the zone is empty")); // given up, until somebody changes it
//!         }
//!         Ok(Action::done().requeue_after(Duration::from_secs(3_600)))
//!     }
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let list = || async { Ok::<_, std::io::Error>(vec!["example.org".to_owned()]) };
//! let engine = Engine::builder("dns")
//!     .reconciler(Zones)
//!     .stream("all", Resync::every(Duration::from_secs(60)).list_fn(list))
//!     .build()?;
//! let handle = engine.handle(); // trigger, explain, journal, redrive, drain
//! # handle.drain();
//! engine.run(async { /* resolves when the program should stop */ }).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Where to look
//! - [`contract`]: what you implement and what you are given: [`Reconciler`], [`Run`], [`Action`], [`Failure`],
//!   [`EventStream`], and the traits of stores, electors and dead letters.
//! - [`engine`]: [`Builder`], [`Engine`], [`Handle`].
//! - [`local`]: what needs no service: resync, channels, a store in a file or in memory, leadership of one process.
//! - `kafka`, `etcd`, `hooks`: event streams from Kafka; leadership and owed records in etcd; reconcilers behind HTTP
//!   or as commands (cargo features).
//! - `testing`: an engine in virtual time for your tests (cargo feature, for dev-dependencies).
//! - [`scheduler`]: the state machine that decides, for the curious.
//!
//! # Cargo features
//! By default everything is built, for the program. With `default-features = false` the library is the
//! engine alone and needs neither a C compiler nor protoc; `kafka`, `etcd`, `file-store`, `hooks`, `testing`, `cli`
//! (the binary) and `otlp` (the binary with a way to a collector) add theirs, and `vendored-tls` links OpenSSL
//! statically into Kafka's client.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod contract;
pub mod engine;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(feature = "hooks")]
pub mod hooks;
pub mod id;
#[cfg(feature = "kafka")]
pub mod kafka;
pub mod leadership;
pub mod local;
pub mod scheduler;
#[cfg(feature = "cli")]
pub mod service;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use contract::*;
pub use engine::{Builder, Engine, EngineError, Handle, Limits, ReconcilerOptions, Retry, Sharding, Timing};
