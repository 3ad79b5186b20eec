//! From settings to librdkafka's clients.
//!
//! Must never log or return a client's configuration, which holds passwords. Every option that carries a promise
//! (manual commits, `auto.offset.reset=error`, idempotence) is set after the user's own, so none can undo it. Tested
//! below and, for logins and certificates, against a real broker.

use rdkafka::ClientConfig;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::BaseConsumer;
use rdkafka::error::KafkaError;

use super::context::Context;
use super::settings::{self, Connection, Sasl, SettingsError, StreamSettings, Token};

/// The most bytes that wait in a consumer for all its partitions together (B55). librdkafka counts them over the one
/// queue that all partitions share, and may overshoot by what one fetch brings.
pub const PREFETCH_BYTES: u32 = 16 << 20;
/// The most bytes that one fetch brings for all partitions of a broker together.
const FETCH_BYTES: u32 = 8 << 20;
/// The most bytes of one partition in a fetch while few are read; with more partitions each gets its share of the
/// prefetch.
const PARTITION_BYTES_MAX: u32 = 1 << 20;
/// The least that a partition gets, so that a batch of usual size still comes in one fetch.
const PARTITION_BYTES_MIN: u32 = 64 << 10;
/// Fetching goes on while fewer messages than this wait; a few milliseconds' worth for a fast reconciler.
const PREFETCH_MESSAGES: u32 = 10_000;
/// A fetch that was held back because enough is waiting is tried again after this, in milliseconds.
const FETCH_BACKOFF_MS: u32 = 50;
/// The longest wait between two tries to reach a broker, in milliseconds: short, so that an outage ends when it ends.
const RECONNECT_MAX_MS: u32 = 2_000;
/// Metadata is renewed this often, in milliseconds: a topic made anew shows within this time.
const METADATA_MS: u32 = 30_000;
/// A message that waits longer than this in the producer fails, in milliseconds; whoever sends it decides what then.
const SEND_TIMEOUT_MS: u32 = 10_000;
/// The most bytes that wait in a producer, in KiB.
const SEND_QUEUE_KIB: u32 = 16 << 10;
/// The largest message that a producer takes; dead letters repeat what others managed to send. The broker has its own
/// bound.
const SEND_BYTES_MAX: u32 = 64 << 20;

/// Fetch sizes for this many partitions: the more there are, the less each may bring at once.
fn partition_bytes(partitions: usize) -> u32 {
    let share = PREFETCH_BYTES / u32::try_from(partitions.max(1)).unwrap_or(u32::MAX);
    share.clamp(PARTITION_BYTES_MIN, PARTITION_BYTES_MAX)
}

impl Connection {
    /// Checks everything that can be checked without a broker.
    ///
    /// # Errors
    /// The first setting that cannot be used.
    pub fn check(&self) -> Result<(), SettingsError> {
        let config = self.client_config()?;
        config.create_native_config().map(drop).map_err(|error| self.setup_error(error))
    }

    /// The options that consumers and producers share.
    pub(super) fn client_config(&self) -> Result<ClientConfig, SettingsError> {
        if self.brokers.is_empty() {
            return Err(SettingsError::NoBrokers);
        }
        let mut config = ClientConfig::new();
        config.set("reconnect.backoff.max.ms", RECONNECT_MAX_MS.to_string());
        config.set("topic.metadata.refresh.interval.ms", METADATA_MS.to_string());
        config.set("client.id", "evenkeel");
        for (key, value) in &self.options {
            if let Some(reason) = settings::refusal(key) {
                return Err(SettingsError::Refused { key: key.clone(), reason });
            }
            config.set(key, value);
        }
        config.set("bootstrap.servers", self.brokers.join(","));
        config.set("allow.auto.create.topics", "false");
        self.security(&mut config);
        // Its own lines are kept for debugging; what people must know is said by `trouble`, once.
        config.set_log_level(RDKafkaLogLevel::Debug);
        Ok(config)
    }

    fn security(&self, config: &mut ClientConfig) {
        let protocol = match (&self.tls, &self.sasl) {
            (None, None) => "plaintext",
            (Some(_), None) => "ssl",
            (None, Some(_)) => "sasl_plaintext",
            (Some(_), Some(_)) => "sasl_ssl",
        };
        config.set("security.protocol", protocol);
        if let Some(tls) = &self.tls {
            let files = [
                ("ssl.ca.location", &tls.ca_file),
                ("ssl.certificate.location", &tls.certificate_file),
                ("ssl.key.location", &tls.key_file),
            ];
            for (key, file) in files {
                if let Some(file) = file {
                    config.set(key, file.to_string_lossy());
                }
            }
            if let Some(password) = &tls.key_password {
                config.set("ssl.key.password", password.expose());
            }
        }
        match &self.sasl {
            None => {}
            Some(Sasl::Password { mechanism, username, password }) => {
                config.set("sasl.mechanism", mechanism.name());
                config.set("sasl.username", username);
                config.set("sasl.password", password.expose());
            }
            Some(Sasl::OauthBearer(_)) => {
                config.set("sasl.mechanism", "OAUTHBEARER");
            }
        }
    }

    pub(super) fn token(&self) -> Option<Token> {
        match &self.sasl {
            Some(Sasl::OauthBearer(token)) => Some(token.clone()),
            _ => None,
        }
    }

    /// The options of a producer whose messages arrive once and in order, or fail in a time that people wait for.
    pub(super) fn producer_config(&self) -> Result<ClientConfig, SettingsError> {
        let mut config = self.client_config()?;
        config.set("enable.idempotence", "true");
        config.set("acks", "all");
        config.set("message.timeout.ms", SEND_TIMEOUT_MS.to_string());
        let defaults = [
            ("queue.buffering.max.kbytes", SEND_QUEUE_KIB.to_string()),
            ("message.max.bytes", SEND_BYTES_MAX.to_string()),
            ("linger.ms", "5".to_string()),
        ];
        set_defaults(&mut config, &defaults);
        Ok(config)
    }

    /// An error of librdkafka's set-up, without the value of an option that could be a secret.
    pub(super) fn setup_error(&self, error: KafkaError) -> SettingsError {
        match error {
            KafkaError::ClientConfig(_, reason, key, _) if settings::is_secret(&key) => {
                drop(reason);
                SettingsError::Option { key, reason: "librdkafka does not take its value".into() }
            }
            KafkaError::ClientConfig(_, reason, key, _) if self.options.contains_key(&key) => {
                SettingsError::Option { key, reason }
            }
            KafkaError::ClientConfig(_, reason, key, _) => SettingsError::Client(format!("{key}: {reason}")),
            KafkaError::ClientCreation(reason) => SettingsError::Client(reason),
            other => SettingsError::Client(other.to_string()),
        }
    }
}

impl StreamSettings {
    /// Checks everything that can be checked without a broker.
    ///
    /// # Errors
    /// The first setting that cannot be used.
    pub fn check(&self) -> Result<(), SettingsError> {
        if self.topics.is_empty() {
            return Err(SettingsError::NoTopics);
        }
        if let Some(bad) =
            self.topics.iter().chain(&self.dead_letter).chain(&self.hand_off).find(|topic| !settings::is_topic(topic))
        {
            return Err(SettingsError::Topic(bad.clone()));
        }
        let config = self.consumer_config(1)?;
        config.create_native_config().map(drop).map_err(|error| self.connection.setup_error(error))
    }

    /// The options of the consumer that reads the stream, for about this many partitions.
    pub(super) fn consumer_config(&self, partitions: usize) -> Result<ClientConfig, SettingsError> {
        let mut config = self.connection.client_config()?;
        config.set("group.id", &self.group);
        config.set("enable.auto.commit", "false");
        config.set("enable.auto.offset.store", "false");
        config.set("auto.offset.reset", "error");
        // Not enforced without a subscription, but half of it is how soon librdkafka heals a wake-up that it missed.
        config.set("max.poll.interval.ms", "10000");
        config.set("session.timeout.ms", "10000");
        // The only trace that librdkafka gives of a topic that was deleted and made anew; see `context`.
        let debug = match self.connection.options.get("debug") {
            Some(own) => format!("{own},metadata"),
            None => "metadata".into(),
        };
        config.set("debug", debug);
        let bytes = partition_bytes(partitions);
        let defaults = [
            ("queued.max.messages.kbytes", (PREFETCH_BYTES >> 10).to_string()),
            ("queued.min.messages", PREFETCH_MESSAGES.to_string()),
            ("fetch.queue.backoff.ms", FETCH_BACKOFF_MS.to_string()),
            ("fetch.max.bytes", FETCH_BYTES.to_string()),
            ("max.partition.fetch.bytes", bytes.to_string()),
        ];
        set_defaults(&mut config, &defaults);
        Ok(config)
    }

    /// The options of the client that looks around on behalf of the consumer: topics, ends of the log, committed
    /// offsets.
    pub(super) fn lookout_config(&self) -> Result<ClientConfig, SettingsError> {
        let mut config = self.consumer_config(1)?;
        config.set("enable.partition.eof", "true");
        config.remove("debug");
        if let Some(own) = self.connection.options.get("debug") {
            config.set("debug", own);
        }
        Ok(config)
    }
}

fn set_defaults(config: &mut ClientConfig, defaults: &[(&str, String)]) {
    for (key, value) in defaults {
        if config.get(key).is_none() {
            config.set(*key, value);
        }
    }
}

/// A consumer made from these options.
pub(super) fn consumer(
    connection: &Connection,
    config: &ClientConfig,
    context: Context,
) -> Result<BaseConsumer<Context>, SettingsError> {
    BaseConsumer::from_config_and_context(config, context).map_err(|error| connection.setup_error(error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::Secret;
    use crate::kafka::settings::{SaslMechanism, Tls};

    fn connection() -> Connection {
        Connection { brokers: vec!["127.0.0.1:1".into(), "127.0.0.1:2".into()], ..Connection::default() }
    }

    #[test]
    fn the_promises_come_after_the_users_options() {
        let mut connection = connection();
        connection.options.insert("fetch.max.bytes".into(), "1000000".into());
        connection.options.insert("debug".into(), "broker".into());
        let stream = StreamSettings::new(connection, "zones", vec!["t".into()], 3);
        stream.check().unwrap();
        let config = stream.consumer_config(4).unwrap();
        for (key, value) in [
            ("bootstrap.servers", "127.0.0.1:1,127.0.0.1:2"),
            ("group.id", "zones"),
            ("enable.auto.commit", "false"),
            ("auto.offset.reset", "error"),
            ("allow.auto.create.topics", "false"),
            ("security.protocol", "plaintext"),
            ("fetch.max.bytes", "1000000"),
            ("debug", "broker,metadata"),
            ("queued.max.messages.kbytes", "16384"),
        ] {
            assert_eq!(config.get(key), Some(value), "{key}");
        }
    }

    #[test]
    fn b55_the_prefetch_is_shared_among_the_partitions() {
        for (partitions, bytes) in [(0, 1 << 20), (1, 1 << 20), (16, 1 << 20), (64, 1 << 18), (100_000, 64 << 10)] {
            assert_eq!(partition_bytes(partitions), bytes, "{partitions}");
        }
    }

    #[test]
    fn what_cannot_work_is_said_without_a_broker() {
        assert_eq!(Connection::default().check(), Err(SettingsError::NoBrokers));
        let with = |key: &str, value: &str| {
            let mut connection = connection();
            connection.options.insert(key.into(), value.into());
            connection.check().unwrap_err().to_string()
        };
        assert_eq!(
            with("enable.auto.commit", "true"),
            "kafka.options.enable.auto.commit is not allowed: evenkeel commits an offset once everything before it is \
             done; leave it out"
        );
        let unknown = with("fetch.maxbytes", "1");
        assert!(unknown.starts_with("kafka.options.fetch.maxbytes is not accepted: "), "{unknown}");
        let secret = with("ssl.keystore.password.x", "canary");
        assert!(!secret.contains("canary"), "{secret}");
        let mut stream = StreamSettings::new(connection(), "g", vec![], 1);
        assert_eq!(stream.check(), Err(SettingsError::NoTopics));
        stream.topics = vec!["a b".into()];
        assert_eq!(stream.check(), Err(SettingsError::Topic("a b".into())));
    }

    /// B85: a client with TLS and each promised login can be made, so none of it is missing from the build.
    #[test]
    fn b85_every_promised_login_is_built_in() {
        let password =
            |mechanism| Sasl::Password { mechanism, username: "alice".into(), password: Secret::new("alice-secret") };
        let logins = [
            password(SaslMechanism::Plain),
            password(SaslMechanism::ScramSha256),
            password(SaslMechanism::ScramSha512),
            Sasl::OauthBearer(Token::File("/nowhere".into())),
        ];
        for login in logins {
            for tls in [None, Some(Tls::default())] {
                let connection = Connection { tls: tls.clone(), sasl: Some(login.clone()), ..connection() };
                let stream = StreamSettings::new(connection, "g", vec!["t".into()], 1);
                let config = stream.consumer_config(1).unwrap();
                let wanted = if tls.is_some() { "sasl_ssl" } else { "sasl_plaintext" };
                assert_eq!(config.get("security.protocol"), Some(wanted));
                let made = consumer(&stream.connection, &config, Context::new(&stream.connection));
                assert!(made.is_ok(), "{login:?}: {:?}", made.err());
            }
        }
    }
}
