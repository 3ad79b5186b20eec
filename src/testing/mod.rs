//! The kit for users who test their reconcilers: a whole engine in virtual time, driven from a plain test.
//!
//! ```
//! use std::time::Duration;
//!
//! use evenkeel::engine::view::{IdState, RunOutcome};
//! use evenkeel::testing::Harness;
//! use evenkeel::{Action, Failure, Reconciler, Run};
//!
//! struct Zones;
//!
//! impl Reconciler for Zones {
//!     async fn reconcile(&self, _: &Run) -> Result<Action, Failure> {
//!         Ok(Action::done().requeue_after(Duration::from_secs(3_600)))
//!     }
//! }
//!
//! let mut harness = Harness::new(Zones);
//! harness.fail_next("example.org", Failure::transient("no route"));
//! harness.trigger("example.org");
//! assert_eq!(harness.outcomes("example.org"), [RunOutcome::Failed]);
//! harness.advance(Duration::from_secs(1)); // the retry
//! assert_eq!(harness.outcomes("example.org"), [RunOutcome::Failed, RunOutcome::Requeued]);
//! harness.advance(Duration::from_secs(3_600)); // an hour passes at once
//! assert_eq!(harness.outcomes("example.org").len(), 3);
//! assert_eq!(harness.state("example.org"), IdState::Delayed);
//! ```
//!
//! It must never be part of a running controller: the clock stands still between calls. Tested by its own example and
//! below.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::contract::{Action, Failure, Reconciler, Run};
use crate::engine::view::{Explanation, IdState, JournalQuery, RunOutcome, TriggerAnswer, WaitFor};
use crate::engine::{Builder, Engine, EngineError, Handle};

/// Turns of the engine that are waited for at most until nothing is pending: a reconciler that asks for another run at
/// once, again and again, never comes to rest.
const TURNS_MAX: usize = 1_000_000;

/// A whole engine around one reconciler, in virtual time.
///
/// Its methods block until the engine has done what follows from them. Time passes in [`advance`](Self::advance) alone:
/// timers fire in their order, and nothing waits for real. A reconciler that waits for something outside the process
/// (a socket) sees time jump over its own timeouts; give it a stand-in.
pub struct Harness {
    runtime: Runtime,
    handle: Handle,
    failures: Failures,
    running: Option<JoinHandle<Result<(), EngineError>>>,
}

type Failures = Arc<Mutex<HashMap<String, VecDeque<Failure>>>>;

/// Fails when told to, and else does what the user's reconciler does.
struct Planned<R> {
    reconciler: R,
    failures: Failures,
}

impl<R: Reconciler> Reconciler for Planned<R> {
    async fn reconcile(&self, run: &Run) -> Result<Action, Failure> {
        let planned = lock(&self.failures).get_mut(run.id()).and_then(VecDeque::pop_front);
        match planned {
            Some(failure) => Err(failure),
            None => self.reconciler.reconcile(run).await,
        }
    }
}

impl Harness {
    /// An engine with default settings around this reconciler.
    ///
    /// # Panics
    /// The system gives no runtime.
    #[must_use]
    pub fn new(reconciler: impl Reconciler) -> Self {
        Self::with(reconciler, |builder| builder)
    }

    /// An engine whose builder was changed first: other retries, limits, streams.
    ///
    /// # Panics
    /// The system gives no runtime, or what was set does not make an engine.
    #[must_use]
    pub fn with(reconciler: impl Reconciler, change: impl FnOnce(Builder) -> Builder) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        let runtime = runtime.expect("a runtime of one thread");
        let failures = Failures::default();
        let planned = Planned { reconciler, failures: Arc::clone(&failures) };
        let (handle, running) = runtime.block_on(async {
            let engine = change(Engine::builder("test").reconciler(planned)).build();
            let engine = engine.expect("settings that make an engine");
            (engine.handle(), tokio::spawn(engine.run(std::future::pending())))
        });
        let mut harness = Self { runtime, handle, failures, running: Some(running) };
        harness.until(|shards| shards.iter().all(|shard| shard.led));
        harness
    }

    /// Lets the next run of an id fail so, instead of calling the reconciler; several calls let several runs fail.
    pub fn fail_next(&mut self, id: &str, failure: Failure) {
        lock(&self.failures).entry(id.to_owned()).or_default().push_back(failure);
    }

    /// Asks for a run of an id, and waits until nothing is pending or running.
    pub fn trigger(&mut self, id: &str) -> TriggerAnswer {
        let mut answers = self.runtime.block_on(self.handle.trigger_batch(vec![id.to_owned()], WaitFor::Admitted));
        self.until_idle();
        answers.remove(0)
    }

    /// Lets virtual time pass: whatever is due until then runs, in order.
    pub fn advance(&mut self, time: Duration) {
        self.runtime.block_on(async { tokio::time::sleep(time).await });
        self.until_idle();
    }

    /// Waits until nothing is pending or running; what waits for a time may wait on.
    ///
    /// # Panics
    /// It never comes to rest, or the engine has stopped.
    pub fn until_idle(&mut self) {
        self.until(|shards| shards.iter().all(|shard| shard.counts.pending + shard.counts.running == 0));
    }

    /// How the runs of an id ended, the first one first.
    ///
    /// # Panics
    /// The text is no id, or the engine has stopped.
    #[must_use]
    pub fn outcomes(&self, id: &str) -> Vec<RunOutcome> {
        let query = JournalQuery { id: Some(id.to_owned()), limit: None };
        let runs = self.runtime.block_on(self.handle.journal(&query)).expect("a running engine and an id");
        runs.iter().rev().map(|run| run.outcome).collect()
    }

    /// The state of an id.
    ///
    /// # Panics
    /// The text is no id, or the engine has stopped.
    #[must_use]
    pub fn state(&self, id: &str) -> IdState {
        self.explain(id).state
    }

    /// Why an id runs, waits or does not.
    ///
    /// # Panics
    /// The text is no id, or the engine has stopped.
    #[must_use]
    pub fn explain(&self, id: &str) -> Explanation {
        self.runtime.block_on(self.handle.explain(id)).expect("a running engine and an id")
    }

    /// The engine's handle, for everything else; its futures need [`block_on`](Self::block_on).
    #[must_use]
    pub const fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Runs a future beside the engine.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Lets the engine work until what it says of its shards is wanted.
    fn until(&mut self, wanted: impl Fn(&[crate::engine::view::ShardStatus]) -> bool) {
        self.runtime.block_on(async {
            // Twice: the first answer may come before the loop has taken what was handed over last.
            let mut seen = 0;
            for _ in 0..TURNS_MAX {
                let shards = self.handle.shards().await.expect("a running engine");
                seen = if wanted(&shards) { seen + 1 } else { 0 };
                if seen == 2 {
                    return;
                }
                tokio::task::yield_now().await;
            }
            panic!("the engine does not come to rest; does a reconciler ask for another run at once, for ever?");
        });
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        self.handle.drain();
        if let Some(running) = self.running.take() {
            // A panic in the test itself is what matters then.
            let _ = self.runtime.block_on(running);
        }
    }
}

impl std::fmt::Debug for Harness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Harness").field("handle", &self.handle).finish_non_exhaustive()
    }
}

fn lock(failures: &Failures) -> std::sync::MutexGuard<'_, HashMap<String, VecDeque<Failure>>> {
    failures.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Limits, ReconcilerOptions, Retry};

    struct Fine;

    impl Reconciler for Fine {
        async fn reconcile(&self, _: &Run) -> Result<Action, Failure> {
            Ok(Action::done())
        }
    }

    #[test]
    fn d2_retries_come_in_virtual_time() {
        let mut harness = Harness::new(Fine);
        for _ in 0..5 {
            harness.fail_next("x", Failure::transient("not yet"));
        }
        harness.trigger("x");
        assert_eq!(harness.state("x"), IdState::Delayed);
        harness.advance(Duration::from_secs(60));
        let mut wanted = vec![RunOutcome::Failed; 5];
        wanted.push(RunOutcome::Done);
        assert_eq!(harness.outcomes("x"), wanted);
        assert_eq!(harness.state("x"), IdState::Idle);
    }

    #[test]
    fn d3_what_is_given_up_is_parked() {
        let retry = Retry { max_retries: Some(1), ..Retry::DEFAULT };
        let options = ReconcilerOptions { retry, ..ReconcilerOptions::default() };
        let mut harness = Harness::with(Fine, |builder| builder.options(options).limits(Limits::default()));
        for _ in 0..2 {
            harness.fail_next("x", Failure::transient("never"));
        }
        harness.trigger("x");
        harness.advance(Duration::from_secs(5));
        assert_eq!(harness.state("x"), IdState::Parked);
        harness.trigger("x");
        assert_eq!(harness.state("x"), IdState::Idle, "a new reason starts anew");
    }
}
