//! Reading owed records: pages of one revision.
//!
//! Must never lose an id because its record cannot be read: the key says which id is owed, so it is owed a run at once.
//! Tested in `tests/live/etcd/`.

use std::time::SystemTime;

use etcd_client::{GetOptions, GetResponse, KeyValue};

use super::Inner;
use crate::contract::{OwedReason, OwedRecord};
use crate::etcd::error::EtcdError;
use crate::id::{self, ShardId};

/// Keys of one answer: far below the limits of an answer, and few enough round trips for a million records.
const PAGE_MAX: usize = 500;

/// The shard's records after this id, in id order, at most so many; all of one revision, unless that is compacted
/// while they are read.
pub(super) async fn load(
    inner: &Inner,
    shard: ShardId,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<OwedRecord>, EtcdError> {
    let prefix = inner.keys.records(shard);
    let mut records = Vec::new();
    let mut from = match after {
        Some(id) => next(inner.keys.record(shard, id).as_bytes()),
        None => prefix.clone().into_bytes(),
    };
    let mut revision = 0;
    while records.len() < limit {
        let wanted = PAGE_MAX.min(limit - records.len());
        let page = match page(inner, &from, &prefix, wanted, revision).await {
            // What was read stands; the rest is read as it is now. The leader alone writes, so nothing is missed.
            Err(EtcdError::Compacted) if revision != 0 => {
                revision = 0;
                continue;
            }
            page => page?,
        };
        revision = page.header().map_or(0, etcd_client::ResponseHeader::revision).max(revision);
        records.extend(page.kvs().iter().filter_map(|kv| record(kv, &prefix)));
        match page.kvs().last() {
            Some(last) if page.more() => from = next(last.key()),
            _ => break,
        }
    }
    Ok(records)
}

async fn page(inner: &Inner, from: &[u8], prefix: &str, limit: usize, revision: i64) -> Result<GetResponse, EtcdError> {
    // Behind all keys that begin so: `/` becomes `0`.
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let options = GetOptions::new().with_range(end).with_limit(limit).with_revision(revision);
    inner
        .call(|mut kv| {
            let (from, options) = (from.to_vec(), options.clone());
            async move { kv.get(from, Some(options)).await }
        })
        .await
}

/// The first key behind this one.
fn next(key: &[u8]) -> Vec<u8> {
    let mut next = key.to_vec();
    next.push(0);
    next
}

/// The record under a key. One that cannot be read makes its id owed at once.
fn record(kv: &KeyValue, prefix: &str) -> Option<OwedRecord> {
    let shown = String::from_utf8_lossy(kv.key());
    let Some(id) = kv.key().strip_prefix(prefix.as_bytes()).and_then(|id| std::str::from_utf8(id).ok()) else {
        tracing::error!(key = %shown, "a key among the owed records in etcd is no id; delete it");
        return None;
    };
    if let Err(error) = id::check(id) {
        tracing::error!(key = %shown, %error, "a key among the owed records in etcd is no id; delete it");
        return None;
    }
    let reason = match OwedRecord::from_json(kv.value()) {
        Ok(record) if record.id == id => return Some(record),
        Ok(record) => format!("it is about {:?}", record.id),
        Err(reason) => reason,
    };
    tracing::error!(key = %shown, %reason, "an owed record in etcd cannot be read; its id is looked at now");
    Some(OwedRecord {
        id: id.into(),
        due: SystemTime::UNIX_EPOCH,
        attempt: 0,
        reason: OwedReason::Held,
        key: 0,
        stuck: 0,
        error: Some(format!("its owed record could not be read: {reason}")),
        causes: Vec::new(),
    })
}
