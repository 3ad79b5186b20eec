//! Reading, handing over, committing: the ordinary way, and back-pressure.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use evenkeel::EventStream as _;
use evenkeel::id::Partitioner;
use evenkeel::kafka::KafkaStream;

use crate::broker::Broker;
use crate::sink::Sink;
use crate::support::{Hand, Live, fresh, settings, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn k4_b04_commits_stay_below_open_work() {
    let Some(broker) = Broker::shared() else { return };
    let (hand, topic) = (Hand::new(broker), fresh("open-work"));
    hand.create(&topic, 2).await;
    hand.send_numbered(&topic, 2, "id", 0..10).await;
    let sink = Sink::new(Partitioner::Fnv1a, 1);
    sink.hold();
    let settings = settings(broker, &topic, 1);
    let live = Live::start(settings.clone(), sink);
    until("all events", || live.sink.count() == 10).await;
    // The first event of partition 0 stays open; everything else is done.
    let got = live.sink.got();
    let open = got.iter().find(|got| (got.partition, got.offset) == (0, 0)).unwrap();
    for done in got.iter().filter(|got| got.receipt != open.receipt) {
        live.sink.settle(done);
    }
    live.committer.commit_now(Duration::from_secs(20)).await.unwrap();
    let wanted = BTreeMap::from([(0, 0), (1, 5)]);
    assert_eq!(hand.committed(&settings.group, &topic, 2), wanted, "other partitions are not held back");
    // The process dies here: a second one finds the open event again, and what came after it.
    let second = Live::start(settings.clone(), Sink::new(Partitioner::Fnv1a, 1));
    until("the open event again", || second.sink.count() == 5).await;
    assert!(second.sink.got().iter().all(|got| got.partition == 0 && *got.topic == *topic));
    second.stop().await.unwrap();
    assert_eq!(hand.committed(&settings.group, &topic, 2), BTreeMap::from([(0, 5), (1, 5)]));
    live.sink.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn k4_b04_a_commit_at_delivery_would_be_seen() {
    let Some(broker) = Broker::shared() else { return };
    let (hand, topic) = (Hand::new(broker), fresh("planted"));
    hand.create(&topic, 1).await;
    hand.send_numbered(&topic, 1, "id", 0..10).await;
    let sink = Sink::new(Partitioner::Fnv1a, 1);
    sink.hold();
    let mut settings = settings(broker, &topic, 1);
    settings.fault_done_at_delivery = true;
    let live = Live::start(settings.clone(), sink);
    until("all events", || live.sink.count() == 10).await;
    live.committer.commit_now(Duration::from_secs(20)).await.unwrap();
    assert_eq!(hand.committed(&settings.group, &topic, 1), BTreeMap::from([(0, 10)]), "nothing was done yet");
    live.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn k2_shards_read_their_partitions_and_come_and_go_without_rewinding() {
    let Some(broker) = Broker::shared() else { return };
    let (hand, topic) = (Hand::new(broker), fresh("shards"));
    hand.create(&topic, 6).await;
    hand.send_numbered(&topic, 6, "id", 0..60).await;
    let sink = Sink::new(Partitioner::Fnv1a, 1);
    sink.hold();
    sink.lead(&[0, 2]);
    let mut settings = settings(broker, &topic, 3);
    settings.commit_note = "term 7".into();
    let live = Live::start(settings.clone(), sink);
    // This sink has one shard only, so ids go to shard 0; the stream reads by partition.
    let by_partition = |live: &Live| {
        let mut counts: BTreeMap<i32, usize> = BTreeMap::new();
        for got in live.sink.got() {
            *counts.entry(got.partition).or_default() += 1;
        }
        counts
    };
    until("the partitions of shards 0 and 2", || live.sink.count() == 40).await;
    assert_eq!(by_partition(&live), BTreeMap::from([(0, 10), (2, 10), (3, 10), (5, 10)]));
    // A shard comes: the others, none of whose events are done, are not read again.
    live.sink.lead(&[0, 1, 2]);
    until("shard 1", || live.sink.count() == 60).await;
    hand.send_numbered(&topic, 6, "more", 0..6).await;
    until("what came later", || live.sink.count() == 66).await;
    assert!(by_partition(&live).values().all(|count| *count == 11));
    // A shard goes: what of it is done is committed, what is under way may still end.
    live.sink.lead(&[0, 2]);
    let of_1 = |got: &crate::sink::Got| got.partition % 3 == 1;
    for got in live.sink.got().iter().filter(|got| of_1(got)) {
        live.sink.settle(got);
    }
    live.committer.commit_now(Duration::from_secs(20)).await.unwrap();
    let committed = hand.committed(&settings.group, &topic, 6);
    assert_eq!(committed, BTreeMap::from([(0, 0), (1, 11), (2, 0), (3, 0), (4, 11), (5, 0)]));
    assert_eq!(hand.commit_note(&settings.group, &topic, 4), "term 7");
    hand.send_numbered(&topic, 6, "late", 0..6).await;
    until("the shards that stayed", || live.sink.count() == 70).await;
    assert!(live.sink.got()[66..].iter().all(|got| !of_1(got)));
    live.sink.release();
    live.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn b49_late_answers_of_an_earlier_assignment_settle_nothing() {
    let Some(broker) = Broker::shared() else { return };
    let (hand, topic) = (Hand::new(broker), fresh("late"));
    hand.create(&topic, 1).await;
    hand.send_numbered(&topic, 1, "id", 0..3).await;
    let sink = Sink::new(Partitioner::Fnv1a, 1);
    sink.hold();
    let settings = settings(broker, &topic, 1);
    let live = Live::start(settings.clone(), sink);
    until("the first pass", || live.sink.count() == 3).await;
    let first = live.sink.got();
    live.sink.lead(&[]);
    live.committer.commit_now(Duration::from_secs(20)).await.unwrap();
    live.sink.lead(&[0]);
    until("the second pass", || live.sink.count() == 6).await;
    for got in &first {
        live.sink.settle(got);
    }
    live.committer.commit_now(Duration::from_secs(20)).await.unwrap();
    assert_eq!(hand.committed(&settings.group, &topic, 1), BTreeMap::from([(0, 0)]));
    live.sink.release();
    live.committer.commit_now(Duration::from_secs(20)).await.unwrap();
    assert_eq!(hand.committed(&settings.group, &topic, 1), BTreeMap::from([(0, 3)]));
    live.stop().await.unwrap();
}

/// B51: a shard goes and comes back while its events are open and the only thread there is is taken. Kafka's thread
/// waits for nothing that must pass through that one, nor the other way round.
#[tokio::test]
#[expect(clippy::disallowed_methods, reason = "takes the thread, which is the point")]
async fn k2_b51_shards_change_while_the_only_thread_is_taken() {
    let Some(broker) = Broker::shared() else { return };
    let (hand, topic) = (Hand::new(broker), fresh("taken"));
    hand.create(&topic, 2).await;
    hand.send_numbered(&topic, 2, "id", 0..10).await;
    let sink = Sink::new(Partitioner::Fnv1a, 1);
    sink.hold();
    let settings = settings(broker, &topic, 2);
    sink.lead(&[0, 1]);
    let live = Live::start(settings.clone(), sink);
    until("both partitions", || live.sink.count() == 10).await;
    for shards in [&[0][..], &[0, 1]] {
        live.sink.lead(shards);
        std::thread::sleep(Duration::from_secs(3));
        tokio::task::yield_now().await;
    }
    live.sink.release();
    hand.send_numbered(&topic, 2, "id", 10..20).await;
    until("what came later", || live.sink.ids().len() == 20).await;
    assert_eq!((live.has_ended(), live.sink.problem()), (false, None));
    until("everything is settled", || {
        live.sink.release();
        hand.committed(&settings.group, &topic, 2) == BTreeMap::from([(0, 10), (1, 10)])
    })
    .await;
    live.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn k5_b50_a_full_shard_pauses_and_resumes_without_loss() {
    let Some(broker) = Broker::shared() else { return };
    let (hand, topic) = (Hand::new(broker), fresh("full"));
    hand.create(&topic, 4).await;
    hand.send_numbered(&topic, 4, "id", 0..20_000).await;
    let sink = Sink::new(Partitioner::Fnv1a, 1);
    sink.hold();
    sink.set_room(1_000);
    let settings = settings(broker, &topic, 1);
    let live = Live::start(settings.clone(), sink);
    until("the shard is full", || live.sink.count() == 1_000 && live.sink.refused() >= 4).await;
    // Ten seconds full: longer than `max.poll.interval.ms` would allow a group's member that does not poll.
    let began = Instant::now();
    until("ten seconds", || began.elapsed() > Duration::from_secs(10)).await;
    assert!(live.sink.refused() < 100, "it waits for room and does not ask all the time: {}", live.sink.refused());
    assert_eq!((live.sink.count(), live.has_ended()), (1_000, false));
    assert_eq!(live.sink.problem(), None);
    live.committer.commit_now(Duration::from_secs(20)).await.unwrap();
    let committed = hand.committed(&settings.group, &topic, 4);
    assert!(committed.values().all(|offset| *offset == 0), "the event in hand is owed: {committed:?}");
    // Room comes in small steps, so that partitions pause and resume many times.
    for room in (2_000..20_000).step_by(1_000) {
        live.sink.set_room(room);
        until("more room is used", || live.sink.count() == room).await;
    }
    live.sink.release();
    until("everything", || live.sink.count() >= 20_000).await;
    assert_eq!((live.sink.count(), live.sink.ids().len()), (20_000, 20_000), "nothing lost, nothing twice");
    live.sink.release();
    live.stop().await.unwrap();
    assert!(hand.committed(&settings.group, &topic, 4).values().all(|offset| *offset == 5_000));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn q8_a_stream_that_is_dropped_and_runs_again_goes_on_where_it_was() {
    let Some(broker) = Broker::shared() else { return };
    let (hand, topic) = (Hand::new(broker), fresh("again"));
    hand.create(&topic, 1).await;
    hand.send_numbered(&topic, 1, "id", 0..10).await;
    let sink = Sink::new(Partitioner::Fnv1a, 1);
    sink.hold();
    let settings = settings(broker, &topic, 1);
    let mut stream = KafkaStream::new(settings.clone()).unwrap();
    let committer = stream.committer();
    tokio::select! {
        result = stream.run(sink.events()) => panic!("ended: {result:?}"),
        () = until("the first pass", || sink.count() == 10) => {}
    }
    // Dropped, as after an error. The committer still commits what the engine settles.
    for got in &sink.got()[..4] {
        sink.settle(got);
    }
    committer.commit_now(Duration::from_secs(20)).await.unwrap();
    assert_eq!(hand.committed(&settings.group, &topic, 1), BTreeMap::from([(0, 4)]));
    sink.settle(&sink.got()[4]);
    tokio::select! {
        result = stream.run(sink.events()) => panic!("ended: {result:?}"),
        () = until("the second pass", || sink.count() == 15) => {}
    }
    let second: Vec<u64> = sink.got()[10..].iter().map(|got| got.offset).collect();
    assert_eq!(second, [5, 6, 7, 8, 9], "what was done before it ran again was committed first");
    sink.release();
    committer.close(Duration::from_secs(20)).await.unwrap();
    assert_eq!(hand.committed(&settings.group, &topic, 1), BTreeMap::from([(0, 10)]));
}
