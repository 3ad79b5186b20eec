//! Handing over: from a message to an event, and what happens when a shard is full (K4, K5).
//!
//! An event is owed from its delivery on, before anybody is asked to take it. One that a full shard refuses for longer
//! than a moment stays in hand, its partition is paused (which empties the client's buffer for it), and it goes first
//! when there is room.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use opentelemetry::trace::SpanContext;
use rdkafka::Message;
use rdkafka::consumer::Consumer;
use rdkafka::message::BorrowedMessage;

use super::super::assignment::Place;
use super::super::decode::{self, IdFrom, Parts, Poison};
use super::super::hand_off;
use super::super::producer::Outgoing;
use super::super::trouble::Kind;
use super::letters::{LETTERS_MAX, LETTERS_RESUME};
use super::{Part, Session, list_of};
use crate::contract::{Event, Offer, Sent};
use crate::id::{self, Receipt, ShardId};

/// A shard without room is looked at so often before its partitions are paused, with so long a pause between.
const FULL_LOOKS: u32 = 50;
const FULL_PAUSE: Duration = Duration::from_micros(100);

/// Something of a partition that waits in hand.
pub(super) enum Held {
    /// An event that met a full shard.
    Event { offset: u64, id: Box<str>, trace: Option<SpanContext>, full: ShardId },
    /// A message that the dead-letter topic or the hand-off topic did not take.
    Letter { offset: u64, letter: Box<Outgoing> },
}

impl Session {
    pub(super) fn on_message(&mut self, message: &BorrowedMessage<'_>, now: Instant) {
        self.heard = true;
        let (topic, partition) = (message.topic(), message.partition());
        let Some(at) = self.topics.iter().position(|known| *known.name == *topic) else { return };
        let id_from = if self.topics[at].hand_off { &IdFrom::Key } else { &self.settings.id };
        let Some(part) = self.topics[at].parts.get_mut(&partition) else { return };
        let Ok(offset) = u64::try_from(message.offset()) else { return };
        part.behind = None;
        part.assignment.deliver(offset, self.gauges.tick(now));
        let parts = Parts::of(message);
        let result = match decode::id(id_from, &parts) {
            Ok(Cow::Borrowed("")) => {
                part.assignment.settle(offset);
                Ok(())
            }
            Ok(id) => match self.watch_route(at, partition, &id, parts.key, now) {
                Some(shard) => self.hand_off((at, partition, offset), &id, &parts, shard),
                None => self.offer(at, partition, offset, &id, decode::trace(&parts), now),
            },
            Err(poison) => Err(poison),
        };
        if let Err(poison) = result {
            self.on_poison(at, partition, offset, message, &poison);
        }
    }

    /// Counts an event whose id belongs to another shard than its partition (K3). Gives that shard, where there is a
    /// way to pass the event on to it.
    fn watch_route(
        &mut self,
        at: usize,
        partition: i32,
        id: &str,
        key: Option<&[u8]>,
        now: Instant,
    ) -> Option<ShardId> {
        let topic = &self.topics[at];
        let home = topic.parts.get(&partition).map(|part| part.assignment.shard);
        let shard = self.events.shard_of(id).filter(|shard| home != Some(*shard))?;
        self.instruments.misrouted(&topic.name);
        // What is wrong with a message of the hand-off topic says nothing of the producers.
        if topic.hand_off {
            return Some(shard);
        }
        let key = key.unwrap_or(id.as_bytes());
        let partitions = topic.partitions.unwrap_or(1);
        if let Some(text) = self.tally.note(&topic.name, key, partition, partitions) {
            self.troubles.raise(Kind::Misrouted, text, now);
        }
        self.settings.hand_off.as_ref().map(|_| shard)
    }

    /// Passes an event on to its shard, also where this process leads that one: the offset of a partition must not hang
    /// on the term of another shard.
    fn hand_off(
        &mut self,
        (at, partition, offset): (usize, i32, u64),
        id: &str,
        parts: &Parts<'_>,
        shard: ShardId,
    ) -> Result<(), Poison> {
        id::check(id)?;
        let Some(topic) = &self.settings.hand_off else { return Ok(()) };
        let Some(part) = self.topics[at].parts.get(&partition) else { return Ok(()) };
        let assignment = Arc::clone(&part.assignment);
        let message = hand_off::passed_on(topic, shard, id, parts, (&assignment.place, offset))?;
        self.send_letter(&assignment, offset, Box::new(message));
        self.adjust(at, partition);
        Ok(())
    }

    /// Offers an event to its shard; an error means that its id is none.
    fn offer(
        &mut self,
        at: usize,
        partition: i32,
        offset: u64,
        id: &str,
        trace: Option<SpanContext>,
        now: Instant,
    ) -> Result<(), Poison> {
        let Some(source) = self.topics[at].parts.get(&partition).map(|part| part.source) else { return Ok(()) };
        let event = Event { id, receipt: Receipt::new(source, offset), trace };
        let offer = self.offer_patiently(&event);
        let Some(part) = self.topics[at].parts.get_mut(&partition) else { return Ok(()) };
        match offer {
            Offer::Sent(Sent::Taken) if self.settings.fault_done_at_delivery => part.assignment.settle(offset),
            Offer::Sent(Sent::Taken) => {}
            Offer::Sent(Sent::Dropped) => part.assignment.settle(offset),
            Offer::Sent(Sent::Foreign(shard)) => {
                let place = part.assignment.place.clone();
                self.on_foreign(&place, offset, shard, now);
            }
            Offer::Full(full) => {
                let held = Held::Event { offset, id: id.into(), trace: event.trace, full };
                part.held.push_back(held);
                self.adjust(at, partition);
                self.wait_for(full);
            }
            Offer::Refused(error) => return Err(Poison::Id(error)),
            Offer::Stopped => self.stop_intake(),
        }
        Ok(())
    }

    /// A shard that keeps up has room again in a fraction of a millisecond. To wait for that costs far less than to
    /// pause, which empties the client's buffer and has everything in it fetched again.
    fn offer_patiently(&self, event: &Event<'_>) -> Offer {
        for _ in 0..FULL_LOOKS {
            match self.events.offer(event) {
                Offer::Full(shard) if !self.waiting.contains(&shard) => std::thread::park_timeout(FULL_PAUSE),
                offer => return offer,
            }
        }
        self.events.offer(event)
    }

    /// Its offset is owed and stays so: only the shard that leads it may do it, and nothing passes it on yet.
    fn on_foreign(&mut self, place: &Place, offset: u64, shard: ShardId, now: Instant) {
        if let Some(part) = self.part(place) {
            part.foreign = true;
        }
        if self.troubles.has(Kind::Foreign) {
            return;
        }
        let text = format!(
            "events on {place} belong to shard {shard}, which another process leads; offsets from {offset} on are held \
             back (set `hash` to the producers' partitioner, or hand_off to a topic)"
        );
        self.troubles.raise(Kind::Foreign, text, now);
    }

    /// Asks to be told when a shard has room; at most once at a time.
    fn wait_for(&mut self, shard: ShardId) {
        if !self.waiting.contains(&shard) && self.rooms.try_send(shard).is_ok() {
            self.waiting.insert(shard);
        }
    }

    /// A shard may have room: what is in hand goes first, and partitions with an empty hand flow again.
    pub(super) fn on_room(&mut self, shard: ShardId, now: Instant) {
        self.waiting.remove(&shard);
        for at in 0..self.topics.len() {
            let partitions: Vec<i32> = self.topics[at].parts.keys().copied().collect();
            for partition in partitions {
                self.offer_held(at, partition, shard, now);
            }
        }
    }

    fn offer_held(&mut self, at: usize, partition: i32, shard: ShardId, now: Instant) {
        let Some(part) = self.topics[at].parts.get_mut(&partition) else { return };
        if !part.held.iter().any(|held| matches!(held, Held::Event { full, .. } if *full == shard)) {
            return;
        }
        for held in std::mem::take(&mut part.held) {
            match held {
                Held::Event { offset, id, trace, .. } if self.intake => {
                    // It was looked at before it was offered, so it cannot be refused now.
                    let _ = self.offer(at, partition, offset, &id, trace, now);
                }
                other => {
                    if let Some(part) = self.topics[at].parts.get_mut(&partition) {
                        part.held.push_back(other);
                    }
                }
            }
        }
        self.adjust(at, partition);
    }

    /// Asks again for rooms whose request found no place.
    pub(super) fn wait_for_held(&mut self) {
        let full = |held: &Held| match held {
            Held::Event { full, .. } => Some(*full),
            Held::Letter { .. } => None,
        };
        let shards: Vec<ShardId> = self.parts().flat_map(|part| part.held.iter().filter_map(full)).collect();
        for shard in shards {
            self.wait_for(shard);
        }
    }

    /// Pauses or resumes a partition as what is in hand demands; each call is made once, since pausing empties the
    /// client's buffer for the partition.
    pub(super) fn adjust(&mut self, at: usize, partition: i32) {
        let Some(part) = self.topics[at].parts.get_mut(&partition) else { return };
        let letters = part.letters >= if part.paused { LETTERS_RESUME } else { LETTERS_MAX };
        let pause = !part.held.is_empty() || letters;
        if pause == part.paused {
            return;
        }
        let list = list_of(&part.assignment.place);
        let result = if pause { self.client.pause(&list) } else { self.client.resume(&list) };
        match result {
            Ok(()) => part.paused = pause,
            Err(error) => tracing::debug!(place = %part.assignment.place, %error, pause, "pause or resume failed"),
        }
        part.behind = None;
    }

    /// Hands over nothing more. What is in hand stays owed, so that no commit passes it.
    pub(super) fn stop_intake(&mut self) {
        if std::mem::replace(&mut self.intake, false) {
            self.give_back_all();
        }
    }
}

impl Part {
    /// Whether anything holds it back.
    pub(super) fn is_held(&self) -> bool {
        self.paused || !self.held.is_empty()
    }
}
