//! From a topic of a real Kafka to a reconciler to the committed offset, beside a consumer that only reads.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use evenkeel::kafka::{KafkaStream, StreamSettings};
use evenkeel::{Action, Engine, Failure, Reconciler, Run};
use opentelemetry::metrics::MeterProvider;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::message::Message;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::{Offset, TopicPartitionList};
use serde_json::json;
use tokio::sync::oneshot;

use crate::bed::{COLLECT, LIMITS, Tally, block_on, ids, meters};
use crate::broker::Broker;
use crate::measure::{Mark, Report, Spent, middle, round};

const MESSAGES: usize = 400_000;
const PARTITIONS: i32 = 4;
const VALUE: [u8; 100] = [b'x'; 100];
const TOPIC: &str = "events";
const TIMES: usize = 3;
/// For calls to the broker, on a machine however busy.
const CALL_MAX: Duration = Duration::from_secs(60);

/// Both are timed from their first message: how long a client takes to connect says nothing of either.
pub(crate) fn end_to_end(name: &str, report: &mut Report) {
    let Some((broker, config)) = filled() else {
        eprintln!("{name}: left out, since EVENKEEL_TEST_SKIP_SERVICES=1");
        return;
    };
    let mut bare = Vec::with_capacity(TIMES);
    let mut ours = Vec::with_capacity(TIMES);
    for time in 0..TIMES {
        bare.push(read(&config));
        ours.push(block_on(1, reconcile(&broker, &config, &format!("ours-{time}"))));
    }
    let of =
        |spent: fn(&Spent) -> f64| middle(bare.iter().map(spent).collect()) / middle(ours.iter().map(spent).collect());
    let (by_wall, by_cpu) = (of(|spent| spent.wall.as_secs_f64()), of(Spent::cpu_us));
    ours.sort_by_key(|spent| spent.wall);
    let more = json!({
        "of_bare_consumer": round(by_wall, 3),
        "of_bare_consumer_by_cpu": round(by_cpu, 3),
        "bare_cpu_us_per_item": round(middle(bare.iter().map(Spent::cpu_us).collect()), 4),
    });
    report.case(name, ours[TIMES / 2], None, more);
}

/// A broker with a topic of ids that are all different.
fn filled() -> Option<(Broker, ClientConfig)> {
    if std::env::var("EVENKEEL_TEST_SKIP_SERVICES").is_ok_and(|value| value == "1") {
        return None;
    }
    block_on(1, async {
        let broker = Broker::own().await?;
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", broker.plain());
        let admin: AdminClient<DefaultClientContext> = config.create().expect("a client");
        let topic = NewTopic::new(TOPIC, PARTITIONS, TopicReplication::Fixed(1));
        let created = admin.create_topics([&topic], &AdminOptions::new().operation_timeout(Some(CALL_MAX))).await;
        created.expect("the broker answers").remove(0).expect("the topic is made");
        fill(&config);
        Some((broker, config))
    })
}

fn fill(config: &ClientConfig) {
    let producer: BaseProducer = config.clone().set("linger.ms", "20").create().expect("a producer");
    for (number, id) in (0..).zip(ids(MESSAGES)) {
        let mut record = BaseRecord::to(TOPIC).key(&id).payload(&VALUE).partition(number % PARTITIONS);
        while let Err((error, back)) = producer.send(record) {
            let full = matches!(error, KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull));
            assert!(full, "the topic cannot be filled: {error}");
            producer.poll(Duration::from_millis(10));
            record = back;
        }
    }
    producer.flush(CALL_MAX).expect("all messages arrive");
}

/// What a consumer takes that does nothing with its messages.
fn read(config: &ClientConfig) -> Spent {
    let consumer: BaseConsumer = config.clone().set("group.id", "bare").create().expect("a consumer");
    let mut all = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        all.add_partition_offset(TOPIC, partition, Offset::Beginning).expect("an offset");
    }
    consumer.assign(&all).expect("the partitions are there");
    let mut first = None;
    for _ in 0..MESSAGES {
        let message = consumer.poll(CALL_MAX).expect("the broker answers").expect("messages, not errors");
        first.get_or_insert_with(Mark::now);
        std::hint::black_box(message.key());
    }
    first.expect("there are messages").spent(MESSAGES as u64)
}

/// Counts runs, and notes when the first one began.
#[derive(Clone, Default)]
struct Counted(Arc<(OnceLock<Mark>, Tally)>);

impl Reconciler for Counted {
    async fn reconcile(&self, run: &Run) -> Result<Action, Failure> {
        let (first, tally) = &*self.0;
        first.get_or_init(Mark::now);
        std::hint::black_box(run.id());
        tally.count();
        Ok(Action::done())
    }
}

/// What the engine takes until all is reconciled and committed.
async fn reconcile(broker: &Broker, config: &ClientConfig, group: &str) -> Spent {
    let counted = Counted::default();
    counted.0.1.aim(MESSAGES as u64);
    let stream = KafkaStream::new(StreamSettings::new(broker.connection(), group, vec![TOPIC.into()], 1));
    let stream = stream.expect("settings that fit");
    let committer = stream.committer();
    let meters = meters(COLLECT);
    let engine = Engine::builder("bench").reconciler(counted.clone()).limits(LIMITS).meter(meters.meter("evenkeel"));
    let engine = engine.stream(TOPIC, stream).build().expect("the parts fit");
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(engine.run(async {
        let _ = stopped.await;
    }));
    counted.0.1.reached().await;
    committer.commit_now(CALL_MAX).await.expect("the broker takes the commit");
    let spent = counted.0.0.get().expect("it has run").spent(MESSAGES as u64);
    let _ = stop.send(());
    running.await.expect("no panic").expect("a clean stop");
    committer.close(CALL_MAX).await.expect("the broker takes the commit");
    assert_eq!(committed(config, group), MESSAGES as i64, "everything is committed");
    spent
}

/// The sum of a group's offsets.
fn committed(config: &ClientConfig, group: &str) -> i64 {
    let consumer: BaseConsumer = config.clone().set("group.id", group).create().expect("a consumer");
    let mut all = TopicPartitionList::new();
    all.add_partition_range(TOPIC, 0, PARTITIONS - 1);
    let offsets = consumer.committed_offsets(all, CALL_MAX).expect("the broker answers");
    offsets.elements().iter().filter_map(|element| element.offset().to_raw()).filter(|offset| *offset > 0).sum()
}
