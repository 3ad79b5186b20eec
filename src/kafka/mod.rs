//! Kafka: event streams, commits, dead letters and `publish` (rules K1 to K7).
//!
//! Must never know the engine, nor another adapter: what it hears of events goes through [`crate::contract::Events`],
//! what it learns of them through a [`crate::contract::Tracker`]. No call into the client library blocks the async
//! runtime: the consumer lives on a thread of its own, everything that waits for a broker on a second one.
//!
//! [`ledger`] decides what may be committed and is pure; [`KafkaStream`] is the stream; [`KafkaCommitter`] keeps
//! committing until the drain is over. Tested by unit tests in each file and against a real broker in `tests/live/`.

mod assignment;
mod close;
mod committer;
mod connect;
mod context;
mod dead_letter;
mod decode;
mod hand_off;
mod instruments;
pub mod ledger;
#[cfg(test)]
mod ledger_world;
mod library;
mod lookout;
mod misrouted;
mod partitioner;
mod producer;
mod publish;
mod session;
mod settings;
mod stream;
#[cfg(test)]
mod testing;
mod trouble;

pub use committer::{CommitError, KafkaCommitter};
pub use connect::PREFETCH_BYTES;
pub use dead_letter::{KafkaDeadLetter, header};
pub use decode::IdFrom;
pub use hand_off::header as hand_off_header;
pub use library::library;
pub use partitioner::{SAMPLE_MAX, Sample, SampleError, sample};
pub use publish::{PublishError, Published, Publisher};
pub use settings::{
    COMMIT_INTERVAL, Connection, MISSING_INTERVAL, RECOMMIT_INTERVAL, Sasl, SaslMechanism, SettingsError,
    StreamSettings, TOPICS_INTERVAL, Timing, Tls, Token, WATCH_INTERVAL,
};
pub use stream::KafkaStream;

pub use crate::contract::Secret;
