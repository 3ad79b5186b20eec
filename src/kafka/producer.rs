//! A producer whose messages arrive exactly as sent or fail within seconds: idempotent, acknowledged by all replicas.
//!
//! Must never block the async runtime: sending only queues, delivery reports come on the client's thread, closing
//! happens on a thread of its own. Tested through dead letters and `publish`.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rdkafka::config::FromClientConfigAndContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::OwnedHeaders;
use rdkafka::producer::{BaseRecord, Producer as _, ThreadedProducer};
use tokio::sync::oneshot;

use super::close::drop_within;
use super::context::{OnDelivery, SendContext};
use super::settings::{Connection, SettingsError};

/// A message to send.
#[derive(Clone, Default)]
pub(super) struct Outgoing {
    pub(super) topic: String,
    /// `None` leaves the choice to the client, by the key.
    pub(super) partition: Option<i32>,
    pub(super) key: Option<Vec<u8>>,
    pub(super) value: Option<Vec<u8>>,
    pub(super) headers: Option<OwnedHeaders>,
}

/// A message did not arrive, as far as is known.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{reason}")]
pub(super) struct SendError {
    pub(super) code: RDKafkaErrorCode,
    reason: String,
}

/// A producer.
pub(super) struct Producer {
    client: Option<ThreadedProducer<SendContext>>,
    /// Why the brokers were last not reached; delivery reports only say "timed out".
    reason: Arc<Mutex<Option<String>>>,
}

impl Producer {
    pub(super) fn new(connection: &Connection) -> Result<Self, SettingsError> {
        let reason = Arc::default();
        let context = SendContext::new(connection, Arc::clone(&reason));
        let client = ThreadedProducer::from_config_and_context(&connection.producer_config()?, context)
            .map_err(|error| connection.setup_error(error))?;
        Ok(Self { client: Some(client), reason })
    }

    /// Queues a message; `then` hears what became of it, on another thread or, where there is no room, at once.
    pub(super) fn send(&self, message: &Outgoing, then: OnDelivery) {
        let Some(client) = &self.client else { return then(Err(RDKafkaErrorCode::BrokerDestroy)) };
        let mut record: BaseRecord<'_, [u8], [u8], Box<OnDelivery>> =
            BaseRecord::with_opaque_to(&message.topic, Box::new(then));
        record.partition = message.partition;
        record.key = message.key.as_deref();
        record.payload = message.value.as_deref();
        record.headers = message.headers.clone();
        if let Err((error, record)) = client.send(record) {
            let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::InvalidArgument);
            (record.delivery_opaque)(Err(code));
        }
    }

    /// Sends a message and waits for its fate, bounded by the client's own time limit for messages.
    ///
    /// # Cancel safety
    /// Dropped, the message may still arrive.
    pub(super) async fn deliver(&self, message: &Outgoing) -> Result<(), SendError> {
        let (tell, told) = oneshot::channel();
        self.send(
            message,
            Box::new(move |result| {
                let _ = tell.send(result);
            }),
        );
        told.await.unwrap_or(Err(RDKafkaErrorCode::BrokerDestroy)).map_err(|code| self.error(code))
    }

    /// An error with the reason that the client gave on the side.
    pub(super) fn error(&self, code: RDKafkaErrorCode) -> SendError {
        let mut reason = code.to_string();
        if matches!(code, RDKafkaErrorCode::MessageTimedOut | RDKafkaErrorCode::AllBrokersDown)
            && let Some(why) = &*self.reason.lock().unwrap_or_else(PoisonError::into_inner)
        {
            reason = format!("{reason} ({why})");
        }
        SendError { code, reason }
    }

    /// How many partitions a topic has. Waits for a broker: not for a thread of the async runtime.
    pub(super) fn partitions(&self, topic: &str, bound: Duration) -> Result<Option<i32>, KafkaError> {
        let Some(client) = &self.client else { return Ok(None) };
        let metadata = client.client().fetch_metadata(Some(topic), bound)?;
        let found = metadata.topics().iter().find(|found| found.name() == topic);
        let count = found.filter(|found| found.error().is_none()).map_or(0, |found| found.partitions().len());
        Ok(i32::try_from(count).ok().filter(|count| *count > 0))
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        // Whoever sent something has waited for its fate; nobody waits for the client.
        if let Some(client) = self.client.take() {
            drop_within("kafka producer", client, Duration::ZERO);
        }
    }
}
