//! The one JSON of both contracts, version 1: what a webhook or a command is asked, and what it may answer.
//!
//! A request may gain fields within version 1; an answer is checked to the letter (I2): an unknown field, a wrong type
//! or a bad duration is a failure of the run that names the field, never a silent default. The JSON Schemas in
//! `docs/schema` are made from these types. Tested against the schemas, the documented examples and random answers in
//! `tests`.

use std::fmt;
use std::time::Duration;

use opentelemetry::trace::SpanContext;
use schemars::JsonSchema;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor, value::MapAccessDeserializer};
use serde::{Deserialize as DeriveDeserialize, Serialize};
use serde_json::Value;

use super::text::{ERROR_BYTES_MAX, MESSAGE_BYTES_MAX, Secrets};
use crate::contract::{Action, Cause, Failure, Run, parse_duration};

/// The version of the contract.
pub const VERSION: u32 = 1;

/// The largest answer that is read, in bytes. It is held in memory while it is read, once for each run in flight.
pub const ANSWER_BYTES_MAX: usize = 1024 * 1024;

/// What a webhook or a command is asked: to make the world true for one id.
///
/// Fields may be added within version 1; whoever reads it passes over those it does not know.
#[derive(Debug, Clone, PartialEq, Serialize, DeriveDeserialize, JsonSchema)]
#[schemars(title = "evenkeel reconcile request, version 1")]
pub struct Request {
    /// The version of this contract: 1.
    #[schemars(extend("const" = VERSION))]
    pub version: u32,
    /// What to do.
    pub operation: Operation,
    /// The id to reconcile: 1 to 512 bytes of UTF-8 without control characters.
    pub id: String,
    /// A name for this run that no other run of the cluster has.
    pub run: String,
    /// The idempotency key: the same for all attempts to answer the same events, another once a new event came.
    pub key: String,
    /// The shard that the id belongs to.
    pub shard: u16,
    /// Which attempt this is since the last success, from 1.
    #[schemars(range(min = 1))]
    pub attempt: u32,
    /// How much time is left for the answer, in seconds; absent where there is no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<f64>,
    /// Proves which run is the later one: as text it only grows for one id, and a target refuses a smaller one.
    pub fencing_token: String,
    /// Why the id runs: the first few causes.
    pub causes: Vec<Cause>,
}

/// What a reconciler is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, DeriveDeserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Operation {
    /// Make the world true for the id.
    Reconcile,
}

impl Request {
    /// The request for a run, with the time that is left now.
    #[must_use]
    pub fn of(run: &Run) -> Self {
        Self {
            version: VERSION,
            operation: Operation::Reconcile,
            id: run.id().to_owned(),
            run: run.name(),
            key: run.key(),
            shard: run.shard().0,
            attempt: run.attempt(),
            timeout_seconds: run.time_left().map(seconds),
            fencing_token: run.fencing_token().to_string(),
            causes: run.causes(),
        }
    }

    /// The request as JSON.
    pub(super) fn to_json(&self) -> Result<String, Failure> {
        Ok(serde_json::to_string(self)?)
    }
}

/// Seconds to the millisecond: more digits are noise to whoever reads them.
fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1000.0).round() / 1000.0
}

/// The W3C `traceparent` of a span, if it is a real one.
pub(super) fn traceparent(span: &SpanContext) -> Option<String> {
    let flags = span.trace_flags().to_u8();
    span.is_valid().then(|| format!("00-{}-{}-{flags:02x}", span.trace_id(), span.span_id()))
}

/// What a webhook or a command may answer. All fields are optional, `null` is absent, any other field is an error.
#[derive(Debug, Clone, Default, PartialEq, Serialize, DeriveDeserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(title = "evenkeel reconcile answer, version 1")]
pub struct Answer {
    /// The observed state of the resource; only with `kinds:`.
    pub state: Option<Value>,
    /// Run the id again after this long, as in "30s"; no failure. Over 365 days it is 365 days.
    pub requeue_after: Option<Span>,
    /// Nothing was different from what it should be.
    pub unchanged: Option<bool>,
    /// The run failed; whatever else the answer says does not count then.
    #[serde(deserialize_with = "object")]
    pub error: Option<AnswerError>,
    /// Resources to create or change; only with `kinds:`.
    pub apply: Option<Vec<Value>>,
    /// Ids of resources to delete; only with `kinds:`.
    pub delete: Option<Vec<String>>,
    /// One line for people, for the log and the journal.
    pub message: Option<String>,
}

/// That a run failed, and what follows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, DeriveDeserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AnswerError {
    /// What went wrong.
    pub message: Option<String>,
    /// Whether the id is given up at once; if not, it is tried again. It outweighs `retry_after`.
    pub terminal: Option<bool>,
    /// Try again after this long, as in "5s", instead of after growing delays.
    pub retry_after: Option<Span>,
}

/// A duration with a unit, as in "30s", "1.5h" or "1h30m"; units are ns, us, ms, s, m, h and d.
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema)]
#[schemars(transparent, extend("pattern" = r"^([0-9]+(\.[0-9]+)?(ns|us|µs|μs|ms|s|m|h|d))+$"))]
pub struct Span(#[schemars(with = "String")] pub Duration);

impl Serialize for Span {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{}ns", self.0.as_nanos()))
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Span;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text with a unit, as in \"30s\"")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Span, E> {
                parse_duration(text).map(Span).map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Text)
    }
}

/// Only a JSON object will do: a derived struct would take an array, its fields by position, as well.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Map<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Map<T> {
            type Value = T;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map))
            }
        }
        deserializer.deserialize_map(Map(std::marker::PhantomData)).map(Self)
    }
}

fn object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    Ok(Option::<Object<T>>::deserialize(deserializer)?.map(|object| object.0))
}

/// An answer that does not keep the contract; the text names the field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the answer does not keep the contract: {0}")]
pub struct InvalidAnswer(String);

impl Answer {
    /// Reads an answer.
    ///
    /// # Errors
    /// The first thing in it that does not keep the contract: larger than [`ANSWER_BYTES_MAX`], no JSON object,
    /// something after it, a key twice, an unknown field, a wrong type, a bad duration, a field that needs `kinds:`.
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidAnswer> {
        if bytes.len() > ANSWER_BYTES_MAX {
            return Err(InvalidAnswer(format!("it is larger than {ANSWER_BYTES_MAX} bytes")));
        }
        let mut json = serde_json::Deserializer::from_slice(bytes);
        let Object(answer) = serde_path_to_error::deserialize::<_, Object<Self>>(&mut json).map_err(|error| {
            let path = error.path().to_string();
            let inner = error.into_inner();
            InvalidAnswer(if path == "." { inner.to_string() } else { format!("{path}: {inner}") })
        })?;
        json.end().map_err(|error| InvalidAnswer(error.to_string()))?;
        answer.without_resources()
    }

    /// With opaque ids there is nothing that these fields could change; to pass over them would be to lose what was
    /// asked for.
    fn without_resources(self) -> Result<Self, InvalidAnswer> {
        let given =
            [("state", self.state.is_some()), ("apply", self.apply.is_some()), ("delete", self.delete.is_some())];
        match given.iter().find(|(_, given)| *given) {
            Some((field, _)) => Err(InvalidAnswer(format!(
                "{field}: needs resources (`kinds:` in the config); with `reconciler:` nothing is stored"
            ))),
            None => Ok(self),
        }
    }

    /// What the run ends with. An error outweighs all the rest, `terminal` outweighs `retry_after`.
    pub(super) fn outcome(self, secrets: &Secrets) -> Result<Action, Failure> {
        if let Some(error) = self.error {
            return Err(error.failure(secrets));
        }
        let mut action = if self.unchanged == Some(true) { Action::unchanged() } else { Action::done() };
        if let Some(Span(delay)) = self.requeue_after {
            action = action.requeue_after(delay);
        }
        match self.message.map(|message| secrets.clean(&message, MESSAGE_BYTES_MAX)) {
            Some(message) if !message.is_empty() => Ok(action.with_message(message)),
            _ => Ok(action),
        }
    }
}

impl AnswerError {
    fn failure(self, secrets: &Secrets) -> Failure {
        let message = secrets.clean(&self.message.unwrap_or_default(), ERROR_BYTES_MAX);
        let message = if message.is_empty() { "the reconciler answered an error without a message" } else { &message };
        match (self.terminal, self.retry_after) {
            (Some(true), _) => Failure::terminal(message),
            (_, Some(Span(delay))) => Failure::transient(message).retry_after(delay),
            (_, None) => Failure::transient(message),
        }
    }
}

/// The JSON Schema of [`Request`].
#[must_use]
pub fn request_schema() -> Value {
    schemars::schema_for!(Request).to_value()
}

/// The JSON Schema of [`Answer`].
#[must_use]
pub fn answer_schema() -> Value {
    schemars::schema_for!(Answer).to_value()
}
