//! The config, ready to use: typed, complete, checked. What wiring builds the engine from.
//!
//! Must never hold an adapter's type, nor a secret that could be printed. Shares are from 0 to 1; paths are absolute,
//! but for the config's own. Tested by `tests/it/config.rs`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::secret::Secret;
use crate::engine::{Limits, ReconcilerOptions, Sharding, Timing};

/// Everything that one process needs to know.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// The file it came from.
    pub file: PathBuf,
    /// The folder of that file: where commands run.
    pub dir: PathBuf,
    /// Names the consumer group and the service in telemetry.
    pub name: String,
    /// How ids are spread, one way for the whole cluster.
    pub sharding: Sharding,
    /// What is called for an id, and how.
    pub reconciler: Reconciler,
    /// The event streams, in the order of the file.
    pub streams: Vec<Stream>,
    /// The bounds of each shard.
    pub limits: Limits,
    /// Where the file store lives; `None` keeps owed records in memory.
    pub data_dir: Option<PathBuf>,
    /// What becomes of an id that is given up (D3).
    pub give_up: GiveUp,
    /// How long things may take.
    pub timing: Timing,
    /// The Kafka cluster; there whenever a stream reads from it.
    pub kafka: Option<Kafka>,
    /// The etcd cluster that several processes share; `None`: this process leads all shards.
    pub etcd: Option<Etcd>,
    /// The admin server; `None` switches it off.
    pub admin: Option<Admin>,
    /// Logs, and what goes to a collector.
    pub telemetry: Telemetry,
}

/// What is called for an id, and how.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Reconciler {
    /// What is called.
    pub target: Target,
    /// How it is run.
    pub options: ReconcilerOptions,
}

/// What a reconciler is.
#[derive(Debug, Clone)]
pub enum Target {
    /// A request to an HTTP server.
    Webhook(Http),
    /// A command.
    Exec(Exec),
}

/// How to ask an HTTP server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Http {
    /// Its address, without credentials.
    pub url: String,
    /// Secrets to sign requests with (Standard Webhooks), one a line.
    pub secret_file: Option<PathBuf>,
    /// The value of the `Authorization` header.
    pub authorization_file: Option<PathBuf>,
    /// Certificates to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
}

/// A command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Exec {
    /// The program, which is there, and its arguments. One with a slash is relative to [`Config::dir`], others are in
    /// PATH.
    pub argv: Vec<String>,
    /// The variables that it gets besides the usual ones.
    pub env: Vec<String>,
}

/// An event stream.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Stream {
    /// Its name.
    pub name: String,
    /// Whether its failure ends the controller (Q8).
    pub critical: bool,
    /// Where its events come from.
    pub source: StreamSource,
}

/// Where events come from.
#[derive(Debug, Clone)]
pub enum StreamSource {
    /// Topics of the Kafka cluster.
    Kafka(KafkaStream),
    /// A list that is fetched again and again.
    Resync(Resync),
    /// What is posted to the admin server's `/v1/trigger`.
    Http,
}

/// Topics of the Kafka cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KafkaStream {
    /// The topics.
    pub topics: Vec<String>,
    /// Where the id stands in a message.
    pub id: IdFrom,
    /// Where messages without an id and given-up ids go.
    pub dead_letter: Option<String>,
    /// Where events of another shard go, and come from (K3).
    pub hand_off: Option<String>,
}

/// Where the id stands in a message (K1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdFrom {
    /// The key, or a text in its JSON.
    Key {
        /// Where in its JSON.
        pointer: Option<String>,
    },
    /// A header.
    Header {
        /// Its name.
        name: String,
    },
    /// A text in the value's JSON.
    Value {
        /// Where.
        pointer: String,
    },
    /// The subject of a CloudEvent.
    CloudEvent,
}

/// A list that is fetched again and again (Q9).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Resync {
    /// How often.
    pub every: Duration,
    /// By which share the interval may differ, from 0 to 0.5.
    pub jitter: f64,
    /// What gives the list.
    pub list: List,
    /// How long the list may take.
    pub timeout: Duration,
}

/// What gives a list of ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum List {
    /// An HTTP server.
    Http(Http),
    /// A command.
    Exec(Exec),
}

/// What becomes of an id that is given up, where nothing else keeps it (D3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GiveUp {
    /// It is kept as an owed record.
    Keep,
    /// It is counted, logged and forgotten.
    Forget,
}

/// A Kafka cluster.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Kafka {
    /// Some of its brokers.
    pub brokers: Vec<String>,
    /// How to encrypt; `None`: not at all.
    pub tls: Option<Tls>,
    /// How to log in; `None`: not at all.
    pub sasl: Option<Sasl>,
    /// How often offsets are committed.
    pub commit_interval: Duration,
    /// librdkafka's own options; values are not shown, since some are secrets.
    pub options: BTreeMap<String, Secret>,
}

/// An etcd cluster.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Etcd {
    /// The members' client addresses.
    pub endpoints: Vec<String>,
    /// How long a process leads without a word from etcd; whole seconds.
    pub ttl: Duration,
    /// Whom to trust, and the own certificate, whose key is never encrypted.
    pub tls: Option<Tls>,
    /// Who logs in; `None`: nobody, or whom the certificate names.
    pub user: Option<EtcdUser>,
}

/// A login.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EtcdUser {
    /// As whom.
    pub name: String,
    /// With what.
    pub password: Secret,
}

/// How to encrypt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tls {
    /// Certificates to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// The client's own certificate and key.
    pub client: Option<ClientCertificate>,
}

/// The client's own certificate and key.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClientCertificate {
    /// The certificate, with those between it and the authority.
    pub certificate_file: PathBuf,
    /// Its key.
    pub key_file: PathBuf,
    /// What the key is encrypted with.
    pub key_password: Option<Secret>,
}

/// How to log in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sasl {
    /// With a user name and a password.
    Password {
        /// How the password is proved; never OAUTHBEARER.
        mechanism: Mechanism,
        /// As whom.
        username: String,
        /// With what.
        password: Secret,
    },
    /// With a token.
    OauthBearer {
        /// A file with a JSON Web Token, read again when the token runs out.
        token_file: PathBuf,
    },
}

impl Sasl {
    /// The mechanism.
    #[must_use]
    pub const fn mechanism(&self) -> Mechanism {
        match self {
            Self::Password { mechanism, .. } => *mechanism,
            Self::OauthBearer { .. } => Mechanism::OauthBearer,
        }
    }
}

/// How to prove who one is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mechanism {
    /// It is sent.
    Plain,
    /// Challenge and response with SHA-256.
    ScramSha256,
    /// Challenge and response with SHA-512.
    ScramSha512,
    /// A token is sent.
    OauthBearer,
}

impl Mechanism {
    /// Kafka's name for it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
            Self::OauthBearer => "OAUTHBEARER",
        }
    }
}

/// The admin server.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Admin {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Tokens of which callers must show one; only a loopback address may do without.
    pub token_file: Option<PathBuf>,
}

/// Logs, and what goes to a collector.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Telemetry {
    /// What goes to a collector; `None`: nothing.
    pub otlp: Option<Otlp>,
    /// Their form.
    pub logs: Logs,
    /// The least important that are written.
    pub level: tracing::Level,
}

/// The form of logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Logs {
    /// Lines for people.
    Human,
    /// A JSON object a line.
    Json,
}

/// What goes to a collector (T1).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Otlp {
    /// How spans go, if they do.
    pub traces: Option<OtlpSignal>,
    /// How metrics go, if they do.
    pub metrics: Option<OtlpSignal>,
    /// How log records go, if they do.
    pub logs: Option<OtlpSignal>,
    /// Of which share of the items a trace is made, from 0 to 1.
    pub sampling: f64,
    /// How often metrics are sent.
    pub interval: Duration,
    /// Attributes of this process, which win over those that are found out.
    pub resource: BTreeMap<String, String>,
}

/// How one signal goes to its collector.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct OtlpSignal {
    /// The whole address.
    pub url: String,
    /// What is spoken there.
    pub protocol: OtlpProtocol,
    /// Headers of every request.
    pub headers: BTreeMap<String, Secret>,
    /// How long one batch is tried, all retries together.
    pub timeout: Duration,
    /// Whether requests are compressed.
    pub gzip: bool,
    /// Authorities to trust instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// How many wait for the collector.
    pub queue: usize,
    /// The most of them in one request.
    pub batch: usize,
    /// How long a batch that is not full waits for more.
    pub delay: Duration,
}

/// How to speak to a collector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtlpProtocol {
    /// gRPC over HTTP/2.
    Grpc,
    /// Protobuf in HTTP requests.
    Http,
}

/// What a process tells about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Spans of items and their attempts.
    Traces,
    /// Numbers.
    Metrics,
    /// Log lines.
    Logs,
}

impl Signal {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Traces, Self::Metrics, Self::Logs];

    /// Its name, as everybody writes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Traces => "traces",
            Self::Metrics => "metrics",
            Self::Logs => "logs",
        }
    }
}
