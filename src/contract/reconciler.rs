//! The trait that a user implements for opaque ids.

use std::future::Future;
use std::sync::Arc;

use super::action::Action;
use super::failure::Failure;
use super::run::Run;

/// Makes the world true for one id. Opaque ids: what they stand for is the reconciler's to know.
///
/// # Cancel safety
/// A run is cancelled when it takes too long, on shutdown and when leadership is lost: [`Run::cancelled`] resolves, and
/// after `cancel_grace` the future is dropped wherever it waits. Every await must be a safe place to stop.
///
/// A reconciler that blocks its thread can be neither cancelled nor dropped; use `tokio::task::spawn_blocking` for
/// blocking work.
pub trait Reconciler: Send + Sync + 'static {
    /// Called for an id that is owed a run; at most once at a time per id (Q3).
    ///
    /// # Errors
    /// Any standard error is transient and tried again with growing delays; [`Failure::terminal`] gives the id up.
    fn reconcile(&self, run: &Run) -> impl Future<Output = Result<Action, Failure>> + Send;
}

impl<R: Reconciler> Reconciler for Arc<R> {
    fn reconcile(&self, run: &Run) -> impl Future<Output = Result<Action, Failure>> + Send {
        R::reconcile(self, run)
    }
}
