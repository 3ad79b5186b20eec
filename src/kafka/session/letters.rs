//! Messages without a usable id: to the dead-letter topic, or into the log with their position (K1). And events of
//! another shard: to the hand-off topic (K3).
//!
//! Their offset is done once the message has arrived there. A topic that takes none holds the partition back; nothing
//! is dropped.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::error::RDKafkaErrorCode;
use rdkafka::message::BorrowedMessage;

use super::super::assignment::Assignment;
use super::super::dead_letter::{is_too_large, poison_letter, without_value};
use super::super::decode::Poison;
use super::super::producer::Outgoing;
use super::super::trouble::Kind;
use super::Session;
use super::intake::Held;

/// A partition is held back while so many of its letters are under way.
pub(super) const LETTERS_MAX: usize = 64;
/// And goes on when fewer than this are.
pub(super) const LETTERS_RESUME: usize = 16;
/// Letters that did not arrive are sent again after this long; each try lasts as long as the producer's own time limit.
const LETTER_RETRY: Duration = Duration::from_secs(1);

/// What became of a letter.
pub(super) struct Ack {
    assignment: Arc<Assignment>,
    offset: u64,
    letter: Box<Outgoing>,
    result: Result<(), RDKafkaErrorCode>,
}

impl Session {
    pub(super) fn on_poison(
        &mut self,
        at: usize,
        partition: i32,
        offset: u64,
        message: &BorrowedMessage<'_>,
        poison: &Poison,
    ) {
        let Some(part) = self.topics[at].parts.get(&partition) else { return };
        let assignment = Arc::clone(&part.assignment);
        self.events.count_error(poison.code());
        let Some(topic) = &self.settings.dead_letter else {
            // The payload may be large, or secret: the position is enough to find it.
            tracing::warn!(stream = %self.events.name(), place = %assignment.place, offset, "no usable id: {poison}");
            assignment.settle(offset);
            return;
        };
        let letter = poison_letter(topic, self.events.name(), &message.detach(), poison);
        tracing::debug!(stream = %self.events.name(), place = %assignment.place, offset, "to {topic}: {poison}");
        self.send_letter(&assignment, offset, Box::new(letter));
        self.adjust(at, partition);
    }

    pub(super) fn send_letter(&mut self, assignment: &Arc<Assignment>, offset: u64, letter: Box<Outgoing>) {
        let Some(producer) = &self.producer else { return };
        let (acks, to) = (self.acks.0.clone(), Arc::clone(assignment));
        let copy = Outgoing::clone(&letter);
        producer.send(
            &copy,
            Box::new(move |result| {
                let _ = acks.send(Ack { assignment: to, offset, letter, result });
            }),
        );
        if let Some(part) = self.part(&assignment.place) {
            part.letters += 1;
        }
    }

    pub(super) fn on_ack(&mut self, ack: Ack, now: Instant) {
        let Ack { assignment, offset, mut letter, result } = ack;
        // Also where the partition was given back meanwhile: what has arrived is done.
        if result.is_ok() {
            assignment.settle(offset);
        }
        let Some((at, partition)) = self.index_of(&assignment) else { return };
        if let Some(part) = self.topics[at].parts.get_mut(&partition) {
            part.letters = part.letters.saturating_sub(1);
        }
        let (kind, what) = match &self.settings.hand_off {
            Some(topic) if *topic == letter.topic => (Kind::HandOff, "hand-off"),
            _ => (Kind::DeadLetter, "dead-letter"),
        };
        match result {
            Ok(()) => self.troubles.clear(kind, now),
            Err(code) if is_too_large(code) && without_value(&mut letter) => {
                self.send_letter(&assignment, offset, letter);
            }
            Err(code) => {
                let why = self.producer.as_ref().map_or_else(|| code.to_string(), |p| p.error(code).to_string());
                let text = format!(
                    "the {what} topic {} does not take messages, so {} is held back: {why}",
                    letter.topic, assignment.place
                );
                self.troubles.raise(kind, text, now);
                self.next_letters = self.next_letters.max(now + LETTER_RETRY);
                if let Some(part) = self.topics[at].parts.get_mut(&partition) {
                    part.held.push_back(Held::Letter { offset, letter });
                }
            }
        }
        self.adjust(at, partition);
    }

    /// Sends again what did not arrive.
    pub(super) fn send_held_letters(&mut self, now: Instant) {
        if now < self.next_letters {
            return;
        }
        self.next_letters = now + LETTER_RETRY;
        self.wait_for_held();
        for at in 0..self.topics.len() {
            let partitions: Vec<i32> = self.topics[at].parts.keys().copied().collect();
            for partition in partitions {
                let Some(part) = self.topics[at].parts.get_mut(&partition) else { continue };
                let assignment = Arc::clone(&part.assignment);
                let (letters, events) = std::mem::take(&mut part.held)
                    .into_iter()
                    .partition::<Vec<_>, _>(|held| matches!(held, Held::Letter { .. }));
                part.held = events.into();
                for held in letters {
                    if let Held::Letter { offset, letter } = held {
                        self.send_letter(&assignment, offset, letter);
                    }
                }
                // Not resumed yet: the letters count as under way, and the answers decide.
            }
        }
    }

    fn index_of(&self, assignment: &Arc<Assignment>) -> Option<(usize, i32)> {
        let at = self.topics.iter().position(|topic| topic.name == assignment.place.topic)?;
        let part = self.topics[at].parts.get(&assignment.place.partition)?;
        Arc::ptr_eq(&part.assignment, assignment).then_some((at, assignment.place.partition))
    }
}
