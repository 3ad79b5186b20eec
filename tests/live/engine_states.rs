//! What can happen to brokers and topics while a controller runs (K6, B06, B54, B55, B56, B80), through the binary.

use std::time::{Duration, Instant};

use evenkeel::kafka::PREFETCH_BYTES;

use crate::broker::Broker;
use crate::engine_world::{More, Target, answered};
use crate::recorder::{Recorder, Reply};
use crate::run_world::Process;
use crate::support::until;

/// What an orchestrator grants by default, and a busy machine's delays.
const GRACE: Duration = Duration::from_secs(45);

fn probe(process: &Process, path: &str) -> u16 {
    let address = process.address();
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    std::io::Write::write_all(&mut stream, request.as_bytes()).unwrap();
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut stream, &mut answer).unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

fn problems(process: &Process) -> String {
    process.json(&["status"])["problems"].to_string()
}

/// B06, B80, B56: the broker stops, comes back and dies under load. The process lives, says what is wrong, goes on by
/// itself, and a stop without a broker ends in time; nothing is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k6_b80_b56_a_broker_that_goes_comes_and_dies_under_load() {
    let Some(broker) = Broker::own().await else { return };
    let recorder = Recorder::start(|_, _| Reply::After(Duration::from_millis(5), Box::new(Reply::Done)));
    let more = More { top: "drain_timeout: 5s\n", reconciler: "  cancel_grace: 1s\n", ..More::default() };
    let target = Target::new(&broker, &recorder, 4, &more).await;
    let mut process = target.start();
    target.send("first", 0..500).await;
    until("some are done", || recorder.total() > 100).await;
    broker.stop();
    until("it is said", || {
        assert_eq!(probe(&process, "/livez"), 200);
        problems(&process).contains("stream orders")
    })
    .await;
    assert_eq!(probe(&process, "/readyz"), 503);
    broker.start();
    let more = tokio::join!(target.send("second", 0..500), async {
        until("all are answered", || {
            answered(&recorder, "first", 0..500) + answered(&recorder, "second", 0..500) == 1_000
        })
        .await;
    });
    assert_eq!(more.0.len(), 500);
    until("all is committed", || target.is_all_committed()).await;
    until("it is well", || probe(&process, "/readyz") == 200).await;
    assert_eq!(recorder.total(), 1_000, "the broker's absence repeated nothing");

    // It dies while runs are under way; the stop cannot commit them, and ends all the same.
    target.send("third", 0..300).await;
    until("some of them ran", || answered(&recorder, "third", 0..300) > 50).await;
    broker.kill();
    let (status, took) = process.stop();
    assert_eq!(status.code(), Some(0), "{}", process.log());
    assert!(took < GRACE, "{took:?}");
    broker.start();
    let mut last = target.start();
    until("all are answered", || answered(&recorder, "third", 0..300) == 300).await;
    until("all is committed", || target.is_all_committed()).await;
    assert_eq!(last.stop().0.code(), Some(0));
}

/// B54: a topic that is not there yet, grows under load, and is deleted and made anew.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k6_b54_a_topic_that_is_late_grows_and_is_made_anew() {
    let Some(broker) = Broker::shared() else { return };
    let recorder = Recorder::start(|_, _| Reply::Done);
    let target = Target::absent(broker, &recorder, 2, &More::default());
    let mut process = target.start();
    until("it is said", || problems(&process).contains("there is no topic")).await;
    assert_eq!((probe(&process, "/livez"), probe(&process, "/readyz")), (200, 503));
    target.hand.create(&target.topic, 2).await;
    target.send("late", 0..200).await;
    until("it is read", || answered(&recorder, "late", 0..200) == 200).await;

    let load = async {
        for batch in 0..20 {
            target.send("load", batch * 50..(batch + 1) * 50).await;
        }
    };
    let mut grown = Target::absent(broker, &recorder, 4, &More::default());
    (grown.name, grown.topic) = (target.name.clone(), target.topic.clone());
    tokio::join!(load, async {
        until("the load", || recorder.total() > 300).await;
        target.hand.grow(&target.topic, 4).await;
        grown.send("grown", 0..400).await;
    });
    until("everything", || answered(&recorder, "load", 0..1_000) + answered(&recorder, "grown", 0..400) == 1_400).await;
    until("all is committed", || grown.is_all_committed()).await;
    assert_eq!(recorder.total(), 1_600, "each once");

    target.hand.delete(&target.topic).await;
    target.hand.create(&target.topic, 4).await;
    grown.send("anew", 0..100).await;
    until("it is read from its start", || answered(&recorder, "anew", 0..100) == 100).await;
    until("its ends are committed", || grown.is_all_committed()).await;
    assert_eq!(process.stop().0.code(), Some(0), "{}", process.log());
}

/// K6: offsets that are gone are passed, said and counted, and everything that exists is looked at at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k6_b54_offsets_that_are_gone_are_followed_by_a_resync_at_once() {
    let Some(broker) = Broker::shared() else { return };
    let recorder = Recorder::start(|_, _| Reply::Done);
    let streams = "  all: {resync: {every: 90d, list: {exec: ./list.sh}}}\n";
    let target = Target::new(broker, &recorder, 1, &More { streams, ..More::default() }).await;
    target.project.script("list.sh", "#!/bin/sh\necho listed-0\necho listed-1\n");
    let mut first = target.start();
    target.send("id", 0..10).await;
    until("all of it", || answered(&recorder, "id", 0..10) == 10 && recorder.count("listed-1") == 1).await;
    until("all is committed", || target.is_all_committed()).await;
    assert_eq!(first.stop().0.code(), Some(0));
    target.send("gone", 0..20).await;
    target.hand.delete_below(&target.topic, 0, 25).await;
    let mut second = target.start();
    until("what is left", || answered(&recorder, "gone", 15..20) == 5).await;
    // One list at the start of the process, and another one since events were lost.
    until("everything is looked at", || recorder.count("listed-0") == 3 && recorder.count("listed-1") == 3).await;
    let page = second.ask(["status"]);
    assert!(page.status.success());
    let log = second.log();
    assert!(log.contains("offsets 10 to 24"), "{log}");
    until("all is committed", || target.is_all_committed()).await;
    assert_eq!(second.stop().0.code(), Some(0));
}

/// B55: a backlog of 96 MiB in 64 partitions, a full table, and runs that do not end: the process does not grow with
/// it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b55_a_backlog_does_not_grow_the_process() {
    let Some(broker) = Broker::shared() else { return };
    let recorder = Recorder::start(|_, _| Reply::Hang);
    let more = More {
        reconciler: "  timeout: none\n  cancel_grace: 100ms\n",
        top: "limits: {admitted: 1}\ndrain_timeout: 1s\n",
        ..More::default()
    };
    let target = Target::new(broker, &recorder, 64, &more).await;
    let mut process = target.start();
    target.send("warm", 0..1).await;
    until("it is full", || recorder.in_flight().0 == 1).await;
    let before = peak(&process);
    // Values that do not compress.
    let value: Vec<u8> = (0..64_u64 << 10).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
    for partition in 0..64 {
        target.hand.send_many(&target.topic, partition, &value, 24).await;
    }
    until("it has fetched what it may", || problems(&process).contains("is full")).await;
    let began = Instant::now();
    until("a while", || began.elapsed() > Duration::from_secs(5)).await;
    let grown = peak(&process) - before;
    println!("grown by {} KiB", grown >> 10);
    assert!(grown < 4 * u64::from(PREFETCH_BYTES), "the process has grown by {grown} bytes");
    assert_eq!(process.stop().0.code(), Some(0), "{}", process.log());
    target.hand.delete(&target.topic).await;
}

/// The most memory that a process ever had, in bytes.
fn peak(process: &Process) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid().as_raw_nonzero())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() << 10
}
