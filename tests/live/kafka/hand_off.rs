//! Events of another shard, through the hand-off topic (K3), and what tells a user why they were misrouted.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::sync::Arc;

use evenkeel::id::{Partitioner, Router, ShardId};
use evenkeel::kafka::{Publisher, StreamSettings, hand_off_header as passed, header};
use rdkafka::Message as _;
use rdkafka::message::{Header, Headers as _, OwnedHeaders, OwnedMessage};

use crate::broker::Broker;
use crate::sink::Sink;
use crate::support::{Hand, Live, fresh, settings, until};

const SHARDS: u16 = 4;

fn ids(count: usize) -> Vec<String> {
    (0..count).map(|i| format!("prod/Database/{i}")).collect()
}

fn shard_of(id: &str) -> ShardId {
    Router::new(Partitioner::Fnv1a, SHARDS.into(), 1).unwrap().place(id).unwrap().shard
}

fn text(message: &OwnedMessage, name: &str) -> Option<String> {
    let headers = message.headers()?;
    let found = (0..headers.count()).filter_map(|at| headers.try_get(at)).rfind(|header| header.key == name)?;
    found.value.map(|value| String::from_utf8_lossy(value).into_owned())
}

/// The settings of two processes that share the shards of one controller.
fn handing(broker: &Broker, topic: &str, hand_off: &str) -> StreamSettings {
    let mut settings = settings(broker, topic, SHARDS);
    settings.hand_off = Some(hand_off.into());
    settings
}

fn process(settings: &StreamSettings, led: &[u16]) -> Live {
    let sink = Sink::new(Partitioner::Fnv1a, SHARDS);
    sink.lead(led);
    Live::start(settings.clone(), sink)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn k3_events_of_another_shard_go_through_the_hand_off_topic() {
    let Some(broker) = Broker::shared() else { return };
    let (hand, topic, handed) = (Hand::new(broker), fresh("foreign"), fresh("handed"));
    hand.create(&topic, 12).await;
    hand.create(&handed, SHARDS.into()).await;
    // The producers use another hash than the cluster.
    let publisher = Publisher::new(&broker.connection(), Partitioner::Murmur2).unwrap();
    publisher.publish(&topic, &ids(400)).await.unwrap();
    let settings = handing(broker, &topic, &handed);
    let processes = [process(&settings, &[0, 1]), process(&settings, &[2, 3])];
    let count = || processes.iter().map(|live| live.sink.count()).sum::<usize>();
    until("all ids", || count() >= 400).await;

    let mut seen = BTreeSet::new();
    for (live, led) in processes.iter().zip([[0, 1], [2, 3]]) {
        for got in live.sink.got() {
            let shard = shard_of(&got.id);
            assert!(led.contains(&shard.0), "{} belongs to shard {shard}", got.id);
            let home = u16::try_from(got.partition).unwrap() % SHARDS;
            assert_eq!(home, shard.0, "{} came by a partition of another shard", got.id);
            assert!(seen.insert(got.id.clone()), "{} came twice", got.id);
        }
    }
    assert_eq!(seen, ids(400).into_iter().collect());
    let said = "its producers choose partitions by murmur2; set it as `hash`";
    until("the advice", || processes.iter().any(|live| live.sink.has_said(said))).await;
    for live in processes {
        live.stop().await.unwrap();
    }
    let committed = |topic: &str, partitions| hand.committed(&settings.group, topic, partitions).values().sum::<i64>();
    assert_eq!(committed(&topic, 12), 400, "each is done with");
    let passed_on = committed(&handed, SHARDS.into());
    assert!((100..400).contains(&passed_on), "about three in four were misrouted: {passed_on}");

    for message in hand.read(&handed, SHARDS.into(), usize::try_from(passed_on).unwrap()).await {
        let id = String::from_utf8(message.key().unwrap().to_vec()).unwrap();
        assert_eq!(message.partition(), i32::from(shard_of(&id).0));
        assert!(message.payload().is_some(), "no tombstone");
        assert_eq!(text(&message, passed::HOPS).as_deref(), Some("1"));
        assert_eq!(text(&message, passed::TOPIC).as_ref(), Some(&topic));
        let from: u32 = text(&message, passed::PARTITION).unwrap().parse().unwrap();
        assert_eq!(from, Partitioner::Murmur2.hash(id.as_bytes()) % 12);
        text(&message, passed::OFFSET).unwrap().parse::<u64>().unwrap();
    }
}

/// An id of this shard.
fn id_of(shard: u16, name: &str) -> String {
    (0..).map(|i| format!("{name}-{i}")).find(|id| shard_of(id) == ShardId(shard)).unwrap()
}

/// Key and headers of a message, and why it is refused.
type Case<'a> = (Option<&'a [u8]>, Option<OwnedHeaders>, Option<&'static str>);

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn k3_bad_messages_in_the_hand_off_topic_are_dead_lettered_and_passed() {
    let Some(broker) = Broker::shared() else { return };
    let (hand, topic, handed, letters) = (Hand::new(broker), fresh("foreign"), fresh("handed"), fresh("letters"));
    for (topic, partitions) in [(&topic, 4), (&handed, 4), (&letters, 1)] {
        hand.create(topic, partitions).await;
    }
    let hops = |value: Option<&[u8]>| OwnedHeaders::new().insert(Header { key: passed::HOPS, value });
    let elsewhere = id_of(1, "elsewhere");
    let cases: [Case<'_>; 8] = [
        (None, None, Some("no-key")),
        (Some(b""), None, None),
        (Some(b"a\0b"), None, Some("bad-id")),
        (Some(&[b'x'; 513]), None, Some("bad-id")),
        (Some(b"\xff"), Some(hops(Some(b"1"))), Some("bad-id")),
        (Some(elsewhere.as_bytes()), Some(hops(Some(b"3"))), Some("routing-disagreement")),
        (Some(elsewhere.as_bytes()), Some(hops(Some(b"many"))), Some("routing-disagreement")),
        // By somebody who does not know our hash: it goes on to its own shard.
        (Some(elsewhere.as_bytes()), Some(hops(None)), None),
    ];
    let mut wanted: Vec<_> = cases.iter().filter_map(|(_, _, reason)| *reason).collect();
    let own = id_of(0, "own");
    for (key, headers, _) in cases {
        hand.send_with(&handed, 0, key, Some(b"\0not ours"), headers).await;
    }
    hand.send(&handed, 0, Some(own.as_bytes()), None).await;

    let mut settings = handing(broker, &topic, &handed);
    settings.dead_letter = Some(letters.clone());
    let live = process(&settings, &[0, 1, 2, 3]);
    until("what is an event", || live.sink.ids() == BTreeSet::from([own.clone(), elsewhere.clone()])).await;
    let found = hand.read(&letters, 1, wanted.len()).await;
    let mut reasons: Vec<_> = found.iter().map(|letter| text(letter, header::REASON).unwrap()).collect();
    live.stop().await.unwrap();
    wanted.sort_unstable();
    reasons.sort_unstable();
    assert_eq!(reasons, wanted);
    let committed = hand.committed(&settings.group, &handed, 4);
    assert_eq!((committed.get(&0), committed.get(&1)), (Some(&9), Some(&1)), "nothing stands in the way");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn k3_without_its_topic_an_event_waits_and_is_not_lost() {
    let Some(broker) = Broker::shared() else { return };
    let (hand, topic, handed) = (Hand::new(broker), fresh("foreign"), fresh("handed"));
    hand.create(&topic, 4).await;
    let (foreign, own) = (id_of(1, "foreign"), id_of(0, "own"));
    hand.send(&topic, 0, Some(foreign.as_bytes()), Some(b"x")).await;
    hand.send(&topic, 0, Some(own.as_bytes()), Some(b"x")).await;
    let settings = handing(broker, &topic, &handed);
    let live = process(&settings, &[0, 1, 2, 3]);
    let says = format!("the hand-off topic {handed} does not take messages");
    until("it is said", || live.sink.has_said(&says)).await;
    let committed = hand.committed(&settings.group, &topic, 4).get(&0).copied().unwrap_or(0);
    assert_eq!(committed, 0, "the event holds its offset");
    hand.create(&handed, SHARDS.into()).await;
    until("both ids", || live.sink.ids() == BTreeSet::from([own.clone(), foreign.clone()])).await;
    live.until_well().await;
    let sink = Arc::clone(&live.sink);
    live.stop().await.unwrap();
    assert_eq!(hand.committed(&settings.group, &topic, 4).get(&0), Some(&2));
    assert!(sink.errors("hand_off") > 0);
}

/// The binary, asked which hash a topic's producers use.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn k3_check_tells_which_hash_the_producers_use() {
    let Some(broker) = Broker::shared() else { return };
    let (hand, folder) = (Hand::new(broker), tempfile::tempdir().unwrap());
    let file = folder.path().join("evenkeel.yaml");
    let config = format!(
        "name: t\nhash: fnv1a\nshards: 4\nreconciler: {{exec: \"true\"}}\nkafka: {{brokers: ['{}']}}\n\
         streams: {{a: {{kafka: {{topics: [any]}}}}}}\n",
        broker.plain()
    );
    fs::write(&file, config).unwrap();
    let ask = |topic: &str, form: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        let done = command.args(["check", "-o", form, "--partitioner", topic, "--config"]).arg(&file).output().unwrap();
        let said = String::from_utf8(done.stdout).unwrap() + &String::from_utf8(done.stderr).unwrap();
        (done.status.code(), said)
    };
    let topics = [Partitioner::Fnv1a, Partitioner::Murmur2, Partitioner::Crc32].map(|hash| (hash, fresh("asked")));
    for (hash, topic) in &topics {
        hand.create(topic, 12).await;
        Publisher::new(&broker.connection(), *hash).unwrap().publish(topic, &ids(1_000)).await.unwrap();
    }
    for (hash, topic) in &topics {
        let (code, said) = ask(topic, "table");
        assert!(said.contains(&format!("the producers of {topic} use {}", hash.name())), "{said}");
        assert_eq!(code, Some(i32::from(*hash != Partitioner::Fnv1a)), "{said}");
        assert!(said.lines().any(|line| line.starts_with(hash.name()) && line.contains("100.00%")), "{said}");
    }
    let (_, json) = ask(&topics[1].1, "json");
    let found: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(found["with_key"], 1_000);
    assert_eq!(found["hashes"][1], serde_json::json!({"hash": "murmur2", "matches": 1_000, "can_route": true}));

    let odd = fresh("keyless");
    hand.create(&odd, 12).await;
    for i in 0..200 {
        hand.send(&odd, i % 12, Some(format!("key-{i}").as_bytes()), None).await;
    }
    let (code, said) = ask(&odd, "table");
    assert!(code == Some(1) && said.contains("no hash explains"), "{said}");
    let missing = fresh("missing");
    let (code, said) = ask(&missing, "table");
    assert!(code == Some(1) && said.contains(&format!("the topic {missing} does not exist")), "{said}");
}
