//! What the Kafka parts are told: where the brokers are, who we are, and what a stream reads.
//!
//! Must never show a secret: passwords are [`Secret`]s, and errors name the option, not its value, where it could be
//! one. Tested below by tables and by the live tests.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::decode::IdFrom;
use crate::contract::Secret;

/// How to reach the brokers (the `kafka:` block of the config).
#[derive(Debug, Clone, Default)]
pub struct Connection {
    /// `host:port` of some brokers; the others are found through them.
    pub brokers: Vec<String>,
    /// TLS, if the brokers ask for it.
    pub tls: Option<Tls>,
    /// A login, if the brokers ask for one.
    pub sasl: Option<Sasl>,
    /// librdkafka's own options by its own names; those that would break a promise are refused.
    pub options: BTreeMap<String, String>,
}

/// TLS towards the brokers. The broker's host name is always checked against its certificate.
#[derive(Debug, Clone, Default)]
pub struct Tls {
    /// PEM file of the authorities to trust; none means the system's.
    pub ca_file: Option<PathBuf>,
    /// PEM file of our own certificate, for brokers that ask for one.
    pub certificate_file: Option<PathBuf>,
    /// PEM file of its key.
    pub key_file: Option<PathBuf>,
    /// The key's password.
    pub key_password: Option<Secret>,
}

/// A login.
#[derive(Debug, Clone)]
pub enum Sasl {
    /// User and password.
    Password {
        /// How they are sent.
        mechanism: SaslMechanism,
        /// The user.
        username: String,
        /// The password.
        password: Secret,
    },
    /// A bearer token (OAUTHBEARER), read anew whenever it runs out.
    OauthBearer(Token),
}

/// How user and password are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SaslMechanism {
    /// In plain text; only sensible over TLS.
    Plain,
    /// Salted challenge and response with SHA-256.
    ScramSha256,
    /// Salted challenge and response with SHA-512.
    ScramSha512,
}

impl SaslMechanism {
    /// The name that brokers know it by.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}

/// Where a bearer token comes from.
#[derive(Debug, Clone)]
pub enum Token {
    /// A file that holds a JSON Web Token and is replaced before the token runs out, as service-account tokens are.
    File(PathBuf),
}

/// What one stream reads (a `kafka:` entry under `streams:`).
#[derive(Clone)]
pub struct StreamSettings {
    /// The brokers.
    pub connection: Connection,
    /// The consumer group under which offsets are kept. It must be this controller's alone.
    pub group: String,
    /// The topics.
    pub topics: Vec<String>,
    /// Where the id stands in a message.
    pub id: IdFrom,
    /// Where messages without a usable id go; none means that they are logged with their position.
    pub dead_letter: Option<String>,
    /// Where events of another shard go, on the partition of their shard, and from where this stream reads those that
    /// others passed on (K3); none means that they are done within the process, or held back.
    pub hand_off: Option<String>,
    /// How many shards the cluster has; the shard of partition p is p mod shards.
    pub shards: u16,
    /// Stands beside every committed offset, for people who look into the group.
    pub commit_note: Arc<str>,
    /// Notified when events may have been lost before they were read, so that a resync can heal it at once (K6).
    pub resync: Arc<Notify>,
    /// How often what is done.
    pub timing: Timing,
    /// A planted fault, for the tests that must catch it: an event counts as done when it is handed over.
    #[doc(hidden)]
    pub fault_done_at_delivery: bool,
}

impl fmt::Debug for StreamSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamSettings")
            .field("connection", &self.connection)
            .field("group", &self.group)
            .field("topics", &self.topics)
            .field("id", &self.id)
            .field("dead_letter", &self.dead_letter)
            .field("hand_off", &self.hand_off)
            .field("shards", &self.shards)
            .finish_non_exhaustive()
    }
}

impl StreamSettings {
    /// The settings of a stream that takes ids from keys, with default timing and without a dead-letter topic.
    #[must_use]
    pub fn new(connection: Connection, group: impl Into<String>, topics: Vec<String>, shards: u16) -> Self {
        let group = group.into();
        Self {
            connection,
            commit_note: format!("evenkeel {}", env!("CARGO_PKG_VERSION")).into(),
            group,
            topics,
            id: IdFrom::Key,
            dead_letter: None,
            hand_off: None,
            shards: shards.max(1),
            resync: Arc::default(),
            timing: Timing::default(),
            fault_done_at_delivery: false,
        }
    }
}

/// Offsets are committed this often: what a crash makes us look at again is about a second's worth.
pub const COMMIT_INTERVAL: Duration = Duration::from_secs(1);
/// Unchanged offsets are committed again this often, since Kafka forgets those of a quiet partition seven days after
/// its last commit.
pub const RECOMMIT_INTERVAL: Duration = Duration::from_secs(3_600);
/// Topics are looked at this often, for new partitions and for topics that went away.
pub const TOPICS_INTERVAL: Duration = Duration::from_secs(30);
/// A topic that is missing is looked for this often.
pub const MISSING_INTERVAL: Duration = Duration::from_secs(5);
/// The ends of the log are asked for this often, for the lag and to notice what the client library does not say.
pub const WATCH_INTERVAL: Duration = Duration::from_secs(10);

/// How often what is done; the defaults are right for production, tests shorten them.
#[derive(Debug, Clone)]
pub struct Timing {
    /// See [`COMMIT_INTERVAL`].
    pub commit: Duration,
    /// See [`RECOMMIT_INTERVAL`].
    pub recommit: Duration,
    /// See [`TOPICS_INTERVAL`].
    pub topics: Duration,
    /// See [`MISSING_INTERVAL`].
    pub missing: Duration,
    /// See [`WATCH_INTERVAL`].
    pub watch: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            commit: COMMIT_INTERVAL,
            recommit: RECOMMIT_INTERVAL,
            topics: TOPICS_INTERVAL,
            missing: MISSING_INTERVAL,
            watch: WATCH_INTERVAL,
        }
    }
}

/// The settings cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// No broker is named.
    #[error("kafka.brokers is empty; name at least one broker as host:port")]
    NoBrokers,
    /// No topic is named.
    #[error("a Kafka stream has no topics; name at least one")]
    NoTopics,
    /// A topic's name cannot be one.
    #[error("{0:?} cannot be a topic; 1 to 249 letters, digits, '.', '_' and '-' are allowed")]
    Topic(String),
    /// An option that would break a promise.
    #[error("kafka.options.{key} is not allowed: {reason}")]
    Refused {
        /// The option.
        key: String,
        /// What to do instead, or why it cannot be.
        reason: &'static str,
    },
    /// librdkafka does not take an option.
    #[error("kafka.options.{key} is not accepted: {reason}")]
    Option {
        /// The option.
        key: String,
        /// What librdkafka says.
        reason: String,
    },
    /// The client cannot be made.
    #[error("the Kafka client cannot be set up: {0}")]
    Client(String),
}

const GROUP: &str = "partitions are assigned by shard, not by Kafka's group protocol; leave it out";
const COMMITS: &str = "evenkeel commits an offset once everything before it is done; leave it out";
const RESET: &str = "a lost offset restarts at the start of the log, so that no event is skipped; leave it out";
const SAFE: &str = "dead letters and published events must arrive exactly as sent; leave it out";

/// The reason why an option cannot be passed through, or none.
pub(super) fn refusal(key: &str) -> Option<&'static str> {
    Some(match key {
        "bootstrap.servers" | "metadata.broker.list" => "use kafka.brokers",
        "group.id" => "the controller's name is the group; use name",
        "security.protocol" => "it follows from kafka.tls and kafka.sasl",
        "sasl.mechanism" | "sasl.mechanisms" => "use kafka.sasl.mechanism",
        "sasl.username" => "use kafka.sasl.username",
        "sasl.password" => "use kafka.sasl.password_file",
        "ssl.ca.location" | "ssl.ca.pem" => "use kafka.tls.ca_file",
        "ssl.certificate.location" | "ssl.certificate.pem" => "use kafka.tls.certificate_file",
        "ssl.key.location" | "ssl.key.pem" => "use kafka.tls.key_file",
        "ssl.key.password" => "use kafka.tls.key_password_file",
        "group.protocol"
        | "group.protocol.type"
        | "group.remote.assignor"
        | "group.instance.id"
        | "partition.assignment.strategy"
        | "session.timeout.ms"
        | "heartbeat.interval.ms"
        | "coordinator.query.interval.ms"
        | "max.poll.interval.ms" => GROUP,
        "enable.auto.commit"
        | "auto.commit.enable"
        | "auto.commit.interval.ms"
        | "enable.auto.offset.store"
        | "offset.store.method"
        | "offset.store.path"
        | "offset.store.sync.interval.ms" => COMMITS,
        "auto.offset.reset" | "enable.partition.eof" => RESET,
        "allow.auto.create.topics" => "a mistyped topic must be an error, not a new topic; create topics beforehand",
        "enable.idempotence"
        | "acks"
        | "request.required.acks"
        | "transactional.id"
        | "max.in.flight"
        | "max.in.flight.requests.per.connection"
        | "delivery.timeout.ms"
        | "message.timeout.ms"
        | "retries"
        | "message.send.max.retries" => SAFE,
        "partitioner" => "the partition follows from the cluster's hash; use hash",
        "plugin.library.paths" => "loading code into the process is not supported",
        _ => return None,
    })
}

/// Whether an option's value could be a secret.
pub(super) fn is_secret(key: &str) -> bool {
    ["password", "secret", "token", "jaas", ".pem", "assertion", "oauthbearer.config", "private"]
        .iter()
        .any(|word| key.contains(word))
}

/// Whether a text can be the name of a topic.
pub(super) fn is_topic(name: &str) -> bool {
    (1..=249).contains(&name.len())
        && !matches!(name, "." | "..")
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_break_a_promise_are_refused_with_the_way_to_go() {
        for key in ["enable.auto.commit", "auto.offset.reset", "group.instance.id", "session.timeout.ms", "acks"] {
            assert!(refusal(key).is_some_and(|reason| reason.contains("leave it out")), "{key}");
        }
        assert_eq!(refusal("bootstrap.servers"), Some("use kafka.brokers"));
        for key in ["client.rack", "fetch.max.bytes", "queued.min.messages", "socket.keepalive.enable", "debug"] {
            assert_eq!(refusal(key), None, "{key}");
        }
    }

    #[test]
    fn secrets_are_never_shown() {
        let sasl = Sasl::Password {
            mechanism: SaslMechanism::Plain,
            username: "alice".into(),
            password: Secret::new("canary"),
        };
        let tls = Tls { key_password: Some(Secret::new("canary")), ..Tls::default() };
        let connection = Connection { sasl: Some(sasl), tls: Some(tls), ..Connection::default() };
        let stream = StreamSettings::new(connection.clone(), "g", vec!["t".into()], 1);
        for shown in [format!("{connection:?}"), format!("{stream:?}"), format!("{stream:#?}")] {
            assert!(!shown.contains("canary") && shown.contains("***"), "{shown}");
        }
    }

    #[test]
    fn names_that_no_broker_takes_are_refused() {
        for name in ["orders", "a.b_c-9", &"x".repeat(249)] {
            assert!(is_topic(name), "{name}");
        }
        for name in ["", ".", "..", "a b", "a/b", "a\0", "é", &"x".repeat(250)] {
            assert!(!is_topic(name), "{name}");
        }
    }
}
