//! Committing: the low-water mark of every partition, once a second, on giving back, and at the end (K4).
//!
//! Commits never wait: the answer comes by mail. One is under way at a time, so that a later mark cannot be overtaken by an
//! earlier one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::consumer::{CommitMode, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::{Offset, TopicPartitionList};
use tokio::sync::oneshot;

use super::super::assignment::Assignment;
use super::super::trouble::Kind;
use super::Session;

/// An answer that has not come after this long will not come; the marks are sent again.
const ANSWER_MAX: Duration = Duration::from_secs(20);
/// A commit that failed is tried again after this long, or after the commit interval where that is longer.
const RETRY: Duration = Duration::from_millis(500);
/// A partition that was given back is remembered this long for events that were still under way.
const LEAVING_MAX: Duration = Duration::from_secs(60);

pub(super) struct Commits {
    under_way: Option<(Instant, Vec<(Arc<Assignment>, u64)>)>,
    next: Instant,
    /// After a failure nothing is sent before this.
    retry: Instant,
    next_unchanged: Instant,
    waiting: Vec<oneshot::Sender<Result<(), String>>>,
    /// Given back, with events under way whose end may still be committed.
    leaving: Vec<(Instant, Arc<Assignment>)>,
}

impl Commits {
    pub(super) const fn new(now: Instant) -> Self {
        Self { under_way: None, next: now, retry: now, next_unchanged: now, waiting: Vec::new(), leaving: Vec::new() }
    }

    /// Somebody waits until all that is done is committed.
    pub(super) fn flush(&mut self, tell: oneshot::Sender<Result<(), String>>) {
        self.waiting.push(tell);
    }

    /// Remembers an assignment that was given back.
    pub(super) fn leave(&mut self, assignment: Arc<Assignment>, now: Instant) {
        self.leaving.push((now, assignment));
        self.next = now;
    }

    /// Forgets what is known of a place, since a new assignment of it begins.
    pub(super) fn forget(&mut self, assignment: &Assignment) {
        self.leaving.retain(|(_, left)| left.place != assignment.place);
    }

    fn tidy(&mut self, now: Instant, draining: bool) {
        self.leaving.retain(|(since, left)| {
            let settled = left.committed() == Some(left.ledger().low_water()) && left.ledger().owed() == 0;
            !settled && (draining || now.duration_since(*since) < LEAVING_MAX)
        });
    }
}

impl Session {
    pub(super) fn commit(&mut self, now: Instant) {
        if let Some((since, _)) = &self.commits.under_way {
            if now.duration_since(*since) < ANSWER_MAX {
                return;
            }
            self.commits.under_way = None;
            let text = format!("commits to group {} are not answered", self.settings.group);
            self.troubles.raise(Kind::Commit, text, now);
        }
        self.commits.waiting.retain(|tell| !tell.is_closed());
        if now < self.commits.retry || (now < self.commits.next && self.commits.waiting.is_empty()) {
            return;
        }
        let unchanged = now >= self.commits.next_unchanged;
        let marks = self.marks(unchanged);
        if marks.is_empty() {
            for tell in self.commits.waiting.drain(..) {
                let _ = tell.send(Ok(()));
            }
            self.commits.next = now + self.settings.timing.commit;
            self.commits.tidy(now, !self.intake);
            return;
        }
        if unchanged {
            self.commits.next_unchanged = now + self.settings.timing.recommit;
        }
        self.send_marks(marks, now);
    }

    /// What is to be committed: marks that moved, and now and then those that did not. A partition that was given back is only
    /// committed where its mark moved, since its next leader may be ahead.
    fn marks(&self, unchanged: bool) -> Vec<(Arc<Assignment>, u64)> {
        let standing = self.parts().map(|part| (&part.assignment, unchanged));
        let leaving = self.commits.leaving.iter().map(|(_, left)| (left, false));
        let marks = standing.chain(leaving).filter_map(|(assignment, always)| {
            let mark = assignment.ledger().low_water();
            (always || assignment.committed() != Some(mark)).then(|| (Arc::clone(assignment), mark))
        });
        marks.collect()
    }

    fn send_marks(&mut self, marks: Vec<(Arc<Assignment>, u64)>, now: Instant) {
        let mut list = TopicPartitionList::with_capacity(marks.len());
        for (assignment, mark) in &marks {
            let mut element = list.add_partition(&assignment.place.topic, assignment.place.partition);
            element.set_metadata(&*self.settings.commit_note);
            // An offset from Kafka always fits.
            let _ = element.set_offset(Offset::Offset(i64::try_from(*mark).unwrap_or(i64::MAX)));
        }
        self.commits.next = now + self.settings.timing.commit;
        match self.client.commit(&list, CommitMode::Async) {
            Ok(()) => self.commits.under_way = Some((now, marks)),
            Err(error) => self.commit_failed(error.rdkafka_error_code(), &error.to_string(), now),
        }
    }

    /// The answer to a commit.
    pub(super) fn on_committed(
        &mut self,
        result: Result<(), KafkaError>,
        partitions: &[(String, i32, Option<RDKafkaErrorCode>)],
        now: Instant,
    ) {
        let Some((_, marks)) = self.commits.under_way.take() else { return };
        if let Err(error) = result {
            return self.commit_failed(error.rdkafka_error_code(), &error.to_string(), now);
        }
        let mut refused = None;
        for (assignment, mark) in marks {
            let place = &assignment.place;
            let found = partitions
                .iter()
                .find(|(topic, partition, _)| *partition == place.partition && **topic == *place.topic);
            match found.and_then(|(_, _, error)| *error) {
                None => assignment.set_committed(mark),
                Some(code) => refused = Some((code, format!("{place}: {code}"))),
            }
        }
        self.answered(now);
        match refused {
            Some((code, text)) => self.commit_failed(Some(code), &text, now),
            None => {
                self.troubles.clear(Kind::Commit, now);
                self.troubles.clear(Kind::GroupInUse, now);
            }
        }
    }

    fn commit_failed(&mut self, code: Option<RDKafkaErrorCode>, reason: &str, now: Instant) {
        use RDKafkaErrorCode as Code;
        let group = &self.settings.group;
        self.commits.retry = now + self.settings.timing.commit.max(RETRY);
        match code {
            Some(
                Code::UnknownMemberId
                | Code::IllegalGeneration
                | Code::RebalanceInProgress
                | Code::FencedInstanceId
                | Code::StaleMemberEpoch,
            ) => {
                let text = format!(
                    "another program subscribes with the consumer group {group}, so offsets cannot be committed; give one of \
                     them another group"
                );
                self.troubles.raise(Kind::GroupInUse, text, now);
            }
            Some(Code::GroupAuthorizationFailed | Code::TopicAuthorizationFailed) => self.denied(reason, now),
            // The topic is gone; the next look at the topics says so.
            Some(Code::UnknownTopicOrPartition) => self.next_topics = self.next_topics.min(now),
            _ => {
                let text = format!("offsets of group {group} cannot be committed: {reason}");
                self.troubles.raise(Kind::Commit, text, now);
            }
        }
    }
}
