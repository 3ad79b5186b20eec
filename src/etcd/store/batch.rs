//! Changes of records, cut into transactions that etcd takes.
//!
//! Must never change the order of two changes of one id: of several in a batch, the last stands. Tested below.

use std::collections::BTreeMap;

use etcd_client::TxnOp;

use crate::contract::RecordChange;
use crate::etcd::keys::Keys;
use crate::id::ShardId;

/// The most changes of one transaction. etcd takes 128 operations by default; the head is one of them.
const CHANGES_MAX: usize = 120;
/// The most bytes of one transaction. etcd takes 1.5 MiB by default.
const BYTES_MAX: usize = 1 << 20;

/// The operations for the changes, by transaction.
pub(super) fn parts(changes: &[RecordChange], keys: &Keys, shard: ShardId) -> Vec<Vec<TxnOp>> {
    // etcd refuses a transaction that names a key twice.
    let last: BTreeMap<&str, &RecordChange> = changes.iter().map(|change| (change.id(), change)).collect();
    let (mut parts, mut part, mut bytes) = (Vec::new(), Vec::new(), 0);
    for (id, change) in last {
        let key = keys.record(shard, id);
        let value = match change {
            RecordChange::Put(record) => Some(record.to_json()),
            RecordChange::Delete(_) => None,
        };
        let size = key.len() + value.as_ref().map_or(0, Vec::len);
        if !part.is_empty() && (part.len() == CHANGES_MAX || bytes + size > BYTES_MAX) {
            parts.push(std::mem::take(&mut part));
            bytes = 0;
        }
        bytes += size;
        part.push(match value {
            Some(json) => TxnOp::put(key, json, None),
            None => TxnOp::delete(key, None),
        });
    }
    parts.extend(Some(part).filter(|part| !part.is_empty()));
    parts
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::contract::{OwedReason, OwedRecord};

    fn put(id: String, error: usize) -> RecordChange {
        RecordChange::Put(OwedRecord {
            id,
            due: SystemTime::UNIX_EPOCH,
            attempt: 0,
            reason: OwedReason::Held,
            key: 0,
            stuck: 0,
            error: Some("\u{1}".repeat(error)),
            causes: vec![],
        })
    }

    fn sizes(changes: &[RecordChange]) -> Vec<usize> {
        parts(changes, &Keys::new("x"), ShardId(0)).iter().map(Vec::len).collect()
    }

    #[test]
    fn d12_a_batch_stays_below_the_limits() {
        let many = |count: usize, error| (0..count).map(|i| put(format!("{i:04}"), error)).collect::<Vec<_>>();
        assert_eq!(sizes(&[]), [0; 0]);
        assert_eq!(sizes(&many(120, 0)), [120]);
        assert_eq!(sizes(&many(121, 0)), [120, 1]);
        // A control character takes six bytes in JSON, so that a record of the longest error has 12 KiB.
        let large = sizes(&many(200, 2_048));
        assert!(large.iter().sum::<usize>() == 200 && large.iter().all(|n| n * 12_288 <= BYTES_MAX), "{large:?}");
    }

    #[test]
    fn d12_no_key_stands_twice_in_a_transaction() {
        let changes = [put("a".into(), 0), RecordChange::Delete("b".into()), RecordChange::Delete("a".into())];
        assert_eq!(sizes(&changes), [2]);
    }
}
