//! What streams have handed over: taken a batch at a time, held back while there is no room (Q5, Q6).
//!
//! Must never look twice at an event that still has no place: an event is counted as held back once, and a full shard
//! costs a turn nothing. Tested in `tests/it/engine_events.rs`.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::ShardLoop;
use crate::contract::Class;
use crate::engine::intake::{Batch, Intake};
use crate::scheduler::{Admission, Arrival, ArrivalClass, Priority, RESYNC_WAITING_MAX, Time};

/// An intake, and what was taken from it and found no room.
pub(super) struct Held {
    pub(super) intake: Arc<Intake>,
    batch: Batch,
    /// How many events of the batch have found a place since.
    placed: usize,
}

impl Held {
    fn is_empty(&self) -> bool {
        self.batch.is_empty()
    }

    /// Whether an event for this id is held back.
    pub(super) fn holds(&self, id: &str) -> bool {
        self.batch.iter().skip(self.placed).any(|event| event.id == id)
    }
}

impl ShardLoop {
    /// Takes what the streams have handed over. Gives whether there may be more: where something was, the stream fills
    /// the next batch meanwhile, and to look again costs less than to sleep and be woken.
    pub(super) fn take_intakes(&mut self, now: Time) -> bool {
        self.refresh_intakes();
        if self.stage != super::Stage::Running {
            return false;
        }
        let mut more = false;
        for index in 0..self.intakes.len() {
            if !self.intakes[index].is_empty() && !self.place_held(now, index) {
                continue;
            }
            let batch = self.intakes[index].intake.take(std::mem::take(&mut self.spare));
            let took = !batch.is_empty();
            self.intakes[index].batch = self.take_batch(now, self.intakes[index].intake.class, &batch);
            self.spare = batch;
            self.spare.clear();
            more |= took && self.intakes[index].is_empty();
        }
        more
    }

    /// Hands a batch to the scheduler; gives the events that found no room, in order.
    fn take_batch(&mut self, now: Time, class: Class, batch: &Batch) -> Batch {
        let mut refused = Batch::default();
        for event in batch.iter() {
            let arrival = arrival(&event, class);
            match self.core.handle_event(now, &arrival, &mut self.commands) {
                Admission::Refused => refused.push(event.id, event.worker, event.receipt, event.trace),
                Admission::Admitted | Admission::Present => self.link(&event),
            }
        }
        refused
    }

    /// Places what is held back, in order, while there is room. Gives whether nothing is left.
    fn place_held(&mut self, now: Time, index: usize) -> bool {
        let class = self.intakes[index].intake.class;
        if !self.has_room(class) {
            return false;
        }
        let batch = std::mem::take(&mut self.intakes[index].batch);
        let mut placed = self.intakes[index].placed;
        let mut left = false;
        for event in batch.iter().skip(placed) {
            left = !self.has_room(class)
                || self.core.handle_event(now, &arrival(&event, class), &mut self.commands) == Admission::Refused;
            if left {
                break;
            }
            self.link(&event);
            placed += 1;
        }
        if left {
            self.intakes[index].batch = batch;
            self.intakes[index].placed = placed;
        } else {
            self.intakes[index].placed = 0;
            self.spare = batch;
            self.spare.clear();
        }
        !left
    }

    /// Whether an id that the shard does not know would be taken.
    fn has_room(&self, class: Class) -> bool {
        let places = self.core.levels().admitted < self.shared.limits.admitted;
        places && (class != Class::Resync || self.core.waiting_in(Priority::Resync) < RESYNC_WAITING_MAX)
    }

    /// Whether something is held back that has room now: runs that ended in this turn have made some.
    pub(super) fn held_has_room(&self) -> bool {
        self.stage == super::Stage::Running
            && self.intakes.iter().any(|held| !held.is_empty() && self.has_room(held.intake.class))
    }

    /// Whether streams are held back because all places are taken. A resync that waits its turn is no fault.
    pub(super) fn is_full(&self) -> bool {
        self.core.levels().admitted >= self.shared.limits.admitted && self.intakes.iter().any(|held| !held.is_empty())
    }

    fn link(&mut self, event: &crate::engine::intake::Taken<'_>) {
        if let Some(trace) = event.trace.filter(|_| self.shared.tracing.is_some()) {
            self.notes.link(&self.core, event.id, trace);
        }
    }

    fn refresh_intakes(&mut self) {
        let door = self.shared.door(self.id);
        let version = door.intakes_version.load(Relaxed);
        if version == self.intakes_version {
            return;
        }
        self.intakes_version = version;
        let list = door.intakes.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        for intake in list.iter().skip(self.intakes.len()) {
            self.intakes.push(Held { intake: Arc::clone(intake), batch: Batch::default(), placed: 0 });
        }
    }
}

fn arrival<'a>(event: &crate::engine::intake::Taken<'a>, class: Class) -> Arrival<'a> {
    let class = match class {
        Class::Event => ArrivalClass::Event,
        Class::Resync => ArrivalClass::Resync,
        Class::Trigger => ArrivalClass::Trigger,
    };
    Arrival { id: event.id, kind: 0, worker: event.worker.0, receipt: event.receipt, class }
}
