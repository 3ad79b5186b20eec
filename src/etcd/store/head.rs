//! One change after the other: the guard of a shard's records.
//!
//! The head is a key that every change writes, and whose last version every change compares. A change whose answer did
//! not come may still lie with a member and be carried out later; by then another one has moved the head, or the next
//! one finds the head moved by it. Must never send a change without both guards. Tested in `tests/live/etcd/`, with
//! answers that are lost.

use std::time::{Duration, SystemTime};

use etcd_client::{Compare, CompareOp, KeyValue, Txn, TxnOp, TxnOpResponse, TxnResponse};

use super::Inner;
use crate::contract::{StoreError, Term};
use crate::etcd::error::EtcdError;

/// How often a change is made anew because a program that is none of ours has written the head meanwhile.
const TRIES_MAX: u32 = 8;

/// What this process knows of a shard's last change.
#[derive(Debug, Default)]
pub(super) struct Head {
    /// The revision of the last change, 0 if there was none; unknown before the first look, and after an answer that
    /// did not come.
    revision: Option<i64>,
    /// How many changes this process has tried.
    count: u64,
}

/// A name for this process's changes that no other has.
pub(super) fn writer() -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    format!("{}.{}", std::process::id(), now.as_nanos())
}

/// Makes one change, guarded by the term and by the head.
pub(super) async fn write(inner: &Inner, term: Term, head: &mut Head, ops: Vec<TxnOp>) -> Result<(), StoreError> {
    head.count += 1;
    let name = format!("{} {} {}", term.revision, inner.writer, head.count);
    for _ in 0..TRIES_MAX {
        let revision = match head.revision {
            Some(revision) => revision,
            None => look(inner, term).await?,
        };
        // Until the answer is there, nothing is known.
        head.revision = None;
        let txn = change(inner, term, revision, &name, &ops);
        let answer = inner.call(|mut kv| {
            let txn = txn.clone();
            async move { kv.txn(txn).await }
        });
        let answer = match answer.await {
            Ok(answer) => answer,
            Err(error @ EtcdError::Full(_)) => return after_full(inner, term, head, &name, error).await,
            Err(error) => return Err(error.into()),
        };
        let at = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
        if answer.succeeded() {
            head.revision = Some(at);
            return Ok(());
        }
        let stands = guarded(&answer, term)?;
        let is_ours = stands.as_ref().is_some_and(|head| head.value() == name.as_bytes());
        head.revision = Some(stands.map_or(0, |head| head.mod_revision()));
        if is_ours {
            // An earlier try of this change has happened, although its answer was lost.
            return Ok(());
        }
    }
    let key = inner.keys.head(term.shard);
    Err(StoreError::Refused(format!("another program keeps writing the key {key} in etcd; stop it")))
}

/// The change, and what to tell where a guard does not hold.
fn change(inner: &Inner, term: Term, revision: i64, name: &str, ops: &[TxnOp]) -> Txn {
    let (leader, head) = (inner.keys.leader(term.shard), inner.keys.head(term.shard));
    let guards = [
        Compare::create_revision(leader.clone(), CompareOp::Equal, created(term)),
        Compare::mod_revision(head.clone(), CompareOp::Equal, revision),
    ];
    let mut all = Vec::with_capacity(ops.len() + 1);
    all.push(TxnOp::put(head.clone(), name, None));
    all.extend_from_slice(ops);
    Txn::new().when(guards).and_then(all).or_else([TxnOp::get(leader, None), TxnOp::get(head, None)])
}

/// Where the head stands, as long as the term does.
async fn look(inner: &Inner, term: Term) -> Result<i64, StoreError> {
    Ok(read(inner, term).await?.map_or(0, |head| head.mod_revision()))
}

async fn read(inner: &Inner, term: Term) -> Result<Option<KeyValue>, StoreError> {
    let (leader, head) = (inner.keys.leader(term.shard), inner.keys.head(term.shard));
    let txn = Txn::new().and_then([TxnOp::get(leader, None), TxnOp::get(head, None)]);
    let answer = inner.call(|mut kv| {
        let txn = txn.clone();
        async move { kv.txn(txn).await }
    });
    guarded(&answer.await?, term)
}

/// A full database refuses a change, but not always: the one that fills it happens.
async fn after_full(
    inner: &Inner,
    term: Term,
    head: &mut Head,
    name: &str,
    error: EtcdError,
) -> Result<(), StoreError> {
    let stands = read(inner, term).await?;
    let is_ours = stands.as_ref().is_some_and(|head| head.value() == name.as_bytes());
    head.revision = Some(stands.map_or(0, |head| head.mod_revision()));
    if is_ours { Ok(()) } else { Err(StoreError::Refused(error.to_string())) }
}

/// The head, of an answer that holds the leader key and the head; refused if the term is over.
fn guarded(answer: &TxnResponse, term: Term) -> Result<Option<KeyValue>, StoreError> {
    let mut gets = answer.op_responses().into_iter().map(|answer| match answer {
        TxnOpResponse::Get(mut get) => get.take_kvs().into_iter().next(),
        _ => None,
    });
    let (leader, head) = (gets.next().flatten(), gets.next().flatten());
    if leader.is_some_and(|leader| leader.create_revision() == created(term)) {
        Ok(head)
    } else {
        Err(StoreError::Fenced)
    }
}

/// The create revision that the term's leader key must have; none has a negative one.
fn created(term: Term) -> i64 {
    i64::try_from(term.revision).unwrap_or(-1)
}
