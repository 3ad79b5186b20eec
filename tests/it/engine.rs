//! The engine through its public API: runs, retries, cancellation, stops. Real time, short; nothing sleeps to
//! synchronise.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel::engine::view::{IdState, JournalQuery, RunOutcome, TriggerResult, WaitFor};
use evenkeel::{Action, Engine, Failure, Reconciler, ReconcilerOptions, Retry, Run};
use tokio::sync::oneshot;

type Answer = dyn Fn(&str, u32) -> Result<Action, Failure> + Send + Sync;

/// Answers by a function of the id and the attempt, and remembers the calls.
#[derive(Clone)]
struct Scripted {
    calls: Arc<Mutex<HashMap<String, u32>>>,
    answer: Arc<Answer>,
}

impl Scripted {
    fn new(answer: impl Fn(&str, u32) -> Result<Action, Failure> + Send + Sync + 'static) -> Self {
        Self { calls: Arc::default(), answer: Arc::new(answer) }
    }

    fn calls(&self, id: &str) -> u32 {
        self.calls.lock().unwrap().get(id).copied().unwrap_or(0)
    }
}

impl Reconciler for Scripted {
    async fn reconcile(&self, run: &Run) -> Result<Action, Failure> {
        *self.calls.lock().unwrap().entry(run.id().to_owned()).or_default() += 1;
        (self.answer)(run.id(), run.attempt())
    }
}

fn quick() -> ReconcilerOptions {
    let retry = Retry { initial: Duration::from_millis(1), max_retries: Some(2), ..Retry::DEFAULT };
    ReconcilerOptions { retry, ..ReconcilerOptions::default() }
}

/// Runs an engine while the test runs, then stops it.
async fn with<T>(builder: evenkeel::Builder, test: impl AsyncFnOnce(evenkeel::Handle) -> T) -> T {
    let engine = builder.build().unwrap();
    let handle = engine.handle();
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(engine.run(async move {
        let _ = stopped.await;
    }));
    while handle.shards().await.unwrap().iter().any(|shard| !shard.led) {
        tokio::task::yield_now().await;
    }
    let result = test(handle).await;
    drop(stop);
    running.await.unwrap().unwrap();
    result
}

async fn trigger(handle: &evenkeel::Handle, id: &str) -> TriggerResult {
    handle.trigger_batch(vec![id.to_owned()], WaitFor::Done).await.remove(0).result
}

#[tokio::test(flavor = "multi_thread")]
async fn d1_a_run_ends_in_each_of_its_ways() {
    let reconciler = Scripted::new(|id, _| match id {
        "done" => Ok(Action::done().with_message("fine")),
        "later" => Ok(Action::done().requeue_after(Duration::from_secs(3_600))),
        "failed" => Err(Failure::transient("no route")),
        "hopeless" => Err(Failure::terminal("no such zone")),
        _ => panic!("boom"),
    });
    with(Engine::builder("test").reconciler(reconciler.clone()).options(quick()), async |handle| {
        for (id, wanted) in [
            ("done", RunOutcome::Done),
            ("later", RunOutcome::Requeued),
            ("failed", RunOutcome::Failed),
            ("hopeless", RunOutcome::GivenUp),
            ("panics", RunOutcome::Panicked),
        ] {
            let TriggerResult::Ended { outcome, .. } = trigger(&handle, id).await else { panic!("{id}") };
            assert_eq!(outcome, wanted, "{id}");
        }
        assert_eq!(handle.explain("later").await.unwrap().state, IdState::Delayed);
        let parked = handle.explain("hopeless").await.unwrap();
        assert_eq!(parked.state, IdState::Parked);
        assert_eq!(parked.entry.unwrap().error.as_deref(), Some("no such zone"));
        let journal = handle.journal(&JournalQuery { id: Some("done".into()), limit: None }).await.unwrap();
        assert_eq!(journal[0].message.as_deref(), Some("fine"));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn d3_an_id_is_given_up_after_its_last_attempt() {
    let reconciler = Scripted::new(|_, _| Err(Failure::transient("still broken")));
    let calls = reconciler.clone();
    with(Engine::builder("test").reconciler(reconciler).options(quick()), async |handle| {
        handle.trigger("x").unwrap();
        while handle.explain("x").await.unwrap().state != IdState::Parked {
            tokio::task::yield_now().await;
        }
        assert_eq!(calls.calls("x"), 3);
    })
    .await;
}

/// Waits until it is cancelled, or for ever.
struct Waits {
    begun: Arc<AtomicU32>,
    ended: Arc<AtomicU32>,
    obeys: bool,
}

impl Reconciler for Waits {
    async fn reconcile(&self, run: &Run) -> Result<Action, Failure> {
        struct Count(Arc<AtomicU32>);
        impl Drop for Count {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        let _count = Count(Arc::clone(&self.ended));
        self.begun.fetch_add(1, Ordering::SeqCst);
        if self.obeys {
            run.cancelled().await;
            return Ok(Action::done());
        }
        std::future::pending().await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn d10_c4_a_run_that_takes_too_long_is_cancelled_then_cut_off() {
    for obeys in [true, false] {
        let (begun, ended) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let reconciler = Waits { begun: Arc::clone(&begun), ended: Arc::clone(&ended), obeys };
        let options = ReconcilerOptions {
            timeout: Some(Duration::from_millis(20)),
            cancel_grace: Duration::from_millis(20),
            ..quick()
        };
        with(Engine::builder("test").reconciler(reconciler).options(options), async |handle| {
            let TriggerResult::Ended { outcome, .. } = trigger(&handle, "x").await else { panic!() };
            assert_eq!(outcome, RunOutcome::TimedOut);
            assert!(ended.load(Ordering::SeqCst) >= 1);
        })
        .await;
        assert_eq!(begun.load(Ordering::SeqCst), ended.load(Ordering::SeqCst), "a stop leaves nothing running");
    }
}
