//! Calls a reconciler without allocating and without counting owners: run and reconciler lie in one box that goes into
//! the future and comes back with the answer, and the future goes into a box that is used again.

use std::any::Any;
use std::future::Future;
use std::sync::Arc;

use tokio_util::sync::ReusableBoxFuture;

use crate::contract::{Action, Failure, Reconciler, Run};

/// The future of one run; it gives the call back, so that the next run can use it.
pub(crate) type RunFuture = ReusableBoxFuture<'static, (Result<Action, Failure>, Box<Call>)>;

/// A run, and the reconciler that it is for.
pub(crate) struct Call {
    pub(crate) run: Run,
    reconciler: Arc<dyn Any + Send + Sync>,
}

/// A reconciler of any type.
pub(crate) trait Invoke: Send + Sync {
    /// A call with this run.
    fn call(&self, run: Run) -> Box<Call>;

    /// Puts the future of a call that [`call`](Self::call) gave into the box.
    fn invoke(&self, call: Box<Call>, into: &mut RunFuture);
}

pub(crate) struct Invoker<R>(Arc<R>);

impl<R: Reconciler> Invoker<R> {
    pub(crate) fn new(reconciler: R) -> Self {
        Self(Arc::new(reconciler))
    }
}

impl<R: Reconciler> Invoke for Invoker<R> {
    fn call(&self, run: Run) -> Box<Call> {
        let reconciler: Arc<R> = Arc::clone(&self.0);
        Box::new(Call { run, reconciler })
    }

    fn invoke(&self, call: Box<Call>, into: &mut RunFuture) {
        into.set(async move {
            let reconciler: &R = call.reconciler.downcast_ref().expect("the call was made for this reconciler");
            let result = reconciler.reconcile(&call.run).await;
            (result, call)
        });
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
