//! The keys of `reconciler`, and of the webhooks and commands that lists use too.

use std::time::Duration;

use super::super::form::{
    Argument, Block, Decimal, FilePath, HttpUrl, Items, Number, OrWord, Percent, Span, Text, env_name,
};
use super::super::key::{Default, Key, Section};
use super::{block, secret_file};
use crate::id::WORKERS_MAX;

/// The most arguments, and the most variables, of a command.
const WORDS_MAX: usize = 256;

pub(in super::super) static RECONCILER: Section = Section {
    path: "reconciler",
    about: "What is called for an id, and how; either a webhook or a command",
    keys: &[&WEBHOOK, &EXEC, &WORKERS, &CONCURRENCY, &TIMEOUT, &CANCEL_GRACE, &RETRY],
};

pub(in super::super) static WEBHOOK: Key<Block> = Key {
    name: "webhook",
    form: Block { section: &WEBHOOK_SECTION, short: "a URL", named: false },
    default: Default::Absent { means: "exec is used", example: "" },
    about: "A request to an HTTP server for each run",
    reason: "",
};

static WEBHOOK_SECTION: Section = Section {
    path: "reconciler.webhook",
    about: "A request to an HTTP server for each run",
    keys: &[&URL, &SECRET_FILE, &AUTHORIZATION_FILE, &CA_FILE],
};

pub(in super::super) static URL: Key<HttpUrl> = Key {
    name: "url",
    form: HttpUrl { login: "authorization_file" },
    default: Default::Required("http://127.0.0.1:8080/reconcile"),
    about: "Where the request goes",
    reason: "credentials have no place in it, since addresses are logged",
};
pub(in super::super) static SECRET_FILE: Key<FilePath> = secret_file(
    "secret_file",
    "Signs each request, as Standard Webhooks say: secrets in base64, one a line",
    "/run/secrets/hook",
);
pub(in super::super) static AUTHORIZATION_FILE: Key<FilePath> = secret_file(
    "authorization_file",
    "The value of the Authorization header, as in `Bearer …`",
    "/run/secrets/authorization",
);
pub(in super::super) static CA_FILE: Key<FilePath> = Key {
    name: "ca_file",
    form: FilePath { what: "a file of certificates (PEM)" },
    default: Default::Absent { means: "the system's authorities", example: "/etc/ssl/own-ca.pem" },
    about: "Authorities to trust instead of the system's",
    reason: "read again when it changes",
};

pub(in super::super) static EXEC: Key<Block> = Key {
    name: "exec",
    form: Block { section: &EXEC_SECTION, short: "a program, or a list of a program and its arguments", named: false },
    default: Default::Absent { means: "webhook is used", example: "" },
    about: "A command for each run; its working directory is this file's",
    reason: "never through a shell; the id comes in the environment and on standard input, not in the arguments",
};

static EXEC_SECTION: Section =
    Section { path: "reconciler.exec", about: "A command for each run", keys: &[&COMMAND, &ENV] };

pub(in super::super) static COMMAND: Key<Items<Argument>> = Key {
    name: "command",
    form: Items { form: Argument, count_max: WORDS_MAX },
    default: Default::Required("[./reconcile.sh]"),
    about: "The program and its arguments; one with a slash is relative to this file, others are looked up in PATH",
    reason: "",
};
pub(in super::super) static ENV: Key<Items<Text>> = Key {
    name: "env",
    form: Items {
        form: Text { check: env_name, allowed: "the name of an environment variable" },
        count_max: WORDS_MAX,
    },
    default: Default::Absent { means: "none", example: "[PGHOST]" },
    about: "Variables of this process that the command gets too, besides PATH, HOME, LANG and TZ",
    reason: "a list of what is allowed, so that secrets of this process stay here",
};

pub(in super::super) static WORKERS: Key<Number> = Key {
    name: "workers",
    form: Number { min: 1, max: WORKERS_MAX as u32 },
    default: Default::Is("8"),
    about: "Lanes in each shard; an id has always the same",
    reason: "more spread a burst over more lanes, at some bytes each; runs in flight are bounded by concurrency",
};
pub(in super::super) static CONCURRENCY: Key<Number> = Key {
    name: "concurrency",
    form: Number { min: 1, max: 65_536 },
    default: Default::Absent { means: "64; for exec the number of CPUs", example: "64" },
    about: "Runs in flight in this process",
    reason: "requests wait for others, commands for a CPU; each run costs a connection or a process",
};
pub(in super::super) static TIMEOUT: Key<OrWord<Span>> = Key {
    name: "timeout",
    form: OrWord {
        word: "none",
        form: Span { min: Duration::from_millis(1), max: Duration::from_secs(30 * 24 * 3_600) },
    },
    default: Default::Is("10s"),
    about: "How long a run may take before it is cancelled and counts as failed",
    reason: "long enough for a slow target, short enough to free the slot of one that hangs",
};
pub(in super::super) static CANCEL_GRACE: Key<Span> = Key {
    name: "cancel_grace",
    form: Span { min: Duration::from_millis(1), max: Duration::from_secs(30 * 60) },
    default: Default::Is("10s"),
    about: "How long a cancelled run may take to end before it is cut off",
    reason: "time to put things in order; at most drain_timeout",
};

pub(in super::super) static RETRY: Key<Block> = block("retry", &RETRY_SECTION);

static RETRY_SECTION: Section = Section {
    path: "reconciler.retry",
    about: "What follows a failure",
    keys: &[&INITIAL, &FACTOR, &MAX_DELAY, &JITTER, &MAX_RETRIES],
};

pub(in super::super) static INITIAL: Key<Span> = Key {
    name: "initial",
    form: Span { min: Duration::from_millis(1), max: Duration::from_secs(24 * 3_600) },
    default: Default::Is("250ms"),
    about: "The delay after the first failure",
    reason: "most failures pass within a second",
};
pub(in super::super) static FACTOR: Key<Decimal> = Key {
    name: "factor",
    form: Decimal { min: 1.0, max: 100.0 },
    default: Default::Is("2"),
    about: "How many times longer each further delay is",
    reason: "1 retries at a fixed delay",
};
pub(in super::super) static MAX_DELAY: Key<Span> = Key {
    name: "max_delay",
    form: Span { min: Duration::from_millis(1), max: Duration::from_secs(30 * 24 * 3_600) },
    default: Default::Is("5m"),
    about: "The longest delay",
    reason: "how long a target that is back may wait for its retry; at least initial",
};
pub(in super::super) static JITTER: Key<Percent> = Key {
    name: "jitter",
    form: Percent { max: 100.0 },
    default: Default::Is("20%"),
    about: "By which share a delay may be shorter, at random",
    reason: "spreads the retries of ids that failed together",
};
pub(in super::super) static MAX_RETRIES: Key<OrWord<Number>> = Key {
    name: "max_retries",
    form: OrWord { word: "never", form: Number { min: 1, max: 1_000_000 } },
    default: Default::Is("20"),
    about: "After how many retries in a row an id is given up; never retries for ever",
    reason: "20 retries take about an hour with the other defaults",
};
