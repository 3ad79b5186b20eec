//! What the keys of leadership hold, and what a change of them means.
//!
//! Must never trust what it reads: another program may have written it. What cannot be read counts as a leader that is
//! not known, and as a term that has not stopped. Tested below.

use std::time::Duration;

use etcd_client::{Event, EventType, KeyValue};
use serde::{Deserialize, Serialize};

use crate::etcd::Keys;
use crate::id::ShardId;
use crate::leadership::{Change, Holder, LeaseId, List, Note};

/// The format of these values.
const FORMAT: u32 = 1;

/// What a leader key holds: for people.
#[derive(Debug, Serialize, Deserialize)]
struct LeaderValue {
    v: u32,
    process: String,
}

/// What the note of a term holds.
#[derive(Debug, Serialize, Deserialize)]
struct NoteValue {
    v: u32,
    process: String,
    lease: i64,
    ttl_ms: u64,
    stopped: bool,
}

pub(super) fn leader_value(process: &str) -> Vec<u8> {
    json(&LeaderValue { v: FORMAT, process: process.to_owned() })
}

pub(super) fn note_value(process: &str, lease: LeaseId, ttl: Duration, stopped: bool) -> Vec<u8> {
    let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
    json(&NoteValue { v: FORMAT, process: process.to_owned(), lease: lease.0, ttl_ms, stopped })
}

fn json(value: &impl Serialize) -> Vec<u8> {
    // Texts and numbers always have a JSON form; what is empty is refused when it is read.
    serde_json::to_vec(value).unwrap_or_default()
}

/// How the leader calls itself.
pub(super) fn leader_name(key: &KeyValue) -> String {
    match serde_json::from_slice::<LeaderValue>(key.value()) {
        Ok(value) => value.process,
        Err(_) => format!("another program, which wrote {}", key.key_str().unwrap_or("the key")),
    }
}

pub(super) fn holder(key: &KeyValue) -> Holder {
    Holder { revision: number(key.create_revision()), lease: LeaseId(key.lease()) }
}

fn note(key: &KeyValue) -> Note {
    let written = number(key.mod_revision());
    match serde_json::from_slice::<NoteValue>(key.value()) {
        Ok(value) => Note {
            written,
            lease: LeaseId(value.lease),
            ttl: Some(Duration::from_millis(value.ttl_ms)),
            stopped: value.stopped,
        },
        Err(_) => Note { written, lease: LeaseId(0), ttl: None, stopped: false },
    }
}

/// A revision; etcd's are never negative.
pub(super) fn number(revision: i64) -> u64 {
    u64::try_from(revision).unwrap_or_default()
}

/// Whose key it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    Leader(ShardId),
    Note(ShardId),
    Beat(LeaseId),
}

fn name(keys: &Keys, key: &[u8]) -> Option<Name> {
    let key = std::str::from_utf8(key).ok()?.strip_prefix(&keys.leading())?;
    let (kind, rest) = key.split_once('/')?;
    match kind {
        "leader" => rest.parse().ok().map(|shard| Name::Leader(ShardId(shard))),
        "term" => rest.parse().ok().map(|shard| Name::Note(ShardId(shard))),
        "beat" => i64::from_str_radix(rest, 16).ok().map(|lease| Name::Beat(LeaseId(lease))),
        _ => None,
    }
}

/// A process, as its beat is named: its lease is never another's.
pub(super) fn beat_name(lease: LeaseId) -> String {
    format!("{:x}", lease.0)
}

/// What a whole list says, and how the leaders call themselves.
pub(super) fn list(keys: &Keys, found: &[KeyValue], revision: u64) -> (List, Vec<(ShardId, String)>) {
    let mut list = List { revision, ..List::default() };
    let mut names = Vec::new();
    for key in found {
        match name(keys, key.key()) {
            Some(Name::Leader(shard)) => {
                list.leaders.push((shard, holder(key)));
                names.push((shard, leader_name(key)));
            }
            Some(Name::Note(shard)) => list.notes.push((shard, note(key))),
            Some(Name::Beat(lease)) => list.beats.push((lease, number(key.mod_revision()))),
            None => {}
        }
    }
    (list, names)
}

/// What an event says: at which revision what has changed, and how a new leader calls itself.
pub(super) fn change(keys: &Keys, event: &Event) -> Option<(u64, Change, Option<String>)> {
    let key = event.kv()?;
    let is_put = event.event_type() == EventType::Put;
    let (change, leader) = match (name(keys, key.key())?, is_put) {
        (Name::Leader(shard), true) => (Change::Leader(shard, holder(key)), Some(leader_name(key))),
        (Name::Leader(shard), false) => (Change::LeaderGone(shard), None),
        (Name::Note(shard), true) => (Change::Note(shard, note(key)), None),
        (Name::Note(shard), false) => (Change::NoteGone(shard), None),
        (Name::Beat(lease), true) => (Change::Beat(lease), None),
        (Name::Beat(lease), false) => (Change::BeatGone(lease), None),
    };
    Some((number(key.mod_revision()), change, leader))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_back_and_foreign_ones_are_nothing() {
        let keys = Keys::new("dns");
        let beat = keys.beat(&beat_name(LeaseId(0x1234)));
        assert_eq!(name(&keys, keys.leader(ShardId(12)).as_bytes()), Some(Name::Leader(ShardId(12))));
        assert_eq!(name(&keys, keys.term(ShardId(4_095)).as_bytes()), Some(Name::Note(ShardId(4_095))));
        assert_eq!(name(&keys, beat.as_bytes()), Some(Name::Beat(LeaseId(0x1234))));
        let prefix = keys.leading();
        for foreign in ["leader/x", "leader/", "leader/70000", "beat/zz", "other/1", "leader"] {
            assert_eq!(name(&keys, format!("{prefix}{foreign}").as_bytes()), None, "{foreign}");
        }
        assert_eq!(name(&keys, &[0xff]), None);
        assert_eq!(name(&keys, Keys::new("dns2").leader(ShardId(1)).as_bytes()), None);
    }

    #[test]
    fn a_note_says_whose_it_is_and_whether_it_has_stopped() {
        let value = note_value("host/17", LeaseId(7), Duration::from_secs(10), true);
        let read: NoteValue = serde_json::from_slice(&value).unwrap();
        assert_eq!((read.lease, read.ttl_ms, read.stopped, read.process.as_str()), (7, 10_000, true, "host/17"));
        assert!(
            serde_json::from_slice::<NoteValue>(b"{}").is_err() && serde_json::from_slice::<NoteValue>(b"").is_err()
        );
    }
}
