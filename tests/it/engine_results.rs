//! How runs end and what follows (D1 to D9), through a whole engine in virtual time.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use evenkeel::engine::view::{IdState, JournalQuery, RunOutcome, TriggerResult, WaitFor};
use evenkeel::{Action, Class, Failure, Limits, OwedReason, ReconcilerOptions, Retry, Run, Timing};

use super::engine_world::{Calls, Do, Feed, Feeder, HOUR, MS, Running, SECOND, builder, options, plain_retry, until};

/// How far apart the starts of an id's runs are.
fn gaps(calls: &Calls, id: &str) -> Vec<Duration> {
    calls.of(id).windows(2).map(|pair| pair[1].begun - pair[0].begun).collect()
}

/// Due times are rounded up to 10 ms, and never early.
#[track_caller]
fn about(took: Duration, wanted: Duration) {
    assert!(took >= wanted && took <= wanted + 25 * MS, "{took:?} instead of {wanted:?}");
}

async fn fed(calls: &Calls, options: ReconcilerOptions) -> (Running, Feeder) {
    let (feed, events) = Feed::new(Class::Event);
    (Running::start(builder(calls.clone()).options(options).stream("events", feed)).await, events)
}

fn retries(max: u32) -> ReconcilerOptions {
    ReconcilerOptions { retry: Retry { max_retries: Some(max), ..plain_retry() }, ..options() }
}

#[tokio::test(start_paused = true)]
async fn d2_delays_grow_up_to_their_maximum_or_are_the_errors_own() {
    let calls = Calls::new(|_, number| match number {
        3 => Do::Answer(Err(Failure::transient("busy").retry_after(7 * SECOND))),
        10 => Do::done(),
        _ => Do::fail(),
    });
    let retry = Retry { max_delay: 20 * SECOND, max_retries: Some(20), ..plain_retry() };
    let options = ReconcilerOptions { retry, ..options() };
    let (running, events) = fed(&calls, options).await;
    events.send("x");
    events.until_low_water(1).await;
    for (took, wanted) in gaps(&calls, "x").into_iter().zip([1, 2, 7, 8, 16, 20, 20, 20, 20]) {
        about(took, wanted * SECOND);
    }
    let attempts: Vec<u32> = calls.of("x").iter().map(|call| call.attempt).collect();
    assert_eq!(attempts, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], "an error with its own delay is a failure too");
    running.stop().await.unwrap();
}

/// B22, first part: a success sets the count back, a requested time does not touch it.
#[tokio::test(start_paused = true)]
async fn d4_b22_after_a_success_the_first_delay_is_the_first_again() {
    let calls = Calls::new(|_, number| match number {
        5 => Do::again(10 * SECOND),
        6 => Do::fail(),
        7.. => Do::done(),
        _ => Do::fail(),
    });
    let (running, events) = fed(&calls, retries(5)).await;
    events.send("x");
    calls.until_count("x", 7).await;
    let gaps = gaps(&calls, "x");
    about(gaps[4], 10 * SECOND);
    about(gaps[5], SECOND);
    let attempts: Vec<u32> = calls.of("x").iter().map(|call| call.attempt).collect();
    assert_eq!(attempts, [1, 2, 3, 4, 5, 1, 2]);
    running.stop().await.unwrap();
}

/// B22, second part: twenty events during a backoff, all of whose runs fail, use up no attempts and move no due time.
#[tokio::test(start_paused = true)]
async fn d7_b22_events_during_a_backoff_use_up_no_attempts() {
    let calls = Calls::new(|_, _| Do::fail());
    let options = ReconcilerOptions { retry: Retry { initial: 30 * SECOND, ..plain_retry() }, ..options() };
    let (running, events) = fed(&calls, options).await;
    events.send("x");
    calls.until_count("x", 1).await;
    let first = calls.of("x")[0].begun;
    for _ in 0..20 {
        tokio::time::sleep(SECOND).await;
        events.send("x");
    }
    calls.until_count("x", 22).await;
    let of_x = calls.of("x");
    about(of_x[21].begun - first, 30 * SECOND);
    assert!(of_x[1..21].iter().all(|call| call.attempt == 2), "{of_x:?}");
    let entry = running.explain("x").await.entry.unwrap();
    assert_eq!((entry.attempt, entry.state), (2, IdState::Delayed), "two failures count, not 22");
    running.stop().await.unwrap();
}

/// B22, fourth part, and D3: what is given up is told, listed, and begins anew with an event; a resync gives it one
/// attempt and leaves the count.
#[tokio::test(start_paused = true)]
async fn d3_b22_what_is_given_up_is_told_and_begins_anew() {
    let calls = Calls::new(|_, _| Do::fail());
    let (feed, events) = Feed::new(Class::Event);
    let (listed, list) = Feed::new(Class::Resync);
    let streams = builder(calls.clone()).options(retries(4)).stream("events", feed).stream("all", listed);
    let running = Running::start(streams).await;
    events.send("x");
    running.until_state("x", IdState::Parked).await;
    assert_eq!(calls.count("x"), 5, "one attempt and four retries");
    let parked = running.explain("x").await;
    let entry = parked.entry.as_ref().unwrap();
    assert_eq!((entry.parked, entry.attempt, entry.error.as_deref()), (Some(OwedReason::GivenUp), 5, Some("no route")));
    assert!(parked.why.contains("it was given up after its last attempt"), "{}", parked.why);
    assert_eq!(parked.journal[0].outcome, RunOutcome::GivenUp);
    let status = running.handle.status().await.unwrap();
    assert_eq!(status.counts.parked, 1);
    // A resync: one attempt, and parked again.
    list.send("x");
    calls.until_count("x", 6).await;
    running.until_state("x", IdState::Parked).await;
    assert_eq!(running.explain("x").await.entry.unwrap().attempt, 5);
    tokio::time::sleep(HOUR).await;
    assert_eq!(calls.count("x"), 6);
    // An event: a fresh count, and all attempts.
    events.send("x");
    calls.until_count("x", 11).await;
    running.until_state("x", IdState::Parked).await;
    let attempts: Vec<u32> = calls.of("x").iter().map(|call| call.attempt).collect();
    assert_eq!(attempts[5..], [6, 1, 2, 3, 4, 5]);
    running.stop().await.unwrap();
}

/// B43: the retry of an older event runs with what the newer one said.
#[tokio::test(start_paused = true)]
async fn b43_a_retry_knows_the_newer_event_and_no_run_knows_only_the_older_one_after_it() {
    let calls = Calls::new(|_, number| if number < 4 { Do::fail() } else { Do::done() });
    let options = ReconcilerOptions { retry: Retry { initial: 5 * SECOND, ..plain_retry() }, ..options() };
    let (running, events) = fed(&calls, options).await;
    events.send("x");
    calls.until_count("x", 1).await;
    tokio::time::sleep(SECOND).await;
    events.send("x");
    events.until_low_water(2).await;
    let of_x = calls.of("x");
    let knows = |number: usize, event: &str| of_x[number].causes.iter().any(|cause| cause.to_string() == event);
    assert!(knows(0, "topic/0@0") && !knows(0, "topic/0@1"));
    assert!((1..4).all(|number| knows(number, "topic/0@1")), "{of_x:?}");
    // The key is that of the latest event: the same for all attempts to answer it, another than before (B72).
    assert_ne!(of_x[0].key, of_x[1].key);
    assert!(of_x[1].key == of_x[2].key && of_x[2].key == of_x[3].key, "{of_x:?}");
    running.stop().await.unwrap();
}

/// B72: runs that answer different triggers have different keys, however the triggers come.
#[tokio::test(start_paused = true)]
async fn b72_every_trigger_has_a_key_of_its_own() {
    let calls = Calls::new(|_, _| Do::Hold);
    let running = Running::start(builder(calls.clone())).await;
    running.trigger("x", WaitFor::Admitted).await;
    for number in 1..=5 {
        calls.until_count("x", number).await;
        // It cancels the run, and another follows for it.
        running.trigger("x", WaitFor::Admitted).await;
    }
    calls.until_count("x", 6).await;
    let keys: std::collections::BTreeSet<String> = calls.of("x").into_iter().map(|call| call.key).collect();
    assert_eq!(keys.len(), 6);
    running.stop().await.unwrap();
}

/// D7: not sooner than `min_requeue` after the last start.
#[tokio::test(start_paused = true)]
async fn d7_an_event_runs_a_delayed_id_at_once_but_not_too_soon() {
    let calls = Calls::new(|_, number| if number < 3 { Do::again(HOUR) } else { Do::done() });
    let (running, events) = fed(&calls, options()).await;
    events.send("x");
    running.until_state("x", IdState::Delayed).await;
    events.send("x");
    calls.until_count("x", 2).await;
    about(gaps(&calls, "x")[0], 250 * MS);
    tokio::time::sleep(HOUR / 2).await;
    let sent = tokio::time::Instant::now();
    events.send("x");
    calls.until_count("x", 3).await;
    assert!(sent.elapsed() < 5 * MS, "{:?}", sent.elapsed());
    running.stop().await.unwrap();
}

/// B45: whatever a reconciler in Rust can ask for, and nothing spins, panics or never comes.
#[tokio::test(start_paused = true)]
async fn d9_b45_odd_requests_neither_spin_nor_panic_nor_are_lost() {
    let year = Duration::from_secs(365 * 24 * 3_600);
    let odd = move |run: &Run| {
        let (now, ask) = (SystemTime::now(), Action::done());
        match run.id() {
            "zero" => Ok(ask.requeue_after(Duration::ZERO)),
            "nanosecond" => Ok(ask.requeue_after(Duration::from_nanos(1))),
            "past" => Ok(ask.requeue_at(now - HOUR)),
            "long-past" => Ok(ask.requeue_at(SystemTime::UNIX_EPOCH - 100 * year)),
            "century" => Ok(ask.requeue_after(100 * year)),
            "for-ever" => Ok(ask.requeue_after(Duration::MAX)),
            "far-future" => Ok(ask.requeue_at(SystemTime::UNIX_EPOCH + 10_000 * year)),
            "retry-at-once" => Err(Failure::transient("busy").retry_after(Duration::ZERO)),
            "retry-for-ever" => Err(Failure::transient("busy").retry_after(Duration::MAX)),
            "terminal-then-delay" => Err(Failure::terminal("hopeless").retry_after(60 * SECOND)),
            other => panic!("{other}"),
        }
    };
    let calls = Calls::new(move |run, _| Do::Answer(odd(run)));
    let timing = Timing { min_requeue: SECOND, ..Timing::default() };
    let running = Running::start(builder(calls.clone()).options(retries(1_000_000)).timing(timing)).await;
    let soon = ["zero", "nanosecond", "past", "long-past", "retry-at-once"];
    let late = ["century", "for-ever", "far-future", "retry-for-ever"];
    for id in soon.into_iter().chain(late).chain(["terminal-then-delay"]) {
        running.handle.trigger(id).unwrap();
    }
    tokio::time::sleep(100 * SECOND).await;
    for id in soon {
        let count = calls.count(id);
        assert!((90..=101).contains(&count), "{id} ran {count} times");
        assert!(gaps(&calls, id).iter().all(|gap| *gap >= SECOND), "{id}: two starts are min_requeue apart");
    }
    for id in late {
        assert_eq!(calls.count(id), 1, "{id}");
        let due = running.explain(id).await.entry.unwrap().due.unwrap();
        let ahead = due.duration_since(jiff::Timestamp::now()).as_secs();
        assert!(ahead > 360 * 24 * 3_600 && ahead < 366 * 24 * 3_600, "{id}: {due}");
    }
    // One rule for an error with a delay: it is transient, and the delay is the error's.
    assert_eq!(calls.count("terminal-then-delay"), 2);
    about(gaps(&calls, "terminal-then-delay")[0], 60 * SECOND);
    running.stop().await.unwrap();
}

/// B21: two hundred failures beside a healthy id in the only slot; the backoff holds no permit.
#[tokio::test(start_paused = true)]
async fn b21_two_hundred_failures_hold_nothing_up() {
    let calls = Calls::new(|run, _| if run.id() == "x" { Do::fail() } else { Do::done() });
    let retry = Retry { initial: MS, factor: 10.0, max_delay: HOUR, jitter: 1.0, max_retries: None };
    let options = ReconcilerOptions { workers: 1, concurrency: 1, retry, ..options() };
    let (running, events) = fed(&calls, options).await;
    events.send("x");
    let mut healthy = 0;
    while calls.count("x") < 200 {
        healthy += 1;
        events.send("healthy");
        calls.until_count("healthy", healthy).await;
        tokio::time::sleep(HOUR / 2).await;
    }
    let longest = gaps(&calls, "x").into_iter().max().unwrap();
    assert!(longest <= HOUR + 25 * MS, "{longest:?}");
    assert!(gaps(&calls, "x").iter().all(|gap| *gap >= 250 * MS), "never zero");
    running.stop().await.unwrap();
}

/// B47: a timer is one place an id; removed or run, it is free at once, and a full `timers` refuses no retry.
#[tokio::test(start_paused = true)]
async fn d6_b47_timers_take_one_place_an_id_and_refuse_nobody() {
    let calls = Calls::new(|run, _| match run.id().split('-').next().unwrap() {
        "asks" => Do::again(24 * HOUR),
        "fails" => Do::fail(),
        _ => Do::done(),
    });
    let limits = Limits { timers: 100, admitted: 150, ..Limits::default() };
    let (feed, events) = Feed::new(Class::Event);
    let running = Running::start(builder(calls.clone()).limits(limits).stream("events", feed)).await;
    // Fifty times the same id.
    for number in 1..=50 {
        events.send("asks-0");
        calls.until_count("asks-0", number).await;
        tokio::time::sleep(SECOND).await;
    }
    let counts = running.handle.status().await.unwrap().counts;
    assert_eq!((counts.timers, counts.delayed, counts.admitted), (1, 1, 0), "{counts:?}");
    // All places of timers are taken; two more keep their places among the admitted.
    (1..102).for_each(|number| _ = events.send(&format!("asks-{number}")));
    events.until_low_water(50 + 101).await;
    let counts = running.handle.status().await.unwrap().counts;
    assert_eq!((counts.timers, counts.delayed, counts.admitted), (100, 102, 2), "{counts:?}");
    events.send("fails-0");
    running.until_state("fails-0", IdState::Delayed).await;
    // Cancelled, their places are free at once.
    let ids = (0..102).map(|number| format!("asks-{number}")).collect();
    assert!(running.handle.cancel(ids).await.unwrap().iter().all(|answer| answer.done));
    let counts = running.handle.status().await.unwrap().counts;
    assert_eq!((counts.timers, counts.admitted, counts.parked), (0, 1, 102), "{counts:?}");
    running.stop().await.unwrap();
}

/// D10: no timeout, no end; and the journal says what timed out where there is one.
#[tokio::test(start_paused = true)]
async fn d10_a_timeout_is_a_failure_and_none_is_none() {
    let calls = Calls::new(|_, number| if number == 1 { Do::Hold } else { Do::done() });
    let (running, events) = fed(&calls, ReconcilerOptions { timeout: Some(3 * SECOND), ..options() }).await;
    events.send("x");
    events.until_low_water(1).await;
    about(gaps(&calls, "x")[0], 3 * SECOND + SECOND);
    let journal = running.handle.journal(&JournalQuery { id: Some("x".into()), limit: None }).await.unwrap();
    assert_eq!(
        (journal[1].outcome, journal[1].message.as_deref()),
        (RunOutcome::TimedOut, Some("took longer than 3s"))
    );
    running.stop().await.unwrap();

    let calls = Calls::new(|_, _| Do::Hold);
    let (running, events) = fed(&calls, ReconcilerOptions { timeout: None, ..options() }).await;
    events.send("x");
    calls.until_count("x", 1).await;
    tokio::time::sleep(100 * HOUR).await;
    assert_eq!((calls.count("x"), running.state("x").await), (1, IdState::Running));
    calls.release("x");
    events.until_low_water(1).await;
    running.stop().await.unwrap();
}

/// C1, C2: an explicit trigger and `cancel` stop a run; an event does not.
#[tokio::test(start_paused = true)]
async fn c1_c2_what_stops_a_run_and_what_follows() {
    let calls = Calls::new(|_, number| if number <= 3 { Do::Hold } else { Do::done() });
    let (running, events) = fed(&calls, options()).await;
    events.send("x");
    calls.until_count("x", 1).await;
    events.send("x");
    tokio::time::sleep(SECOND).await;
    assert_eq!(calls.count("x"), 1, "an event waits for the run");
    running.handle.trigger("x").unwrap();
    calls.until_count("x", 2).await;
    let journal = running.handle.journal(&JournalQuery::default()).await.unwrap();
    assert_eq!(journal[0].message.as_deref(), Some("cancelled: triggered again"));
    assert_eq!(events.low_water(), 0, "a cancelled run covers nothing");
    // Asked for: parked, and nothing follows by itself.
    assert!(running.handle.cancel(vec!["x".into()]).await.unwrap()[0].done);
    running.until_state("x", IdState::Parked).await;
    tokio::time::sleep(HOUR).await;
    assert_eq!((calls.count("x"), events.low_water()), (2, 0), "without a durable store its events stay owed");
    let again = running.handle.cancel(vec!["x".into(), "unknown".into()]).await.unwrap();
    assert!(again.iter().all(|answer| !answer.done), "{again:?}");
    assert!(running.handle.redrive(evenkeel::engine::Select::Ids(vec!["x".into()])).await.unwrap()[0].done);
    calls.until_count("x", 3).await;
    calls.release("x");
    events.until_low_water(2).await;
    running.stop().await.unwrap();
}

/// X7: what a trigger is told, in each of its ways.
#[tokio::test(start_paused = true)]
async fn x7_a_trigger_is_answered_by_the_run_that_answers_it() {
    let calls = Calls::new(|run, number| match (run.id(), number) {
        ("x", 1 | 2) => Do::Hold,
        ("fails", _) => Do::fail(),
        _ => Do::Answer(Ok(Action::unchanged().with_message("fine"))),
    });
    let running = Arc::new(Running::start(builder(calls.clone())).await);
    assert_eq!(running.trigger("x", WaitFor::Admitted).await, TriggerResult::Admitted);
    calls.until_count("x", 1).await;
    // The run that is under way is cancelled and does not answer; the one after it does.
    let waiting = Arc::clone(&running);
    let first = tokio::spawn(async move { waiting.trigger("x", WaitFor::Done).await });
    calls.until_count("x", 2).await;
    until("it waits", || !first.is_finished()).await;
    let waiting = Arc::clone(&running);
    let second = tokio::spawn(async move { waiting.trigger("x", WaitFor::Done).await });
    let fine = TriggerResult::Ended { outcome: RunOutcome::Done, message: Some("fine".into()) };
    assert_eq!((first.await.unwrap(), second.await.unwrap()), (fine.clone(), fine));
    let ended = running.trigger("fails", WaitFor::Done).await;
    let failed = TriggerResult::Ended { outcome: RunOutcome::Failed, message: Some("no route".into()) };
    assert_eq!(ended, failed, "it is told of the attempt, not of the last one");
    assert!(matches!(running.trigger("x", WaitFor::Durable).await, TriggerResult::NotDurable { .. }));
    // Many at once, answered in their order, good and bad.
    let ids = ["a", "", "b\n", "a", "c"].map(str::to_owned).to_vec();
    let answers = running.handle.trigger_batch(ids, WaitFor::Done).await;
    let told: Vec<bool> = answers.iter().map(|answer| matches!(answer.result, TriggerResult::Ended { .. })).collect();
    assert_eq!(told, [true, false, false, true, true], "{answers:?}");
    Arc::into_inner(running).unwrap().stop().await.unwrap();
}
