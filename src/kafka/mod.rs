//! Kafka: event streams, the offset ledger, dead letters, publishing.
