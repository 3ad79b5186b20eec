//! Leadership in etcd: one key a shard, created by our own transaction under one lease a process (L1, L3, L4, L9).
//!
//! Not etcd's election service: that can report a win after the lease is gone (B07). Decisions are made by
//! [`leadership`](crate::leadership); here they are carried out. Must never let the engine's runtime hold up a renewal.
//! Tested against real members in `tests/live/etcd`.

mod board;
mod calls;
mod clock;
mod driver;
mod renewal;
mod values;
mod watch;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use self::board::Board;
use self::calls::Calls;
use self::driver::{Request, Setup};
use super::{Connection, Etcd, EtcdError, Keys, REQUEST_MAX};
use crate::contract::{BoxFuture, Elector, ElectorError, Leader, Leadership};
use crate::id::ShardId;
use crate::leadership::timing;

/// How long the thread may take to end.
const CLOSE_MAX: Duration = Duration::from_secs(2);

/// What an elector is told.
#[derive(Clone)]
pub struct ElectorSettings {
    /// How to reach etcd.
    pub connection: Connection,
    /// Where the keys stand.
    pub keys: Keys,
    /// How this process calls itself, for people.
    pub process: String,
    /// How many shards there are.
    pub shards: u16,
    /// How long the lease lives without a renewal; whole seconds.
    pub ttl: Duration,
    /// The first part of fencing tokens: that of the cluster record.
    pub incarnation: u32,
    /// Called when runs of a shard go on after another process may have taken over, since they cannot be cut off: to
    /// end the process (L3).
    pub overrun: Arc<dyn Fn(ShardId) + Send + Sync>,
}

/// Leads shards by keys in etcd.
pub struct EtcdElector {
    requests: mpsc::UnboundedSender<Request>,
    board: Arc<Board>,
}

impl EtcdElector {
    /// Starts the thread of leadership; it goes on until [`close`](Self::close), or until this is dropped.
    ///
    /// # Errors
    /// The settings cannot work, or the system gives no thread.
    pub fn start(settings: ElectorSettings) -> Result<Self, EtcdError> {
        let limit = timing::renew_every(settings.ttl).min(REQUEST_MAX);
        let connection = Connection { request: limit, ..settings.connection };
        let calls = Calls { etcd: Etcd::new(connection)?, keys: settings.keys, process: settings.process.into() };
        let board = Arc::new(Board::default());
        let setup = Setup {
            calls,
            limit,
            ttl: settings.ttl,
            shards: settings.shards,
            incarnation: settings.incarnation,
            overrun: settings.overrun,
            board: Arc::clone(&board),
        };
        let (send, requests) = mpsc::unbounded_channel();
        let no_thread = |error: std::io::Error| EtcdError::Settings(format!("cannot start a thread: {error}"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(no_thread)?;
        let run = move || runtime.block_on(driver::drive(setup, requests));
        std::thread::Builder::new().name("evenkeel-leader".into()).spawn(run).map_err(no_thread)?;
        Ok(Self { requests: send, board })
    }

    /// Lets go of the lease and ends the thread, after the engine has given all shards back.
    ///
    /// # Cancel safety
    /// The lease runs out by itself.
    pub async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.requests.send(Request::Close(done)).is_ok() {
            let _ = tokio::time::timeout(CLOSE_MAX, closed).await;
        }
    }
}

impl Elector for EtcdElector {
    fn lead(&self, shard: ShardId) -> BoxFuture<'_, Result<Leadership, ElectorError>> {
        Box::pin(async move {
            let (reply, won) = oneshot::channel();
            let mut unwanted = Unwant { requests: Some(&self.requests), shard };
            let ended = || ElectorError { shard, reason: "the thread of leadership has ended".into() };
            self.requests.send(Request::Want(shard, reply)).map_err(|_| ended())?;
            let leadership = won.await.map_err(|_| ended())?;
            unwanted.requests = None;
            Ok(leadership)
        })
    }

    fn release(&self, leadership: Leadership) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let (done, given) = oneshot::channel();
            let Leadership { term, .. } = leadership;
            if self.requests.send(Request::Release(term.shard, term.revision, done)).is_ok() {
                let _ = given.await;
            }
        })
    }

    fn leader(&self, shard: ShardId) -> Option<Leader> {
        self.board.leader(shard)
    }

    fn problem(&self) -> Option<String> {
        self.board.problem()
    }
}

/// Says that nobody waits for the shard any more, where the wait was given up.
struct Unwant<'a> {
    requests: Option<&'a mpsc::UnboundedSender<Request>>,
    shard: ShardId,
}

impl Drop for Unwant<'_> {
    fn drop(&mut self) {
        if let Some(requests) = self.requests {
            let _ = requests.send(Request::Unwant(self.shard));
        }
    }
}

impl fmt::Debug for EtcdElector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdElector").field("board", &self.board).finish_non_exhaustive()
    }
}
