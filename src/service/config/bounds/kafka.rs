//! The keys of `kafka`.

use std::time::Duration;

use super::super::form::{Block, Broker, Choice, FilePath, Hidden, Items, Pairs, Span, Text, any};
use super::super::key::{Default, Key, Section};
use super::super::resolved::Mechanism;
use super::{secret, secret_file};

/// The most brokers; a client needs a few to find the rest.
const BROKERS_MAX: usize = 100;

pub(in super::super) static KAFKA: Section = Section {
    path: "kafka",
    about: "The Kafka cluster; needed when a stream reads from it, and for publish",
    keys: &[&BROKERS, &TLS, &SASL, &COMMIT_INTERVAL, &OPTIONS],
};

pub(in super::super) static BROKERS: Key<Items<Broker>> = Key {
    name: "brokers",
    form: Items { form: Broker, count_max: BROKERS_MAX },
    default: Default::Required("[\"kafka:9092\"]"),
    about: "Some brokers of the cluster; the others are found through them",
    reason: "",
};

pub(in super::super) static TLS: Key<Block> = Key {
    name: "tls",
    form: Block::of(&TLS_SECTION),
    default: Default::Absent { means: "no encryption", example: "" },
    about: TLS_SECTION.about,
    reason: "host names are always checked",
};

static TLS_SECTION: Section = Section {
    path: "kafka.tls",
    about: "Encrypts the connection; {} trusts the system's authorities",
    keys: &[&CA_FILE, &CERTIFICATE_FILE, &KEY_FILE, &KEY_PASSWORD, &KEY_PASSWORD_FILE],
};

pub(in super::super) static CA_FILE: Key<FilePath> = Key {
    name: "ca_file",
    form: FilePath { what: "a file of certificates (PEM)" },
    default: Default::Absent { means: "the system's authorities", example: "/etc/ssl/kafka-ca.pem" },
    about: "Authorities to trust instead of the system's",
    reason: "",
};
pub(in super::super) static CERTIFICATE_FILE: Key<FilePath> = Key {
    name: "certificate_file",
    form: FilePath { what: "a file of certificates (PEM)" },
    default: Default::Absent { means: "none", example: "/etc/ssl/client.pem" },
    about: "The client's own certificate; goes with key_file",
    reason: "",
};
pub(in super::super) static KEY_FILE: Key<FilePath> = Key {
    name: "key_file",
    form: FilePath { what: "a file with a key (PEM)" },
    default: Default::Absent { means: "none", example: "/etc/ssl/client.key" },
    about: "The key of the client's own certificate",
    reason: "",
};
pub(in super::super) static KEY_PASSWORD: Key<Hidden> = secret("key_password", "What the key is encrypted with");
pub(in super::super) static KEY_PASSWORD_FILE: Key<FilePath> =
    secret_file("key_password_file", "A file with that password, instead of key_password", "/run/secrets/key-password");

pub(in super::super) static SASL: Key<Block> = Key {
    name: "sasl",
    form: Block::of(&SASL_SECTION),
    default: Default::Absent { means: "no login", example: "" },
    about: SASL_SECTION.about,
    reason: "",
};

static SASL_SECTION: Section = Section {
    path: "kafka.sasl",
    about: "Logs in, with a user name and a password or with a token",
    keys: &[&MECHANISM, &USERNAME, &PASSWORD, &PASSWORD_FILE, &TOKEN_FILE],
};

pub(in super::super) static MECHANISM: Key<Choice<Mechanism>> = Key {
    name: "mechanism",
    form: Choice {
        words: &[
            (Mechanism::ScramSha512.name(), Mechanism::ScramSha512),
            (Mechanism::ScramSha256.name(), Mechanism::ScramSha256),
            (Mechanism::Plain.name(), Mechanism::Plain),
            (Mechanism::OauthBearer.name(), Mechanism::OauthBearer),
        ],
    },
    default: Default::Required("SCRAM-SHA-512"),
    about: "How to log in; OAUTHBEARER takes token_file, the others username and password",
    reason: "PLAIN sends the password, so it needs tls",
};
pub(in super::super) static USERNAME: Key<Text> = Key {
    name: "username",
    form: Text { check: any, allowed: "a text" },
    default: Default::Absent { means: "none, for OAUTHBEARER", example: "evenkeel" },
    about: "As whom to log in",
    reason: "",
};
pub(in super::super) static PASSWORD: Key<Hidden> = secret("password", "The password");
pub(in super::super) static PASSWORD_FILE: Key<FilePath> =
    secret_file("password_file", "A file with the password, instead of password", "/run/secrets/kafka-password");

pub(in super::super) static TOKEN_FILE: Key<FilePath> = secret_file(
    "token_file",
    "A JSON Web Token, for OAUTHBEARER; replaced before it runs out",
    "/run/secrets/kafka-token",
);

pub(in super::super) static COMMIT_INTERVAL: Key<Span> = Key {
    name: "commit_interval",
    form: Span { min: Duration::from_millis(100), max: Duration::from_secs(5 * 60) },
    default: Default::Is("1s"),
    about: "How often offsets are committed",
    reason: "what was done since the last commit is done again after a crash",
};

pub(in super::super) static OPTIONS: Key<Pairs> = Key {
    name: "options",
    form: Pairs { allowed: "librdkafka's own names and values" },
    default: Default::Absent { means: "librdkafka's defaults", example: "{socket.timeout.ms: 30000}" },
    about: "Options of librdkafka, passed through",
    reason: "those that delivery rests on, or that have a key of their own, are refused",
};
