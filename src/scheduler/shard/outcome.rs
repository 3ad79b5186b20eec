//! What comes back: how a run ended, and what follows (D1 to D4, D7, D9, C2).

use std::time::Duration;

use super::{Flags, Mark, ParkReason, Priority, Seat, Shard, Slot, State, is_number};
use crate::id::{Causes, Receipt, SourceId};
use crate::scheduler::command::{ArrivalClass, Command, Next, Outcome};
use crate::scheduler::settings::DELAY_MAX;
use crate::scheduler::time::Time;

impl Shard {
    /// A run has ended. `causes` are those that its [`Start`](crate::scheduler::Start) gave: they go on with a retry.
    pub fn handle_outcome(
        &mut self,
        now: Time,
        slot: Slot,
        run: u64,
        outcome: Outcome,
        causes: &Causes,
        out: &mut Vec<Command>,
    ) -> Next {
        if !self.is_run(slot, run) {
            return Next::Stale;
        }
        self.end_run(slot);
        if outcome == Outcome::Done(None) && self.is_plain(slot) {
            return self.done_and_idle(slot, out);
        }
        let flags = &mut self.slab[slot].flags;
        let next = if flags.take(Flags::CANCELLING) {
            // Whatever it answered, a run that was told to stop covers nothing (K4).
            let park = flags.take(Flags::PARK_ON_END);
            self.cancelled(now, slot, causes, park, out)
        } else {
            match outcome {
                Outcome::Done(again) => self.done(now, slot, again, out),
                Outcome::Failed(delay) => self.failed(now, slot, delay, causes, out),
                Outcome::Terminal => self.failed_for_good(now, slot, causes, out),
                Outcome::Cancelled => self.cancelled(now, slot, causes, false, out),
            }
        };
        self.hold(now, slot);
        if self.draining {
            self.record_if_owed(slot, out);
        }
        next
    }

    fn is_run(&self, slot: Slot, run: u64) -> bool {
        slot.0 < self.slab.places() && self.slab[slot].state == State::Running && is_number(self.slab[slot].run, run)
    }

    /// Nothing is to be remembered of the id beyond its run and what that answers: true of most, so that their end
    /// costs one look. What holds nothing but events is plain too.
    fn is_plain(&self, slot: Slot) -> bool {
        let entry = &self.slab[slot];
        entry.flags.none_but(Flags::HOLDING) && entry.failures == 0 && entry.parked.is_none()
    }

    /// What [`done`](Self::done) comes to for a plain id.
    fn done_and_idle(&mut self, slot: Slot, out: &mut Vec<Command>) -> Next {
        self.marks.settle(&mut self.slab, slot, out);
        self.unhold(slot);
        self.enter_idle(slot);
        Next::Idle
    }

    fn done(&mut self, now: Time, slot: Slot, again: Option<Time>, out: &mut Vec<Command>) -> Next {
        self.marks.settle(&mut self.slab, slot, out);
        self.start_anew(slot);
        if !self.slab[slot].flags.has(Flags::HANGING) {
            // What is still held back came during the run.
            self.unhold(slot);
        }
        if self.slab[slot].flags.take(Flags::DIRTY) {
            if !self.slab[slot].flags.has(Flags::NEWER | Flags::WRITE_AGAIN) || self.faults.erase_newer {
                self.erase(slot, out);
            }
            let priority = self.slab[slot].priority;
            self.seat_for_run(slot);
            self.enter_pending(now, slot, priority);
            return Next::Again;
        }
        match again {
            None => {
                self.slab[slot].flags.clear(Flags::HANGING);
                self.erase(slot, out);
                self.enter_idle(slot);
                Next::Idle
            }
            Some(time) => self.requeue(now, slot, time, out),
        }
    }

    /// A time that the reconciler asked for (D9). Its place among the timers is no failure's.
    fn requeue(&mut self, now: Time, slot: Slot, time: Time, out: &mut Vec<Command>) -> Next {
        let entry = &mut self.slab[slot];
        entry.latest = Mark::NONE;
        self.marks.set_causes(entry, slot, Causes::NONE);
        let due = time.max(entry.since.after(self.settings.min_requeue)).min(now.after(DELAY_MAX));
        if entry.seat != Seat::Timer {
            if self.levels.timers < self.settings.timers_max.get() {
                self.sit(slot, Seat::Timer);
            } else {
                self.counters.timers_full += 1;
            }
        }
        self.enter_delayed(now, slot, due);
        self.record_requested(now, slot, out);
        Next::At(due)
    }

    fn failed(
        &mut self,
        now: Time,
        slot: Slot,
        delay: Option<Duration>,
        causes: &Causes,
        out: &mut Vec<Command>,
    ) -> Next {
        self.marks.fail(&mut self.slab, slot, out);
        if self.slab[slot].flags.has(Flags::PROBE) {
            return self.probe_failed(now, slot, causes);
        }
        if let Some(due) = self.take_retry(slot).filter(|due| now < *due) {
            return self.retry_at(now, slot, due, causes, out);
        }
        let failures = self.count_failure(slot);
        let entry = &self.slab[slot];
        let retry = &self.kind_settings(entry.kind).retry;
        if entry.flags.has(Flags::OVERDUE) || retry.is_spent(failures) {
            return self.give_up(now, slot, causes, out);
        }
        let usual = || retry.delay(failures, spread(u64::from(entry.run), slot));
        let due = now.after(delay.unwrap_or_else(usual).min(DELAY_MAX));
        self.retry_at(now, slot, due, causes, out)
    }

    fn failed_for_good(&mut self, now: Time, slot: Slot, causes: &Causes, out: &mut Vec<Command>) -> Next {
        self.marks.fail(&mut self.slab, slot, out);
        if self.slab[slot].flags.has(Flags::PROBE) {
            return self.probe_failed(now, slot, causes);
        }
        self.take_retry(slot);
        self.count_failure(slot);
        self.give_up(now, slot, causes, out)
    }

    fn count_failure(&mut self, slot: Slot) -> u32 {
        let entry = &mut self.slab[slot];
        entry.failures = entry.failures.saturating_add(1);
        entry.failures
    }

    fn retry_at(&mut self, now: Time, slot: Slot, due: Time, causes: &Causes, out: &mut Vec<Command>) -> Next {
        self.counters.retries += 1;
        let failures = self.slab[slot].failures;
        self.keep_causes(slot, causes, Some(Receipt::new(SourceId::RETRY, u64::from(failures))));
        let due = due.max(self.slab[slot].since.after(self.settings.min_requeue));
        self.slab[slot].flags.set(Flags::RETRYING);
        self.seat_for_run(slot);
        self.enter_delayed(now, slot, due);
        if self.slab[slot].flags.take(Flags::DIRTY) && self.slab[slot].priority == Priority::Event {
            self.overtake(now, slot, Priority::Event);
        }
        if self.slab[slot].flags.has(Flags::ANY_RECORD) {
            self.write(slot, out);
        }
        match self.slab[slot].state {
            State::Delayed => Next::At(self.slab[slot].due),
            _ => Next::Again,
        }
    }

    /// A resync's one attempt at a parked id failed: it is parked again with its count and record as they were (D3).
    fn probe_failed(&mut self, now: Time, slot: Slot, causes: &Causes) -> Next {
        match self.asked_meanwhile(slot) {
            Some(Priority::Resync) => {
                self.keep_causes(slot, causes, None);
                self.slab[slot].flags.clear(Flags::DIRTY);
                self.enter_pending(now, slot, Priority::Resync);
                Next::Again
            }
            Some(_) => self.go_on_anew(now, slot, causes),
            None => {
                self.keep_causes(slot, causes, None);
                self.slab[slot].flags.clear(Flags::PROBE);
                let reason = self.slab[slot].parked.unwrap_or(ParkReason::GivenUp);
                self.enter_parked(slot, reason);
                Next::Parked(reason)
            }
        }
    }

    /// No further attempt by itself (D3). Only what came during the run, or a full list of parked ids, leads on.
    fn give_up(&mut self, now: Time, slot: Slot, causes: &Causes, out: &mut Vec<Command>) -> Next {
        let meanwhile = self.asked_meanwhile(slot);
        if meanwhile == Some(Priority::Event) {
            return self.go_on_anew(now, slot, causes);
        }
        if !self.may_park(slot) {
            if !self.slab[slot].flags.has(Flags::OVERDUE) {
                self.slab[slot].flags.set(Flags::OVERDUE);
                self.levels.overdue += 1;
            }
            let longest = self.kind_settings(self.slab[slot].kind).retry.max_delay;
            return self.retry_at(now, slot, now.after(longest), causes, out);
        }
        self.counters.given_up += 1;
        self.park(slot, ParkReason::GivenUp, causes, out);
        self.parked_but(now, slot, meanwhile)
    }

    fn cancelled(&mut self, now: Time, slot: Slot, causes: &Causes, park: bool, out: &mut Vec<Command>) -> Next {
        self.marks.fail(&mut self.slab, slot, out);
        let entry = &mut self.slab[slot];
        // What came before the cancel is parked with the id, what came after it is not.
        let after = entry.flags.take(Flags::AFTER_CANCEL).then_some(entry.priority);
        if park && after == Some(Priority::Event) {
            return self.go_on_anew(now, slot, causes);
        }
        if park && self.may_park(slot) {
            self.park(slot, ParkReason::Cancelled, causes, out);
            return self.parked_but(now, slot, after);
        }
        self.keep_causes(slot, causes, Some(Receipt::new(SourceId::CANCELLED, u64::from(self.slab[slot].run))));
        let asked = self.asked_meanwhile(slot);
        if asked == Some(Priority::Event) && self.slab[slot].flags.has(Flags::PROBE | Flags::OVERDUE) {
            self.start_anew(slot);
        }
        self.slab[slot].flags.clear(Flags::DIRTY);
        self.seat_for_run(slot);
        self.enter_pending(now, slot, asked.unwrap_or(Priority::Event));
        Next::Again
    }

    /// What came during the run, the most urgent of it.
    fn asked_meanwhile(&self, slot: Slot) -> Option<Priority> {
        let entry = &self.slab[slot];
        entry.flags.has(Flags::DIRTY).then_some(entry.priority)
    }

    /// It would be parked, but an event came meanwhile: as if it had been parked and the event came then (D3).
    fn go_on_anew(&mut self, now: Time, slot: Slot, causes: &Causes) -> Next {
        self.keep_causes(slot, causes, None);
        self.start_anew(slot);
        self.slab[slot].flags.clear(Flags::DIRTY);
        let priority = self.slab[slot].priority;
        self.seat_for_run(slot);
        let earliest = self.slab[slot].since.after(self.settings.min_requeue);
        if earliest > now {
            self.enter_delayed(now, slot, earliest);
            self.slab[slot].flags.set(Flags::TOO_SOON);
            return Next::At(earliest);
        }
        self.enter_pending(now, slot, priority);
        Next::Again
    }

    /// It was parked, but a resync listed it meanwhile: it gets its one attempt (D3), if there is a place.
    fn parked_but(&mut self, now: Time, slot: Slot, meanwhile: Option<Priority>) -> Next {
        if meanwhile == Some(Priority::Resync) && self.has_room() {
            self.admit(now, slot, ArrivalClass::Resync, false);
            return Next::Again;
        }
        Next::Parked(self.slab[slot].parked.unwrap_or(ParkReason::GivenUp))
    }

    /// Parks an id and asks for what makes that durable; until then its events stay owed.
    pub(super) fn park(&mut self, slot: Slot, reason: ParkReason, causes: &Causes, out: &mut Vec<Command>) {
        self.keep_causes(slot, causes, None);
        self.forget_retry(slot);
        let flags = &mut self.slab[slot].flags;
        flags.clear(Flags::DIRTY | Flags::HANGING | Flags::PROBE);
        if flags.take(Flags::OVERDUE) {
            self.levels.overdue -= 1;
        }
        if reason == ParkReason::GivenUp {
            self.slab[slot].flags.set(Flags::LETTER_OWED);
        }
        self.enter_parked(slot, reason);
        self.write(slot, out);
    }

    /// The causes of the run that ended go on, with those that came meanwhile and perhaps one more.
    fn keep_causes(&mut self, slot: Slot, ended: &Causes, more: Option<Receipt>) {
        let entry = &mut self.slab[slot];
        let mut causes = *ended;
        if entry.flags.has(Flags::DIRTY) {
            causes.extend(&self.marks.causes(entry, slot));
        }
        // A retry of a retry names the latest failure only.
        causes.retain(|cause| !matches!(cause.source, SourceId::RETRY | SourceId::CANCELLED));
        if let Some(more) = more {
            causes.add(more);
        }
        self.marks.set_causes(entry, slot, causes);
    }
}

/// A number that looks drawn, from what is at hand: retries that failed together must not come back together, and the
/// same history must give the same times.
const fn spread(run: u64, slot: Slot) -> u64 {
    let mut x = run ^ ((slot.0 as u64) << 32) ^ 0x9e37_79b9_7f4a_7c15;
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
