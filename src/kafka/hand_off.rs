//! Events of another shard, on their way to it (K3): messages of the hand-off topic.
//!
//! The partition of such a message is the shard, its key the id, and its headers say where the event came from. Must
//! never be passed on without end: processes that disagree about the hash would send one to and fro. Tested below, and
//! against a real broker.

use rdkafka::message::{Header, OwnedHeaders};

use super::assignment::Place;
use super::decode::{Parts, Poison};
use super::producer::Outgoing;
use crate::id::ShardId;

/// The headers of a message of the hand-off topic.
pub mod header {
    /// How often the event has been handed off.
    pub const HOPS: &str = "evenkeel-hand-off-hops";
    /// Where the event stood first.
    pub const TOPIC: &str = "evenkeel-hand-off-topic";
    /// Where the event stood first.
    pub const PARTITION: &str = "evenkeel-hand-off-partition";
    /// Where the event stood first.
    pub const OFFSET: &str = "evenkeel-hand-off-offset";
}

/// An event that was handed off so often is not handed off again. One step is enough where all processes agree; one
/// more may come from another program's message.
pub(super) const HOPS_MAX: u32 = 3;

/// The producer's trace, which goes along (K7).
const TRACE: [&str; 2] = ["traceparent", "tracestate"];

/// The message that takes an event to its shard.
pub(super) fn passed_on(
    topic: &str,
    shard: ShardId,
    id: &str,
    parts: &Parts<'_>,
    (place, offset): (&Place, u64),
) -> Result<Outgoing, Poison> {
    let hops = hops(parts);
    if hops >= HOPS_MAX {
        return Err(Poison::Routing(hops));
    }
    let text = |name: &str| {
        let value = parts.header(name).ok().flatten()?;
        Some(String::from_utf8_lossy(value).into_owned()).filter(|_| hops > 0)
    };
    let fields = [
        (header::HOPS, Some((hops + 1).to_string())),
        (header::TOPIC, text(header::TOPIC).or_else(|| Some(place.topic.to_string()))),
        (header::PARTITION, text(header::PARTITION).or_else(|| Some(place.partition.to_string()))),
        (header::OFFSET, text(header::OFFSET).or_else(|| Some(offset.to_string()))),
    ];
    let mut headers = OwnedHeaders::new_with_capacity(fields.len() + TRACE.len());
    for (key, value) in &fields {
        headers = headers.insert(Header { key, value: value.as_deref() });
    }
    for key in TRACE {
        if let Ok(Some(value)) = parts.header(key) {
            headers = headers.insert(Header { key, value: Some(value) });
        }
    }
    Ok(Outgoing {
        topic: topic.to_owned(),
        partition: Some(i32::from(shard.0)),
        key: Some(id.as_bytes().to_vec()),
        // Not null: on a compacted topic that would be a tombstone.
        value: Some(Vec::new()),
        headers: Some(headers),
    })
}

/// How often the event was handed off. What another program wrote there counts as the last time, so that nothing goes
/// round for ever.
fn hops(parts: &Parts<'_>) -> u32 {
    match parts.header(header::HOPS) {
        Ok(None) => 0,
        Ok(Some(value)) => std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).unwrap_or(HOPS_MAX),
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::message::Headers as _;

    use super::*;

    fn parts(headers: Vec<(&'static str, Option<&'static [u8]>)>) -> Parts<'static> {
        Parts { key: Some(b"a"), value: None, headers: Ok(headers) }
    }

    fn pass(parts: &Parts<'_>) -> Result<Vec<(String, String)>, Poison> {
        let place = Place { topic: "orders".into(), partition: 7 };
        let message = passed_on("handed", ShardId(3), "a", parts, (&place, 991))?;
        assert_eq!((message.topic.as_str(), message.partition), ("handed", Some(3)));
        assert_eq!((message.key.as_deref(), message.value.as_deref()), (Some(&b"a"[..]), Some(&b""[..])));
        let text = |value: Option<&[u8]>| String::from_utf8_lossy(value.unwrap()).into_owned();
        Ok(message.headers.unwrap().iter().map(|header| (header.key.to_owned(), text(header.value))).collect())
    }

    #[test]
    fn k3_where_an_event_came_from_and_its_trace_go_along() {
        let first = pass(&parts(vec![("traceparent", Some(b"00-x")), ("cookie", Some(b"secret"))])).unwrap();
        let wanted = [
            (header::HOPS, "1"),
            (header::TOPIC, "orders"),
            (header::PARTITION, "7"),
            (header::OFFSET, "991"),
            ("traceparent", "00-x"),
        ];
        assert_eq!(first, wanted.map(|(key, value)| (key.to_owned(), value.to_owned())));
        let origin = vec![
            (header::HOPS, Some(&b"1"[..])),
            (header::TOPIC, Some(b"first")),
            (header::PARTITION, Some(b"2")),
            (header::OFFSET, Some(b"5")),
        ];
        let second = pass(&parts(origin)).unwrap();
        let values: Vec<_> = second.iter().map(|(_, value)| value.as_str()).collect();
        assert_eq!(values, ["2", "first", "2", "5"]);
    }

    #[test]
    fn k3_no_event_goes_round_for_ever() {
        for (hops, passes) in [("2", true), ("3", false), ("4294967296", false), ("-1", false), ("x", false)] {
            let found = pass(&parts(vec![(header::HOPS, Some(hops.as_bytes()))]));
            assert_eq!(found.is_ok(), passes, "{hops}");
        }
        assert_eq!(pass(&parts(vec![(header::HOPS, Some(b"3"))])), Err(Poison::Routing(3)));
        assert!(pass(&parts(vec![(header::HOPS, None)])).is_ok());
    }
}
