//! Lists of all ids, for resync (Q9).
//!
//! Must never conclude anything from a list that failed: what it named before is no less true, what it did not name is
//! unknown. Tested with the streams and hooks that make lists.

use super::BoxFuture;

/// Names every id that exists, for a resync.
pub trait IdList: Send + Sync + 'static {
    /// Sends every id into the channel; `Ok` with their number means that the list is complete.
    ///
    /// The channel is bounded: sending waits while the engine has no room, so a list of any length needs little memory.
    /// A channel that is closed means that nobody wants the rest: return, with whatever.
    ///
    /// # Errors
    /// [`ListError`] if the list is not complete. What was sent before stays sent; the list is made anew after a delay.
    ///
    /// # Cancel safety
    /// The future is dropped when the process stops; what it started must end with it.
    fn list(&self, into: tokio::sync::mpsc::Sender<String>) -> BoxFuture<'_, Result<u64, ListError>>;
}

/// A list could not be made; nothing is concluded from what came before.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct ListError(pub String);
