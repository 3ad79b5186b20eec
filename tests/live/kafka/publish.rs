//! Partitions: `publish` and the shards agree with librdkafka's own partitioners (K2), and what does not is said (K3).

use std::collections::BTreeMap;

use evenkeel::id::{Partitioner, ShardId};
use evenkeel::kafka::{PublishError, Publisher};
use rdkafka::Message as _;
use rdkafka::producer::{FutureProducer, FutureRecord};

use crate::broker::Broker;
use crate::sink::Sink;
use crate::support::{Hand, Live, fresh, settings, until};

fn ids() -> Vec<String> {
    let mut ids: Vec<String> = (0..400).map(|i| format!("prod/Database/{i}")).collect();
    // Its FNV-1a has no positive 32-bit number; the others are not ASCII, or short.
    ids.extend(["1468509572224", "déjà/vu", "日本", "a", "order-42"].map(String::from));
    ids
}

/// How librdkafka calls the hashes that a cluster can have.
const NAMES: [(Partitioner, &str); 3] =
    [(Partitioner::Fnv1a, "fnv1a"), (Partitioner::Murmur2, "murmur2"), (Partitioner::Crc32, "consistent")];

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn k2_publish_and_shards_agree_with_librdkafkas_partitioners() {
    let Some(broker) = Broker::shared() else { return };
    let hand = Hand::new(broker);
    for (hash, name) in NAMES {
        let (ours, theirs) = (fresh("ours"), fresh("theirs"));
        hand.create(&ours, 12).await;
        hand.create(&theirs, 12).await;
        let publisher = Publisher::new(&broker.connection(), hash).unwrap();
        let published = publisher.publish(&ours, &ids()).await.unwrap();
        assert_eq!((published.sent, published.failed.len()), (ids().len(), 0), "{name}");
        let producer: FutureProducer = hand.config().set("partitioner", name).create().unwrap();
        for id in ids() {
            let record = FutureRecord::to(&theirs).key(&id).payload("x");
            producer.send(record, std::time::Duration::from_secs(30)).await.map_err(|(error, _)| error).unwrap();
        }
        let mut partitions: BTreeMap<String, Vec<i32>> = BTreeMap::new();
        for topic in [&ours, &theirs] {
            for message in hand.read(topic, 12, ids().len()).await {
                let id = String::from_utf8(message.key().unwrap().to_vec()).unwrap();
                partitions.entry(id).or_default().push(message.partition());
                assert!(message.payload().is_some(), "no tombstone");
            }
        }
        for (id, found) in partitions {
            let wanted = i32::try_from(hash.hash(id.as_bytes()) % 12).unwrap();
            assert_eq!(found, [wanted, wanted], "{id} by {name}");
        }
        // Four shards: each id comes to the shard that leads it.
        let mut settings = settings(broker, &theirs, 4);
        settings.timing = crate::support::quick();
        let sink = Sink::new(hash, 4);
        let live = Live::start(settings, sink);
        until("all ids", || live.sink.count() == ids().len()).await;
        for got in live.sink.got() {
            let shard = u16::try_from(got.partition % 4).unwrap();
            assert_eq!(evenkeel::EventSink::shard_of(&*live.sink, &got.id), Some(ShardId(shard)), "{}", got.id);
        }
        assert_eq!(live.sink.problem(), None);
        live.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn k3_events_of_another_hash_are_said_with_the_hash_that_fits_and_are_not_passed() {
    let Some(broker) = Broker::shared() else { return };
    let (hand, topic) = (Hand::new(broker), fresh("misrouted"));
    hand.create(&topic, 12).await;
    let publisher = Publisher::new(&broker.connection(), Partitioner::Murmur2).unwrap();
    publisher.publish(&topic, &ids()).await.unwrap();
    // This process leads all shards: every event finds its shard, and the log says what to set.
    let settings_all = settings(broker, &topic, 4);
    let live = Live::start(settings_all.clone(), Sink::new(Partitioner::Fnv1a, 4));
    until("all ids", || live.sink.count() == ids().len()).await;
    let said = "its producers choose partitions by murmur2; set it as `hash`";
    until("it is said", || live.sink.problem().is_some_and(|problem| problem.contains(said))).await;
    live.stop().await.unwrap();
    assert_eq!(hand.committed(&settings_all.group, &topic, 12).values().sum::<i64>(), 405);
    // This one leads one shard of four: what belongs to others is held back, not lost.
    let settings_one = settings(broker, &topic, 4);
    let sink = Sink::new(Partitioner::Fnv1a, 4);
    sink.lead(&[0]);
    let live = Live::start(settings_one.clone(), sink);
    until("it is said", || live.sink.problem().is_some_and(|problem| problem.contains("another process leads"))).await;
    let done = live.sink.ids();
    live.stop().await.unwrap();
    for (partition, offset) in hand.committed(&settings_one.group, &topic, 12) {
        let passed = hand.read(&topic, 12, ids().len()).await;
        let passed = passed.iter().filter(|m| m.partition() == partition && m.offset() < offset);
        for message in passed {
            let id = String::from_utf8(message.key().unwrap().to_vec()).unwrap();
            assert!(done.contains(&id), "{id} on {partition} was passed and not done");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn publish_says_why_it_cannot() {
    let Some(broker) = Broker::shared() else { return };
    let publisher = Publisher::new(&broker.connection(), Partitioner::Fnv1a).unwrap();
    let missing = fresh("nowhere");
    let error = publisher.publish(&missing, &["a".into()]).await.unwrap_err();
    assert_eq!(error, PublishError::NoTopic(missing));
    let error = publisher.publish("any", &["a".into(), "b\n".into()]).await.unwrap_err();
    assert!(matches!(error, PublishError::Id(ref id, _) if id == "b\n"), "{error}");
    let nobody = evenkeel::kafka::Connection { brokers: vec!["127.0.0.1:1".into()], ..Default::default() };
    let error = Publisher::new(&nobody, Partitioner::Fnv1a).unwrap().publish("any", &["a".into()]).await.unwrap_err();
    assert!(matches!(error, PublishError::Brokers(..)), "{error}");
}
