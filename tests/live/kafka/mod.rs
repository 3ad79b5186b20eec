//! The Kafka room against a real broker.

mod consume;
mod hand_off;
mod memory;
mod poison;
mod publish;
mod security;
mod states;
