//! One call of a reconciler, as the reconciler sees it.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use opentelemetry::trace::SpanContext;
use tokio_util::sync::CancellationToken;

use super::cause::Cause;
use super::source::Sources;
use super::token::{FencingToken, Term};
use crate::id::{Causes, Receipt, ShardId, WorkerId};

/// One call of the reconciler for one id.
///
/// Cheap to keep by reference; a reconciler that spawns work of its own clones what it needs out of it.
pub struct Run {
    pub(crate) parts: RunParts,
}

/// What the engine fills in; the engine keeps these for reuse, so that a run allocates nothing.
pub(crate) struct RunParts {
    pub id: Arc<str>,
    pub kind: Arc<str>,
    pub term: Term,
    pub worker: WorkerId,
    pub number: u64,
    pub attempt: u32,
    pub latest: Option<Receipt>,
    pub kept_key: Option<u64>,
    pub causes: Causes,
    pub sources: Arc<Sources>,
    pub last_error: Option<Arc<str>>,
    pub timeout: Option<Duration>,
    /// The origin of the engine's clock, and how long after it the run began: cheaper to note than an `Instant`.
    pub origin: Instant,
    pub started_nanos: u64,
    pub trace: Option<SpanContext>,
    pub cancel: Arc<CancelSlot>,
}

/// The cancel signal of a run, made when somebody first asks for it: most runs end before anybody does. The engine
/// shares it, so that it can tell a run to stop that it has given away.
pub(crate) type CancelSlot = OnceLock<CancelSignal>;

/// How a run learns that it should stop.
#[derive(Debug, Clone, Default)]
pub(crate) struct CancelSignal {
    pub token: CancellationToken,
    pub reason: Arc<OnceLock<CancelReason>>,
}

/// Why a run was cancelled (C1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CancelReason {
    /// The id was triggered explicitly while it ran; another run follows.
    Triggered,
    /// Somebody cancelled this run; the id is parked.
    Asked,
    /// It took longer than `timeout`; tried again as after a failure.
    Timeout,
    /// The process is stopping.
    Shutdown,
    /// This process no longer leads the shard: nothing may be written any more.
    LeadershipLost,
}

impl Run {
    /// The id to reconcile.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.parts.id
    }

    /// The kind; for opaque ids the controller's name.
    #[must_use]
    pub fn kind(&self) -> &str {
        &self.parts.kind
    }

    /// Which attempt this is since the last success, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.parts.attempt
    }

    /// The token that lets a target refuse a run that was overtaken (L4).
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.parts.term.token(self.parts.number)
    }

    /// A name for this run that no other run of the cluster has.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}-{}", self.parts.term.shard, self.fencing_token())
    }

    /// The same for all attempts to answer the same events, also after a failover; another once a new event came. A
    /// target that must not act twice remembers it (an idempotency key).
    #[must_use]
    pub fn key(&self) -> String {
        let parts = &self.parts;
        let key = parts.kept_key.unwrap_or_else(|| parts.sources.key(parts.term, &parts.id, parts.latest));
        format!("{key:016x}")
    }

    /// Why the id runs: the first few causes, resolved to names.
    #[must_use]
    pub fn causes(&self) -> Vec<Cause> {
        let parts = &self.parts;
        parts.causes.iter().map(|c| parts.sources.cause(c, parts.last_error.as_ref())).collect()
    }

    /// How many causes there were besides those of [`causes`](Self::causes).
    #[must_use]
    pub fn more_causes(&self) -> u32 {
        self.parts.causes.more()
    }

    /// The shard that this id belongs to.
    #[must_use]
    pub fn shard(&self) -> ShardId {
        self.parts.term.shard
    }

    /// The worker that runs it.
    #[must_use]
    pub fn worker(&self) -> WorkerId {
        self.parts.worker
    }

    /// How long the run may take in all.
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        self.parts.timeout
    }

    /// How much of [`timeout`](Self::timeout) is left; zero once it is over.
    #[must_use]
    pub fn time_left(&self) -> Option<Duration> {
        let parts = &self.parts;
        let taken = parts.origin.elapsed().saturating_sub(Duration::from_nanos(parts.started_nanos));
        parts.timeout.map(|timeout| timeout.saturating_sub(taken))
    }

    /// The span of this attempt, to be passed on to what the reconciler calls.
    #[must_use]
    pub fn trace_context(&self) -> Option<&SpanContext> {
        self.parts.trace.as_ref()
    }

    /// Whether the run should stop.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.parts.cancel.get().is_some_and(|signal| signal.token.is_cancelled())
    }

    /// Resolves when the run should stop, with the reason; after `cancel_grace` the future is dropped.
    ///
    /// # Cancel safety
    /// Safe: dropping it forgets nothing.
    pub async fn cancelled(&self) -> CancelReason {
        let signal = self.parts.signal();
        signal.token.cancelled().await;
        signal.reason.get().copied().unwrap_or(CancelReason::Shutdown)
    }
}

impl RunParts {
    pub(crate) fn signal(&self) -> &CancelSignal {
        self.cancel.get_or_init(CancelSignal::default)
    }
}

impl fmt::Debug for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Run")
            .field("id", &self.parts.id)
            .field("attempt", &self.parts.attempt)
            .field("token", &format_args!("{}", self.fencing_token()))
            .finish_non_exhaustive()
    }
}
