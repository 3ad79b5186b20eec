//! The binary on a real Kafka: its config, and what is asked of it from outside.

use std::collections::BTreeMap;

use crate::broker::Broker;
use crate::recorder::Recorder;
use crate::run_world::{Process, Project};
use crate::support::{Hand, fresh};

/// A controller of one topic, whose reconciler is a recorder outside of it.
pub(crate) struct Target {
    pub(crate) project: Project,
    pub(crate) hand: Hand,
    pub(crate) name: String,
    pub(crate) topic: String,
    pub(crate) partitions: i32,
}

/// What may be said in the config beside the usual.
#[derive(Default)]
pub(crate) struct More<'a> {
    /// Of the reconciler, each line indented by two.
    pub(crate) reconciler: &'a str,
    /// Of the Kafka stream, as `, key: value`.
    pub(crate) stream: &'a str,
    /// Other streams, each line indented by two.
    pub(crate) streams: &'a str,
    /// At the top.
    pub(crate) top: &'a str,
}

impl Target {
    pub(crate) async fn new(broker: &Broker, recorder: &Recorder, partitions: i32, more: &More<'_>) -> Self {
        let target = Self::absent(broker, recorder, partitions, more);
        target.hand.create(&target.topic, partitions).await;
        target
    }

    /// The same, before its topic is there.
    pub(crate) fn absent(broker: &Broker, recorder: &Recorder, partitions: i32, more: &More<'_>) -> Self {
        let (name, topic) = (fresh("controller"), fresh("topic"));
        let config = format!(
            "name: {name}\nreconciler:\n  webhook: {}\n{}kafka: {{brokers: ['{}'], commit_interval: 100ms, \
             options: {{topic.metadata.refresh.interval.ms: 1000, reconnect.backoff.max.ms: 500}}}}\n\
             streams:\n  orders: {{kafka: {{topics: [{topic}]{}}}}}\n{}{}",
            recorder.url(),
            more.reconciler,
            broker.plain(),
            more.stream,
            more.streams,
            more.top
        );
        Self { project: Project::new(&config), hand: Hand::new(broker), name, topic, partitions }
    }

    pub(crate) fn start(&self) -> Process {
        self.project.start()
    }

    /// Sends ids named `NAME-FROM` to `NAME-(TO-1)`; gives where they stand.
    pub(crate) async fn send(&self, name: &str, range: std::ops::Range<usize>) -> Vec<(String, i32, i64)> {
        let ids: Vec<String> = range.map(|number| format!("{name}-{number}")).collect();
        self.hand.send_hashed(&self.topic, self.partitions, &ids).await
    }

    /// What is committed, by partition; 0 where nothing is.
    pub(crate) fn committed(&self) -> BTreeMap<i32, i64> {
        let committed = self.hand.committed(&self.name, &self.topic, self.partitions);
        (0..self.partitions).map(|partition| (partition, committed.get(&partition).copied().unwrap_or(0))).collect()
    }

    /// The ends of the partitions.
    pub(crate) fn ends(&self) -> BTreeMap<i32, i64> {
        (0..self.partitions).map(|partition| (partition, self.hand.ends(&self.topic, partition).1)).collect()
    }

    pub(crate) fn is_all_committed(&self) -> bool {
        self.committed() == self.ends()
    }
}

/// How many ids of this name and range were answered with success.
pub(crate) fn answered(recorder: &Recorder, name: &str, range: std::ops::Range<usize>) -> usize {
    let seen: std::collections::BTreeSet<String> =
        recorder.seen().into_iter().filter(|seen| seen.ended.is_some()).map(|seen| seen.id).collect();
    range.filter(|number| seen.contains(&format!("{name}-{number}"))).count()
}
