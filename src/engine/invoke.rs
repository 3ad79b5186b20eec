//! Calls a reconciler without allocating: the future goes into a box that is used again, the run into a value that is.

use std::future::Future;
use std::sync::Arc;

use tokio_util::sync::ReusableBoxFuture;

use crate::contract::{Action, Failure, Reconciler, Run};

/// The future of one run.
pub(crate) type RunFuture = ReusableBoxFuture<'static, Result<Action, Failure>>;

/// A reconciler of any type.
pub(crate) trait Invoke: Send + Sync {
    /// Puts the future of this run into the box.
    fn invoke(&self, run: Arc<Run>, into: &mut RunFuture);
}

pub(crate) struct Invoker<R>(Arc<R>);

impl<R: Reconciler> Invoker<R> {
    pub(crate) fn new(reconciler: R) -> Self {
        Self(Arc::new(reconciler))
    }
}

impl<R: Reconciler> Invoke for Invoker<R> {
    fn invoke(&self, run: Arc<Run>, into: &mut RunFuture) {
        let reconciler = Arc::clone(&self.0);
        into.set(async move { reconciler.reconcile(&run).await });
    }
}

/// A box with nothing in it.
pub(crate) fn empty() -> RunFuture {
    RunFuture::new(std::future::pending())
}

/// Polls once, with a waker that wakes nobody: who is pending is polled again by a task of its own.
pub(crate) fn poll_once<F: Future + ?Sized>(future: std::pin::Pin<&mut F>) -> std::task::Poll<F::Output> {
    future.poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
}
