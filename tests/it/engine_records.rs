//! Owed records through a whole engine (D3, D11, D12): what holds a source back for too long is let go of by a record,
//! and what is recorded goes on in the next process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use evenkeel::engine::view::{IdState, QueueQuery, TriggerResult, WaitFor};
use evenkeel::{
    BoxFuture, Builder, Cause, Class, DeadLetter, DeadLetterError, EngineError, Letter, Limits, OwedReason, OwedRecord,
    ReconcilerOptions, RecordChange, Retry,
};

use super::engine_world::{
    Calls, Do, Faulty, Feed, Feeder, HOUR, MS, Mode, Running, SECOND, Topic, builder, lock, open, options, plain_retry,
    until,
};
use super::store_conformance::cluster;

/// An engine with this store, whose records are those of the engines before it.
async fn with_store(store: &Faulty, calls: &Calls) -> Builder {
    builder(calls.clone()).store(Arc::new(store.clone())).elector(store.elector().await)
}

async fn fed(store: &Faulty, calls: &Calls) -> (Running, Feeder) {
    let (feed, events) = Feed::new(Class::Event);
    (Running::start(with_store(store, calls).await.stream("events", feed)).await, events)
}

fn ahead(record: &OwedRecord) -> Duration {
    record.due.duration_since(SystemTime::now()).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn d12_an_id_that_holds_its_source_back_for_too_long_is_recorded_and_lets_go() {
    let store = Faulty::durable();
    let calls = Calls::new(|run, number| match (run.id(), number) {
        ("hangs", 1) => Do::Hold,
        ("fails", 1..=9) => Do::fail(),
        _ => Do::done(),
    });
    let timeless = ReconcilerOptions {
        timeout: None,
        retry: Retry { max_retries: None, max_delay: 16 * SECOND, ..plain_retry() },
        ..options()
    };
    let (feed, events) = Feed::new(Class::Event);
    let running = Running::start(with_store(&store, &calls).await.options(timeless).stream("events", feed)).await;
    for id in ["hangs", "fails", "quick"] {
        events.send(id);
    }
    tokio::time::sleep(59 * SECOND).await;
    assert_eq!((events.low_water(), events.done_above()), (0, vec![2]), "nothing before its time");
    assert!(store.commits().is_empty());
    events.until_low_water(3).await;
    let records = store.records().await;
    assert_eq!(records.len(), 2);
    assert_eq!((records["hangs"].reason, records["hangs"].attempt), (OwedReason::Held, 0));
    let fails = &records["fails"];
    assert!(fails.attempt >= 5 && fails.error.as_deref() == Some("no route") && ahead(fails) < 17 * SECOND);
    assert!(fails.causes.iter().any(|cause| cause.to_string() == "topic/0@1"), "{:?}", fails.causes);
    // The success of a run that began before the record was issued deletes it; the event it covers is the run's own.
    calls.release("hangs");
    calls.until_count("fails", 10).await;
    until("both records go", || store.commits().iter().filter(|c| matches!(c, RecordChange::Delete(_))).count() == 2)
        .await;
    assert!(store.records().await.is_empty());
    running.stop().await.unwrap();
}

/// An event that comes after the record was issued is not covered by it.
#[tokio::test(start_paused = true)]
async fn d12_a_record_covers_what_had_come_when_its_write_was_issued() {
    let store = Faulty::durable();
    let calls = Calls::new(|_, number| if number == 1 { Do::Hold } else { Do::Ignore });
    let (feed, events) = Feed::new(Class::Event);
    let timeless = ReconcilerOptions { timeout: None, ..options() };
    let running = Running::start(with_store(&store, &calls).await.options(timeless).stream("events", feed)).await;
    events.send("x");
    calls.until_count("x", 1).await;
    store.set(Mode::Refuses);
    tokio::time::sleep(61 * SECOND).await;
    assert!(!running.handle.health().ready, "a store that fails is said");
    events.send("x");
    tokio::time::sleep(SECOND).await;
    store.set(Mode::Well);
    events.until_low_water(1).await;
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!(events.low_water(), 1, "the second event came after the write was issued");
    assert!(running.handle.health().ready);
    // The run that began before the second event does not delete what stands for it.
    calls.release("x");
    calls.until_count("x", 2).await;
    running.crash().await;
    let records = store.records().await;
    assert!(records.is_empty() || records["x"].reason == OwedReason::Held, "{records:?}");
    assert_eq!(events.low_water(), 1, "so the source still has the second event");
}

/// Requested times: a far one is durable at once; short ones that go on get one record, which is not rewritten.
#[tokio::test(start_paused = true)]
async fn d12_requested_times_survive() {
    let store = Faulty::durable();
    let calls = Calls::new(|run, number| match (run.id(), number) {
        ("far", 1) => Do::again(3 * HOUR),
        ("near", 1..=60) => Do::again(5 * SECOND),
        _ => Do::done(),
    });
    let (running, events) = fed(&store, &calls).await;
    events.send("far");
    events.send("near");
    events.until_low_water(2).await;
    until("the far one is recorded", || !store.commits().is_empty()).await;
    let record = &store.records().await["far"];
    assert_eq!(record.reason, OwedReason::Requested);
    assert!(ahead(record) > 2 * HOUR && ahead(record) <= 3 * HOUR, "{record:?}");
    tokio::time::sleep(4 * 60 * SECOND).await;
    let of_near = |store: &Faulty| store.commits().iter().filter(|change| change.id() == "near").count();
    assert_eq!(of_near(&store), 1, "one record, however often it asks");
    calls.until_count("near", 61).await;
    until("it goes with the end of asking", || of_near(&store) == 2).await;
    assert!(!store.records().await.contains_key("near"));
    running.crash().await;

    // After a crash the time that was asked for stands.
    let again = Calls::done();
    let (running, _events) = fed(&store, &again).await;
    let far = running.explain("far").await;
    assert_eq!((far.state, far.reason.as_str()), (IdState::Delayed, "requested"));
    tokio::time::sleep(2 * HOUR).await;
    assert_eq!(again.count("far"), 0);
    tokio::time::sleep(HOUR + SECOND).await;
    assert_eq!(again.count("far"), 1);
    running.stop().await.unwrap();
    assert!(store.records().await.is_empty());
}

/// What a process leaves, the next one takes over: attempts, due times, errors, causes, keys, what is parked.
#[tokio::test(start_paused = true)]
async fn d12_a_drain_writes_what_is_left_and_the_next_process_goes_on() {
    let store = Faulty::durable();
    let calls = Calls::new(|run, _| match run.id() {
        "given-up" => Do::give_up(),
        "fails" => Do::fail(),
        "asks" => Do::again(30 * SECOND),
        "runs" => Do::Hold,
        _ => Do::done(),
    });
    let slow = ReconcilerOptions {
        workers: 1,
        concurrency: 1,
        timeout: None,
        cancel_grace: SECOND,
        retry: Retry { initial: 40 * SECOND, ..plain_retry() },
    };
    let (feed, events) = Feed::new(Class::Event);
    let running = Running::start(with_store(&store, &calls).await.options(slow).stream("events", feed)).await;
    for id in ["given-up", "fails", "asks", "runs", "waits", "cancelled"] {
        events.send(id);
    }
    calls.until_count("runs", 1).await;
    assert!(running.handle.cancel(vec!["cancelled".into()]).await.unwrap()[0].done);
    let key = calls.of("fails")[0].key.clone();
    running.stop().await.unwrap();
    assert_eq!(events.low_water(), 6, "all is done or recorded, so the source may forget it");
    let records = store.records().await;
    let shown: BTreeMap<&str, (OwedReason, u32)> =
        records.iter().map(|(id, record)| (id.as_str(), (record.reason, record.attempt))).collect();
    let wanted = [
        ("given-up", (OwedReason::GivenUp, 1)),
        ("fails", (OwedReason::Held, 1)),
        ("asks", (OwedReason::Requested, 0)),
        ("runs", (OwedReason::Held, 0)),
        ("waits", (OwedReason::Held, 0)),
        ("cancelled", (OwedReason::Cancelled, 0)),
    ];
    assert_eq!(shown, wanted.into_iter().collect());

    let next = Calls::done();
    let began = tokio::time::Instant::now();
    let (running, _events) = fed(&store, &next).await;
    until("what was due runs", || next.count("runs") == 1 && next.count("waits") == 1).await;
    assert!(began.elapsed() < SECOND);
    for (id, state) in [("given-up", IdState::Parked), ("cancelled", IdState::Parked), ("asks", IdState::Delayed)] {
        assert_eq!(running.state(id).await, state, "{id}");
    }
    let parked = running.explain("given-up").await.entry.unwrap();
    assert_eq!((parked.error.as_deref(), parked.parked), (Some("no such zone"), Some(OwedReason::GivenUp)));
    next.until_count("fails", 1).await;
    let fails = &next.of("fails")[0];
    assert!(began.elapsed() > 35 * SECOND && began.elapsed() < 41 * SECOND, "{:?}", began.elapsed());
    assert_eq!((fails.attempt, &fails.key), (2, &key), "the next attempt to answer the same event");
    assert!(fails.causes.contains(&Cause::Recovered {}), "{:?}", fails.causes);
    running.stop().await.unwrap();
    let left = store.records().await;
    assert_eq!(left.keys().collect::<Vec<_>>(), ["cancelled", "given-up"], "successes took theirs with them");
}

/// The same over a crash, with the file store and a source that reads again what is not done.
#[tokio::test(flavor = "multi_thread")]
async fn d12_what_is_recorded_survives_a_crash_and_what_is_not_comes_again() {
    let folder = tempfile::tempdir().unwrap();
    let topic = Topic::default();
    topic.send(["given-up", "a", "b", "a", "asks"].map(str::to_owned));
    let build = async |calls: &Calls| {
        let store = open(folder.path()).await;
        let stands = evenkeel::RecordStore::check_cluster(&*store, &cluster()).await.unwrap();
        let elector = evenkeel::local::LocalElector::new(store.clone(), &stands);
        builder(calls.clone()).store(store).elector(Arc::new(elector)).stream("topic", topic.stream())
    };
    let calls = Calls::new(|run, _| match run.id() {
        "given-up" => Do::give_up(),
        "asks" => Do::again(10 * HOUR),
        _ => Do::Ignore,
    });
    let running = Running::start(build(&calls).await).await;
    let reader = topic.clone();
    until("the give-up is recorded", move || reader.committed() == 1).await;
    until("the others run", || calls.running() == 2).await;
    let asked = calls.clone();
    until("it asked", move || asked.count("asks") == 1).await;
    while running.handle.status().await.unwrap().counts.owed_records < 2 {
        tokio::task::yield_now().await;
    }
    running.crash().await;

    let next = Calls::done();
    let running = Running::start(build(&next).await).await;
    let reader = topic.clone();
    until("all is committed", move || reader.committed() == 5).await;
    assert!(next.count("a") >= 1 && next.count("b") == 1, "what was not done came again");
    assert_eq!((running.state("given-up").await, next.count("given-up")), (IdState::Parked, 0));
    running.stop().await.unwrap();
}

/// A store that fails for a while: nothing is let go of meanwhile, it is said, and it goes on by itself.
#[tokio::test(start_paused = true)]
async fn d12_b80_a_store_that_fails_for_a_while_loses_nothing() {
    for mode in [Mode::Refuses, Mode::Unknown] {
        let store = Faulty::durable();
        let calls = Calls::new(|run, _| if run.id() == "bad" { Do::give_up() } else { Do::done() });
        let (running, events) = fed(&store, &calls).await;
        store.set(mode);
        events.send("bad");
        events.send("good");
        running.until_state("bad", IdState::Parked).await;
        tokio::time::sleep(600 * SECOND).await;
        assert_eq!((events.low_water(), events.done_above()), (0, vec![1]), "{mode:?}");
        let health = running.handle.health();
        assert!(health.live && !health.ready, "{health:?}");
        assert!(health.problems[0].contains("owed records cannot be written"), "{health:?}");
        assert!(running.explain("bad").await.why.contains("not durable yet"), "{:?}", running.explain("bad").await);
        store.set(Mode::Well);
        events.until_low_water(2).await;
        assert!(running.handle.health().ready);
        running.stop().await.unwrap();
        assert_eq!(store.records().await.len(), 1);
    }
}

/// A store that only a new process can use ends this one with its error; what was not let go of comes again.
#[tokio::test(start_paused = true)]
async fn d12_a_store_that_is_broken_ends_the_engine() {
    let store = Faulty::durable();
    let calls = Calls::new(|run, _| if run.id() == "bad" { Do::give_up() } else { Do::Hold });
    let (mut running, events) = fed(&store, &calls).await;
    events.send("runs");
    calls.until_count("runs", 1).await;
    store.set(Mode::Unusable);
    events.send("bad");
    let ended = tokio::time::timeout(HOUR, &mut running.task).await.expect("it ends by itself").unwrap();
    let error = ended.unwrap_err();
    assert!(matches!(error, EngineError::Store(_)), "{error:?}");
    assert!(error.to_string().contains("the disk is broken"), "{error}");
    assert_eq!((events.low_water(), calls.running()), (0, 0), "nothing was let go of, and nothing runs any more");
}

/// D12: with `owed_records` full, sources are held instead, and it is said; it goes on when there is room.
#[tokio::test(start_paused = true)]
async fn d12_x1_with_all_records_taken_sources_are_held_and_ids_keep_retrying() {
    let store = Faulty::durable();
    let calls = Calls::new(|_, _| Do::fail());
    let (feed, events) = Feed::new(Class::Event);
    let engine = with_store(&store, &calls).await.limits(Limits { owed_records: 2, ..Limits::default() });
    let running = Running::start(engine.stream("events", feed)).await;
    for id in ["a", "b", "c"] {
        events.send(id);
    }
    // Two are given up and recorded; the third cannot be, and is tried on at the longest delay.
    tokio::time::sleep(300 * SECOND).await;
    let counts = running.handle.status().await.unwrap().counts;
    assert_eq!((counts.parked, counts.owed_records, counts.delayed), (2, 2, 1), "{counts:?}");
    assert_eq!(events.low_water() + events.done_above().len() as u64, 2, "the third is held");
    let health = running.handle.health();
    assert!(!health.ready, "{health:?}");
    assert!(
        health.problems.iter().any(|text| text.contains("cannot park more ids (limits.owed_records)")),
        "{health:?}"
    );
    assert!(health.problems.iter().any(|text| text.contains("as many owed records as it may keep")), "{health:?}");
    let third = ["a", "b", "c"].into_iter().find(|id| calls.count(id) > 4).unwrap();
    assert!(running.explain(third).await.why.contains("no more ids can be parked"));
    // Room: one is redriven; its place is the third's, or its own again, but nobody is lost.
    let parked = ["a", "b", "c"].into_iter().find(|id| *id != third).unwrap();
    let select = evenkeel::engine::Select::Ids(vec![parked.to_owned()]);
    assert!(running.handle.redrive(select).await.unwrap()[0].done);
    tokio::time::sleep(300 * SECOND).await;
    let counts = running.handle.status().await.unwrap().counts;
    assert_eq!(counts.parked + counts.delayed, 3, "{counts:?}");
    running.stop().await.unwrap();
}

/// D11: what waits can be listed at any time, page by page.
#[tokio::test(start_paused = true)]
async fn d11_what_waits_is_listed_with_its_time_attempt_and_error() {
    let calls = Calls::new(|run, _| match run.id().split('-').next().unwrap() {
        "asks" => Do::again(HOUR),
        "fails" => Do::fail(),
        _ => Do::give_up(),
    });
    let retry = Retry { initial: HOUR, max_delay: HOUR, ..plain_retry() };
    let running = Running::start(builder(calls.clone()).options(ReconcilerOptions { retry, ..options() })).await;
    for number in 0..700 {
        for kind in ["asks", "fails", "parked"] {
            running.handle.trigger(&format!("{kind}-{number}")).unwrap();
            calls.until_count(&format!("{kind}-{number}"), 1).await;
        }
    }
    let mut all = Vec::new();
    let mut query = QueueQuery { limit: Some(300), ..QueueQuery::default() };
    loop {
        let page = running.handle.queues(query.clone()).await.unwrap();
        assert!(page.entries.len() <= 300);
        all.extend(page.entries);
        let Some(next) = page.next else { break };
        query.after = Some(next);
    }
    assert_eq!(all.len(), 2_100);
    for entry in &all {
        let is_parked = entry.id.starts_with("parked");
        assert_eq!(entry.due.is_some(), !is_parked, "{entry:?}");
        assert_eq!(entry.error.is_some(), !entry.id.starts_with("asks"), "{entry:?}");
        assert_eq!(entry.attempt, u32::from(!entry.id.starts_with("asks")), "{entry:?}");
    }
    let parked = QueueQuery { state: Some(IdState::Parked), ..QueueQuery::default() };
    assert_eq!(running.handle.queues(parked).await.unwrap().entries.len(), 700);
    running.stop().await.unwrap();
}

/// Takes letters, or refuses them while it is told to.
#[derive(Clone, Default)]
struct Letters(Arc<Mutex<(bool, Vec<Letter>)>>);

impl DeadLetter for Letters {
    fn send(&self, letter: Letter) -> BoxFuture<'_, Result<(), DeadLetterError>> {
        Box::pin(async move {
            tokio::time::sleep(100 * MS).await;
            let (refuses, taken) = &mut *lock(&self.0);
            if *refuses {
                return Err(DeadLetterError("the topic is gone".into()));
            }
            taken.push(letter);
            Ok(())
        })
    }
}

impl Letters {
    fn refuse(&self, refuse: bool) {
        lock(&self.0).0 = refuse;
    }

    fn taken(&self) -> Vec<Letter> {
        lock(&self.0).1.clone()
    }
}

/// D3: in memory a give-up counts as done once its dead letter has arrived; with a durable store once its record
/// stands, and the letter goes out too.
#[tokio::test(start_paused = true)]
async fn d3_a_give_up_is_done_when_its_letter_or_its_record_is_durable() {
    for store in [Faulty::memory(), Faulty::durable()] {
        let durable = evenkeel::RecordStore::is_durable(&store);
        let letters = Letters::default();
        letters.refuse(true);
        let calls = Calls::new(|_, number| if number < 3 { Do::fail() } else { Do::give_up() });
        let (feed, events) = Feed::new(Class::Event);
        let engine = with_store(&store, &calls).await.stream("events", feed);
        let running = Running::start(engine.dead_letter("events", Arc::new(letters.clone()))).await;
        events.send("x");
        running.until_state("x", IdState::Parked).await;
        tokio::time::sleep(60 * SECOND).await;
        assert_eq!(events.low_water(), u64::from(durable));
        let problems = running.handle.health().problems;
        assert!(problems[0].contains("dead letters cannot be sent: the topic is gone"), "{problems:?}");
        letters.refuse(false);
        events.until_low_water(1).await;
        until("the letter has arrived", || letters.taken().len() == 1).await;
        let letter = &letters.taken()[0];
        assert_eq!((letter.id.as_str(), letter.error.as_str(), letter.attempts), ("x", "no such zone", 3));
        assert!(letter.causes.iter().any(|cause| cause.to_string() == "topic/0@0"), "{letter:?}");
        until("all is well", || running.handle.health().ready).await;
        running.stop().await.unwrap();
        assert_eq!(letters.taken().len(), 1, "one letter");
    }
}

/// An id that was given up just before a stop: its letter still goes out.
#[tokio::test(start_paused = true)]
async fn d3_a_stop_waits_for_the_dead_letters_under_way() {
    for store in [Faulty::memory(), Faulty::durable()] {
        let letters = Letters::default();
        let calls = Calls::new(|_, _| Do::give_up());
        let (feed, events) = Feed::new(Class::Event);
        let engine = with_store(&store, &calls).await.stream("events", feed);
        let running = Running::start(engine.dead_letter("events", Arc::new(letters.clone()))).await;
        for number in 0..10 {
            events.send(&format!("id-{number}"));
        }
        until("all were given up", || calls.all().len() == 10).await;
        running.stop().await.unwrap();
        assert_eq!((letters.taken().len(), events.low_water()), (10, 10));
    }
}

/// X7: a durable trigger is answered when a crash cannot lose it any more, and the next process runs it.
#[tokio::test(start_paused = true)]
async fn x7_d12_a_durable_trigger_survives_a_crash() {
    let store = Faulty::durable();
    let calls = Calls::new(|_, _| Do::Ignore);
    let (running, _events) = fed(&store, &calls).await;
    store.set(Mode::Refuses);
    let handle = running.handle.clone();
    let asked = tokio::spawn(async move { handle.trigger_batch(vec!["x".into()], WaitFor::Durable).await });
    calls.until_count("x", 1).await;
    tokio::time::sleep(5 * SECOND).await;
    assert!(!asked.is_finished(), "not answered before it is durable");
    store.set(Mode::Well);
    assert_eq!(asked.await.unwrap()[0].result, TriggerResult::Durable);
    running.crash().await;
    let next = Calls::done();
    let (running, _events) = fed(&store, &next).await;
    next.until_count("x", 1).await;
    until("its record goes", || matches!(store.commits().last(), Some(RecordChange::Delete(id)) if id == "x")).await;
    running.stop().await.unwrap();
    // With no room for a record it is said, and the id runs all the same.
    let full = Faulty::durable();
    let calls = Calls::new(|run, _| if run.id() == "parked" { Do::give_up() } else { Do::done() });
    let engine = with_store(&full, &calls).await.limits(Limits { owed_records: 1, ..Limits::default() });
    let running = Running::start(engine).await;
    assert!(matches!(running.trigger("parked", WaitFor::Done).await, TriggerResult::Ended { .. }));
    assert!(matches!(running.trigger("y", WaitFor::Durable).await, TriggerResult::NotDurable { .. }));
    calls.until_count("y", 1).await;
    running.stop().await.unwrap();
}
