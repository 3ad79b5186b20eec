//! Taking up and giving back partitions: those of the shards that this process leads (K2), and every way in which a
//! topic or an offset can be gone (K6).
//!
//! Assignment is manual and incremental: taking up one partition never rewinds another. It begins at the committed
//! offset, else at the start of the log, never at its end. An offset that the log does not have any more restarts the
//! partition at the start of the log, loudly, and asks for a resync.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::{Offset, TopicPartitionList};

use super::super::assignment::{Assignment, Place};
use super::super::lookout::{Ends, Found, Topic};
use super::super::trouble::Kind;
use super::{Part, Session, TopicState, list_of};
use crate::contract::{Class, Source};
use crate::id::ShardId;

/// A position that two watches in a row find outside the log is lost, even if the broker has not said so.
const OUTSIDE_MAX: u8 = 2;
/// A topic that was read is taken for deleted when so many looks in a row do not find it.
const MISSED_MAX: u8 = 2;
/// Partitions that could not be taken up are tried again after this long; other questions get their turn in between.
const START_RETRY: Duration = Duration::from_secs(2);

impl Session {
    /// Leads these shards from now on: partitions of others are given back at once, new ones taken up by the next
    /// question. So are partitions with events of shards that were another's: they are read again, since their shard
    /// may be ours now.
    pub(super) fn lead(&mut self, shards: Vec<ShardId>) {
        let led: BTreeSet<ShardId> = shards.into_iter().collect();
        let more = led.iter().any(|shard| !self.led.contains(shard));
        self.led.clone_from(&led);
        self.give_back(|part| !led.contains(&part.assignment.shard) || (more && part.foreign));
        if more {
            self.troubles.clear(Kind::Foreign, Instant::now());
        }
    }

    pub(super) fn give_back_all(&mut self) {
        self.give_back(|_| true);
    }

    /// Gives back partitions; what is done of them is committed, and what is still under way when it ends.
    fn give_back(&mut self, which: impl Fn(&Part) -> bool) {
        let now = Instant::now();
        for at in 0..self.topics.len() {
            let leaving: Vec<i32> =
                self.topics[at].parts.iter().filter(|(_, part)| which(part)).map(|(partition, _)| *partition).collect();
            for partition in leaving {
                if let Some(part) = self.drop_part(at, partition) {
                    self.commits.leave(part.assignment, now);
                }
            }
        }
        self.show_assigned();
    }

    /// Takes a partition out of the client and out of the list.
    fn drop_part(&mut self, at: usize, partition: i32) -> Option<Part> {
        let part = self.topics[at].parts.remove(&partition)?;
        let list = list_of(&part.assignment.place);
        // A pause outlives the assignment in the client, and would hold the next one back for ever.
        if part.paused {
            let _ = self.client.resume(&list);
        }
        if let Err(error) = self.client.incremental_unassign(&list) {
            tracing::debug!(place = %part.assignment.place, %error, "giving back failed");
        }
        Some(part)
    }

    /// Drops all partitions of a topic that is gone; nothing of them is committed any more.
    fn drop_topic(&mut self, at: usize) {
        let partitions: Vec<i32> = self.topics[at].parts.keys().copied().collect();
        for partition in partitions {
            self.drop_part(at, partition);
        }
        self.show_assigned();
    }

    fn is_wanted(&self, topic: &TopicState, partition: i32) -> bool {
        let place = Place { topic: Arc::clone(&topic.name), partition };
        self.led.contains(&place.shard(self.settings.shards)) && !topic.parts.contains_key(&partition)
    }

    pub(super) fn lacks_any(&self) -> bool {
        let lacks = |topic: &TopicState| (0..topic.partitions.unwrap_or(0)).any(|p| self.is_wanted(topic, p));
        self.topics.iter().any(lacks)
    }

    /// The partitions of our shards that are not read yet.
    pub(super) fn lacking(&self) -> Vec<Place> {
        let lacking = self.topics.iter().flat_map(|topic| {
            let partitions = 0..topic.partitions.unwrap_or(0);
            let wanted = partitions.filter(|partition| self.is_wanted(topic, *partition));
            wanted.map(|partition| Place { topic: Arc::clone(&topic.name), partition })
        });
        lacking.collect()
    }

    pub(super) fn on_topics(&mut self, found: Vec<(Arc<str>, Topic)>, now: Instant) {
        let (mut missing, mut uneven, mut denied) = (Vec::new(), Vec::new(), false);
        for (name, topic) in found {
            let Some(at) = self.topics.iter().position(|known| known.name == name) else { continue };
            match topic {
                Topic::Partitions(count) => {
                    self.on_partitions(at, count, now);
                    if count % i32::from(self.settings.shards) != 0 {
                        uneven.push(format!("{name} has {count}"));
                    }
                }
                Topic::Missing => {
                    if self.on_missing(at) {
                        missing.push(name);
                    }
                }
                Topic::Failed(RDKafkaErrorCode::TopicAuthorizationFailed) => {
                    denied = true;
                    self.denied(RDKafkaErrorCode::TopicAuthorizationFailed, now);
                }
                Topic::Failed(code) => tracing::debug!(topic = %name, %code, "topic not known just now"),
            }
        }
        if !denied {
            self.troubles.clear(Kind::Denied, now);
        }
        self.say_missing(&missing, now);
        self.say_uneven(&uneven, now);
    }

    fn say_missing(&mut self, missing: &[Arc<str>], now: Instant) {
        if missing.is_empty() {
            return self.troubles.clear(Kind::TopicMissing, now);
        }
        let text = format!("there is no topic {}; events flow as soon as it is created", missing.join(", "));
        self.troubles.hold(Kind::TopicMissing, text, now);
    }

    fn say_uneven(&mut self, uneven: &[String], now: Instant) {
        if uneven.is_empty() {
            return self.troubles.clear(Kind::Partitions, now);
        }
        let text = format!(
            "the partitions of a topic are no multiple of the {} shards ({}): part of its events come to a wrong \
             shard; give it a multiple of that many",
            self.settings.shards,
            uneven.join(", ")
        );
        self.troubles.hold(Kind::Partitions, text, now);
    }

    fn on_partitions(&mut self, at: usize, count: i32, now: Instant) {
        let topic = &mut self.topics[at];
        topic.missed = 0;
        match topic.partitions.replace(count) {
            Some(before) if before < count => {
                tracing::info!(topic = %topic.name, from = before, to = count, "the topic has more partitions");
            }
            // Partitions are never taken away from a topic: this is another one of the same name.
            Some(before) if before > count => {
                let name = Arc::clone(&topic.name);
                self.on_recreated(&name, now);
            }
            _ => {}
        }
    }

    /// A topic was not found; `true` if it is gone, as far as can be told.
    fn on_missing(&mut self, at: usize) -> bool {
        let topic = &mut self.topics[at];
        topic.missed = topic.missed.saturating_add(1);
        self.next_topics = self.next_topics.min(Instant::now() + self.settings.timing.missing);
        if topic.partitions.is_some() && topic.missed < MISSED_MAX {
            return false;
        }
        if topic.partitions.take().is_some() {
            topic.anew = true;
            tracing::warn!(topic = %topic.name, "the topic was deleted");
            self.drop_topic(at);
            self.ask_resync();
        }
        true
    }

    /// A topic of the same name stands in the place of the one that was read: everything begins anew.
    pub(super) fn on_recreated(&mut self, name: &str, now: Instant) {
        let Some(at) = self.topics.iter().position(|topic| *topic.name == *name) else { return };
        if self.topics[at].parts.is_empty() {
            return;
        }
        self.topics[at].anew = true;
        self.drop_topic(at);
        self.next_topics = now;
        self.next_start = now;
        let text = format!("the topic {name} was deleted and made anew; it is read from its start");
        self.troubles.raise(Kind::OffsetReset, text, now);
        self.ask_resync();
    }

    fn ask_resync(&self) {
        self.settings.resync.notify_one();
    }

    /// Takes up partitions where their committed offsets say.
    pub(super) fn on_start(&mut self, ends: Vec<Ends>, now: Instant) {
        let mut touched = BTreeSet::new();
        for Ends { place, asked, low, high } in ends {
            let Some(at) = self.topics.iter().position(|topic| topic.name == place.topic) else { continue };
            if !self.intake || !self.is_wanted(&self.topics[at], place.partition) {
                continue;
            }
            let committed = asked.filter(|_| !self.topics[at].anew);
            let start = match committed {
                None => low,
                Some(offset) if (low..=high).contains(&offset) => offset,
                Some(offset) => {
                    self.say_lost(&place, offset, low, high, now);
                    low
                }
            };
            touched.insert(at);
            self.take_up(at, &place, start, committed.filter(|offset| *offset == start), high);
        }
        // Only now: all partitions of a topic that is new begin at the start of its log.
        for at in touched {
            self.topics[at].anew = false;
        }
        if self.lacks_any() {
            self.next_start = now + START_RETRY;
        }
        self.show_assigned();
    }

    fn take_up(&mut self, at: usize, place: &Place, start: u64, committed: Option<u64>, high: u64) {
        let assignment = Assignment::new(place.clone(), self.settings.shards, start, committed);
        assignment.set_end(high);
        if let Err(error) = self.assign_at(place, start) {
            tracing::debug!(%place, %error, "the partition cannot be taken up");
            return;
        }
        self.commits.forget(&assignment);
        let source = self.events.open(Source {
            stream: Arc::clone(self.events.name()),
            class: Class::Event,
            partition: Some((Arc::clone(&place.topic), place.partition)),
            tracker: Some(Arc::clone(&assignment) as _),
        });
        tracing::debug!(%place, start, committed, "reading");
        let part = Part {
            assignment,
            source,
            held: VecDeque::new(),
            letters: 0,
            paused: false,
            behind: None,
            outside: 0,
            foreign: false,
        };
        self.topics[at].parts.insert(place.partition, part);
    }

    fn assign_at(&self, place: &Place, start: u64) -> Result<(), KafkaError> {
        let mut list = TopicPartitionList::with_capacity(1);
        let offset = Offset::Offset(i64::try_from(start).unwrap_or(i64::MAX));
        list.add_partition_offset(&place.topic, place.partition, offset)?;
        self.client.incremental_assign(&list)
    }

    fn say_lost(&mut self, place: &Place, wanted: u64, low: u64, high: u64, now: Instant) {
        let text = if wanted < low {
            self.instruments.lost(&place.topic, low - wanted);
            format!(
                "offsets {wanted} to {} of {place} were deleted before they were read; a resync is asked for",
                low - 1
            )
        } else {
            format!(
                "{place} ends at {high}, before the next offset {wanted}: the log was cut or made anew; it is read \
                 from {low} on"
            )
        };
        self.troubles.raise(Kind::OffsetReset, text, now);
        self.ask_resync();
    }

    /// What the ends of the logs say: the lag, positions outside the log, and partitions that stand still.
    pub(super) fn on_watch(&mut self, ends: Vec<Ends>, now: Instant) {
        let hint = std::mem::take(&mut self.hint);
        for Ends { place, asked, low, high } in ends {
            let asked = asked.unwrap_or_default();
            let Some(part) = self.part(&place) else { continue };
            part.assignment.set_end(high);
            if (low..=high).contains(&asked) {
                part.outside = 0;
            } else {
                part.outside += 1;
                if hint || part.outside >= OUTSIDE_MAX {
                    self.restart(&place, asked, low, high, now);
                    continue;
                }
            }
            let still = part.position() == asked && high > asked && !part.is_held();
            if still && part.behind == Some(asked) {
                self.probes.push((place, asked, high));
            } else {
                part.behind = still.then_some(asked);
            }
        }
    }

    /// Reads a partition from the start of its log, since the log does not have the position.
    fn restart(&mut self, place: &Place, asked: u64, low: u64, high: u64, now: Instant) {
        let Some(at) = self.topics.iter().position(|topic| topic.name == place.topic) else { return };
        self.say_lost(place, asked, low, high, now);
        self.drop_part(at, place.partition);
        self.take_up(at, place, low, None, high);
        self.show_assigned();
    }

    /// A partition stood still before the end of its log: either there is nothing there, or the client has fallen
    /// asleep.
    pub(super) fn on_probe(&mut self, found: Vec<(Place, u64, Found)>) {
        for (place, asked, found) in found {
            let Some(part) = self.part(&place) else { continue };
            if part.position() != asked || part.is_held() {
                continue;
            }
            part.behind = None;
            match found {
                Found::Nothing(end) => part.assignment.ledger().reached(end),
                Found::Record => {
                    let list = list_of(&place);
                    let again = self.client.incremental_unassign(&list).and_then(|()| self.assign_at(&place, asked));
                    let ok = again.is_ok();
                    tracing::warn!(%place, offset = asked, ok, "stood still before a record; taken up anew");
                    self.events.count_error("stood_still");
                }
            }
        }
    }
}
