//! What can be gone or broken (K6): topics, offsets, brokers. Each has a state in words, and ends by itself.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel::id::Partitioner;
use rdkafka::producer::{FutureProducer, FutureRecord, Producer as _};

use crate::broker::Broker;
use crate::sink::Sink;
use crate::support::{Hand, Live, SOON, fresh, settings, until};

const MINUTE: Duration = Duration::from_secs(60);

fn sink() -> std::sync::Arc<Sink> {
    Sink::new(Partitioner::Fnv1a, 1)
}

async fn send_in_transaction(hand: &Hand, topic: &str, ids: std::ops::Range<usize>, commit: bool) {
    let mut config = hand.config();
    let producer: FutureProducer = config.set("transactional.id", fresh("tx")).create().unwrap();
    let blocking = tokio::task::spawn_blocking(move || {
        producer.init_transactions(MINUTE).unwrap();
        producer.begin_transaction().unwrap();
        producer
    });
    let producer = blocking.await.unwrap();
    for i in ids {
        let key = format!("tx-{i}");
        let record = FutureRecord::to(topic).partition(0).key(&key).payload("x");
        producer.send(record, MINUTE).await.map_err(|(error, _)| error).unwrap();
    }
    let end = move || if commit { producer.commit_transaction(MINUTE) } else { producer.abort_transaction(MINUTE) };
    tokio::task::spawn_blocking(end).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn k4_b05_what_transactions_leave_in_the_log_holds_nothing_back() {
    let Some(broker) = Broker::shared() else { return };
    let (hand, topic) = (Hand::new(broker), fresh("transactions"));
    hand.create(&topic, 1).await;
    let settings = settings(broker, &topic, 1);
    let live = Live::start(settings.clone(), sink());
    send_in_transaction(&hand, &topic, 0..5, true).await;
    send_in_transaction(&hand, &topic, 5..8, false).await;
    until("what was committed", || live.sink.count() == 5).await;
    // Five records, a commit marker, three aborted records, an abort marker: nothing of the last four is ever
    // delivered.
    until("the end of the log is committed", || {
        hand.committed(&settings.group, &topic, 1) == BTreeMap::from([(0, 10)])
    })
    .await;
    assert_eq!(hand.ends(&topic, 0), (0, 10));
    send_in_transaction(&hand, &topic, 8..9, true).await;
    until("what comes after", || live.sink.count() == 6).await;
    live.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn k4_an_open_transaction_is_not_passed() {
    let Some(broker) = Broker::shared() else { return };
    let (hand, topic) = (Hand::new(broker), fresh("open-transaction"));
    hand.create(&topic, 1).await;
    let settings = settings(broker, &topic, 1);
    let live = Live::start(settings.clone(), sink());
    hand.send_numbered(&topic, 1, "before", 0..2).await;
    let mut config = hand.config();
    let producer: FutureProducer = config.set("transactional.id", fresh("tx")).create().unwrap();
    let producer = tokio::task::spawn_blocking(move || {
        producer.init_transactions(MINUTE).unwrap();
        producer.begin_transaction().unwrap();
        producer
    });
    let producer = producer.await.unwrap();
    let record = FutureRecord::to(&topic).partition(0).key("inside").payload("x");
    producer.send(record, MINUTE).await.map_err(|(error, _)| error).unwrap();
    hand.send_numbered(&topic, 1, "after", 0..2).await;
    until("what stands before it", || live.sink.count() == 2).await;
    // Several looks at the end of the log, which is behind the open transaction.
    let looks = tokio::time::Instant::now();
    until("some looks", || looks.elapsed() > 6 * settings.timing.watch).await;
    assert_eq!(hand.committed(&settings.group, &topic, 1), BTreeMap::from([(0, 2)]));
    tokio::task::spawn_blocking(move || producer.commit_transaction(MINUTE)).await.unwrap().unwrap();
    until("the transaction and what stands after it", || live.sink.count() == 5).await;
    live.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn k6_a_committed_offset_that_is_gone_restarts_at_the_start_of_the_log() {
    let Some(broker) = Broker::shared() else { return };
    let (hand, topic) = (Hand::new(broker), fresh("gone-before"));
    hand.create(&topic, 1).await;
    hand.send_numbered(&topic, 1, "id", 0..10).await;
    let settings = settings(broker, &topic, 1);
    let first = Live::start(settings.clone(), sink());
    until("all of it", || first.sink.count() == 10).await;
    first.stop().await.unwrap();
    hand.send_numbered(&topic, 1, "id", 10..20).await;
    hand.delete_below(&topic, 0, 15).await;
    let second = Live::start(settings.clone(), sink());
    until("what is left", || second.sink.count() == 5).await;
    assert!(second.sink.has_said("offsets 10 to 14 of"), "{:?}", second.sink.problem());
    assert_eq!(second.sink.errors("offset_reset"), 1);
    tokio::time::timeout(SOON, settings.resync.notified()).await.expect("a resync is asked for");
    second.stop().await.unwrap();
    assert_eq!(hand.committed(&settings.group, &topic, 1), BTreeMap::from([(0, 20)]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn k6_records_that_are_deleted_under_a_paused_reader_are_said_and_passed() {
    let Some(broker) = Broker::shared() else { return };
    let (hand, topic) = (Hand::new(broker), fresh("gone-meanwhile"));
    hand.create(&topic, 2).await;
    hand.send_numbered(&topic, 2, "id", 0..40).await;
    let sink = sink();
    sink.hold();
    sink.set_room(4);
    let settings = settings(broker, &topic, 1);
    let live = Live::start(settings.clone(), sink);
    until("it is full", || live.sink.count() == 4 && live.sink.refused() >= 2).await;
    hand.delete_below(&topic, 0, 20).await;
    live.sink.release();
    until("the other partition", || live.sink.got().iter().filter(|got| got.partition == 1).count() == 20).await;
    until("it is said", || live.sink.has_said("were deleted before they were read")).await;
    hand.send_numbered(&topic, 2, "later", 0..2).await;
    until("what comes later", || live.sink.ids().contains("later-0") && live.sink.ids().contains("later-1")).await;
    live.sink.release();
    live.stop().await.unwrap();
    assert_eq!(hand.committed(&settings.group, &topic, 2), BTreeMap::from([(0, 21), (1, 21)]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn b54_a_topic_that_is_missing_is_read_as_soon_as_it_is_there() {
    let Some(broker) = Broker::shared() else { return };
    let (hand, topic, there) = (Hand::new(broker), fresh("missing"), fresh("there"));
    hand.create(&there, 1).await;
    hand.send_numbered(&there, 1, "other", 0..1).await;
    let mut settings = settings(broker, &topic, 1);
    settings.topics.push(there);
    let live = Live::start(settings, sink());
    until("it is said", || live.sink.problem().is_some_and(|p| p.contains(&format!("there is no topic {topic};"))))
        .await;
    until("the other topic flows", || live.sink.count() == 1).await;
    hand.create(&topic, 2).await;
    hand.send_numbered(&topic, 2, "id", 0..4).await;
    until("its events", || live.sink.count() == 5).await;
    live.until_well().await;
    live.stop().await.unwrap();
}

/// Deletes a topic under its reader, makes it anew and sends so many events; all of them must come.
async fn recreate(before: usize, after: usize) {
    let Some(broker) = Broker::shared() else { return };
    let (hand, topic) = (Hand::new(broker), fresh("anew"));
    hand.create(&topic, 1).await;
    hand.send_numbered(&topic, 1, "before", 0..before).await;
    let settings = settings(broker, &topic, 1);
    let live = Live::start(settings.clone(), sink());
    until("all of the first", || live.sink.count() == before).await;
    live.committer.commit_now(MINUTE).await.unwrap();
    hand.delete(&topic).await;
    hand.create(&topic, 1).await;
    hand.send_numbered(&topic, 1, "after", 0..after).await;
    until("all of the second", || (0..after).all(|i| live.sink.ids().contains(&format!("after-{i}")))).await;
    tokio::time::timeout(SOON, settings.resync.notified()).await.expect("a resync is asked for");
    let end = i64::try_from(after).unwrap();
    until("its end is committed", || hand.committed(&settings.group, &topic, 1) == BTreeMap::from([(0, end)])).await;
    live.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn b54_k6_a_topic_made_anew_with_fewer_events_is_read_from_its_start() {
    recreate(50, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn b54_k6_a_topic_made_anew_with_more_events_is_read_from_its_start() {
    recreate(3, 50).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn b54_k2_a_topic_that_grows_under_load_is_read_whole() {
    let Some(broker) = Broker::shared() else { return };
    let (hand, topic) = (Hand::new(broker), fresh("grows"));
    hand.create(&topic, 2).await;
    let live = Live::start(settings(broker, &topic, 1), sink());
    let other = Hand::new(broker);
    let load = async {
        for batch in 0..40 {
            other.send_numbered(&topic, 2, "id", batch * 50..(batch + 1) * 50).await;
        }
    };
    tokio::join!(load, async {
        until("the load", || live.sink.count() > 100).await;
        hand.grow(&topic, 4).await;
        hand.send_numbered(&topic, 4, "new", 0..400).await;
    });
    until("everything", || live.sink.count() == 2_400).await;
    assert_eq!(live.sink.ids().len(), 2_400, "each once");
    assert_eq!(live.sink.problem(), None);
    live.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn k2_partitions_that_do_not_fit_the_shards_are_reported() {
    let Some(broker) = Broker::shared() else { return };
    let (hand, topic) = (Hand::new(broker), fresh("uneven"));
    hand.create(&topic, 4).await;
    let live = Live::start(settings(broker, &topic, 3), Sink::new(Partitioner::Fnv1a, 3));
    let wanted = format!("no multiple of the 3 shards ({topic} has 4)");
    until("it is said", || live.sink.problem().is_some_and(|p| p.contains(&wanted))).await;
    hand.grow(&topic, 6).await;
    live.until_well().await;
    live.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn k6_b06_a_broker_that_goes_and_comes_is_waited_for() {
    let Some(broker) = Broker::own().await else { return };
    let (hand, topic) = (Hand::new(&broker), fresh("restart"));
    hand.create(&topic, 2).await;
    let settings = settings(&broker, &topic, 1);
    let live = Live::start(settings.clone(), sink());
    hand.send_numbered(&topic, 2, "id", 0..10).await;
    until("the first events", || live.sink.count() == 10).await;
    live.committer.commit_now(MINUTE).await.unwrap();
    for (round, kill) in [(1, false), (2, true)] {
        if kill {
            broker.kill();
        } else {
            broker.stop();
        }
        until("it is said", || live.sink.problem().is_some_and(|p| p.contains("can be reached"))).await;
        broker.start();
        hand.send_numbered(&topic, 2, "id", round * 10..(round + 1) * 10).await;
        until("later events", || live.sink.ids().len() == (round + 1) * 10).await;
        live.until_well().await;
    }
    // Frozen: connections stay open and nothing is answered, which no error tells.
    broker.freeze();
    until("the silence is said", || live.sink.problem().is_some_and(|p| p.contains("no Kafka broker of"))).await;
    broker.thaw();
    hand.send_numbered(&topic, 2, "id", 30..40).await;
    until("events after the thaw", || live.sink.ids().len() == 40).await;
    live.until_well().await;
    assert!(!live.has_ended(), "the stream never was made anew");
    assert!(live.sink.errors("unreachable") < 200, "no storm: {}", live.sink.errors("unreachable"));
    live.stop().await.unwrap();
    assert_eq!(hand.committed(&settings.group, &topic, 2), BTreeMap::from([(0, 20), (1, 20)]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn b56_closing_while_the_broker_is_dead_returns_in_time() {
    let Some(broker) = Broker::own().await else { return };
    let (hand, topic) = (Hand::new(&broker), fresh("dead"));
    hand.create(&topic, 4).await;
    let mut settings = settings(&broker, &topic, 1);
    settings.dead_letter = Some(fresh("no-letters"));
    let live = Live::start(settings, sink());
    hand.send_numbered(&topic, 4, "id", 0..100).await;
    until("events", || live.sink.count() == 100).await;
    live.committer.commit_now(MINUTE).await.unwrap();
    live.sink.hold();
    hand.send_numbered(&topic, 4, "open", 0..8).await;
    until("more events", || live.sink.count() == 108).await;
    broker.kill();
    for got in &live.sink.got()[100..] {
        live.sink.settle(got);
    }
    live.sink.stop();
    let bound = Duration::from_secs(3);
    let began = std::time::Instant::now();
    // One worker thread: a close that blocked it would stop this timer too.
    let ticks = tokio::spawn(async {
        let mut ticks = 0_u32;
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            ticks += 1;
            if ticks == 20 {
                return;
            }
        }
    });
    assert!(live.committer.close(bound).await.is_err(), "the last commit cannot have arrived");
    ticks.await.unwrap();
    assert!(began.elapsed() < MINUTE / 2, "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn k6_brokers_that_are_not_there_are_said_and_waited_for() {
    let Some(broker) = Broker::own().await else { return };
    let (hand, topic) = (Hand::new(&broker), fresh("absent"));
    hand.create(&topic, 1).await;
    hand.send_numbered(&topic, 1, "id", 0..3).await;
    broker.stop();
    let live = Live::start(settings(&broker, &topic, 1), sink());
    until("it is said", || live.sink.problem().is_some_and(|p| p.contains("can be reached"))).await;
    assert!(!live.has_ended());
    broker.start();
    until("its events", || live.sink.count() == 3).await;
    live.until_well().await;
    live.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn k6_a_group_that_another_program_uses_is_said() {
    let Some(broker) = Broker::shared() else { return };
    let (hand, topic) = (Hand::new(broker), fresh("group"));
    hand.create(&topic, 1).await;
    let settings = settings(broker, &topic, 1);
    let mut config = hand.config();
    config.set("group.id", &settings.group).set("session.timeout.ms", "6000");
    let other: rdkafka::consumer::BaseConsumer = config.create().unwrap();
    rdkafka::consumer::Consumer::subscribe(&other, &[&topic]).unwrap();
    until("the other has joined", || {
        let _ = other.poll(Duration::from_millis(1));
        rdkafka::consumer::Consumer::assignment(&other).unwrap().count() == 1
    })
    .await;
    hand.send_numbered(&topic, 1, "id", 0..3).await;
    let live = Live::start(settings.clone(), sink());
    until("it is said", || live.sink.problem().is_some_and(|p| p.contains("another program subscribes"))).await;
    until("events flow all the same", || live.sink.count() == 3).await;
    tokio::task::spawn_blocking(move || drop(other)).await.unwrap();
    live.until_well().await;
    live.stop().await.unwrap();
    assert_eq!(hand.committed(&settings.group, &topic, 1), BTreeMap::from([(0, 3)]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn k6_access_that_is_denied_is_said_and_waited_for() {
    let Some(broker) = Broker::shared() else { return };
    let (hand, topic) = (Hand::new(broker), fresh("denied"));
    hand.create(&topic, 1).await;
    hand.send_numbered(&topic, 1, "id", 0..3).await;
    let mut settings = settings(broker, &topic, 1);
    settings.connection.brokers = vec![broker.sasl()];
    settings.connection.sasl = Some(evenkeel::kafka::Sasl::Password {
        mechanism: evenkeel::kafka::SaslMechanism::Plain,
        username: "alice".into(),
        password: evenkeel::kafka::Secret::new("alice-secret"),
    });
    let rules = [
        ("--topic", topic.clone(), "denies a topic"),
        ("--group", settings.group.clone(), "denies the consumer group"),
    ];
    for (kind, name, _) in &rules {
        deny(broker, "--add", kind, name).await;
    }
    let live = Live::start(settings.clone(), sink());
    for (kind, name, said) in &rules {
        until(said, || live.sink.problem().is_some_and(|problem| problem.contains(said))).await;
        assert_eq!(live.sink.count(), 0);
        deny(broker, "--remove", kind, name).await;
    }
    until("its events", || live.sink.count() == 3).await;
    live.until_well().await;
    live.stop().await.unwrap();
    assert_eq!(hand.committed(&settings.group, &topic, 1), BTreeMap::from([(0, 3)]));
}

/// Denies alice a topic or a group, or no longer does.
async fn deny(broker: &Broker, what: &str, kind: &str, name: &str) {
    let mut args = vec![what, "--deny-principal", "User:alice", "--operation", "All", kind, name];
    if what == "--remove" {
        args.push("--force");
    }
    broker.tool("org.apache.kafka.tools.AclCommand", &args).await;
}
