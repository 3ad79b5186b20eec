//! What stands in the file: three tables, and the operations on them inside one transaction.
//!
//! Must never open, commit or judge an error: `database` does. Tested by the stores' conformance suite.
//!
//! - `meta`: text → JSON: `format` of the file, the `cluster`'s facts, the number of the last `group` commit.
//! - `terms`: shard → the latest term seen, as incarnation and revision.
//! - `records`: shard and id → the record as JSON ([`OwedRecord::to_json`](crate::contract::OwedRecord::to_json)).

use std::time::SystemTime;

use redb::{ReadTransaction, ReadableTable, Table, TableDefinition, WriteTransaction};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::super::seen::Seen;
use crate::contract::{ClusterRecord, StoreError, Term};
use crate::id::ShardId;

/// The layout of the file; a newer one is refused.
pub(super) const FILE_FORMAT: u32 = 1;

const META: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("meta");
const TERMS: TableDefinition<'static, u16, (u32, u64)> = TableDefinition::new("terms");
const RECORDS: TableDefinition<'static, (u16, &[u8]), &[u8]> = TableDefinition::new("records");

/// One change, ready to be written: an id, and its record's JSON or `None` to delete it.
pub(super) type Change = (String, Option<Vec<u8>>);

/// A record as it stands in the file: its id, and its JSON.
pub(super) type Stored = (Vec<u8>, Vec<u8>);

/// The tables inside a write transaction.
pub(super) struct Tables<'t> {
    meta: Table<'t, &'static str, &'static [u8]>,
    terms: Table<'t, u16, (u32, u64)>,
    records: Table<'t, (u16, &'static [u8]), &'static [u8]>,
    /// Whether anything was written.
    pub(super) dirty: bool,
}

/// An operation that the store answers with an error of its own, or that redb could not do.
pub(super) type Tried<T> = Result<Result<T, StoreError>, redb::Error>;

impl<'t> Tables<'t> {
    pub(super) fn open(transaction: &'t WriteTransaction) -> Result<Self, redb::Error> {
        Ok(Self {
            meta: transaction.open_table(META)?,
            terms: transaction.open_table(TERMS)?,
            records: transaction.open_table(RECORDS)?,
            dirty: false,
        })
    }

    pub(super) fn check_cluster(&mut self, wanted: &ClusterRecord) -> Tried<ClusterRecord> {
        let stored = match self.get_meta::<ClusterRecord>("cluster")? {
            Ok(stored) => stored,
            Err(error) => return Ok(Err(error)),
        };
        let stands = match &stored {
            None => wanted.first(),
            Some(stored) => match stored.agree(wanted) {
                Ok(stands) => stands,
                Err(error) => return Ok(Err(error)),
            },
        };
        if stored.as_ref() != Some(&stands) {
            self.put_meta("cluster", &stands)?;
        }
        Ok(Ok(stands))
    }

    pub(super) fn next_revision(&mut self, shard: ShardId) -> Tried<u64> {
        let cluster = match self.get_meta::<ClusterRecord>("cluster")? {
            Ok(cluster) => cluster,
            Err(error) => return Ok(Err(error)),
        };
        let next = match self.seen(shard)?.next(SystemTime::now(), cluster.map(|cluster| cluster.incarnation)) {
            Ok(next) => next,
            Err(error) => return Ok(Err(error)),
        };
        self.see(shard, next)?;
        Ok(Ok(next.revision))
    }

    pub(super) fn commit(&mut self, term: Term, changes: &[Change]) -> Tried<()> {
        let seen = self.seen(term.shard)?;
        match seen.admit(term) {
            Ok(latest) if latest == seen => {}
            Ok(latest) => self.see(term.shard, latest)?,
            Err(error) => return Ok(Err(error)),
        }
        for (id, json) in changes {
            let key = (term.shard.0, id.as_bytes());
            match json {
                Some(json) => self.records.insert(key, json.as_slice())?,
                None => self.records.remove(key)?,
            };
            self.dirty = true;
        }
        Ok(Ok(()))
    }

    /// Numbers a group of changes, so that one look tells whether it is there.
    pub(super) fn number(&mut self, group: u64) -> Result<(), redb::Error> {
        self.put_meta("group", &group)
    }

    /// Writes what every store has from the start.
    pub(super) fn initialise(&mut self) -> Result<(), redb::Error> {
        self.put_meta("format", &FILE_FORMAT)?;
        self.number(0)
    }

    fn seen(&self, shard: ShardId) -> Result<Seen, redb::Error> {
        let seen = self.terms.get(shard.0)?.map(|term| term.value());
        Ok(seen.map_or(Seen::default(), |(incarnation, revision)| Seen { incarnation, revision }))
    }

    fn see(&mut self, shard: ShardId, seen: Seen) -> Result<(), redb::Error> {
        self.terms.insert(shard.0, (seen.incarnation, seen.revision))?;
        self.dirty = true;
        Ok(())
    }

    fn get_meta<T: DeserializeOwned>(&self, key: &str) -> Tried<Option<T>> {
        Ok(self.meta.get(key)?.map(|json| parse(key, json.value())).transpose())
    }

    fn put_meta<T: Serialize>(&mut self, key: &str, value: &T) -> Result<(), redb::Error> {
        let json = serde_json::to_vec(value).map_err(|e| redb::Error::Corrupted(e.to_string()))?;
        self.meta.insert(key, json.as_slice())?;
        self.dirty = true;
        Ok(())
    }
}

/// A shard's records in id order, as they stand in the file.
pub(super) fn load(
    transaction: &ReadTransaction,
    shard: ShardId,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<Stored>, redb::Error> {
    let table = transaction.open_table(RECORDS)?;
    let from = (shard.0, after.unwrap_or_default().as_bytes());
    let mut page = Vec::new();
    for entry in table.range(from..)? {
        let (key, json) = entry?;
        let (of, id) = key.value();
        if of != shard.0 || page.len() == limit {
            break;
        }
        if after.is_none_or(|after| after.as_bytes() != id) {
            page.push((id.to_vec(), json.value().to_vec()));
        }
    }
    Ok(page)
}

/// The layout that the file says it has.
pub(super) fn format(transaction: &ReadTransaction) -> Tried<u32> {
    meta(transaction, "format")
}

/// The number of the last group of changes.
pub(super) fn group(transaction: &ReadTransaction) -> Tried<u64> {
    meta(transaction, "group")
}

fn meta<T: DeserializeOwned>(transaction: &ReadTransaction, key: &str) -> Tried<T> {
    let table = transaction.open_table(META)?;
    let missing = || StoreError::Corrupt { id: key.to_owned(), reason: "it is not there".into() };
    Ok(table.get(key)?.map_or_else(|| Err(missing()), |json| parse(key, json.value())))
}

fn parse<T: DeserializeOwned>(key: &str, json: &[u8]) -> Result<T, StoreError> {
    serde_json::from_slice(json).map_err(|e| StoreError::Corrupt { id: key.to_owned(), reason: e.to_string() })
}
