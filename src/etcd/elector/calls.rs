//! What leadership asks of etcd, one transaction each.
//!
//! Must never take an answer that did not come for a refusal: what is not known is [`Taken::Failed`] and looked at
//! again. Tested against real members in `tests/live/etcd`.

use std::sync::Arc;
use std::time::Duration;

use etcd_client::{Compare, CompareOp, GetOptions, PutOptions, Txn, TxnOp, TxnOpResponse, TxnResponse};

use super::values::{beat_name, holder, leader_value, list, note_value, number};
use crate::etcd::{Etcd, EtcdError, Keys, Repeat};
use crate::id::ShardId;
use crate::leadership::{Beat, Given, LeaseId, List, Taken};

/// Keys that one beat compares; etcd takes 128 of each kind in a transaction.
const KEYS_PER_BEAT: usize = 100;
/// The largest list: 4,096 shards have two short keys each.
const LIST_BYTES_MAX: usize = 64 << 20;
/// Every member is asked once; then the one who decides asks again.
const ONE_ROUND: Duration = Duration::ZERO;

/// Who asks, and where.
#[derive(Clone)]
pub(super) struct Calls {
    pub(super) etcd: Etcd,
    pub(super) keys: Keys,
    pub(super) process: Arc<str>,
}

/// What came of a beat, with the keys that are not what they were.
pub(super) enum Beaten {
    Answer(Beat),
    Missing(Vec<(ShardId, u64)>),
}

impl Calls {
    pub(super) async fn grant(&self, ttl: Duration) -> Result<(LeaseId, Duration), EtcdError> {
        let seconds = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX);
        let ask = |mut client: etcd_client::Client| async move { client.lease_grant(seconds, None).await };
        let granted = self.etcd.call(ONE_ROUND, Repeat::Always, ask).await?;
        Ok((LeaseId(granted.id()), Duration::from_secs(number(granted.ttl()))))
    }

    /// Writes a beat that holds only if all these keys stand with these create revisions.
    pub(super) async fn beat(&self, lease: LeaseId, terms: &[(ShardId, u64)]) -> Result<Beaten, EtcdError> {
        let mut of_all = None;
        let mut missing = Vec::new();
        // Also without keys: a standby shows that it lives.
        let chunks = if terms.is_empty() { vec![terms] } else { terms.chunks(KEYS_PER_BEAT).collect() };
        for chunk in chunks {
            let answer = self.txn(Repeat::Always, self.beat_txn(lease, chunk)).await;
            let answer = match answer {
                Err(EtcdError::LeaseGone) => return Ok(Beaten::Answer(Beat::Gone)),
                answer => answer?,
            };
            if !answer.succeeded() {
                missing.extend(not_standing(chunk, &answer));
                continue;
            }
            let raft_term = answer.header().map_or(0, etcd_client::ResponseHeader::raft_term);
            if *of_all.get_or_insert(raft_term) != raft_term {
                // etcd changed its leader between two of them; the keepalive must be sent again.
                return Ok(Beaten::Answer(Beat::Written { raft_term: 0 }));
            }
        }
        match (missing.is_empty(), of_all) {
            (true, Some(raft_term)) => Ok(Beaten::Answer(Beat::Written { raft_term })),
            _ => Ok(Beaten::Missing(missing)),
        }
    }

    fn beat_txn(&self, lease: LeaseId, terms: &[(ShardId, u64)]) -> Txn {
        let stands = |(shard, term): &(ShardId, u64)| created(self.keys.leader(*shard), *term);
        let look = |(shard, _): &(ShardId, u64)| TxnOp::get(self.keys.leader(*shard), None);
        Txn::new()
            .when(terms.iter().map(stands).collect::<Vec<_>>())
            .and_then([self.beat_op(lease)])
            .or_else(terms.iter().map(look).collect::<Vec<_>>())
    }

    fn beat_op(&self, lease: LeaseId) -> TxnOp {
        TxnOp::put(self.keys.beat(&beat_name(lease)), &*self.process, on(lease))
    }

    /// Takes a leader key that is absent, if its note was last written at this revision.
    pub(super) async fn take(
        &self,
        shard: ShardId,
        lease: LeaseId,
        ttl: Duration,
        note: u64,
    ) -> Result<Taken, EtcdError> {
        let (leader, term) = (self.keys.leader(shard), self.keys.term(shard));
        let noted = if note == 0 {
            created(term.clone(), 0)
        } else {
            Compare::mod_revision(term.clone(), CompareOp::Equal, signed(note))
        };
        let txn = Txn::new()
            .when([created(leader.clone(), 0), noted])
            .and_then([
                TxnOp::put(term, note_value(&self.process, lease, ttl, false), None),
                TxnOp::put(leader.clone(), leader_value(&self.process), on(lease)),
                self.beat_op(lease),
            ])
            .or_else([TxnOp::get(leader, None)]);
        let answer = self.txn(Repeat::IfNotDone, txn).await?;
        let revision = revision(&answer);
        if answer.succeeded() {
            return Ok(Taken::Done(revision));
        }
        let standing = answer.op_responses().into_iter().find_map(|response| match response {
            TxnOpResponse::Get(found) => found.kvs().first().map(holder),
            _ => None,
        });
        Ok(Taken::Refused(standing, revision))
    }

    /// Deletes the leader key of a term and notes that it has stopped, as far as nobody came after it.
    pub(super) async fn give(
        &self,
        shard: ShardId,
        term: u64,
        lease: LeaseId,
        ttl: Duration,
    ) -> Result<Given, EtcdError> {
        let (leader, note) = (self.keys.leader(shard), self.keys.term(shard));
        let stopped = TxnOp::put(note.clone(), note_value(&self.process, lease, ttl, true), None);
        // The key is gone, and nobody has led since: that it has stopped spares a successor the wait.
        let without_key =
            Txn::new().when([Compare::mod_revision(note, CompareOp::Equal, signed(term))]).and_then([stopped.clone()]);
        let txn = Txn::new()
            .when([created(leader.clone(), term)])
            .and_then([stopped, TxnOp::delete(leader, None)])
            .or_else([TxnOp::txn(without_key)]);
        let answer = self.txn(Repeat::Always, txn).await?;
        let inner = || {
            answer.op_responses().into_iter().find_map(|response| match response {
                TxnOpResponse::Txn(inner) => Some(inner.succeeded()),
                _ => None,
            })
        };
        let done = answer.succeeded() || inner() == Some(true);
        Ok(if done { Given::Done(revision(&answer)) } else { Given::Late })
    }

    /// All keys of leadership, at one revision.
    pub(super) async fn list(&self) -> Result<(List, Vec<(ShardId, String)>), EtcdError> {
        let prefix = self.keys.leading();
        let ask = |client: etcd_client::Client| {
            let prefix = prefix.clone();
            async move {
                let mut client = client.kv_client().max_decoding_message_size(LIST_BYTES_MAX);
                client.get(prefix, Some(GetOptions::new().with_prefix())).await
            }
        };
        let found = self.etcd.call(ONE_ROUND, Repeat::Always, ask).await?;
        let revision = found.header().map_or(0, |header| number(header.revision()));
        Ok(list(&self.keys, found.kvs(), revision))
    }

    /// Lets go of a lease on which nothing hangs any more.
    pub(super) async fn revoke(&self, lease: LeaseId) -> Result<(), EtcdError> {
        let ask = |mut client: etcd_client::Client| async move { client.lease_revoke(lease.0).await };
        self.etcd.call(ONE_ROUND, Repeat::Always, ask).await.map(|_| ())
    }

    async fn txn(&self, repeat: Repeat, txn: Txn) -> Result<TxnResponse, EtcdError> {
        let ask = |mut client: etcd_client::Client| {
            let txn = txn.clone();
            async move { client.txn(txn).await }
        };
        self.etcd.call(ONE_ROUND, repeat, ask).await
    }
}

/// The keys of a beat that are gone, or were created anew.
fn not_standing<'a>(terms: &'a [(ShardId, u64)], answer: &'a TxnResponse) -> impl Iterator<Item = (ShardId, u64)> + 'a {
    terms.iter().zip(answer.op_responses()).filter_map(|(term, response)| {
        let stands = match response {
            TxnOpResponse::Get(found) => found.kvs().first().is_some_and(|key| number(key.create_revision()) == term.1),
            _ => true,
        };
        (!stands).then_some(*term)
    })
}

fn created(key: String, revision: u64) -> Compare {
    Compare::create_revision(key, CompareOp::Equal, signed(revision))
}

fn on(lease: LeaseId) -> Option<PutOptions> {
    Some(PutOptions::new().with_lease(lease.0))
}

fn signed(revision: u64) -> i64 {
    i64::try_from(revision).unwrap_or(i64::MAX)
}

fn revision(answer: &TxnResponse) -> u64 {
    answer.header().map_or(0, |header| number(header.revision()))
}
