//! Kafka: event streams, the offset ledger, dead letters, publishing.

mod library;

pub use library::library;
