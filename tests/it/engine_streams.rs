//! Streams of an engine (Q8, B06): those that fail, panic, end, hang or never stop failing.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use evenkeel::engine::view::{StreamState, StreamStatus};
use evenkeel::{EngineError, EventStream, Events, StreamError};
use tokio::time::Instant;

use super::engine_world::{Calls, Do, HOUR, MS, Running, SECOND, builder, lock, until};

/// What a run of a stream does.
#[derive(Clone, Copy)]
enum Act {
    Fail,
    End,
    /// Sends an id and waits for the stop.
    Serve,
    /// Waits for ever and hears nothing.
    Hang,
    /// Serves for a minute, then fails.
    ServeAndFail,
}

/// Does one after the other, the last one again and again.
struct Acts(VecDeque<Act>, Arc<Mutex<Vec<Instant>>>);

impl Acts {
    fn new(acts: &[Act]) -> (Self, Arc<Mutex<Vec<Instant>>>) {
        let runs = Arc::default();
        (Self(acts.iter().copied().collect(), Arc::clone(&runs)), runs)
    }
}

impl EventStream for Acts {
    async fn run(&mut self, events: Events) -> Result<(), StreamError> {
        lock(&self.1).push(Instant::now());
        let act = if self.0.len() > 1 { self.0.pop_front().unwrap() } else { self.0[0] };
        match act {
            Act::Fail => Err(StreamError::failed("no broker answers")),
            Act::End => Ok(()),
            Act::Hang => std::future::pending().await,
            Act::ServeAndFail => {
                tokio::time::sleep(60 * SECOND).await;
                Err(StreamError::failed("the connection broke"))
            }
            Act::Serve => {
                events.send("served").await?;
                events.stopping().await;
                Ok(())
            }
        }
    }
}

async fn status(running: &Running) -> StreamStatus {
    running.handle.status().await.unwrap().streams.remove(0)
}

#[tokio::test(start_paused = true)]
async fn q8_b06_a_stream_that_fails_is_started_again_with_growing_delays_and_said_to_be_ill() {
    let acts = [[Act::Fail; 10].as_slice(), &[Act::ServeAndFail, Act::Serve]].concat();
    let (stream, runs) = Acts::new(&acts);
    let calls = Calls::done();
    let running = Running::start(builder(calls.clone()).stream("orders", stream)).await;
    until("it failed twice", || lock(&runs).len() >= 2).await;
    let health = running.handle.health();
    assert!(health.live && !health.ready, "{health:?}");
    assert_eq!(health.problems, ["stream orders: no broker answers"]);
    assert_eq!(status(&running).await.state, StreamState::Restarting);
    calls.until_count("served", 1).await;
    let runs = lock(&runs).clone();
    let gaps: Vec<u128> = runs.windows(2).map(|pair| (pair[1] - pair[0]).as_millis()).collect();
    let wanted = [250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000, 60_250];
    assert!(gaps.iter().zip(wanted).all(|(gap, wanted)| (wanted..wanted + 10).contains(gap)), "{gaps:?}");
    assert_eq!(gaps.len(), wanted.len(), "one that served for long begins with the first delay again");
    let status = status(&running).await;
    assert_eq!((status.state, status.errors, status.restarts), (StreamState::Running, 11, 11));
    assert!(running.handle.health().ready);
    running.stop().await.unwrap();
}

/// Errors without end: no storm, the process lives, and is not ready.
#[tokio::test(start_paused = true)]
async fn b06_a_stream_that_never_works_is_no_storm() {
    let (stream, runs) = Acts::new(&[Act::Fail]);
    let running = Running::start(builder(Calls::done()).stream("orders", stream)).await;
    tokio::time::sleep(HOUR).await;
    let count = lock(&runs).len();
    assert!((100..=130).contains(&count), "{count} starts in an hour");
    assert!(running.handle.health().live && !running.handle.health().ready);
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn q8_b06_a_stream_that_ends_is_said_and_not_started_again() {
    let (stream, runs) = Acts::new(&[Act::End]);
    let calls = Calls::done();
    let running = Running::start(builder(calls.clone()).stream("orders", stream)).await;
    tokio::time::sleep(HOUR).await;
    let status = status(&running).await;
    assert_eq!((status.state, lock(&runs).len()), (StreamState::Ended, 1));
    let health = running.handle.health();
    assert_eq!(health.problems, ["stream orders: it ended by itself and gives no more events"]);
    assert!(health.live && !health.ready);
    running.handle.trigger("x").unwrap();
    calls.until_count("x", 1).await;
    running.stop().await.unwrap();
}

/// A critical stream takes the engine with it, in order: what runs may finish.
#[tokio::test(start_paused = true)]
async fn q8_b06_a_critical_stream_ends_the_engine_with_its_error() {
    let (stream, _) = Acts::new(&[Act::ServeAndFail]);
    let calls = Calls::new(|_, _| Do::Hold);
    let mut running = Running::start(builder(calls.clone()).critical_stream("orders", stream)).await;
    tokio::time::sleep(59 * SECOND).await;
    running.handle.trigger("x").unwrap();
    calls.until_count("x", 1).await;
    let released = calls.clone();
    tokio::spawn(async move {
        tokio::time::sleep(2 * SECOND).await;
        released.release("x");
    });
    let ended = tokio::time::timeout(HOUR, &mut running.task).await.expect("it ends by itself").unwrap();
    let error = ended.unwrap_err();
    assert!(matches!(error, EngineError::CriticalStream { .. }), "{error:?}");
    assert_eq!(error.to_string(), "stream \"orders\" failed: the connection broke");
    assert!(calls.all().iter().all(|call| call.ended.is_some()));
    let (stream, _) = Acts::new(&[Act::End]);
    let engine = builder(Calls::done()).critical_stream("orders", stream).build().unwrap();
    let error = engine.run(std::future::pending()).await.unwrap_err();
    assert_eq!(error.to_string(), "stream \"orders\" failed: it ended by itself");
}

/// One stream that hangs, floods or fails holds no other up, and none holds up the stop.
#[tokio::test(start_paused = true)]
async fn q8_b89_streams_do_not_hold_each_other_up_nor_the_stop() {
    struct Floods(Arc<AtomicU32>);
    impl EventStream for Floods {
        async fn run(&mut self, events: Events) -> Result<(), StreamError> {
            loop {
                let number = self.0.fetch_add(1, Ordering::SeqCst);
                events.send(&format!("flood-{number}")).await?;
            }
        }
    }
    let calls = Calls::new(|run, _| if run.id().starts_with("flood") { Do::Hold } else { Do::done() });
    let flooded = Arc::new(AtomicU32::new(0));
    let mut engine = builder(calls.clone()).limits(evenkeel::Limits { admitted: 100, ..Default::default() });
    engine = engine.stream("flood", Floods(Arc::clone(&flooded)));
    for (name, act) in [("fails", Act::Fail), ("ends", Act::End), ("hangs", Act::Hang), ("serves", Act::Serve)] {
        engine = engine.stream(name, Acts::new(&[act]).0);
    }
    let running = Running::start(engine).await;
    until("the shard is full", || !running.handle.health().ready).await;
    tokio::time::sleep(60 * SECOND).await;
    assert!(flooded.load(Ordering::SeqCst) < 5_000, "it was held back");
    let began = Instant::now();
    running.stop().await.unwrap();
    assert!(began.elapsed() < 5 * SECOND, "{:?}", began.elapsed());
}

/// A stream that blocks its thread cannot be dropped; the stop goes on without it and says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b89_a_stream_that_blocks_its_thread_does_not_hold_up_the_stop() {
    struct Blocks(std::sync::mpsc::Receiver<()>, Arc<AtomicU32>);
    impl EventStream for Blocks {
        async fn run(&mut self, _: Events) -> Result<(), StreamError> {
            self.1.store(1, Ordering::SeqCst);
            let _ = self.0.recv_timeout(super::engine_world::PATIENCE);
            Ok(())
        }
    }
    let (gate, blocked) = std::sync::mpsc::channel();
    let begun = Arc::new(AtomicU32::new(0));
    let calls = Calls::done();
    let running = Running::start(builder(calls.clone()).stream("blocks", Blocks(blocked, Arc::clone(&begun)))).await;
    until("it blocks", || begun.load(Ordering::SeqCst) == 1).await;
    running.handle.trigger("x").unwrap();
    calls.until_count("x", 1).await;
    running.stop().await.unwrap();
    tokio::time::sleep(MS).await;
    drop(gate);
}
