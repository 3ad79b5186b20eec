//! The Kafka room against a real broker.

mod consume;
mod states;
