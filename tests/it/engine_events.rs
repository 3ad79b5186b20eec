//! Events through a whole engine (Q1 to Q6, D6): dedup, full shards, priorities.

use std::collections::BTreeSet;
use std::time::Duration;

use evenkeel::engine::view::{IdState, TriggerResult, WaitFor};
use evenkeel::id::{CAUSES_KEPT, ID_BYTES_MAX};
use evenkeel::local::{Resync, channel};
use evenkeel::{Cause, Class, Limits, ReconcilerOptions, Sharding, Timing};

use super::engine_world::{Calls, Do, Feed, HOUR, MS, Running, SECOND, builder, options, until};

fn ids(name: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{name}-{number}")).collect()
}

#[tokio::test(start_paused = true)]
async fn q1_what_is_no_id_is_passed_over_and_the_stream_goes_on() {
    let calls = Calls::done();
    let (sender, stream) = channel(10);
    let running = Running::start(builder(calls.clone()).stream("ids", stream)).await;
    let long = "x".repeat(ID_BYTES_MAX + 1);
    for bad in ["", "a\u{0}b", "a\u{202e}b", "line\nbreak", "\u{feff}", &long] {
        sender.send(bad).await.unwrap();
        assert!(running.handle.trigger(bad).is_err(), "{bad:?}");
    }
    let longest = "x".repeat(ID_BYTES_MAX);
    for good in ["déjà vu", "a/b c", longest.as_str()] {
        sender.send(good).await.unwrap();
        calls.until_count(good, 1).await;
    }
    assert_eq!(calls.all().len(), 3);
    let status = running.handle.status().await.unwrap();
    assert_eq!((status.streams[0].events, status.streams[0].errors), (3, 5), "an empty id is no error");
    assert!(status.problems.is_empty(), "{:?}", status.problems);
    running.stop().await.unwrap();
}

/// B02: five events, a resync and a retry that comes due while the id runs.
#[tokio::test(start_paused = true)]
async fn q3_q4_b02_all_that_comes_during_a_run_leads_to_exactly_one_more() {
    let calls = Calls::new(|_, number| match number {
        1 => Do::fail(),
        2 => Do::Hold,
        _ => Do::done(),
    });
    let (feed, events) = Feed::new(Class::Event);
    let (listed, list) = Feed::new(Class::Resync);
    let running = Running::start(builder(calls.clone()).stream("events", feed).stream("all", listed)).await;
    events.send("x");
    running.until_state("x", IdState::Delayed).await;
    // It runs again for this event; the retry stays due a second after the failure.
    tokio::time::sleep(Duration::from_millis(300)).await;
    events.send("x");
    calls.until_count("x", 2).await;
    (0..5).for_each(|_| _ = events.send("x"));
    list.send("x");
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!((calls.count("x"), events.low_water()), (2, 0), "nothing starts, and nothing is done");
    assert!(running.explain("x").await.why.contains("another run follows"));
    calls.release("x");
    calls.until_count("x", 3).await;
    events.until_low_water(7).await;
    list.until_low_water(1).await;
    tokio::time::sleep(HOUR).await;
    assert_eq!(calls.count("x"), 3);
    calls.assert_no_overlap();
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn q4_a_pending_id_absorbs_events_and_is_lifted() {
    let calls = Calls::new(|run, _| if run.id() == "first" { Do::Hold } else { Do::done() });
    let (feed, events) = Feed::new(Class::Event);
    let (listed, list) = Feed::new(Class::Resync);
    let options = ReconcilerOptions { workers: 1, concurrency: 1, ..options() };
    let streams = builder(calls.clone()).options(options).stream("events", feed).stream("all", listed);
    let running = Running::start(streams).await;
    events.send("first");
    calls.until_count("first", 1).await;
    list.send("listed");
    running.until_state("listed", IdState::Pending).await;
    ids("event", 3).iter().for_each(|id| _ = events.send(id));
    running.until_state("event-2", IdState::Pending).await;
    (0..10).for_each(|_| _ = events.send("listed"));
    until("all are absorbed", || events.low_water() == 0 && running.handle.health().ready && calls.all().len() == 1)
        .await;
    calls.release("first");
    events.until_low_water(14).await;
    let order: Vec<String> = calls.all().into_iter().map(|call| call.id).collect();
    assert_eq!(order, ["first", "event-0", "event-1", "event-2", "listed"], "one run, behind the events before it");
    running.stop().await.unwrap();
}

/// Inline runs free places while the loop is in mid-turn: what is held back must not wait for something else to happen.
#[tokio::test(start_paused = true)]
async fn q5_d6_what_is_held_back_goes_on_by_itself_however_short_the_runs_are() {
    for admitted in [1, 2, 600] {
        let calls = Calls::done();
        let (feed, events) = Feed::new(Class::Event);
        let limits = Limits { admitted, ..Limits::default() };
        let running = Running::start(builder(calls.clone()).limits(limits).stream("events", feed)).await;
        ids("id", 5_000).iter().for_each(|id| _ = events.send(id));
        events.until_low_water(5_000).await;
        assert_eq!(calls.ids().len(), 5_000);
        running.stop().await.unwrap();
    }
}

/// B01, B42: the table is full, the id that waits for its retry keeps its place, present ids are welcome.
#[tokio::test(start_paused = true)]
async fn q5_b01_b42_a_full_shard_absorbs_what_is_present_holds_the_rest_and_goes_on() {
    let calls = Calls::new(|run, number| match (run.id(), number) {
        ("a", 1) => Do::fail(),
        ("b" | "c", 1) => Do::Hold,
        _ => Do::done(),
    });
    let (feed, events) = Feed::new(Class::Event);
    let limits = Limits { admitted: 2, ..Limits::default() };
    let running = Running::start(builder(calls.clone()).limits(limits).stream("events", feed)).await;
    events.send("a");
    running.until_state("a", IdState::Delayed).await;
    events.send("b");
    calls.until_count("b", 1).await;
    assert!(running.handle.health().ready);
    // Full: `a` waits for its retry, `b` runs. New ids are held, in order; `a` and `b` are absorbed behind them.
    for id in ["c", "b", "d", "a"] {
        events.send(id);
    }
    until("readiness says so", || !running.handle.health().ready).await;
    let health = running.handle.health();
    assert!(health.live && health.problems[0].contains("shard 0 is full (limits.admitted)"), "{health:?}");
    let held = running.explain("c").await;
    assert_eq!((held.state, held.reason.as_str()), (IdState::Idle, "held_back"), "{held:?}");
    assert_eq!(running.trigger("c", WaitFor::Admitted).await, TriggerResult::Full);
    assert_eq!(running.trigger("a", WaitFor::Admitted).await, TriggerResult::AlreadyPresent, "present, so welcome");
    // The trigger of `a` has run it; its success makes room for `c`, which holds, so that it is full again.
    calls.until_count("a", 2).await;
    calls.until_count("c", 1).await;
    assert_eq!(events.low_water(), 1, "of the events, that of `a` is done");
    assert!(!running.handle.health().ready);
    calls.release("b");
    calls.until_count("d", 1).await;
    until("it is ready again", || running.handle.health().ready).await;
    calls.release("c");
    events.until_low_water(6).await;
    assert_eq!(calls.count("b"), 2, "the event that was absorbed ran it once more");
    running.stop().await.unwrap();
}

/// B01: a retry that comes due while the table is full keeps its place, and its event stays owed until it has run.
#[tokio::test(start_paused = true)]
async fn q5_b01_a_retry_comes_due_though_everything_is_full() {
    let calls = Calls::new(|run, number| match (run.id(), number) {
        ("a", 1) => Do::fail(),
        ("b", 1) => Do::Hold,
        _ => Do::done(),
    });
    let (feed, events) = Feed::new(Class::Event);
    let limits = Limits { admitted: 2, timers: 1, owed_records: 1 };
    let options = ReconcilerOptions { workers: 1, concurrency: 1, ..options() };
    let running = Running::start(builder(calls.clone()).limits(limits).options(options).stream("events", feed)).await;
    events.send("a");
    running.until_state("a", IdState::Delayed).await;
    events.send("b");
    calls.until_count("b", 1).await;
    ids("more", 50).iter().for_each(|id| _ = events.send(id));
    // The only slot is taken, the only other place is held by `a`.
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!((running.state("a").await, calls.count("a")), (IdState::Pending, 1));
    calls.release("b");
    events.until_low_water(52).await;
    assert_eq!((calls.count("a"), calls.ids().len()), (2, 52));
    running.stop().await.unwrap();
}

/// B39: 8,000 ids of a resync in four slots of 10 ms, and an event in the midst of it.
#[tokio::test(start_paused = true)]
async fn q6_b39_a_resync_does_not_hold_up_an_event_and_is_paced() {
    let (began, before) = (tokio::time::Instant::now(), 8_000);
    let calls = Calls::done();
    let slow = Slow(calls.clone());
    let (feed, events) = Feed::new(Class::Event);
    let listed = ids("listed", before);
    let resync = Resync::every(HOUR).list_fn(move || std::future::ready(listed.clone()));
    let options = ReconcilerOptions { workers: 4, concurrency: 4, ..options() };
    let running = Running::start(builder(slow).options(options).stream("all", resync).stream("events", feed)).await;
    tokio::time::sleep(SECOND).await;
    let counts = running.handle.status().await.unwrap().counts;
    assert!(counts.pending <= 1_000 && counts.pending > 900, "{counts:?}");
    assert!(running.handle.health().ready, "a resync that waits its turn is no fault: {:?}", running.handle.health());
    let sent = tokio::time::Instant::now();
    events.send("news");
    calls.until_count("news", 1).await;
    assert!(sent.elapsed() < 50 * MS, "it waited {:?}", sent.elapsed());
    let events_after = |handle: evenkeel::Handle| async move { handle.status().await.unwrap().counts.pending };
    let mut most = 0;
    while calls.ids().len() < before + 1 {
        most = most.max(events_after(running.handle.clone()).await);
        tokio::time::sleep(100 * MS).await;
    }
    assert!(most <= 1_000, "{most} waited");
    assert!(began.elapsed() >= 20 * SECOND, "four at a time");
    assert_eq!(calls.all().len(), before + 1, "each once");
    running.stop().await.unwrap();
}

/// Takes ten milliseconds for each run.
struct Slow(Calls);

impl evenkeel::Reconciler for Slow {
    async fn reconcile(&self, run: &evenkeel::Run) -> Result<evenkeel::Action, evenkeel::Failure> {
        tokio::time::sleep(10 * MS).await;
        self.0.reconcile(run).await
    }
}

/// Neither does a stream of events starve what came due or what is listed (Q6).
#[tokio::test(start_paused = true)]
async fn q6_no_priority_starves() {
    let calls = Calls::new(|run, number| match (run.id(), number) {
        ("retried", 1) => Do::fail(),
        _ => Do::done(),
    });
    let slow = Slow(calls.clone());
    let (feed, events) = Feed::new(Class::Event);
    let (listed, list) = Feed::new(Class::Resync);
    let options = ReconcilerOptions { workers: 1, concurrency: 1, ..options() };
    let running = Running::start(builder(slow).options(options).stream("events", feed).stream("all", listed)).await;
    events.send("retried");
    calls.until_count("retried", 1).await;
    list.send("listed");
    // Events without end: there is always one that waits.
    for number in 0..2_000 {
        events.send(&format!("event-{number}"));
    }
    calls.until_count("listed", 1).await;
    calls.until_count("retried", 2).await;
    assert!(calls.all().len() < 200, "{} ran before", calls.all().len());
    running.stop().await.unwrap();
}

/// A user's own hash spreads ids, and drops those that are nobody's (Q2).
#[tokio::test(start_paused = true)]
async fn q2_a_hash_of_the_users_own_places_and_drops() {
    let calls = Calls::done();
    let (feed, events) = Feed::new(Class::Event);
    let sharding = Sharding { shards: 3, ..Sharding::default() };
    let hasher = |id: &str| id.rsplit('-').next().and_then(|number| number.parse().ok());
    let running = Running::start(builder(calls.clone()).sharding(sharding).hasher(hasher).stream("events", feed)).await;
    for id in ["a-0", "a-1", "a-2", "a-4294967295", "nobody"] {
        events.send(id);
    }
    until("four ran", || calls.ids().len() == 4).await;
    for (id, shard) in [("a-0", 0), ("a-1", 1), ("a-2", 2), ("a-4294967295", 0)] {
        assert_eq!(running.explain(id).await.shard.0, shard, "{id}");
    }
    assert_eq!(running.trigger("nobody", WaitFor::Done).await, TriggerResult::Dropped);
    assert!(running.handle.explain("nobody").await.is_err());
    running.stop().await.unwrap();
}

/// T5: whatever asked for a run stands in its causes.
#[tokio::test(start_paused = true)]
async fn t5_a_run_knows_everything_that_asked_for_it() {
    let calls = Calls::new(|_, number| match number {
        1 => Do::Hold,
        2 => Do::fail(),
        3 => Do::again(SECOND),
        _ => Do::done(),
    });
    let (feed, events) = Feed::new(Class::Event);
    let timing = Timing { min_requeue: MS, ..Timing::default() };
    let running = Running::start(builder(calls.clone()).timing(timing).stream("events", feed)).await;
    events.send("x");
    calls.until_count("x", 1).await;
    running.handle.trigger("x").unwrap();
    calls.until_count("x", 4).await;
    let causes: Vec<Vec<String>> = calls
        .of("x")
        .iter()
        .map(|call| {
            let mut causes: Vec<String> = call.causes.iter().map(ToString::to_string).collect();
            causes.sort();
            causes
        })
        .collect();
    assert_eq!(causes[0], ["topic/0@0"]);
    assert_eq!(causes[1], ["cancelled run", "topic/0@0", "trigger"].map(String::from).as_slice());
    assert_eq!(causes[2], ["retry after attempt 1", "topic/0@0", "trigger"].map(String::from).as_slice());
    assert_eq!(causes[3], ["requested time"]);
    let error = calls.of("x")[2].causes.iter().find_map(|cause| match cause {
        Cause::Retry { error, .. } => error.clone(),
        _ => None,
    });
    assert_eq!(error.as_deref(), Some("no route"));
    running.stop().await.unwrap();
}

/// Many causes: the first ones are kept, the others counted (T5).
#[tokio::test(start_paused = true)]
async fn t5_of_many_causes_the_first_are_kept_and_all_are_counted() {
    let calls = Calls::new(|_, number| if number == 1 { Do::Hold } else { Do::done() });
    let (feed, events) = Feed::new(Class::Event);
    let running = Running::start(builder(calls.clone()).stream("events", feed)).await;
    (0..=20).for_each(|_| _ = events.send("x"));
    calls.until_count("x", 1).await;
    let (first, kept) = (&calls.of("x")[0], CAUSES_KEPT);
    let more = u32::try_from(21 - kept).unwrap();
    // The whole batch was there before the run, or the rest came during it: either way all are accounted for.
    calls.release("x");
    events.until_low_water(21).await;
    let all: usize = calls.of("x").iter().map(|call| call.causes.len() + call.more_causes as usize).sum();
    assert_eq!(all, 21, "{:?}", calls.of("x"));
    assert!(first.causes.len() <= kept && first.more_causes <= more);
    running.stop().await.unwrap();
}

/// A hundred streams at once, and no event of any is lost or twice.
#[tokio::test(start_paused = true)]
async fn q1_any_number_of_streams_feed_one_engine() {
    let calls = Calls::done();
    let mut engine = builder(calls.clone()).sharding(Sharding { shards: 4, ..Sharding::default() });
    let mut feeders = Vec::new();
    for number in 0..100 {
        let (feed, feeder) = Feed::new(if number % 2 == 0 { Class::Event } else { Class::Resync });
        engine = engine.stream(&format!("stream-{number}"), feed);
        feeders.push(feeder);
    }
    let running = Running::start(engine).await;
    for (number, feeder) in feeders.iter().enumerate() {
        ids(&format!("of-{number}"), 20).iter().for_each(|id| _ = feeder.send(id));
        feeder.send("shared");
    }
    for feeder in &feeders {
        feeder.until_low_water(21).await;
    }
    let wanted: BTreeSet<String> =
        (0..100).flat_map(|number| ids(&format!("of-{number}"), 20)).chain(["shared".to_owned()]).collect();
    assert_eq!(calls.ids(), wanted);
    calls.assert_no_overlap();
    running.stop().await.unwrap();
}
