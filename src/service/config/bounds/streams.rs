//! The keys of `streams`.

use std::time::Duration;

use super::super::form::{Block, Flag, IdFrom, Items, OrWord, Percent, Span, Text, pointer, topic};
use super::super::key::{Default, Key, Section};
use super::reconciler;

/// The most topics of one stream.
const TOPICS_MAX: usize = 1_000;

const TOPIC: Text = Text { check: topic, allowed: "a topic: 1 to 249 of a-z, A-Z, 0-9, dot, dash and underscore" };

pub(in super::super) static STREAM: Section = Section {
    path: "streams.NAME",
    about: "One event stream; has exactly one of kafka, resync and http",
    keys: &[&KAFKA, &RESYNC, &HTTP, &CRITICAL],
};

pub(in super::super) static KAFKA: Key<Block> = Key {
    name: "kafka",
    form: Block::of(&KAFKA_SECTION),
    default: Default::Absent { means: "another kind of stream", example: "" },
    about: KAFKA_SECTION.about,
    reason: "",
};

static KAFKA_SECTION: Section = Section {
    path: "streams.NAME.kafka",
    about: "Topics of the Kafka cluster; each message is an event for one id",
    keys: &[&TOPICS, &ID, &DEAD_LETTER, &HAND_OFF],
};

pub(in super::super) static TOPICS: Key<Items<Text>> = Key {
    name: "topics",
    form: Items { form: TOPIC, count_max: TOPICS_MAX },
    default: Default::Required("[orders]"),
    about: "The topics to read",
    reason: "",
};

pub(in super::super) static ID: Key<Block> = super::block("id", &ID_SECTION);

static ID_SECTION: Section =
    Section { path: "streams.NAME.kafka.id", about: "Where the id stands in a message", keys: &[&FROM, &POINTER] };

pub(in super::super) static FROM: Key<IdFrom> = Key {
    name: "from",
    form: IdFrom,
    default: Default::Is("key"),
    about: "Which part of the message holds the id",
    reason: "the key decides the partition, so that only it keeps an id's events in its own shard",
};
pub(in super::super) static POINTER: Key<Text> = Key {
    name: "pointer",
    form: Text { check: pointer, allowed: "a JSON pointer, as /meta/id" },
    default: Default::Absent { means: "the whole key", example: "/meta/id" },
    about: "Where in the JSON of the key or value the id stands; needed with from: value",
    reason: "",
};
pub(in super::super) static DEAD_LETTER: Key<OrWord<Text>> = Key {
    name: "dead_letter",
    form: OrWord { word: "none", form: TOPIC },
    default: Default::Absent { means: "none; such messages are logged and passed over", example: "orders.dlq" },
    about: "The topic that gets messages without a usable id, and ids that were given up",
    reason: "",
};

pub(in super::super) static HAND_OFF: Key<OrWord<Text>> = Key {
    name: "hand_off",
    form: OrWord { word: "none", form: TOPIC },
    default: Default::Absent {
        means: "none; events on a partition of another process's shard are held back",
        example: "orders.hand-off",
    },
    about: "The topic through which events on a partition of another shard go to theirs; as many partitions as shards",
    reason: "needed with several processes where producers choose partitions by another hash",
};

pub(in super::super) static RESYNC: Key<Block> = Key {
    name: "resync",
    form: Block::of(&RESYNC_SECTION),
    default: Default::Absent { means: "another kind of stream", example: "" },
    about: RESYNC_SECTION.about,
    reason: "",
};

static RESYNC_SECTION: Section = Section {
    path: "streams.NAME.resync",
    about: "A list of all ids, fetched again and again; each is an event",
    keys: &[&EVERY, &JITTER, &LIST],
};

pub(in super::super) static EVERY: Key<Span> = Key {
    name: "every",
    form: Span { min: Duration::from_millis(100), max: Duration::from_secs(90 * 24 * 3_600) },
    default: Default::Required("10m"),
    about: "How often; the first time at once",
    reason: "",
};
pub(in super::super) static JITTER: Key<Percent> = Key {
    name: "jitter",
    form: Percent { max: 50.0 },
    default: Default::Is("10%"),
    about: "By which share the interval may be longer or shorter",
    reason: "keeps the lists of many processes apart",
};
pub(in super::super) static LIST: Key<Block> = Key {
    name: "list",
    form: Block::of(&LIST_SECTION),
    default: Default::Required(""),
    about: LIST_SECTION.about,
    reason: "",
};

static LIST_SECTION: Section = Section {
    path: "streams.NAME.resync.list",
    about: "What gives the ids, one a line or a JSON array; has exactly one of http and exec",
    keys: &[&LIST_HTTP, &LIST_EXEC, &LIST_TIMEOUT],
};

pub(in super::super) static LIST_HTTP: Key<Block> = Key {
    name: "http",
    form: Block { section: &LIST_HTTP_SECTION, short: "a URL", named: false },
    default: Default::Absent { means: "exec is used", example: "" },
    about: LIST_HTTP_SECTION.about,
    reason: "",
};

static LIST_HTTP_SECTION: Section = Section {
    path: "streams.NAME.resync.list.http",
    about: "A GET request; any answer but 200 is a list that failed",
    keys: &[&LIST_URL, &reconciler::AUTHORIZATION_FILE, &reconciler::CA_FILE],
};

pub(in super::super) static LIST_URL: Key<super::super::form::HttpUrl> = Key {
    name: "url",
    form: super::super::form::HttpUrl { login: "authorization_file" },
    default: Default::Required("http://inventory.example/ids"),
    about: "Where the ids are",
    reason: "credentials have no place in it, since addresses are logged",
};

pub(in super::super) static LIST_EXEC: Key<Block> = Key {
    name: "exec",
    form: Block {
        section: &LIST_EXEC_SECTION,
        short: "a program, or a list of a program and its arguments",
        named: false,
    },
    default: Default::Absent { means: "http is used", example: "" },
    about: LIST_EXEC_SECTION.about,
    reason: "",
};

static LIST_EXEC_SECTION: Section = Section {
    path: "streams.NAME.resync.list.exec",
    about: "A command that prints the ids; any exit but 0 is a list that failed",
    keys: &[&reconciler::COMMAND, &reconciler::ENV],
};

pub(in super::super) static LIST_TIMEOUT: Key<Span> = Key {
    name: "timeout",
    form: Span { min: Duration::from_millis(1), max: Duration::from_secs(24 * 3_600) },
    default: Default::Is("1m"),
    about: "How long the list may take before it has failed",
    reason: "long enough for a million ids",
};

pub(in super::super) static HTTP: Key<Block> = Key {
    name: "http",
    form: Block::of(&HTTP_SECTION),
    default: Default::Absent { means: "another kind of stream", example: "{}" },
    about: HTTP_SECTION.about,
    reason: "",
};

static HTTP_SECTION: Section = Section {
    path: "streams.NAME.http",
    about: "What is posted to /v1/trigger of the admin server, under this name; it has no keys",
    keys: &[],
};

pub(in super::super) static CRITICAL: Key<Flag> = Key {
    name: "critical",
    form: Flag,
    default: Default::Is("false"),
    about: "Whether a failure of this stream ends the process instead of restarting the stream",
    reason: "a stream that cannot be read now can often be read in a minute",
};
