//! What tests do to a broker and to a stream: topics, messages, commits, waiting for a condition.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use evenkeel::kafka::{CommitError, KafkaCommitter, KafkaStream, StreamSettings, Timing};
use evenkeel::{EventStream as _, StreamError};
use rdkafka::admin::{AdminClient, AdminOptions, NewPartitions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::OwnedHeaders;
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{Offset, TopicPartitionList};
use tokio::task::JoinHandle;

use crate::broker::Broker;
use crate::sink::Sink;

/// What is waited for comes by then, on a machine however busy; a healthy one takes a fraction.
pub(crate) const SOON: Duration = Duration::from_secs(90);
const CALL_MAX: Duration = Duration::from_secs(30);

/// Waits for a condition.
pub(crate) async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + SOON;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A name that no other test uses.
pub(crate) fn fresh(what: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{what}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// A plain client to a broker, for what the tests do themselves.
pub(crate) struct Hand {
    config: ClientConfig,
    admin: AdminClient<DefaultClientContext>,
    producer: FutureProducer,
}

impl Hand {
    pub(crate) fn new(broker: &Broker) -> Self {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", broker.plain());
        config.set("reconnect.backoff.max.ms", "500");
        let mut sender = config.clone();
        sender.set("message.timeout.ms", "60000").set("message.max.bytes", "10000000").set("linger.ms", "5");
        Self { admin: config.create().unwrap(), producer: sender.create().unwrap(), config }
    }

    pub(crate) fn config(&self) -> ClientConfig {
        self.config.clone()
    }

    /// Creates a topic and waits until the broker knows its partitions.
    pub(crate) async fn create(&self, topic: &str, partitions: i32) {
        self.create_with(topic, partitions, &[]).await;
    }

    pub(crate) async fn create_with(&self, topic: &str, partitions: i32, options: &[(&str, &str)]) {
        let mut new = NewTopic::new(topic, partitions, TopicReplication::Fixed(1));
        for (key, value) in options {
            new = new.set(key, value);
        }
        let options = AdminOptions::new().operation_timeout(Some(CALL_MAX));
        for result in self.admin.create_topics([&new], &options).await.unwrap() {
            result.unwrap();
        }
        self.until_partitions(topic, partitions).await;
    }

    async fn until_partitions(&self, topic: &str, partitions: i32) {
        until("the topic's partitions", || {
            let found = self.admin.inner().fetch_metadata(Some(topic), CALL_MAX).unwrap();
            let ready = |topic: &rdkafka::metadata::MetadataTopic| {
                topic.error().is_none()
                    && topic.partitions().len() == usize::try_from(partitions).unwrap()
                    && topic.partitions().iter().all(|partition| partition.leader() >= 0)
            };
            found.topics().iter().any(ready)
        })
        .await;
    }

    pub(crate) async fn delete(&self, topic: &str) {
        for result in self.admin.delete_topics(&[topic], &AdminOptions::new()).await.unwrap() {
            result.unwrap();
        }
    }

    pub(crate) async fn grow(&self, topic: &str, partitions: i32) {
        let count = usize::try_from(partitions).unwrap();
        let results = self.admin.create_partitions([&NewPartitions::new(topic, count)], &AdminOptions::new()).await;
        for result in results.unwrap() {
            result.unwrap();
        }
        self.until_partitions(topic, partitions).await;
    }

    /// Deletes the records below an offset.
    pub(crate) async fn delete_below(&self, topic: &str, partition: i32, offset: i64) {
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(topic, partition, Offset::Offset(offset)).unwrap();
        self.admin.delete_records(&list, &AdminOptions::new()).await.unwrap();
    }

    /// Sends a message and waits for it; gives its offset.
    pub(crate) async fn send(&self, topic: &str, partition: i32, key: Option<&[u8]>, value: Option<&[u8]>) -> i64 {
        self.send_with(topic, partition, key, value, None).await
    }

    pub(crate) async fn send_with(
        &self,
        topic: &str,
        partition: i32,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: Option<OwnedHeaders>,
    ) -> i64 {
        let mut record = FutureRecord::<[u8], [u8]>::to(topic).partition(partition);
        record.key = key;
        record.payload = value;
        record.headers = headers;
        self.producer.send(record, CALL_MAX).await.map_err(|(error, _)| error).unwrap().offset
    }

    /// Sends numbered ids `name-FROM` to `name-(TO-1)`, to the partitions in turn.
    pub(crate) async fn send_numbered(&self, topic: &str, partitions: i32, name: &str, range: std::ops::Range<usize>) {
        let mut under_way = Vec::new();
        for i in range {
            let (key, partition) = (format!("{name}-{i}"), i32::try_from(i).unwrap() % partitions);
            let record = FutureRecord::to(topic).partition(partition).key(&key).payload("x");
            under_way.push(self.producer.send_result(record).map_err(|(error, _)| error).unwrap());
        }
        for sent in under_way {
            sent.await.unwrap().map_err(|(error, _)| error).unwrap();
        }
    }

    /// Sends ids to the partitions that producers with `fnv1a` would choose; gives where each stands.
    pub(crate) async fn send_hashed(&self, topic: &str, partitions: i32, ids: &[String]) -> Vec<(String, i32, i64)> {
        let count = u32::try_from(partitions).unwrap();
        let mut under_way = Vec::with_capacity(ids.len());
        for id in ids {
            let partition = i32::try_from(evenkeel::id::Partitioner::Fnv1a.hash(id.as_bytes()) % count).unwrap();
            let record = FutureRecord::to(topic).partition(partition).key(id).payload("x");
            under_way.push(self.producer.send_result(record).map_err(|(error, _)| error).unwrap());
        }
        let mut places = Vec::with_capacity(ids.len());
        for (id, sent) in ids.iter().zip(under_way) {
            let place = sent.await.unwrap().map_err(|(error, _)| error).unwrap();
            places.push((id.clone(), place.partition, place.offset));
        }
        places
    }

    /// Sends the same value many times to a partition, each under the key `id`.
    pub(crate) async fn send_many(&self, topic: &str, partition: i32, value: &[u8], times: usize) {
        let record = || FutureRecord::to(topic).partition(partition).key("id").payload(value);
        let under_way: Vec<_> =
            (0..times).map(|_| self.producer.send_result(record()).map_err(|(error, _)| error).unwrap()).collect();
        for sent in under_way {
            sent.await.unwrap().map_err(|(error, _)| error).unwrap();
        }
    }

    /// What stands beside a group's committed offset.
    pub(crate) fn commit_note(&self, group: &str, topic: &str, partition: i32) -> String {
        let list = self.committed_list(group, topic, partition + 1);
        list.find_partition(topic, partition).unwrap().metadata().to_string()
    }

    fn committed_list(&self, group: &str, topic: &str, partitions: i32) -> TopicPartitionList {
        let mut config = self.config();
        let consumer: BaseConsumer = config.set("group.id", group).create().unwrap();
        let mut list = TopicPartitionList::new();
        list.add_partition_range(topic, 0, partitions - 1);
        consumer.committed_offsets(list, CALL_MAX).unwrap()
    }

    /// What a group has committed, by partition.
    pub(crate) fn committed(&self, group: &str, topic: &str, partitions: i32) -> BTreeMap<i32, i64> {
        let list = self.committed_list(group, topic, partitions);
        let offset = |element: &rdkafka::topic_partition_list::TopicPartitionListElem<'_>| match element.offset() {
            Offset::Offset(offset) => Some((element.partition(), offset)),
            _ => None,
        };
        list.elements().iter().filter_map(offset).collect()
    }

    /// Begin and end of a partition.
    pub(crate) fn ends(&self, topic: &str, partition: i32) -> (i64, i64) {
        self.admin.inner().fetch_watermarks(topic, partition, CALL_MAX).unwrap()
    }

    /// Reads a topic from its start until so many messages came.
    pub(crate) async fn read(&self, topic: &str, partitions: i32, count: usize) -> Vec<rdkafka::message::OwnedMessage> {
        let mut config = self.config();
        let consumer: BaseConsumer = config.set("group.id", fresh("reader")).create().unwrap();
        let mut list = TopicPartitionList::new();
        for partition in 0..partitions {
            list.add_partition_offset(topic, partition, Offset::Beginning).unwrap();
        }
        consumer.assign(&list).unwrap();
        let mut messages = Vec::new();
        until("messages to read", || {
            while let Some(Ok(message)) = consumer.poll(Duration::from_millis(1)) {
                messages.push(message.detach());
            }
            messages.len() >= count
        })
        .await;
        messages
    }
}

/// Timing for tests: what takes half a minute in production takes a second.
pub(crate) fn quick() -> Timing {
    Timing {
        commit: Duration::from_millis(100),
        topics: Duration::from_secs(1),
        missing: Duration::from_millis(500),
        watch: Duration::from_millis(500),
        ..Timing::default()
    }
}

/// The settings of a stream of this topic, with a group of its own and quick timing.
pub(crate) fn settings(broker: &Broker, topic: &str, shards: u16) -> StreamSettings {
    let mut settings = StreamSettings::new(broker.connection(), fresh("group"), vec![topic.into()], shards);
    settings.timing = quick();
    settings
}

/// A stream that runs.
pub(crate) struct Live {
    pub(crate) sink: Arc<Sink>,
    pub(crate) committer: KafkaCommitter,
    task: JoinHandle<Result<(), StreamError>>,
}

impl Live {
    pub(crate) fn start(settings: StreamSettings, sink: Arc<Sink>) -> Self {
        let mut stream = KafkaStream::new(settings).unwrap();
        let committer = stream.committer();
        let events = sink.events();
        let task = tokio::spawn(async move { stream.run(events).await });
        Self { sink, committer, task }
    }

    /// Waits until the stream reports no problem.
    pub(crate) async fn until_well(&self) {
        let deadline = Instant::now() + SOON;
        while let Some(problem) = self.sink.problem() {
            assert!(Instant::now() < deadline, "still wrong: {problem}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Whether the stream has ended by itself.
    pub(crate) fn has_ended(&self) -> bool {
        self.task.is_finished()
    }

    /// Stops intake, commits and closes, as the engine does at the end of a drain.
    pub(crate) async fn stop(self) -> Result<(), CommitError> {
        self.sink.stop();
        self.task.await.unwrap().unwrap();
        self.committer.close(Duration::from_secs(20)).await
    }
}
