//! Leadership as the engine sees it (L1): wait for it, hold it, give it back.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use tokio_util::sync::CancellationToken;

use super::BoxFuture;
use super::token::Term;
use crate::id::ShardId;

/// Decides when this process leads a shard.
pub trait Elector: Send + Sync + 'static {
    /// Waits until this process leads the shard.
    ///
    /// # Errors
    /// Leadership cannot be had and waiting will not help: the process should end.
    ///
    /// # Cancel safety
    /// May be dropped at any await; a leadership that was won meanwhile is given back.
    fn lead(&self, shard: ShardId) -> BoxFuture<'_, Result<Leadership, ElectorError>>;

    /// Gives a shard back, after its last run has ended and everything owed is written (L3, L5).
    ///
    /// # Cancel safety
    /// May be dropped; leadership then ends by its own deadline.
    fn release(&self, leadership: Leadership) -> BoxFuture<'_, ()>;

    /// Who leads a shard now, as far as is known here; for people.
    fn leader(&self, shard: ShardId) -> Option<Leader> {
        let _ = shard;
        None
    }

    /// What is wrong with leadership as a whole, in words, if something is. It is shown; it makes no process unready.
    fn problem(&self) -> Option<String> {
        None
    }
}

/// Who leads a shard, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leader {
    /// The process, as it calls itself.
    pub name: String,
    /// Until when it leads if nothing is heard of it any more; known of this process only.
    pub until: Option<SystemTime>,
}

/// Says by a clock whether a leadership still holds (L3).
///
/// Tokens are cancelled by a task or thread, and a process that stood still wakes up before that one has run. So the
/// engine looks at the clock itself before it starts a run and before it tells a source that events are done.
pub trait Validity: Send + Sync {
    /// Whether it holds at this moment. Called often, from a shard's loop: must be cheap and not block.
    fn holds(&self) -> bool;
}

/// One leadership of one shard.
#[derive(Clone)]
pub struct Leadership {
    /// Its term.
    pub term: Term,
    /// Cancelled when nothing may start any more and runs must be cancelled (L3).
    pub ending: CancellationToken,
    /// Cancelled when nothing may be settled or written any more; what still runs must be cut off.
    pub ended: CancellationToken,
    validity: Option<Arc<dyn Validity>>,
}

impl Leadership {
    /// A leadership that lasts until somebody cancels its tokens.
    #[must_use]
    pub fn new(term: Term) -> Self {
        Self { term, ending: CancellationToken::new(), ended: CancellationToken::new(), validity: None }
    }

    /// The same, which also ends by a clock.
    #[must_use]
    pub fn while_valid(self, validity: Arc<dyn Validity>) -> Self {
        Self { validity: Some(validity), ..self }
    }

    /// Whether nothing may be started, settled or written any more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.ended.is_cancelled() || self.validity.as_ref().is_some_and(|validity| !validity.holds())
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership")
            .field("term", &self.term)
            .field("ending", &self.ending.is_cancelled())
            .field("over", &self.is_over())
            .finish()
    }
}

/// Leadership cannot be had.
#[derive(Debug, Clone, thiserror::Error)]
#[error("cannot lead shard {shard}: {reason}")]
pub struct ElectorError {
    /// The shard.
    pub shard: ShardId,
    /// What is wrong and what to do.
    pub reason: String,
}
