//! The keys of `telemetry.otlp`. The standard variables of OpenTelemetry fill in what is not written (`standard`).

use std::time::Duration;

use super::super::form::{Block, Choice, FilePath, HttpUrl, Items, Number, Pairs, Percent, Span};
use super::super::key::{Default, Key, Section};
use super::super::resolved::{OtlpProtocol, Signal};

/// The longest that anything may take or wait here.
const LONG: Duration = Duration::from_secs(3_600);

const PROTOCOLS: &[(&str, OtlpProtocol)] = &[("grpc", OtlpProtocol::Grpc), ("http/protobuf", OtlpProtocol::Http)];
const COMPRESSIONS: &[(&str, bool)] = &[("none", false), ("gzip", true)];
const TIMES: Span = Span { min: Duration::from_millis(100), max: LONG };
const QUEUES: Number = Number { min: 1, max: 1_000_000 };
const BATCHES: Number = Number { min: 1, max: 10_000 };
const DELAYS: Span = Span { min: Duration::from_millis(10), max: Duration::from_secs(60) };

pub(in super::super) static OTLP: Section = Section {
    path: "telemetry.otlp",
    about: "Traces, metrics and logs to a collector; where a key is not written, the standard variable (OTEL_…) counts",
    keys: &[
        &ENDPOINT,
        &PROTOCOL,
        &SIGNALS,
        &HEADERS,
        &TIMEOUT,
        &COMPRESSION,
        &CA_FILE,
        &SAMPLING,
        &INTERVAL,
        &QUEUE,
        &BATCH,
        &DELAY,
        &RESOURCE,
        &TRACES,
        &METRICS,
        &LOGS,
    ],
};

pub(in super::super) static ENDPOINT: Key<HttpUrl> = Key {
    name: "endpoint",
    form: HttpUrl { login: "headers" },
    default: Default::Absent {
        means: "http://localhost:4317 with grpc, http://localhost:4318 with http/protobuf",
        example: "http://collector:4317",
    },
    about: "Where the collector listens; with http/protobuf, /v1/traces and so on are added",
    reason: "https:// encrypts; credentials belong into headers",
};
pub(in super::super) static PROTOCOL: Key<Choice<OtlpProtocol>> = Key {
    name: "protocol",
    form: Choice { words: PROTOCOLS },
    default: Default::Is("grpc"),
    about: "How to speak to the collector",
    reason: "grpc usually listens on port 4317, http/protobuf on 4318",
};

pub(in super::super) static SIGNALS: Key<Items<Choice<Signal>>> = Key {
    name: "signals",
    form: Items {
        form: Choice { words: &[("traces", Signal::Traces), ("metrics", Signal::Metrics), ("logs", Signal::Logs)] },
        count_max: 3,
    },
    default: Default::Absent { means: "all three", example: "[traces, metrics, logs]" },
    about: "What is sent",
    reason: "metrics are at /metrics of the admin server too, log lines on standard error",
};
pub(in super::super) static HEADERS: Key<Pairs> = Key {
    name: "headers",
    form: Pairs { allowed: "names and values; values may be secrets, as ${NAME} from the environment" },
    default: Default::Absent { means: "none", example: "{authorization: \"Bearer ${OTLP_TOKEN}\"}" },
    about: "Headers that every request carries",
    reason: "their values are never shown",
};
pub(in super::super) static TIMEOUT: Key<Span> = Key {
    name: "timeout",
    form: TIMES,
    default: Default::Is("10s"),
    about: "How long one batch is tried, all retries together, before it is given up",
    reason: "a shorter outage of the collector loses nothing while the queue holds what comes",
};
pub(in super::super) static COMPRESSION: Key<Choice<bool>> = Key {
    name: "compression",
    form: Choice { words: COMPRESSIONS },
    default: Default::Is("none"),
    about: "How requests are compressed",
    reason: "gzip saves most of the bytes and costs CPU",
};
pub(in super::super) static CA_FILE: Key<FilePath> = Key {
    name: "ca_file",
    form: FilePath { what: "a file of certificates (PEM)" },
    default: Default::Absent { means: "the system's authorities", example: "/etc/ssl/own-ca.pem" },
    about: "Authorities to trust instead of the system's, for https",
    reason: "",
};
pub(in super::super) static SAMPLING: Key<Percent> = Key {
    name: "sampling",
    form: Percent { max: 100.0 },
    default: Default::Is("100%"),
    about: "Of how many items a trace is made",
    reason: "decided once an item, before anything is made; 0% makes none",
};
pub(in super::super) static INTERVAL: Key<Span> = Key {
    name: "interval",
    form: Span { min: Duration::from_secs(1), max: LONG },
    default: Default::Is("1m"),
    about: "How often metrics are sent",
    reason: "what OpenTelemetry sends by; under a second collecting costs more than it shows",
};
pub(in super::super) static QUEUE: Key<Number> = Key {
    name: "queue",
    form: QUEUES,
    default: Default::Is("2048"),
    about: "How many spans, and how many log records, wait for the collector",
    reason: "some kilobytes each; when it is full what comes is counted and dropped, and nothing waits for room",
};
pub(in super::super) static BATCH: Key<Number> = Key {
    name: "batch",
    form: BATCHES,
    default: Default::Is("512"),
    about: "The most spans or log records of one request; at most queue",
    reason: "collectors refuse requests over 4 MiB",
};
pub(in super::super) static DELAY: Key<Span> = Key {
    name: "delay",
    form: DELAYS,
    default: Default::Is("1s"),
    about: "How long a batch that is not full waits for more",
    reason: "shorter shows things earlier, in more requests",
};
pub(in super::super) static RESOURCE: Key<Pairs> = Key {
    name: "resource",
    form: Pairs { allowed: "names and texts, as {deployment.environment.name: production}" },
    default: Default::Absent { means: "none", example: "{deployment.environment.name: production}" },
    about: "Attributes of this process beside service.name, service.version and service.instance.id",
    reason: "service.name is the config's name, and service.instance.id is HOST:PID, unless they stand here",
};

pub(in super::super) static TRACES: Key<Block> = signal("traces", &SIGNAL);
pub(in super::super) static METRICS: Key<Block> = signal("metrics", &METRICS_SECTION);
pub(in super::super) static LOGS: Key<Block> = signal("logs", &SIGNAL);

const fn signal(name: &'static str, section: &'static Section) -> Key<Block> {
    // One line in the example: its keys stand above already.
    let default = Default::Absent { means: "as the others", example: "{timeout: 30s}" };
    Key { name, form: Block::of(section), default, about: "What is different for this signal", reason: "" }
}

static SIGNAL: Section = Section {
    path: "telemetry.otlp.traces",
    about: "What is different for traces; logs has the same keys",
    keys: &[
        &OWN_ENDPOINT,
        &OWN_PROTOCOL,
        &HEADERS,
        &OWN_TIMEOUT,
        &OWN_COMPRESSION,
        &CA_FILE,
        &OWN_QUEUE,
        &OWN_BATCH,
        &OWN_DELAY,
    ],
};

static METRICS_SECTION: Section = Section {
    path: "telemetry.otlp.metrics",
    about: "What is different for metrics",
    keys: &[&OWN_ENDPOINT, &OWN_PROTOCOL, &HEADERS, &OWN_TIMEOUT, &OWN_COMPRESSION, &CA_FILE],
};

/// What holds where a signal's own key is not written.
const fn as_above(example: &'static str) -> Default {
    Default::Absent { means: "as in telemetry.otlp", example }
}

pub(in super::super) static OWN_ENDPOINT: Key<HttpUrl> = Key {
    name: "endpoint",
    form: HttpUrl { login: "headers" },
    default: as_above("http://traces:4318/v1/traces"),
    about: "Where this signal goes; with http/protobuf the whole URL, to which nothing is added",
    reason: "",
};
pub(in super::super) static OWN_PROTOCOL: Key<Choice<OtlpProtocol>> = Key {
    name: "protocol",
    form: Choice { words: PROTOCOLS },
    default: as_above("http/protobuf"),
    about: PROTOCOL.about,
    reason: "",
};
pub(in super::super) static OWN_TIMEOUT: Key<Span> =
    Key { name: "timeout", form: TIMES, default: as_above("30s"), about: TIMEOUT.about, reason: "" };
pub(in super::super) static OWN_COMPRESSION: Key<Choice<bool>> = Key {
    name: "compression",
    form: Choice { words: COMPRESSIONS },
    default: as_above("gzip"),
    about: COMPRESSION.about,
    reason: "",
};
pub(in super::super) static OWN_QUEUE: Key<Number> = Key {
    name: "queue",
    form: QUEUES,
    default: as_above("10000"),
    about: "How many wait for the collector",
    reason: "",
};
pub(in super::super) static OWN_BATCH: Key<Number> =
    Key { name: "batch", form: BATCHES, default: as_above("1000"), about: BATCH.about, reason: "" };
pub(in super::super) static OWN_DELAY: Key<Span> =
    Key { name: "delay", form: DELAYS, default: as_above("5s"), about: DELAY.about, reason: "" };
