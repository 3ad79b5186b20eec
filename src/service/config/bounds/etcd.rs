//! The keys of `etcd`.

use std::time::Duration;

use super::super::form::{Block, FilePath, Hidden, HttpUrl, Items, Span, Text, any};
use super::super::key::{Default, Key, Section};
use super::{secret, secret_file};

/// The most members; a cluster has three to seven.
const ENDPOINTS_MAX: usize = 20;
/// etcd grants no less with its usual timers.
pub(in super::super) const TTL_MIN: Duration = Duration::from_secs(2);

pub(in super::super) static ETCD: Section = Section {
    path: "etcd",
    about: "The etcd cluster in which several processes share the shards and keep the owed records",
    keys: &[&ENDPOINTS, &TTL, &TLS, &AUTH],
};

pub(in super::super) static ENDPOINTS: Key<Items<HttpUrl>> = Key {
    name: "endpoints",
    form: Items { form: HttpUrl { login: "auth" }, count_max: ENDPOINTS_MAX },
    default: Default::Required("[\"https://etcd:2379\"]"),
    about: "The members' client addresses; name them all, each is tried on its own",
    reason: "",
};

pub(in super::super) static TTL: Key<Span> = Key {
    name: "ttl",
    form: Span { min: TTL_MIN, max: Duration::from_secs(5 * 60) },
    default: Default::Is("10s"),
    about: "How long a process leads without a word from etcd, in whole seconds; another takes over then",
    reason: "shorter takes over sooner after a crash and bears shorter pauses of etcd and of the process",
};

pub(in super::super) static TLS: Key<Block> = Key {
    name: "tls",
    form: Block::of(&TLS_SECTION),
    default: Default::Absent { means: "the system's authorities, for https endpoints", example: "" },
    about: TLS_SECTION.about,
    reason: "host names are always checked",
};

static TLS_SECTION: Section = Section {
    path: "etcd.tls",
    about: "Whom to trust, and the client's own certificate; its common name can be the user",
    keys: &[&CA_FILE, &CERTIFICATE_FILE, &KEY_FILE],
};

pub(in super::super) static CA_FILE: Key<FilePath> = Key {
    name: "ca_file",
    form: FilePath { what: "a file of certificates (PEM)" },
    default: Default::Absent { means: "the system's authorities", example: "/etc/ssl/etcd-ca.pem" },
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
    about: "The key of the client's own certificate, not encrypted",
    reason: "",
};

pub(in super::super) static AUTH: Key<Block> = Key {
    name: "auth",
    form: Block::of(&AUTH_SECTION),
    default: Default::Absent { means: "no login", example: "" },
    about: AUTH_SECTION.about,
    reason: "a client certificate needs none",
};

static AUTH_SECTION: Section = Section {
    path: "etcd.auth",
    about: "Logs in with a user name and a password",
    keys: &[&USERNAME, &PASSWORD, &PASSWORD_FILE],
};

pub(in super::super) static USERNAME: Key<Text> = Key {
    name: "username",
    form: Text { check: any, allowed: "a text" },
    default: Default::Required("evenkeel"),
    about: "As whom to log in; its role may read and write what begins with evenkeel/NAME/",
    reason: "",
};
pub(in super::super) static PASSWORD: Key<Hidden> = secret("password", "The password");
pub(in super::super) static PASSWORD_FILE: Key<FilePath> =
    secret_file("password_file", "A file with the password, instead of password", "/run/secrets/etcd-password");
