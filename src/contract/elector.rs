//! Leadership as the engine sees it (L1): wait for it, hold it, give it back.

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
}

/// One leadership of one shard.
#[derive(Debug, Clone)]
pub struct Leadership {
    /// Its term.
    pub term: Term,
    /// Cancelled when nothing may start any more and runs must be cancelled (L3).
    pub ending: CancellationToken,
    /// Cancelled when nothing may be settled or written any more; what still runs must be cut off.
    pub ended: CancellationToken,
}

impl Leadership {
    /// A leadership that lasts until somebody cancels its tokens.
    #[must_use]
    pub fn new(term: Term) -> Self {
        Self { term, ending: CancellationToken::new(), ended: CancellationToken::new() }
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
