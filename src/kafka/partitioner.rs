//! Which hash a topic's producers use, told by its last messages (`check --partitioner`).
//!
//! Must never commit, nor wait without end. Tested against a real broker.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::{Message, Offset, TopicPartitionList};

use super::connect::consumer;
use super::context::Context;
use super::settings::{self, Connection, SettingsError};
use crate::id::Partitioner;

/// So many messages are looked at, at most: enough to tell hashes apart that agree on all but a few keys.
pub const SAMPLE_MAX: i64 = 5_000;
/// The longest wait for one answer of a broker.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// The longest time for reading; with less than the sample by then, what came is told.
const READING_MAX: Duration = Duration::from_secs(30);
/// The client's own events are served this often.
const PATIENCE: Duration = Duration::from_millis(200);

/// What a topic's last messages say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// How many partitions the topic has.
    pub partitions: u32,
    /// How many messages were looked at.
    pub messages: u64,
    /// How many of them have no key, or an empty one, and say nothing.
    pub keyless: u64,
    /// How many of those with a key stand where each hash would have put them.
    pub matches: Vec<(Partitioner, u64)>,
}

/// A topic cannot be looked at.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SampleError {
    /// Settings that cannot be used.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The topic is not there.
    #[error("the topic {0} does not exist")]
    NoTopic(String),
    /// The brokers do not answer, or refuse.
    #[error("the topic {0} cannot be read: {1}")]
    Brokers(String, String),
}

/// Reads the last messages of a topic, some of each partition. Waits for brokers: not for a thread of the async
/// runtime.
///
/// # Errors
/// The topic cannot be read.
pub fn sample(connection: &Connection, topic: &str) -> Result<Sample, SampleError> {
    if !settings::is_topic(topic) {
        return Err(SampleError::NoTopic(topic.to_owned()));
    }
    let mut config = connection.client_config()?;
    config.set("group.id", "evenkeel-check").set("enable.auto.commit", "false").set("enable.partition.eof", "true");
    let client = consumer(connection, &config, Context::new(connection))?;
    let brokers = |error: KafkaError| SampleError::Brokers(topic.to_owned(), error.to_string());
    let metadata = client.fetch_metadata(Some(topic), ANSWER_MAX).map_err(brokers)?;
    let found = metadata.topics().iter().find(|found| found.name() == topic && found.error().is_none());
    let partitions = found.map_or(0, |found| found.partitions().len());
    let count = i32::try_from(partitions).ok().filter(|count| *count > 0);
    let count = count.ok_or_else(|| SampleError::NoTopic(topic.to_owned()))?;
    let ends = assign(&client, topic, count).map_err(brokers)?;
    read(&client, count.unsigned_abs(), ends).map_err(brokers)
}

/// Begins with each partition so far before its end that all together give the sample. Gives the ends of those that
/// hold anything.
fn assign(client: &BaseConsumer<Context>, topic: &str, count: i32) -> Result<BTreeMap<i32, i64>, KafkaError> {
    let share = (SAMPLE_MAX / i64::from(count)).max(1);
    let (mut list, mut ends) = (TopicPartitionList::new(), BTreeMap::new());
    for partition in 0..count {
        let (low, high) = client.fetch_watermarks(topic, partition, ANSWER_MAX)?;
        if high > low {
            list.add_partition_offset(topic, partition, Offset::Offset(low.max(high - share)))?;
            ends.insert(partition, high);
        }
    }
    client.assign(&list)?;
    Ok(ends)
}

fn read(client: &BaseConsumer<Context>, partitions: u32, mut ends: BTreeMap<i32, i64>) -> Result<Sample, KafkaError> {
    let mut sample =
        Sample { partitions, messages: 0, keyless: 0, matches: Partitioner::ALL.map(|hash| (hash, 0)).to_vec() };
    let deadline = Instant::now() + READING_MAX;
    while !ends.is_empty() && Instant::now() < deadline {
        let message = match client.poll(PATIENCE) {
            None => continue,
            Some(Err(KafkaError::PartitionEOF(partition))) => {
                ends.remove(&partition);
                continue;
            }
            // A connection that failed is made anew by the client; what cannot be mended shows by the deadline.
            Some(Err(KafkaError::MessageConsumption(code))) => {
                tracing::debug!(%code, "while reading a sample");
                continue;
            }
            Some(message) => message?,
        };
        sample.note(message.partition(), message.key());
        if ends.get(&message.partition()).is_some_and(|end| message.offset() + 1 >= *end) {
            ends.remove(&message.partition());
        }
    }
    Ok(sample)
}

impl Sample {
    fn note(&mut self, partition: i32, key: Option<&[u8]>) {
        self.messages += 1;
        let Some(key) = key.filter(|key| !key.is_empty()) else {
            self.keyless += 1;
            return;
        };
        for (hash, matches) in &mut self.matches {
            *matches += u64::from(hash.hash(key) % self.partitions == partition.unsigned_abs());
        }
    }

    /// How many messages say something.
    #[must_use]
    pub fn keyed(&self) -> u64 {
        self.messages - self.keyless
    }
}
