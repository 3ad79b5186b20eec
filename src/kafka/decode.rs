//! From a message to an id (K1) and the producer's trace (K7).
//!
//! Must never panic, whatever a producer sends: a message without a usable id is an answer here, not an error of the
//! program. A null value (tombstone) is an event like any other. Tested by tables below and against a real broker.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};

use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};
use rdkafka::Message;
use rdkafka::message::Headers;
use serde_json::Value;

use crate::id::{self, IdError};

/// Where the id stands in a message.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum IdFrom {
    /// The key is the id.
    #[default]
    Key,
    /// A header of this name holds it.
    Header(String),
    /// The key is JSON, and a JSON pointer (`/order/id`) leads to it.
    KeyPointer(String),
    /// The value is JSON, and a JSON pointer leads to it.
    ValuePointer(String),
    /// The subject of a CloudEvent, in binary mode (header `ce_subject`) or structured mode (JSON value).
    CloudEvent,
}

/// Why a message has no usable id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Poison {
    #[error("the message has no key")]
    NoKey,
    #[error("the message has no value")]
    NoValue,
    #[error("the message has no header {0:?}, or an empty one")]
    NoHeader(String),
    #[error("a header's name is not UTF-8")]
    Headers,
    #[error("the {0} is not JSON: {1}")]
    Json(&'static str, String),
    #[error("the {0} has no text or whole number at {1:?}")]
    Pointer(&'static str, String),
    #[error("the message is no CloudEvent with a subject")]
    CloudEvent,
    #[error(transparent)]
    Id(#[from] IdError),
    #[error(
        "it was handed off {0} times and is still on no partition of its shard: the processes' hash or shards differ"
    )]
    Routing(u32),
}

impl Poison {
    /// A short fixed name, for a header and a metric.
    pub(super) const fn code(&self) -> &'static str {
        match self {
            Self::NoKey => "no-key",
            Self::NoValue => "no-value",
            Self::NoHeader(_) => "no-header",
            Self::Headers => "bad-headers",
            Self::Json(..) => "bad-json",
            Self::Pointer(..) => "no-id",
            Self::CloudEvent => "no-cloudevent-subject",
            Self::Id(_) => "bad-id",
            Self::Routing(_) => "routing-disagreement",
        }
    }
}

/// Names and values; a value may be null.
type HeaderList<'a> = Vec<(&'a str, Option<&'a [u8]>)>;

/// The parts of a message that an id can stand in, borrowed.
pub(super) struct Parts<'a> {
    pub(super) key: Option<&'a [u8]>,
    pub(super) value: Option<&'a [u8]>,
    pub(super) headers: Result<HeaderList<'a>, Poison>,
}

impl<'a> Parts<'a> {
    pub(super) fn of<M: Message>(message: &'a M) -> Self {
        Self { key: message.key(), value: message.payload(), headers: headers(message) }
    }

    pub(super) fn header(&self, name: &str) -> Result<Option<&'a [u8]>, Poison> {
        let headers = self.headers.as_ref().map_err(Clone::clone)?;
        // The last one of a name stands, as in Kafka's own `lastHeader`.
        Ok(headers.iter().rev().find(|(key, _)| *key == name).and_then(|(_, value)| *value))
    }
}

fn headers<M: Message>(message: &M) -> Result<HeaderList<'_>, Poison> {
    let Some(headers) = message.headers() else { return Ok(Vec::new()) };
    // The client panics on a header whose name is not UTF-8; any producer can send one.
    let read = || headers.iter().map(|header| (header.key, header.value)).collect();
    catch_unwind(AssertUnwindSafe(read)).map_err(|_| Poison::Headers)
}

/// The id of a message; an empty one means that there is nothing to do (Q1).
pub(super) fn id<'a>(from: &IdFrom, parts: &Parts<'a>) -> Result<Cow<'a, str>, Poison> {
    let id: Cow<'a, [u8]> = match from {
        IdFrom::Key => Cow::Borrowed(parts.key.ok_or(Poison::NoKey)?),
        IdFrom::Header(name) => {
            let value = parts.header(name)?.filter(|value| !value.is_empty());
            Cow::Borrowed(value.ok_or_else(|| Poison::NoHeader(name.clone()))?)
        }
        IdFrom::KeyPointer(pointer) => at(parts.key.ok_or(Poison::NoKey)?, "key", pointer)?,
        IdFrom::ValuePointer(pointer) => at(parts.value.ok_or(Poison::NoValue)?, "value", pointer)?,
        IdFrom::CloudEvent => subject(parts)?,
    };
    match id {
        Cow::Borrowed([]) => Ok(Cow::Borrowed("")),
        Cow::Borrowed(bytes) => Ok(Cow::Borrowed(id::from_bytes(bytes)?)),
        Cow::Owned(bytes) if bytes.is_empty() => Ok(Cow::Borrowed("")),
        Cow::Owned(bytes) => Ok(Cow::Owned(id::from_bytes(&bytes)?.to_string())),
    }
}

fn at<'a>(json: &[u8], part: &'static str, pointer: &str) -> Result<Cow<'a, [u8]>, Poison> {
    let json: Value = serde_json::from_slice(json).map_err(|error| Poison::Json(part, error.to_string()))?;
    match json.pointer(pointer) {
        Some(Value::String(text)) => Ok(Cow::Owned(text.clone().into_bytes())),
        Some(Value::Number(number)) if number.is_i64() || number.is_u64() => {
            Ok(Cow::Owned(number.to_string().into_bytes()))
        }
        _ => Err(Poison::Pointer(part, pointer.to_string())),
    }
}

/// CloudEvents' Kafka binding: structured mode says so in `content-type`, binary mode has a header for each attribute.
fn subject<'a>(parts: &Parts<'a>) -> Result<Cow<'a, [u8]>, Poison> {
    let structured = parts.header("content-type")?.is_some_and(|kind| {
        kind.len() >= 23
            && kind[..23].eq_ignore_ascii_case(b"application/cloudevents")
            && !kind[23..].starts_with(b"-batch")
    });
    if structured {
        return at(parts.value.ok_or(Poison::NoValue)?, "value", "/subject").map_err(|poison| match poison {
            Poison::Pointer(..) => Poison::CloudEvent,
            other => other,
        });
    }
    let subject = parts.header("ce_subject")?.filter(|subject| !subject.is_empty());
    match (parts.header("ce_specversion")?, subject) {
        (Some(_), Some(subject)) => Ok(Cow::Borrowed(subject)),
        _ => Err(Poison::CloudEvent),
    }
}

/// The producer's span, from the W3C headers; a broken one is no reason to refuse the message.
pub(super) fn trace(parts: &Parts<'_>) -> Option<SpanContext> {
    let parent = parts.header("traceparent").ok()??;
    let parent = std::str::from_utf8(parent).ok()?;
    let fields: Vec<&str> = parent.trim().split('-').collect();
    let [version, trace, span, flags] = fields.get(..4)?.try_into().ok()?;
    let hex = |text: &str, digits: usize| {
        text.len() == digits && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    };
    // Version 00 has four fields; later ones may have more, and ff is none.
    let well_formed = hex(version, 2) && hex(trace, 32) && hex(span, 16) && hex(flags, 2);
    if !well_formed || version == "ff" || (version == "00" && fields.len() != 4) {
        return None;
    }
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED;
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    let context = SpanContext::new(trace, span, flags, true, trace_state(parts).unwrap_or_default());
    context.is_valid().then_some(context)
}

fn trace_state(parts: &Parts<'_>) -> Option<TraceState> {
    let state = std::str::from_utf8(parts.header("tracestate").ok()??).ok()?;
    let members = state.split(',').filter_map(|member| member.trim().split_once('='));
    TraceState::from_key_value(members).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts<'a>(key: &'a str, value: &'a str, headers: &[(&'a str, &'a str)]) -> Parts<'a> {
        let part = |text: &'a str| (text != "null").then_some(text.as_bytes());
        Parts {
            key: part(key),
            value: part(value),
            headers: Ok(headers.iter().map(|(name, value)| (*name, part(value))).collect()),
        }
    }

    fn shown(from: &IdFrom, parts: &Parts<'_>) -> String {
        match id(from, parts) {
            Ok(id) => format!("id {id}"),
            Err(poison) => poison.code().to_string(),
        }
    }

    #[test]
    fn k1_ids_from_keys() {
        let long = "x".repeat(513);
        for (key, value, wanted) in [
            ("orders-1", "{}", "id orders-1"),
            ("orders-1", "null", "id orders-1"),
            ("orders-1", "not json, never looked at", "id orders-1"),
            ("", "x", "id "),
            ("null", "x", "no-key"),
            ("null", "null", "no-key"),
            ("a\nb", "x", "bad-id"),
            (long.as_str(), "x", "bad-id"),
            ("\0\0\0\0\u{7}schema", "x", "bad-id"),
        ] {
            assert_eq!(shown(&IdFrom::Key, &parts(key, value, &[])), wanted, "{key:?}");
        }
        let latin = Parts { key: Some(b"caf\xe9"), value: None, headers: Ok(vec![]) };
        assert_eq!(shown(&IdFrom::Key, &latin), "bad-id");
    }

    #[test]
    fn k1_ids_from_headers() {
        let from = IdFrom::Header("id".into());
        assert_eq!(shown(&from, &parts("null", "null", &[("x", "y"), ("id", "a"), ("id", "b")])), "id b");
        for headers in [&[][..], &[("ID", "a")], &[("id", "null")], &[("id", "")]] {
            assert_eq!(shown(&from, &parts("k", "v", headers)), "no-header", "{headers:?}");
        }
        let broken = Parts { key: Some(b"k"), value: None, headers: Err(Poison::Headers) };
        assert_eq!(shown(&from, &broken), "bad-headers");
        assert_eq!(shown(&IdFrom::Key, &broken), "id k", "who needs no header is not disturbed");
    }

    #[test]
    fn k1_ids_by_json_pointer() {
        let deep = "[".repeat(10_000);
        let from = IdFrom::ValuePointer("/order/id".into());
        for (value, wanted) in [
            (r#"{"order": {"id": "o-1"}}"#, "id o-1"),
            (r#"{"order": {"id": 42}}"#, "id 42"),
            (r#"{"order": {"id": ""}}"#, "id "),
            (r#"{"order": {"id": 1.5}}"#, "no-id"),
            (r#"{"order": {"id": null}}"#, "no-id"),
            (r#"{"order": {"id": {"a": 1}}}"#, "no-id"),
            (r#"{"order": []}"#, "no-id"),
            (r#"{"order": {"id": "a\u0000b"}}"#, "bad-id"),
            (r#"{"order": {"id": "\ud800"}}"#, "bad-json"),
            (r#"{"order": "#, "bad-json"),
            ("", "bad-json"),
            (deep.as_str(), "bad-json"),
            ("null", "no-value"),
        ] {
            assert_eq!(shown(&from, &parts("k", value, &[])), wanted, "{}", &value[..value.len().min(40)]);
        }
        let from = IdFrom::KeyPointer("/id".into());
        assert_eq!(shown(&from, &parts(r#"{"id":"a"}"#, "null", &[])), "id a");
        assert_eq!(shown(&from, &parts("null", "{}", &[])), "no-key");
        assert_eq!(shown(&IdFrom::ValuePointer(String::new()), &parts("k", r#""whole""#, &[])), "id whole");
    }

    #[test]
    fn k1_ids_from_cloud_events() {
        let from = IdFrom::CloudEvent;
        let binary = [("ce_specversion", "1.0"), ("ce_subject", "a/b"), ("content-type", "text/plain")];
        assert_eq!(shown(&from, &parts("k", "x", &binary)), "id a/b");
        let structured = [("content-type", "application/cloudevents+json; charset=UTF-8")];
        assert_eq!(shown(&from, &parts("k", r#"{"specversion":"1.0","subject":"a/b"}"#, &structured)), "id a/b");
        for (value, headers, wanted) in [
            (r#"{"specversion":"1.0"}"#, &structured[..], "no-cloudevent-subject"),
            ("oops", &structured, "bad-json"),
            ("null", &structured, "no-value"),
            ("x", &binary[1..], "no-cloudevent-subject"),
            ("x", &[("ce_specversion", "1.0")], "no-cloudevent-subject"),
            (
                r#"[{"subject":"a"}]"#,
                &[("content-type", "application/cloudevents-batch+json")],
                "no-cloudevent-subject",
            ),
            (r#"{"subject":"a"}"#, &[], "no-cloudevent-subject"),
        ] {
            assert_eq!(shown(&from, &parts("k", value, headers)), wanted, "{value} {headers:?}");
        }
    }

    #[test]
    fn k7_traces_of_producers() {
        const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let found = trace(&parts("k", "v", &[("traceparent", PARENT), ("tracestate", "a=1,b=2")])).unwrap();
        assert_eq!(found.trace_id().to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(found.span_id().to_string(), "00f067aa0ba902b7");
        assert!(found.is_sampled() && found.is_remote());
        assert_eq!(found.trace_state().header(), "a=1,b=2");
        for bad in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4BF92F3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
        ] {
            assert!(trace(&parts("k", "v", &[("traceparent", bad)])).is_none(), "{bad}");
        }
        assert!(trace(&parts("k", "v", &[])).is_none());
        let odd_state = trace(&parts("k", "v", &[("traceparent", PARENT), ("tracestate", "A=1")])).unwrap();
        assert_eq!(odd_state.trace_state().header(), "", "a broken state costs the state alone");
    }
}
