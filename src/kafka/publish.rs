//! `publish`: events to a topic, on the partition that the cluster's hash gives (K2).
//!
//! The value is empty but not null, so that it deletes nothing from a compacted topic. Must never leave the choice of
//! the partition to the client library. Tested live against librdkafka's own partitioners.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::producer::{Outgoing, Producer};
use super::settings::{self, Connection, SettingsError};
use crate::id::{self, IdError, Partitioner};

/// The longest wait for a broker to say how many partitions a topic has.
const METADATA_MAX: Duration = Duration::from_secs(10);
/// So many events are under way at once.
const WINDOW: usize = 1_000;

/// Sends ids to topics.
pub struct Publisher {
    producer: Arc<Producer>,
    hash: Partitioner,
}

/// What became of the ids.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Published {
    /// How many arrived.
    pub sent: usize,
    /// Those that did not, with the reason.
    pub failed: Vec<(String, String)>,
}

/// Nothing was sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// A text is no id.
    #[error("{0:?}: {1}")]
    Id(String, IdError),
    /// The topic is not there.
    #[error("the topic {0} does not exist; create it first")]
    NoTopic(String),
    /// The brokers do not answer.
    #[error("the partitions of topic {0} cannot be found out: {1}")]
    Brokers(String, String),
}

impl Publisher {
    /// A publisher that chooses partitions by this hash. Brokers are reached when something is published.
    ///
    /// # Errors
    /// Settings that cannot be used.
    pub fn new(connection: &Connection, hash: Partitioner) -> Result<Self, SettingsError> {
        Ok(Self { producer: Arc::new(Producer::new(connection)?), hash })
    }

    /// Sends an event for each id: key = id, partition = hash(id) mod partitions. Every id is checked before any is
    /// sent.
    ///
    /// # Errors
    /// Nothing was sent, for this reason. Events that were refused one by one are in the answer.
    ///
    /// # Cancel safety
    /// Dropped, some events may have arrived and others not.
    pub async fn publish(&self, topic: &str, ids: &[String]) -> Result<Published, PublishError> {
        if let Some((id, error)) = ids.iter().find_map(|id| id::check(id).err().map(|error| (id, error))) {
            return Err(PublishError::Id(id.clone(), error));
        }
        let partitions = self.partitions(topic).await?;
        let mut published = Published::default();
        for window in ids.chunks(WINDOW) {
            let sent: Vec<_> = window.iter().map(|id| (id, self.send(topic, id, partitions))).collect();
            for (id, told) in sent {
                match told.await {
                    Ok(Ok(())) => published.sent += 1,
                    Ok(Err(code)) => published.failed.push((id.clone(), self.producer.error(code).to_string())),
                    Err(_) => published.failed.push((id.clone(), "the client was closed".into())),
                }
            }
        }
        Ok(published)
    }

    /// How many partitions a topic has.
    ///
    /// # Errors
    /// It is not there, or the brokers do not answer.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn partitions(&self, topic: &str) -> Result<u32, PublishError> {
        if !settings::is_topic(topic) {
            return Err(PublishError::NoTopic(topic.to_string()));
        }
        let (producer, name) = (Arc::clone(&self.producer), topic.to_string());
        let found = tokio::task::spawn_blocking(move || producer.partitions(&name, METADATA_MAX)).await;
        let brokers = |error: &dyn std::fmt::Display| PublishError::Brokers(topic.to_string(), error.to_string());
        let found = found.map_err(|error| brokers(&error))?.map_err(|error| {
            let code = error.rdkafka_error_code().map(|code| self.producer.error(code));
            code.map_or_else(|| brokers(&error), |error| brokers(&error))
        })?;
        found.map(i32::unsigned_abs).ok_or_else(|| PublishError::NoTopic(topic.to_string()))
    }

    fn send(
        &self,
        topic: &str,
        id: &str,
        partitions: u32,
    ) -> oneshot::Receiver<Result<(), rdkafka::error::RDKafkaErrorCode>> {
        let (tell, told) = oneshot::channel();
        let partition = self.hash.hash(id.as_bytes()) % partitions;
        let message = Outgoing {
            topic: topic.to_string(),
            partition: i32::try_from(partition).ok(),
            key: Some(id.as_bytes().to_vec()),
            value: Some(Vec::new()),
            headers: None,
        };
        self.producer.send(
            &message,
            Box::new(move |result| {
                let _ = tell.send(result);
            }),
        );
        told
    }
}
