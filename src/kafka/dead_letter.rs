//! Dead letters: messages without a usable id, and ids that were given up (K1, D3).
//!
//! Must never drop: a letter counts only once all replicas have it; what cannot be sent is kept by whoever wanted to
//! send it. A poison message keeps its key, value and headers; the reason stands in headers beside them. Tested below
//! and live.

use rdkafka::Message;
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::message::{Header, OwnedHeaders, OwnedMessage};

use super::decode::Poison;
use super::producer::{Outgoing, Producer};
use super::settings::{self, Connection, SettingsError};
use crate::contract::{BoxFuture, DeadLetter, DeadLetterError, Letter};
use crate::id;

/// The headers of a dead letter.
pub mod header {
    /// Why: `given-up`, or what is wrong with the message (`no-key`, `bad-id`, …).
    pub const REASON: &str = "evenkeel-dead-letter-reason";
    /// The same in words; for an id that was given up the error of its last attempt.
    pub const ERROR: &str = "evenkeel-dead-letter-error";
    /// The stream that read the message.
    pub const STREAM: &str = "evenkeel-dead-letter-stream";
    /// Where the message stood.
    pub const TOPIC: &str = "evenkeel-dead-letter-topic";
    /// Where the message stood.
    pub const PARTITION: &str = "evenkeel-dead-letter-partition";
    /// Where the message stood.
    pub const OFFSET: &str = "evenkeel-dead-letter-offset";
    /// How many bytes of value were left out because the topic does not take a message of that size.
    pub const VALUE_LEFT_OUT: &str = "evenkeel-dead-letter-value-left-out";
    /// How many attempts an id had that was given up.
    pub const ATTEMPTS: &str = "evenkeel-dead-letter-attempts";
    /// The id that was given up, percent-encoded.
    pub const ID: &str = "evenkeel-dead-letter-id";
    /// The fencing token of its last run.
    pub const FENCING_TOKEN: &str = "evenkeel-dead-letter-fencing-token";
}

fn with(headers: OwnedHeaders, fields: &[(&str, &str)]) -> OwnedHeaders {
    fields.iter().fold(headers, |headers, (key, value)| headers.insert(Header { key, value: Some(*value) }))
}

/// The letter for a message without a usable id.
pub(super) fn poison_letter(topic: &str, stream: &str, message: &OwnedMessage, poison: &Poison) -> Outgoing {
    let headers = message.headers().map_or_else(OwnedHeaders::new, |headers| headers.as_borrowed().detach());
    let fields = [
        (header::REASON, poison.code()),
        (header::ERROR, &poison.to_string()),
        (header::STREAM, stream),
        (header::TOPIC, message.topic()),
        (header::PARTITION, &message.partition().to_string()),
        (header::OFFSET, &message.offset().to_string()),
    ];
    Outgoing {
        topic: topic.to_string(),
        partition: None,
        key: message.key().map(<[u8]>::to_vec),
        value: message.payload().map(<[u8]>::to_vec),
        headers: Some(with(headers, &fields)),
    }
}

/// The same letter without its value, where the topic takes no message of that size: one message must not stop a
/// partition for ever, and the original stands in its topic at the position that the headers name.
pub(super) fn without_value(letter: &mut Outgoing) -> bool {
    let Some(value) = letter.value.take().filter(|value| !value.is_empty()) else { return false };
    let headers = letter.headers.take().unwrap_or_default();
    letter.headers = Some(with(headers, &[(header::VALUE_LEFT_OUT, &value.len().to_string())]));
    true
}

/// Whether a message is refused for its size.
pub(super) const fn is_too_large(code: RDKafkaErrorCode) -> bool {
    matches!(code, RDKafkaErrorCode::MessageSizeTooLarge | RDKafkaErrorCode::InvalidMessageSize)
}

/// A dead-letter topic for ids that were given up.
pub struct KafkaDeadLetter {
    producer: Producer,
    topic: String,
}

impl KafkaDeadLetter {
    /// A dead-letter topic. The topic must exist; brokers are reached at the first letter.
    ///
    /// # Errors
    /// Settings that cannot be used.
    pub fn new(connection: &Connection, topic: impl Into<String>) -> Result<Self, SettingsError> {
        let topic = topic.into();
        if !settings::is_topic(&topic) {
            return Err(SettingsError::Topic(topic));
        }
        Ok(Self { producer: Producer::new(connection)?, topic })
    }
}

fn given_up_letter(topic: &str, letter: &Letter) -> Outgoing {
    let value = serde_json::json!({
        "id": letter.id,
        "error": letter.error,
        "attempts": letter.attempts,
        "causes": letter.causes,
        "fencing_token": letter.fencing_token,
    });
    let fields = [
        (header::REASON, "given-up"),
        (header::ERROR, letter.error.as_str()),
        (header::ID, &id::encode(&letter.id)),
        (header::ATTEMPTS, &letter.attempts.to_string()),
        (header::FENCING_TOKEN, &letter.fencing_token),
    ];
    Outgoing {
        topic: topic.to_string(),
        partition: None,
        key: Some(letter.id.clone().into_bytes()),
        value: Some(value.to_string().into_bytes()),
        headers: Some(with(OwnedHeaders::new(), &fields)),
    }
}

impl DeadLetter for KafkaDeadLetter {
    fn send(&self, letter: Letter) -> BoxFuture<'_, Result<(), DeadLetterError>> {
        Box::pin(async move {
            let message = given_up_letter(&self.topic, &letter);
            self.producer.deliver(&message).await.map_err(|error| {
                DeadLetterError(format!("the dead-letter topic {} did not take it: {error}", self.topic))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdkafka::Timestamp;
    use rdkafka::message::Headers as _;

    fn text(letter: &Outgoing, name: &str) -> Option<String> {
        let headers = letter.headers.as_ref()?;
        let found = headers.iter().filter(|header| header.key == name).last()?;
        Some(String::from_utf8_lossy(found.value?).into_owned())
    }

    #[test]
    fn k1_a_poison_message_keeps_what_it_was() {
        let headers = OwnedHeaders::new()
            .insert(Header { key: "h", value: Some(&b"\xff"[..]) })
            .insert(Header { key: "empty", value: None::<&[u8]> });
        let message = OwnedMessage::new(
            Some(b"value".to_vec()),
            Some(b"k\xff".to_vec()),
            "orders".into(),
            Timestamp::NotAvailable,
            3,
            991,
            Some(headers),
        );
        let mut letter = poison_letter("orders.dlq", "all", &message, &Poison::Headers);
        assert_eq!((letter.key.as_deref(), letter.value.as_deref()), (Some(&b"k\xff"[..]), Some(&b"value"[..])));
        assert_eq!(letter.headers.as_ref().unwrap().count(), 8);
        for (name, wanted) in [
            (header::REASON, "bad-headers"),
            (header::ERROR, "a header's name is not UTF-8"),
            (header::STREAM, "all"),
            (header::TOPIC, "orders"),
            (header::PARTITION, "3"),
            (header::OFFSET, "991"),
        ] {
            assert_eq!(text(&letter, name).as_deref(), Some(wanted));
        }
        assert!(without_value(&mut letter));
        assert_eq!((letter.value.as_ref(), text(&letter, header::VALUE_LEFT_OUT).as_deref()), (None, Some("5")));
        assert!(!without_value(&mut letter), "only once");
    }

    #[test]
    fn d3_a_given_up_id_says_all_that_is_known() {
        let letter = Letter {
            id: "a/b".into(),
            error: "no route".into(),
            attempts: 20,
            causes: vec![crate::contract::Cause::Trigger {}],
            fencing_token: "0001-0000000000000004711-000000000042".into(),
        };
        let letter = given_up_letter("dlq", &letter);
        assert_eq!(letter.key.as_deref(), Some(&b"a/b"[..]));
        assert_eq!(text(&letter, header::ID).as_deref(), Some("a%2Fb"));
        let value: serde_json::Value = serde_json::from_slice(letter.value.as_deref().unwrap()).unwrap();
        assert_eq!((&value["attempts"], &value["error"]), (&20.into(), &"no route".into()));
    }
}
