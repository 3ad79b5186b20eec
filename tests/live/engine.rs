//! From a topic to a reconciler and back to the committed offset, through the binary (K1, K4, K5, D3, D12).

use std::collections::BTreeSet;

use rdkafka::message::{Headers as _, Message as _};
use rustix::process::Signal;

use crate::broker::Broker;
use crate::engine_world::{More, Target, answered};
use crate::recorder::{Recorder, Reply};
use crate::run_world::wait;
use crate::support::{fresh, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k4_events_are_reconciled_and_committed_and_a_restart_reads_nothing_again() {
    let Some(broker) = Broker::shared() else { return };
    let recorder = Recorder::start(|_, _| Reply::Done);
    let more = More { top: "shards: 3\n", ..More::default() };
    let target = Target::new(broker, &recorder, 6, &more).await;
    let places = target.send("id", 0..2_000).await;
    let mut process = target.start();
    until("all are answered", || answered(&recorder, "id", 0..2_000) == 2_000).await;
    until("all is committed", || target.is_all_committed()).await;
    // T5: each run knows where its event stood.
    let (id, partition, offset) = &places[777];
    let causes = &recorder.of(id)[0].causes;
    let event = &causes[0]["event"];
    assert_eq!((event["topic"].as_str(), event["stream"].as_str()), (Some(target.topic.as_str()), Some("orders")));
    assert_eq!((event["partition"].as_i64(), event["offset"].as_i64()), (Some((*partition).into()), Some(*offset)));
    assert_eq!(process.stop().0.code(), Some(0), "{}", process.log());
    assert_eq!(recorder.total(), 2_000, "each once");

    let mut process = target.start();
    target.send("probe", 0..6).await;
    until("what came later", || answered(&recorder, "probe", 0..6) == 6).await;
    assert_eq!(recorder.total(), 2_006, "nothing was read again");
    // A stop right after the last answer still commits it.
    assert_eq!(process.stop().0.code(), Some(0));
    assert!(target.is_all_committed(), "{:?} of {:?}", target.committed(), target.ends());
}

/// Stops under load: what runs finishes, what waits is recorded, everything is committed, and no id runs twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l5_k4_a_stop_under_load_hands_everything_over_and_repeats_nothing() {
    let Some(broker) = Broker::shared() else { return };
    let recorder = Recorder::start(|_, _| Reply::After(std::time::Duration::from_millis(20), Box::new(Reply::Done)));
    let more = More { reconciler: "  concurrency: 8\n", ..More::default() };
    let target = Target::new(broker, &recorder, 4, &more).await;
    target.send("id", 0..1_500).await;
    for part in 1..=4 {
        let mut process = target.start();
        until("a part is done", || recorder.total() >= part * 200).await;
        assert_eq!(process.stop().0.code(), Some(0), "{}", process.log());
        assert_eq!(recorder.in_flight().0, 0);
    }
    let mut last = target.start();
    until("all are answered", || answered(&recorder, "id", 0..1_500) == 1_500).await;
    until("all is committed", || target.is_all_committed()).await;
    wait("nothing is owed", || last.json(&["status"])["counts"]["owed_records"] == 0);
    assert_eq!(last.stop().0.code(), Some(0));
    assert_eq!(recorder.total(), 1_500, "no id ran twice over four stops");
}

/// What is given up goes to the dead-letter topic and is committed; with and without a durable store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d3_k1_what_is_given_up_or_unusable_goes_to_the_dead_letters_and_is_committed() {
    let Some(broker) = Broker::shared() else { return };
    for store in ["", "data_dir: none\n"] {
        let recorder = Recorder::start(|id, _| match id.split('-').next() {
            Some("hopeless") => Reply::Status(422),
            Some("fails") => Reply::Json(serde_json::json!({"error": {"message": "no route to the registry"}})),
            _ => Reply::Done,
        });
        let letters = fresh("letters");
        let more = More {
            reconciler: "  retry: {initial: 100ms, max_delay: 100ms, max_retries: 2}\n",
            stream: &format!(", dead_letter: {letters}"),
            top: store,
            ..More::default()
        };
        let target = Target::new(broker, &recorder, 2, &more).await;
        target.hand.create(&letters, 1).await;
        target.send("good", 0..50).await;
        target.send("hopeless", 0..5).await;
        target.send("fails", 0..5).await;
        // B53: no key, no text, a control character; each followed by a good one.
        for (number, key) in [None, Some(b"a\xff".as_slice()), Some(b"a\x07"), Some(b"")].into_iter().enumerate() {
            target.hand.send(&target.topic, 0, key, Some(b"x")).await;
            target.send("after", number..number + 1).await;
        }
        let mut process = target.start();
        until("all is committed", || target.is_all_committed()).await;
        assert_eq!((answered(&recorder, "good", 0..50), answered(&recorder, "after", 0..4)), (50, 4));
        let mut about = BTreeSet::new();
        for message in target.hand.read(&letters, 1, 13).await {
            let headers = message.headers().unwrap();
            let text: Vec<String> = headers
                .iter()
                .map(|header| format!("{}={}", header.key, String::from_utf8_lossy(header.value.unwrap_or(b""))))
                .collect();
            let key = message.key().map(|key| String::from_utf8_lossy(key).into_owned()).unwrap_or_default();
            about.insert(format!("{key}: {}", text.join(", ")));
        }
        for number in 0..5 {
            let of = |name: &str| about.iter().find(|letter| letter.starts_with(&format!("{name}-{number}:"))).cloned();
            assert!(of("fails").unwrap().contains("no route to the registry"), "{about:?}");
            assert!(of("hopeless").is_some(), "{about:?}");
        }
        assert_eq!(recorder.count("fails-0"), 3, "an attempt and two retries");
        assert_eq!(process.json(&["status"])["counts"]["parked"], 10);
        assert_eq!(process.stop().0.code(), Some(0));
    }
}

/// A full table: partitions pause, readiness says so, and it goes on by itself without loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q5_k5_b50_a_full_table_pauses_and_goes_on() {
    let Some(broker) = Broker::shared() else { return };
    let recorder = Recorder::start(|_, _| Reply::Hold);
    // One lane: the ids of one partition share few lanes of many.
    let lanes = "  timeout: none\n  workers: 1\n";
    let more = More { reconciler: lanes, top: "limits: {admitted: 20}\n", ..More::default() };
    let target = Target::new(broker, &recorder, 4, &more).await;
    target.send("id", 0..3_000).await;
    let mut process = target.start();
    until("twenty are under way", || recorder.in_flight().0 == 20).await;
    until("it is said", || !process.ask(["status"]).stdout.is_empty() && ready(&process).contains("is full")).await;
    assert!(target.committed().values().all(|offset| *offset == 0), "{:?}", target.committed());
    // It pauses and resumes many times.
    for number in 1..=20 {
        recorder.release(100);
        until("more are done", || recorder.total() >= number * 100).await;
    }
    recorder.release(1_000);
    until("all are answered", || answered(&recorder, "id", 0..3_000) == 3_000).await;
    until("all is committed", || target.is_all_committed()).await;
    assert_eq!((recorder.total(), recorder.in_flight().1), (3_000, 20));
    until("it is ready again", || ready(&process).is_empty()).await;
    assert_eq!(process.stop().0.code(), Some(0));
}

/// What `/readyz` finds wrong.
fn ready(process: &crate::run_world::Process) -> String {
    let problems = process.json(&["status"])["problems"].as_array().unwrap().clone();
    problems.iter().map(|problem| problem.as_str().unwrap()).collect::<Vec<_>>().join("; ")
}

/// D12: an id that holds its partition back gets a record after `max_hold`; then its offset is let go of, and a kill -9
/// does not lose it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d12_an_owed_record_lets_the_offset_go_and_survives_kill_9() {
    let Some(broker) = Broker::shared() else { return };
    let recorder = Recorder::start(|id, number| match (id, number) {
        ("slow-0", 1) => Reply::Hang,
        ("asks-0", 1) => Reply::Json(serde_json::json!({"requeue_after": "1h"})),
        _ => Reply::Done,
    });
    let more = More { reconciler: "  timeout: none\n", top: "timing: {max_hold: 1s}\n", ..More::default() };
    let target = Target::new(broker, &recorder, 2, &more).await;
    target.send("slow", 0..1).await;
    target.send("asks", 0..1).await;
    target.send("id", 0..100).await;
    let mut process = target.start();
    until("all others are answered", || answered(&recorder, "id", 0..100) == 100).await;
    until("all is committed", || target.is_all_committed()).await;
    assert_eq!(recorder.in_flight().0, 1, "the slow one goes on");
    assert_eq!(process.json(&["status"])["counts"]["owed_records"], 2);
    process.kill();
    let mut process = target.start();
    until("the slow one runs again", || recorder.count("slow-0") == 2).await;
    let again = &recorder.of("slow-0")[1];
    assert!(again.causes.iter().any(|cause| cause.get("recovered").is_some()), "{again:?}");
    assert_eq!(recorder.of("slow-0")[0].key, again.key, "it answers the same event");
    wait("its record goes", || process.json(&["status"])["counts"]["owed_records"] == 1);
    assert_eq!(process.json(&["explain", "asks-0"])["state"], "delayed");
    assert_eq!(recorder.total(), 103, "nothing else ran again");
    process.signal(Signal::TERM);
    assert_eq!(process.ended().0.code(), Some(0));
}
