//! Panics (B19): each is a failed attempt with a reason, and nothing else.

use std::panic::panic_any;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel::engine::view::{IdState, JournalQuery, RunOutcome};
use evenkeel::{
    Action, EngineError, EventStream, Events, Failure, Reconciler, ReconcilerOptions, Retry, Run, StreamError,
};

use super::engine_world::{Calls, Do, MS, Running, SECOND, builder, options, until};

/// A payload that panics again when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("dropped")
    }
}

/// Panics of every kind, by the number of the call; holding a lock that the next call takes too.
struct Panics {
    shared: Mutex<u32>,
    calls: Calls,
}

impl Reconciler for Panics {
    async fn reconcile(&self, run: &Run) -> Result<Action, Failure> {
        let _ = self.calls.reconcile(run).await;
        let number = self.calls.count(run.id());
        if run.id() == "neighbour" {
            return Ok(Action::done());
        }
        if number.is_multiple_of(2) {
            // So that it panics in a task of its own, not in the shard's.
            tokio::task::yield_now().await;
        }
        // Poisoned by the panics before.
        let mut held = self.shared.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        *held += 1;
        match number % 6 {
            0 => panic!("a text"),
            1 => panic!("{}", format!("a {}", "String")),
            2 => panic_any(42),
            3 => panic_any(Box::new(7_u8)),
            4 => panic_any(Bomb),
            _ => {
                let nothing: Option<u8> = (*held == 0).then_some(1);
                nothing.unwrap();
                unreachable!()
            }
        }
    }
}

/// Silences the messages of panics that are meant.
fn quiet() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let meant = panic.location().is_some_and(|place| place.file().ends_with("engine_panics.rs"))
                && std::thread::current().name().is_none_or(|name| name.contains("tokio"));
            if !meant {
                usual(panic);
            }
        }));
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b19_a_thousand_panics_are_a_thousand_failed_attempts_and_the_neighbour_runs_on() {
    quiet();
    let calls = Calls::done();
    let retry = Retry { initial: MS, factor: 1.0, max_delay: MS, jitter: 0.0, max_retries: None };
    let options = ReconcilerOptions { workers: 1, concurrency: 1, retry, ..options() };
    let timing = evenkeel::Timing { min_requeue: MS, resolution: MS, ..evenkeel::Timing::default() };
    let engine = builder(Panics { shared: Mutex::new(0), calls: calls.clone() }).options(options).timing(timing);
    let running = Running::start(engine).await;
    running.handle.trigger("x").unwrap();
    while calls.count("x") < 1_000 {
        let before = calls.count("neighbour");
        running.handle.trigger("neighbour").unwrap();
        let neighbour = calls.clone();
        until("the neighbour runs", move || neighbour.count("neighbour") > before).await;
    }
    let query = JournalQuery { id: Some("x".into()), limit: Some(100) };
    let journal = running.handle.journal(&query).await.unwrap();
    assert!(journal.iter().all(|run| run.outcome == RunOutcome::Panicked), "{journal:?}");
    let texts: std::collections::BTreeSet<&str> = journal.iter().map(|run| run.message.as_deref().unwrap()).collect();
    let wanted = [
        "panicked: a String",
        "panicked: a text",
        "panicked: called `Option::unwrap()` on a `None` value",
        "panicked: with a payload that is no text",
    ];
    assert_eq!(texts, wanted.into_iter().collect());
    let attempts: Vec<u32> = journal.iter().rev().map(|run| run.attempt).collect();
    assert!(attempts.windows(2).all(|pair| pair[1] == pair[0] + 1), "each is one attempt: {attempts:?}");
    assert!(running.handle.health().live && running.handle.health().ready);
    running.stop().await.unwrap();
    calls.assert_no_overlap();
}

/// A panic is a transient failure: it is tried again with growing delays, and given up at last.
#[tokio::test(start_paused = true)]
async fn b19_d1_a_panic_is_tried_again_with_growing_delays_and_given_up() {
    quiet();
    let calls = Calls::new(|_, _| Do::Panic(Box::new(|| panic!("boom"))));
    let running = Running::start(builder(calls.clone())).await;
    running.handle.trigger("x").unwrap();
    running.until_state("x", IdState::Parked).await;
    let begun: Vec<Duration> =
        calls.of("x").windows(2).map(|pair| pair[1].begun.duration_since(pair[0].begun)).collect();
    assert_eq!(begun.len(), 3);
    for (took, wanted) in begun.iter().zip([1, 2, 4]) {
        assert!(*took >= wanted * SECOND && *took < wanted * SECOND + 100 * MS, "{begun:?}");
    }
    let entry = running.explain("x").await.entry.unwrap();
    assert_eq!(entry.error.as_deref(), Some("panicked: boom"));
    running.stop().await.unwrap();
}

/// What a user brings may panic in other places too: a stream, a hash, a list of ids.
struct PanicsTwice(Arc<Mutex<u32>>);

impl EventStream for PanicsTwice {
    async fn run(&mut self, events: Events) -> Result<(), StreamError> {
        let number = {
            let mut runs = self.0.lock().unwrap();
            *runs += 1;
            *runs
        };
        events.send(&format!("before-{number}")).await?;
        assert!(number > 2, "the stream panics");
        events.stopping().await;
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn b19_q8_a_stream_that_panics_is_started_again() {
    quiet();
    let calls = Calls::done();
    let running = Running::start(builder(calls.clone()).stream("panics", PanicsTwice(Arc::default()))).await;
    calls.until_count("before-3", 1).await;
    let status = running.handle.status().await.unwrap();
    assert_eq!((status.streams[0].restarts, status.streams[0].errors), (2, 2));
    assert!(status.problems.is_empty(), "{:?}", status.problems);
    running.stop().await.unwrap();
}

/// A long-lived part that ends by a panic brings the engine down with what it was: here the user's own hash, which the
/// shard's loop and the streams call.
#[tokio::test(flavor = "multi_thread")]
async fn b19_a_hash_that_panics_hurts_the_stream_that_calls_it_alone() {
    quiet();
    let (sender, stream) = evenkeel::local::channel(4);
    let calls = Calls::done();
    let hasher = |id: &str| if id == "bad" { panic!("the hash panics") } else { Some(7) };
    let running = Running::start(builder(calls.clone()).hasher(hasher).stream("ids", stream)).await;
    sender.send("good").await.unwrap();
    calls.until_count("good", 1).await;
    sender.send("bad").await.unwrap();
    let handle = running.handle.clone();
    until("it is said", move || handle.health().problems.iter().any(|text| text.contains("it panicked"))).await;
    assert!(running.handle.health().live);
    let ended: Result<(), EngineError> = running.stop().await;
    ended.unwrap();
}
