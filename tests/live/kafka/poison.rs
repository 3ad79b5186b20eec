//! Messages of every kind: those without a usable id are dead-lettered and passed, the others flow (K1, B53).

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel::id::{Partitioner, encode};
use evenkeel::kafka::{IdFrom, KafkaDeadLetter, header};
use evenkeel::{Cause, DeadLetter as _, Letter, Position};
use rdkafka::Message as _;
use rdkafka::message::{Header, Headers as _, OwnedHeaders, OwnedMessage};

use crate::broker::Broker;
use crate::sink::Sink;
use crate::support::{Hand, Live, fresh, settings, until};

fn sink() -> std::sync::Arc<Sink> {
    Sink::new(Partitioner::Fnv1a, 1)
}

fn text(message: &OwnedMessage, name: &str) -> Option<String> {
    let headers = message.headers()?;
    let found = (0..headers.count()).filter_map(|at| headers.try_get(at)).rfind(|header| header.key == name)?;
    found.value.map(|value| String::from_utf8_lossy(value).into_owned())
}

fn one(key: &str, value: Option<&[u8]>) -> OwnedHeaders {
    OwnedHeaders::new().insert(Header { key, value })
}

struct Case {
    key: Option<&'static [u8]>,
    value: Option<Vec<u8>>,
    headers: Option<OwnedHeaders>,
    /// The reason in the dead letter, or none where it is an event (or nothing to do).
    reason: Option<&'static str>,
}

fn case(key: Option<&'static [u8]>, value: Option<&[u8]>, reason: Option<&'static str>) -> Case {
    Case { key, value: value.map(<[u8]>::to_vec), headers: None, reason }
}

const LONG: &[u8] = &[b'x'; 513];

fn cases() -> Vec<Case> {
    let flood = (0..1_000)
        .fold(OwnedHeaders::new(), |headers, i| headers.insert(Header { key: &format!("h{i}"), value: Some("v") }));
    vec![
        case(Some(b"null-value"), None, None),
        case(Some(b"empty-value"), Some(b""), None),
        case(Some(b"invalid-json"), Some(b"{"), None),
        case(Some(b""), Some(b"an empty id is ignored"), None),
        case(None, Some(b"no key"), Some("no-key")),
        case(None, None, Some("no-key")),
        case(Some(b"caf\xe9"), Some(b"not UTF-8"), Some("bad-id")),
        case(Some(b"a\0b"), Some(b"x"), Some("bad-id")),
        case(Some(b"a\nb"), Some(b"x"), Some("bad-id")),
        case(Some("\u{202e}".as_bytes()), Some(b"x"), Some("bad-id")),
        case(Some(b"\xed\xa0\x80"), Some(b"a lone surrogate"), Some("bad-id")),
        case(Some(b"\0\0\0\0\x2aschema"), Some(b"x"), Some("bad-id")),
        case(Some(LONG), Some(b"x"), Some("bad-id")),
        case(Some(b"large"), Some(&vec![7; 5 << 20]), None),
        case(None, Some(&vec![7; 5 << 20]), Some("no-key")),
        Case { headers: Some(flood), ..case(Some(b"header-flood"), Some(b"x"), None) },
        Case { headers: Some(one("null", None)), ..case(Some(b"null-header"), Some(b"x"), None) },
        Case { headers: Some(one("traceparent", Some(b"\xff"))), ..case(Some(b"bad-trace"), Some(b"x"), None) },
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn k1_b53_poison_is_dead_lettered_and_passed() {
    let Some(broker) = Broker::shared() else { return };
    let (hand, topic, letters) = (Hand::new(broker), fresh("poison"), fresh("letters"));
    hand.create(&topic, 1).await;
    hand.create(&letters, 1).await;
    let mut settings = settings(broker, &topic, 1);
    settings.dead_letter = Some(letters.clone());
    let cases = cases();
    for (i, case) in cases.iter().enumerate() {
        hand.send_with(&topic, 0, case.key, case.value.as_deref(), case.headers.clone()).await;
        hand.send(&topic, 0, Some(format!("good-{i}").as_bytes()), Some(b"x")).await;
    }
    let live = Live::start(settings.clone(), sink());
    let poison: Vec<(usize, &Case)> = cases.iter().enumerate().filter(|(_, case)| case.reason.is_some()).collect();
    let good = 2 * cases.len() - poison.len() - 1;
    until("all good ones", || live.sink.count() == good).await;
    let end = i64::try_from(2 * cases.len()).unwrap();
    until("everything is done", || hand.committed(&settings.group, &topic, 1) == BTreeMap::from([(0, end)])).await;
    let read = hand.read(&letters, 1, poison.len()).await;
    assert_eq!(read.len(), poison.len());
    for (letter, (i, case)) in read.iter().zip(&poison) {
        assert_eq!(letter.key(), case.key, "case {i}");
        assert_eq!(letter.payload(), case.value.as_deref(), "case {i}");
        assert_eq!(text(letter, header::REASON).as_deref(), case.reason, "case {i}");
        assert_eq!(text(letter, header::TOPIC).as_deref(), Some(topic.as_str()));
        assert_eq!(text(letter, header::PARTITION).as_deref(), Some("0"));
        assert_eq!(text(letter, header::OFFSET), Some((2 * i).to_string()));
        assert!(text(letter, header::ERROR).is_some_and(|error| !error.is_empty()));
    }
    assert_eq!(live.sink.problem(), None);
    assert_eq!(live.sink.errors("bad-id"), 7);
    live.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn k1_without_a_dead_letter_topic_poison_is_logged_and_passed() {
    let Some(broker) = Broker::shared() else { return };
    let (hand, topic) = (Hand::new(broker), fresh("poison-logged"));
    hand.create(&topic, 1).await;
    for key in [None, Some(&b"a\xff"[..]), Some(b"good")] {
        hand.send(&topic, 0, key, Some(b"x")).await;
    }
    let settings = settings(broker, &topic, 1);
    let live = Live::start(settings.clone(), sink());
    until("the good one", || live.sink.count() == 1).await;
    assert_eq!((live.sink.errors("no-key"), live.sink.errors("bad-id")), (1, 1));
    live.stop().await.unwrap();
    assert_eq!(hand.committed(&settings.group, &topic, 1), BTreeMap::from([(0, 3)]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn k1_a_dead_letter_topic_that_is_missing_holds_the_partition_and_drops_nothing() {
    let Some(broker) = Broker::shared() else { return };
    let (hand, topic, letters) = (Hand::new(broker), fresh("held"), fresh("letters-later"));
    hand.create(&topic, 2).await;
    let mut settings = settings(broker, &topic, 1);
    settings.dead_letter = Some(letters.clone());
    hand.send(&topic, 0, None, Some(b"poison")).await;
    hand.send_numbered(&topic, 2, "id", 0..10).await;
    let live = Live::start(settings.clone(), sink());
    until("it is said", || live.sink.problem().is_some_and(|p| p.contains(&format!("topic {letters} does not take"))))
        .await;
    until("the other partition flows", || live.sink.got().iter().filter(|got| got.partition == 1).count() == 5).await;
    live.committer.commit_now(Duration::from_secs(20)).await.unwrap();
    assert_eq!(hand.committed(&settings.group, &topic, 2), BTreeMap::from([(0, 0), (1, 5)]));
    hand.create(&letters, 1).await;
    let read = hand.read(&letters, 1, 1).await;
    assert_eq!(read[0].payload(), Some(&b"poison"[..]));
    until("the partition flows again", || live.sink.ids().len() == 10).await;
    live.until_well().await;
    live.stop().await.unwrap();
    assert_eq!(hand.committed(&settings.group, &topic, 2), BTreeMap::from([(0, 6), (1, 5)]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn k1_a_letter_that_is_too_large_goes_without_its_value() {
    let Some(broker) = Broker::shared() else { return };
    let (hand, topic, letters) = (Hand::new(broker), fresh("too-large"), fresh("small-letters"));
    hand.create(&topic, 1).await;
    hand.create_with(&letters, 1, &[("max.message.bytes", "20000")]).await;
    let mut settings = settings(broker, &topic, 1);
    settings.dead_letter = Some(letters.clone());
    hand.send(&topic, 0, Some(b"k\xff"), Some(&vec![7; 100_000])).await;
    let live = Live::start(settings.clone(), sink());
    let read = hand.read(&letters, 1, 1).await;
    assert_eq!((read[0].key(), read[0].payload()), (Some(&b"k\xff"[..]), None));
    assert_eq!(text(&read[0], header::VALUE_LEFT_OUT).as_deref(), Some("100000"));
    until("it is done", || hand.committed(&settings.group, &topic, 1) == BTreeMap::from([(0, 1)])).await;
    live.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn k1_k7_ids_and_traces_come_from_where_the_settings_say() {
    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let Some(broker) = Broker::shared() else { return };
    let hand = Hand::new(broker);
    let event = OwnedHeaders::new()
        .insert(Header { key: "ce_specversion", value: Some("1.0") })
        .insert(Header { key: "ce_subject", value: Some("prod/App/shop") })
        .insert(Header { key: "traceparent", value: Some(PARENT) });
    for from in [
        IdFrom::Header("ce_subject".into()),
        IdFrom::KeyPointer("/meta/id".into()),
        IdFrom::ValuePointer("/meta/id".into()),
        IdFrom::CloudEvent,
    ] {
        let topic = fresh("id-from");
        hand.create(&topic, 1).await;
        let mut settings = settings(broker, &topic, 1);
        settings.id = from.clone();
        let json = br#"{"meta": {"id": "prod/App/shop"}}"#;
        hand.send_with(&topic, 0, Some(json), Some(json), Some(event.clone())).await;
        let live = Live::start(settings, sink());
        until("the event", || live.sink.count() == 1).await;
        let got = live.sink.got().remove(0);
        assert_eq!(got.id, "prod/App/shop", "{from:?}");
        let trace = got.trace.expect("the producer's trace");
        assert_eq!(trace.trace_id().to_string(), "4bf92f3577b34da6a3ce929d0e0e4736");
        live.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn d3_an_id_that_was_given_up_arrives_in_the_dead_letter_topic() {
    let Some(broker) = Broker::shared() else { return };
    let (hand, letters) = (Hand::new(broker), fresh("given-up"));
    let sender = KafkaDeadLetter::new(&broker.connection(), letters.clone()).unwrap();
    let letter = Letter {
        id: "prod/Database/orders".into(),
        error: "no route".into(),
        attempts: 20,
        causes: vec![Cause::Event {
            stream: "orders".into(),
            position: Some(Position { topic: "orders".into(), partition: 7, offset: 991 }),
        }],
        fencing_token: "0001-0000000000000004711-000000000042".into(),
    };
    let refused = sender.send(letter.clone()).await.unwrap_err().to_string();
    assert!(refused.starts_with(&format!("the dead-letter topic {letters} did not take it: ")), "{refused}");
    hand.create(&letters, 1).await;
    until("the client hears of the topic", || {
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(sender.send(letter.clone())).is_ok())
    })
    .await;
    let read = hand.read(&letters, 1, 1).await.remove(0);
    assert_eq!(read.key(), Some(&b"prod/Database/orders"[..]));
    assert_eq!(text(&read, header::REASON).as_deref(), Some("given-up"));
    assert_eq!(text(&read, header::ID), Some(encode("prod/Database/orders").into_owned()));
    let value: serde_json::Value = serde_json::from_slice(read.payload().unwrap()).unwrap();
    assert_eq!(value["causes"][0]["event"]["offset"], 991);
}
