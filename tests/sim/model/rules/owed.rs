//! The rules of owed records, and of what people ask for.

use evenkeel::id::{Receipt, SourceId};
use evenkeel::scheduler::{CancelAnswer, ParkReason, Priority, RecordReason, Time};

use super::{At, Effect, Kept, Rules, Seat, Wait};

impl Rules {
    pub(super) fn write(&mut self, id: usize) {
        let records = self.count(|it| it.record.is_some());
        if !self.settings.durable && !self.ids[id].letter_owed {
            return;
        }
        if let Some(record) = self.ids[id].record.as_mut().filter(|record| record.writing.is_some()) {
            record.again = true;
            return;
        }
        if self.ids[id].record.is_none() && records >= self.settings.owed_records_max.get() {
            self.counters.records_full += 1;
            return;
        }
        self.writes += 1;
        let it = &mut self.ids[id];
        let stored = it.record.as_ref().is_some_and(|record| record.stored);
        let (writing, covers_to) = (Some(self.writes), it.last_event);
        it.record = Some(Kept { stored, writing, again: false, covers_to, outdated: false });
        it.hanging = false;
        let letter = std::mem::take(&mut it.letter_owed);
        for owed in self.owed.iter_mut().filter(|owed| owed.id == id) {
            owed.covered = true;
        }
        self.let_go(id);
        self.effects.push(Effect::Write(id, letter));
    }

    /// The write is durable.
    pub(in super::super) fn written(&mut self, now: Time, id: usize, write: u64) {
        self.moment += 1;
        let Some(record) = self.ids[id].record.as_mut().filter(|record| record.writing == Some(write)) else { return };
        (record.stored, record.writing) = (true, None);
        self.owed.retain(|owed| owed.id != id || !owed.covered);
        if std::mem::take(&mut self.ids[id].record.as_mut().unwrap().again) {
            self.write(id);
        }
        self.hold(now, id);
    }

    pub(super) fn erase(&mut self, id: usize) {
        if self.ids[id].record.take().is_some() {
            self.effects.push(Effect::Erase(id));
        }
    }

    pub(super) fn outdate(&mut self, id: usize) {
        if let Some(record) = &mut self.ids[id].record {
            record.outdated = true;
        }
    }

    pub(super) fn holds(&self, id: usize) -> bool {
        self.owed.iter().any(|owed| owed.id == id && !owed.covered)
    }

    pub(super) fn hold(&mut self, now: Time, id: usize) {
        let hangs = self.settings.durable && self.ids[id].hanging;
        if !self.holds(id) && !hangs {
            self.let_go(id);
        } else if self.ids[id].held.is_none() {
            self.ids[id].held = Some(now);
            self.holding.push(id);
        }
    }

    pub(super) fn let_go(&mut self, id: usize) {
        self.ids[id].held = None;
        self.holding.retain(|other| *other != id);
    }

    pub(super) fn may_park(&self, id: usize) -> bool {
        let max = self.settings.owed_records_max.get();
        let it = &self.ids[id];
        (it.parked.is_some() || self.count(|it| it.parked.is_some()) < max)
            && (it.record.is_some() || self.count(|it| it.record.is_some()) < max)
    }

    /// What the record of an id says now.
    pub(in super::super) fn record(&self, now: Time, id: usize) -> (Time, u32, RecordReason) {
        let it = &self.ids[id];
        let (due, reason) = match (it.at, it.parked) {
            (_, Some(reason)) => (now, RecordReason::Parked(reason)),
            (At::Delayed(due), None) if it.wait == Wait::Asked => (due, RecordReason::Requested),
            (At::Delayed(due), None) => (due, RecordReason::Held),
            _ => (now, RecordReason::Held),
        };
        (due, it.failures, reason)
    }

    // People.

    pub(in super::super) fn cancel(&mut self, now: Time, id: usize) -> CancelAnswer {
        self.moment += 1;
        match self.ids[id].at {
            At::Idle => CancelAnswer::Idle,
            At::Parked => CancelAnswer::AlreadyParked,
            _ if !self.may_park(id) => CancelAnswer::Full,
            At::Running => {
                let run = self.ids[id].run.as_mut().unwrap();
                (run.park, run.after_cancel) = (true, None);
                run.asked = run.asked.map(|_| Priority::Resync);
                if !std::mem::replace(&mut run.stopped, true) {
                    self.effects.push(Effect::Stop(id));
                }
                CancelAnswer::Stopping
            }
            At::Pending(_) | At::Delayed(_) => {
                let causes = self.ids[id].causes.clone();
                self.keep_causes(id, &causes, false, None);
                self.park(now, id, ParkReason::Cancelled, None);
                self.hold(now, id);
                CancelAnswer::Parked
            }
        }
    }

    pub(in super::super) fn redrive(&mut self, now: Time, id: usize) -> bool {
        self.moment += 1;
        if self.ids[id].at != At::Parked || self.draining {
            return false;
        }
        self.start_anew(id);
        let redrive = Receipt::new(SourceId::REDRIVE, self.counters.started);
        let it = &mut self.ids[id];
        it.causes.add(redrive);
        it.seat = Seat::Admitted;
        self.pend(now, id, Priority::Event);
        true
    }

    pub(in super::super) fn record_now(&mut self, id: usize) -> bool {
        self.moment += 1;
        if self.ids[id].at == At::Idle {
            return false;
        }
        self.write(id);
        self.ids[id].record.as_ref().is_some_and(|record| record.writing.is_some())
    }

    /// Records what is owed; where there is no room for all, those that come first in this order.
    pub(in super::super) fn drain(&mut self, order: &[usize]) {
        self.moment += 1;
        self.draining = true;
        for id in order.iter().filter(|id| self.ids[**id].at != At::Running).copied().collect::<Vec<_>>() {
            self.record_if_owed(id);
        }
    }

    pub(super) fn record_if_owed(&mut self, id: usize) {
        let it = &self.ids[id];
        let says_all = it.record.as_ref().is_some_and(|record| !record.outdated) && !self.holds(id);
        if matches!(it.at, At::Pending(_) | At::Delayed(_)) && !says_all && self.settings.durable {
            self.write(id);
        }
    }
}
