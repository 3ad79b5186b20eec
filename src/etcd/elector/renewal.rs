//! Keepalives: a stream to one member, and to another one where that is silent (L3, B57, B62).
//!
//! Must never take the answer to an earlier keepalive for that to a later one: a stream that has missed an answer is
//! dropped. Tested against real members in `tests/live/etcd`.

use std::time::Duration;

use etcd_client::{LeaseKeepAliveStream, LeaseKeeper};
use tokio::time::timeout;

use super::values::number;
use crate::etcd::{Etcd, EtcdError, Member};
use crate::leadership::{Keepalive, LeaseId};

/// The stream, while there is one.
pub(super) struct Renewal {
    etcd: Etcd,
    /// How long a member may take for an answer.
    limit: Duration,
    /// Which member is tried first.
    first: usize,
    open: Option<Open>,
}

struct Open {
    lease: LeaseId,
    keeper: LeaseKeeper,
    answers: LeaseKeepAliveStream,
}

impl Renewal {
    pub(super) fn new(etcd: Etcd, limit: Duration) -> Self {
        Self { etcd, limit, first: 0, open: None }
    }

    /// Sends a keepalive and waits for its answer, with one member; after a failure the next call takes another.
    ///
    /// # Errors
    /// No answer; nothing follows from it.
    pub(super) async fn keep(&mut self, lease: LeaseId) -> Result<Keepalive, EtcdError> {
        let members = self.etcd.members();
        let Some(member) = members.get(self.first % members.len().max(1)).cloned() else {
            return Err(EtcdError::Settings("etcd has no endpoints".into()));
        };
        let result = match timeout(self.limit, self.ask(&member, lease)).await {
            Ok(result) => result,
            Err(_) => Err(EtcdError::Unknown(format!("{}: no keepalive within {:?}", member.endpoint(), self.limit))),
        };
        if matches!(result, Err(EtcdError::LeaseGone)) {
            self.open = None;
            return Ok(Keepalive::Gone);
        }
        if result.is_err() {
            self.open = None;
            member.forget();
            self.first = self.first.wrapping_add(1);
        }
        result
    }

    async fn ask(&mut self, member: &Member, lease: LeaseId) -> Result<Keepalive, EtcdError> {
        let mut open = match self.open.take().filter(|open| open.lease == lease) {
            Some(open) => open,
            None => open(member, lease).await?,
        };
        open.keeper.keep_alive().await.map_err(|error| EtcdError::of(&error))?;
        let answer = open.answers.message().await.map_err(|error| EtcdError::of(&error))?;
        let Some(answer) = answer else { return Err(EtcdError::Unknown("the stream of keepalives ended".into())) };
        let raft_term = answer.header().map_or(0, etcd_client::ResponseHeader::raft_term);
        self.open = Some(open);
        Ok(Keepalive::Alive { ttl: Duration::from_secs(number(answer.ttl())), raft_term })
    }
}

/// Opens a stream. The library sends a keepalive by itself then and keeps its answer to itself.
async fn open(member: &Member, lease: LeaseId) -> Result<Open, EtcdError> {
    let mut client = member.client().await?;
    let opened = match client.lease_keep_alive(lease.0).await {
        Err(error) if EtcdError::wants_login(&error) => {
            member.login(&client).await?;
            client.lease_keep_alive(lease.0).await
        }
        opened => opened,
    };
    let (keeper, answers) = opened.map_err(|error| EtcdError::of(&error))?;
    Ok(Open { lease, keeper, answers })
}
