//! The keys at the top, and the small blocks: limits, timing, admin, telemetry.

use std::time::Duration;

use super::super::form::{Block, Choice, FilePath, Later, Listen, Number, OrWord, Span, Text, name};
use super::super::key::{Default, Key, Section};
use super::super::resolved::{GiveUp, Logs};
use super::{block, etcd, kafka, otlp, reconciler, secret_file, streams};
use crate::id::{Partitioner, SHARDS_MAX};

pub(in super::super) static ROOT: Section = Section {
    path: "",
    about: "The whole config",
    keys: &[
        &NAME,
        &SHARDS,
        &HASH,
        &RECONCILER,
        &KINDS,
        &STREAMS,
        &LIMITS,
        &DATA_DIR,
        &GIVE_UP,
        &DRAIN_TIMEOUT,
        &TIMING,
        &KAFKA,
        &ETCD,
        &ADMIN,
        &TELEMETRY,
    ],
};

pub(in super::super) static NAME: Key<Text> = Key {
    name: "name",
    form: Text { check: name, allowed: "1 to 63 of a-z, A-Z, 0-9, dot, dash and underscore, first a letter or digit" },
    default: Default::Required("dns"),
    about: "Names the controller: its consumer group, and the service in telemetry",
    reason: "another name is another consumer group, which reads the topics from their start",
};

pub(in super::super) static SHARDS: Key<Number> = Key {
    name: "shards",
    form: Number { min: 1, max: SHARDS_MAX as u32 },
    default: Default::Is("1"),
    about: "Into how many parts the ids are divided, one number for the whole cluster",
    reason: "each shard has one leader and costs a task; the partition count of every topic must be a multiple of it",
};

pub(in super::super) static HASH: Key<Choice<Partitioner>> = Key {
    name: "hash",
    form: Choice {
        words: &[
            (Partitioner::Fnv1a.name(), Partitioner::Fnv1a),
            (Partitioner::Murmur2.name(), Partitioner::Murmur2),
            (Partitioner::Crc32.name(), Partitioner::Crc32),
        ],
    },
    default: Default::Is("fnv1a"),
    about: "How ids are divided; must be the partitioner of the topics' producers",
    reason: "fnv1a: Sarama, librdkafka's fnv1a; murmur2: Java, Connect, franz-go; crc32: librdkafka's default",
};

pub(in super::super) static RECONCILER: Key<Block> = Key {
    name: "reconciler",
    form: Block::of(&reconciler::RECONCILER),
    default: Default::Required(""),
    about: reconciler::RECONCILER.about,
    reason: "",
};

pub(in super::super) static KINDS: Key<Later> = Key {
    name: "kinds",
    form: Later { until: "resources come with a later version; use reconciler" },
    default: Default::Absent { means: "opaque ids", example: "" },
    about: "Resources with specs, refs and order, instead of opaque ids",
    reason: "",
};

pub(in super::super) static STREAMS: Key<Block> = Key {
    name: "streams",
    form: Block { section: &streams::STREAM, short: "", named: true },
    default: Default::Absent { means: "none; only `evenkeel trigger` makes events", example: "" },
    about: "Where events come from; the names are your own",
    reason: "",
};

pub(in super::super) static LIMITS: Key<Block> = block("limits", &LIMITS_SECTION);

static LIMITS_SECTION: Section = Section {
    path: "limits",
    about: "How much each shard holds; a full shard pushes back on its streams and drops nothing",
    keys: &[&ADMITTED, &TIMERS, &RESOURCES, &OWED_RECORDS],
};

const fn limit(name: &'static str, about: &'static str, reason: &'static str) -> Key<Number> {
    /// A hundred million entries are some tens of gigabytes.
    const MAX: u32 = 100_000_000;
    Key { name, form: Number { min: 1, max: MAX }, default: Default::Is("1000000"), about, reason }
}

pub(in super::super) static ADMITTED: Key<Number> = limit(
    "admitted",
    "Ids that are owed a run, now or after a failure",
    "a few hundred bytes each, so that a million fit any machine",
);
pub(in super::super) static TIMERS: Key<Number> = limit(
    "timers",
    "Ids that only wait for a time that they asked for",
    "a few hundred bytes each; beyond it a requested time keeps its place among the admitted",
);
pub(in super::super) static RESOURCES: Key<Number> =
    limit("resources", "Resources; unused with opaque ids", "each is held in memory with its spec and state");
pub(in super::super) static OWED_RECORDS: Key<Number> = limit(
    "owed_records",
    "Owed records in the store: what was given up, or has waited longer than timing.max_hold",
    "beyond it offsets are held back, and given-up ids keep retrying at the longest delay",
);

pub(in super::super) static DATA_DIR: Key<OrWord<FilePath>> = Key {
    name: "data_dir",
    form: OrWord { word: "none", form: FilePath { what: "a folder" } },
    default: Default::Is("./evenkeel-data"),
    about: "Where the owed records are kept; none keeps them in memory, where a crash loses them",
    reason: "made at the start; one process at a time can use it; unused with etcd",
};

pub(in super::super) static GIVE_UP: Key<Choice<GiveUp>> = Key {
    name: "give_up",
    form: Choice { words: &[("keep", GiveUp::Keep), ("forget", GiveUp::Forget)] },
    default: Default::Is("keep"),
    about: "What becomes of an id after its last retry: kept until a redrive or an event, or forgotten",
    reason: "with data_dir: none and no dead letter nothing can keep it, so forget must be said",
};

pub(in super::super) static DRAIN_TIMEOUT: Key<Span> = Key {
    name: "drain_timeout",
    form: Span { min: Duration::from_secs(1), max: Duration::from_secs(3_600) },
    default: Default::Is("30s"),
    about: "How long a graceful stop may take, from the signal to the end",
    reason: "what orchestrators grant by default; at least reconciler.cancel_grace, or runs are cut off early",
};

pub(in super::super) static TIMING: Key<Block> = block("timing", &TIMING_SECTION);

static TIMING_SECTION: Section = Section {
    path: "timing",
    about: "How long things wait",
    keys: &[&MAX_HOLD, &MIN_REQUEUE, &CASCADE_WAIT, &RESOLUTION],
};

pub(in super::super) static MAX_HOLD: Key<Span> = Key {
    name: "max_hold",
    form: Span { min: Duration::from_secs(1), max: Duration::from_secs(3_600) },
    default: Default::Is("1m"),
    about: "How long an id may hold back a Kafka offset before an owed record takes its place",
    reason: "shorter writes more records, longer repeats more work after a crash",
};
pub(in super::super) static MIN_REQUEUE: Key<Span> = Key {
    name: "min_requeue",
    form: Span { min: Duration::from_millis(1), max: Duration::from_secs(60) },
    default: Default::Is("250ms"),
    about: "The least time between two starts of one id",
    reason: "keeps an id that triggers itself from spinning; at least timing.resolution",
};
pub(in super::super) static CASCADE_WAIT: Key<Span> = Key {
    name: "cascade_wait",
    form: Span { min: Duration::from_secs(1), max: Duration::from_secs(24 * 3_600) },
    default: Default::Is("5m"),
    about: "How long a resource waits for busy descendants; unused with opaque ids",
    reason: "after it the resource runs anyway, so that it does not starve",
};
pub(in super::super) static RESOLUTION: Key<Span> = Key {
    name: "resolution",
    form: Span { min: Duration::from_millis(1), max: Duration::from_secs(1) },
    default: Default::Is("10ms"),
    about: "To what due times are rounded up",
    reason: "coarser saves wake-ups, finer is more punctual",
};

pub(in super::super) static KAFKA: Key<Block> = Key {
    name: "kafka",
    form: Block::of(&kafka::KAFKA),
    default: Default::Absent { means: "no Kafka", example: "" },
    about: kafka::KAFKA.about,
    reason: "",
};

pub(in super::super) static ETCD: Key<Block> = Key {
    name: "etcd",
    form: Block::of(&etcd::ETCD),
    default: Default::Absent {
        means: "this process leads all shards, and data_dir keeps the owed records",
        example: "",
    },
    about: etcd::ETCD.about,
    reason: "",
};

pub(in super::super) static ADMIN: Key<Block> = block("admin", &ADMIN_SECTION);

static ADMIN_SECTION: Section = Section {
    path: "admin",
    about: "The server that answers the command line, health checks and Prometheus",
    keys: &[&LISTEN, &TOKEN_FILE],
};

pub(in super::super) static LISTEN: Key<OrWord<Listen>> = Key {
    name: "listen",
    form: OrWord { word: "none", form: Listen },
    default: Default::Is("127.0.0.1:7070"),
    about: "Where it listens; none switches it off",
    reason: "anything but a loopback address needs a token; /livez, /readyz and /metrics never ask for it",
};
pub(in super::super) static TOKEN_FILE: Key<FilePath> = secret_file(
    "token_file",
    "What callers must show as a bearer token: tokens of 16 characters or more, one a line",
    "/run/secrets/admin-token",
);

pub(in super::super) static TELEMETRY: Key<Block> = block("telemetry", &TELEMETRY_SECTION);

static TELEMETRY_SECTION: Section =
    Section { path: "telemetry", about: "What the process tells about itself", keys: &[&LOGS, &LEVEL, &OTLP] };

pub(in super::super) static OTLP: Key<Block> = Key {
    name: "otlp",
    form: Block::of(&otlp::OTLP),
    default: Default::Absent {
        means: "none, unless OTEL_EXPORTER_OTLP_ENDPOINT or one of its kind is set",
        example: "",
    },
    about: "Traces, metrics and logs to a collector; {} sends them to localhost",
    reason: "a collector that is slow or away slows nothing down",
};
pub(in super::super) static LOGS: Key<Choice<Logs>> = Key {
    name: "logs",
    form: Choice { words: &[("human", Logs::Human), ("json", Logs::Json)] },
    default: Default::Is("human"),
    about: "The form of log lines, on standard error: for people, or a JSON object each",
    reason: "",
};
pub(in super::super) static LEVEL: Key<Choice<tracing::Level>> = Key {
    name: "level",
    form: Choice {
        words: &[
            ("error", tracing::Level::ERROR),
            ("warn", tracing::Level::WARN),
            ("info", tracing::Level::INFO),
            ("debug", tracing::Level::DEBUG),
            ("trace", tracing::Level::TRACE),
        ],
    },
    default: Default::Is("info"),
    about: "The least important log lines that are written",
    reason: "",
};
