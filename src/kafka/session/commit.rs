//! Committing: the low-water mark of every partition, once a second, on giving back, and at the end (K4).
//!
//! The client only answers commits that wait, so they are made by a thread of their own, one at a time: a later mark
//! cannot be overtaken by an earlier one. It shares the client; where the brokers are gone at the end, it is left
//! behind with it (B56).

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::{Offset, TopicPartitionList};
use tokio::sync::oneshot;

use super::super::assignment::Assignment;
use super::super::context::Context;
use super::super::settings::SettingsError;
use super::super::trouble::Kind;
use super::Session;

/// A commit that is not answered for this long is a trouble; it goes on waiting.
const ANSWER_MAX: Duration = Duration::from_secs(15);
/// A commit that failed is tried again after this long, or after the commit interval where that is longer.
const RETRY: Duration = Duration::from_millis(500);
/// A partition that was given back is remembered this long for events that were still under way.
const LEAVING_MAX: Duration = Duration::from_secs(60);

/// Marks to commit, topic by topic: the client only tells of a commit that failed as a whole.
type Marks = Vec<(Arc<str>, TopicPartitionList)>;
/// The same as we know them.
type Sent = Vec<(Arc<Assignment>, u64)>;
type Answer = Vec<(Arc<str>, Result<(), KafkaError>)>;

pub(super) struct Commits {
    send: Option<SyncSender<Marks>>,
    answers: Receiver<Answer>,
    under_way: Option<(Instant, Sent)>,
    next: Instant,
    /// After a failure nothing is sent before this.
    retry: Instant,
    next_unchanged: Instant,
    waiting: Vec<oneshot::Sender<Result<(), String>>>,
    /// Given back, with events under way whose end may still be committed.
    leaving: Vec<(Instant, Arc<Assignment>)>,
}

impl Commits {
    /// Starts the thread that commits.
    pub(super) fn start(client: &Arc<BaseConsumer<Context>>, now: Instant) -> Result<Self, SettingsError> {
        let (send, marks) = sync_channel::<Marks>(1);
        let (answer, answers) = sync_channel(1);
        let client = Arc::clone(client);
        let work = move || {
            for topics in marks {
                let commit = |(topic, list): (Arc<str>, TopicPartitionList)| {
                    let result = client.commit(&list, CommitMode::Sync);
                    (topic, result)
                };
                if answer.send(topics.into_iter().map(commit).collect()).is_err() {
                    break;
                }
            }
        };
        std::thread::Builder::new()
            .name("kafka commits".into())
            .spawn(work)
            .map_err(|error| SettingsError::Client(format!("no thread can be started: {error}")))?;
        Ok(Self {
            send: Some(send),
            answers,
            under_way: None,
            next: now,
            retry: now,
            next_unchanged: now,
            waiting: Vec::new(),
            leaving: Vec::new(),
        })
    }

    /// Lets the thread end, after the commit under way.
    pub(super) fn end(&mut self) {
        self.send = None;
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
            let (mark, owed) = {
                let mut ledger = left.ledger();
                (ledger.low_water(), ledger.owed())
            };
            let settled = owed == 0 && left.committed() == Some(mark);
            !settled && (draining || now.duration_since(*since) < LEAVING_MAX)
        });
    }
}

impl Session {
    pub(super) fn commit(&mut self, now: Instant) {
        if let Some((since, _)) = &self.commits.under_way {
            if now.duration_since(*since) > ANSWER_MAX {
                let text = format!("commits to group {} are not answered", self.settings.group);
                self.troubles.hold(Kind::Commit, text, now);
            }
            return;
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

    /// What is to be committed: marks that moved, and now and then those that did not. A partition that was given back
    /// is only committed where its mark moved, since its next leader may be ahead.
    fn marks(&self, unchanged: bool) -> Sent {
        let standing = self.parts().map(|part| (&part.assignment, unchanged));
        let leaving = self.commits.leaving.iter().map(|(_, left)| (left, false));
        let marks = standing.chain(leaving).filter_map(|(assignment, always)| {
            let mark = assignment.ledger().low_water();
            (always || assignment.committed() != Some(mark)).then(|| (Arc::clone(assignment), mark))
        });
        marks.collect()
    }

    fn send_marks(&mut self, marks: Sent, now: Instant) {
        let mut topics: Marks = Vec::new();
        for (assignment, mark) in &marks {
            let place = &assignment.place;
            let at = topics.iter().position(|(topic, _)| *topic == place.topic).unwrap_or_else(|| {
                topics.push((Arc::clone(&place.topic), TopicPartitionList::new()));
                topics.len() - 1
            });
            let mut element = topics[at].1.add_partition(&place.topic, place.partition);
            element.set_metadata(&*self.settings.commit_note);
            // An offset from Kafka always fits.
            let _ = element.set_offset(Offset::Offset(i64::try_from(*mark).unwrap_or(i64::MAX)));
        }
        self.commits.next = now + self.settings.timing.commit;
        if self.commits.send.as_ref().is_some_and(|send| send.try_send(topics).is_ok()) {
            self.commits.under_way = Some((now, marks));
        }
    }

    /// Takes the answer to the commit under way, if it is there.
    pub(super) fn take_commit(&mut self, now: Instant) -> Result<(), String> {
        let answer = match self.commits.answers.try_recv() {
            Ok(answer) => answer,
            Err(TryRecvError::Empty) => return Ok(()),
            Err(TryRecvError::Disconnected) => return Err("the thread that commits died".into()),
        };
        let Some((_, marks)) = self.commits.under_way.take() else { return Ok(()) };
        let mut failed = None;
        for (topic, result) in answer {
            match result {
                Ok(()) => {
                    for (assignment, mark) in marks.iter().filter(|(assignment, _)| assignment.place.topic == topic) {
                        assignment.set_committed(*mark);
                    }
                }
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) => self.commit_failed(error.rdkafka_error_code(), &error.to_string(), now),
            None => {
                self.answered(now);
                self.troubles.clear(Kind::Commit, now);
                self.troubles.clear(Kind::GroupInUse, now);
                self.troubles.clear(Kind::GroupDenied, now);
            }
        }
        Ok(())
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
                    "another program subscribes with the consumer group {group}, so offsets cannot be committed; give \
                     one of them another group"
                );
                self.troubles.raise(Kind::GroupInUse, text, now);
            }
            Some(code @ (Code::GroupAuthorizationFailed | Code::TopicAuthorizationFailed)) => self.denied(code, now),
            // The topic is gone; the next look at the topics says so.
            Some(Code::UnknownTopicOrPartition) => self.next_topics = self.next_topics.min(now),
            _ => {
                let text = format!("offsets of group {group} cannot be committed: {reason}");
                self.troubles.raise(Kind::Commit, text, now);
            }
        }
    }
}
