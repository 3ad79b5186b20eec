//! The rules of how a run ends and what follows.

use std::time::Duration;

use evenkeel::id::{Receipt, SourceId};
use evenkeel::scheduler::{DELAY_MAX, Next, Outcome, ParkReason, Priority, Time};

use super::{At, Rules, Run, Seat, Wait, Why};

impl Rules {
    pub(in super::super) fn end(&mut self, now: Time, id: usize, outcome: Outcome, causes: &Why) -> Next {
        self.moment += 1;
        let run = self.ids[id].run.take().expect("it runs");
        let mut next = if run.stopped {
            self.stopped(now, id, &run, causes)
        } else {
            match outcome {
                Outcome::Done(again) => self.done(now, id, &run, again),
                Outcome::Failed(delay) => self.failed(now, id, &run, causes, Some(delay)),
                Outcome::Terminal => self.failed(now, id, &run, causes, None),
                Outcome::Cancelled => self.stopped(now, id, &run, causes),
            }
        };
        if let (Next::At(due), At::Delayed(now)) = (&mut next, self.ids[id].at) {
            *due = now;
        }
        self.hold(now, id);
        if self.draining {
            self.record_if_owed(id);
        }
        next
    }

    fn done(&mut self, now: Time, id: usize, run: &Run, again: Option<Time>) -> Next {
        self.owed.retain(|owed| owed.id != id || !owed.running);
        self.start_anew(id);
        if !self.ids[id].hanging {
            self.let_go(id);
        }
        if let Some(priority) = run.asked {
            // The record stays if it stands for more than this run answered, or is about to.
            if self.ids[id].record.as_ref().is_some_and(|record| record.covers_to <= run.began && !record.again) {
                self.erase(id);
            }
            self.take_place(id);
            self.pend(now, id, priority);
            return Next::Again;
        }
        let Some(time) = again else {
            self.erase(id);
            let it = &mut self.ids[id];
            (it.at, it.seat, it.hanging, it.latest, it.causes) = (At::Idle, Seat::None, false, None, Why::default());
            return Next::Idle;
        };
        self.requeue(now, id, time)
    }

    fn requeue(&mut self, now: Time, id: usize, time: Time) -> Next {
        let due = time.max(self.soonest(id)).min(now.after(DELAY_MAX));
        let timers = self.count(|it| it.seat == Seat::Timer);
        let it = &mut self.ids[id];
        (it.latest, it.causes, it.wait) = (None, Why::default(), Wait::Asked);
        if it.seat != Seat::Timer {
            if timers < self.settings.timers_max.get() { it.seat = Seat::Timer } else { self.counters.timers_full += 1 }
        }
        self.delay(id, due);
        if due > now.after(self.settings.max_hold) || self.ids[id].record.as_ref().is_some_and(|record| record.outdated)
        {
            self.write(id);
        }
        let it = &mut self.ids[id];
        it.hanging = it.record.is_none();
        Next::At(due)
    }

    /// A failure; without a delay for good.
    fn failed(&mut self, now: Time, id: usize, run: &Run, causes: &Why, delay: Option<Option<Duration>>) -> Next {
        self.unanswered(id);
        if self.ids[id].parked.is_some() {
            return self.attempt_failed(now, id, run, causes);
        }
        let kept = self.ids[id].retry_kept.take();
        if let (Some(due), Some(_)) = (kept.filter(|due| now < *due), delay) {
            return self.retry(now, id, due, run, causes);
        }
        self.ids[id].failures += 1;
        let failures = self.ids[id].failures;
        let retry = self.settings.kinds[id % self.settings.kinds.len()].retry;
        let spent = retry.max_retries.is_some_and(|most| failures > most) || self.ids[id].overdue;
        let Some(delay) = delay.filter(|_| !spent) else { return self.give_up(now, id, run, causes) };
        let usual = (1..failures).fold(retry.initial, |delay, _| delay.mul_f64(retry.factor).min(retry.max_delay));
        self.retry(now, id, now.after(delay.unwrap_or(usual).min(DELAY_MAX)), run, causes)
    }

    fn retry(&mut self, now: Time, id: usize, due: Time, run: &Run, causes: &Why) -> Next {
        self.counters.retries += 1;
        let cause = Receipt::new(SourceId::RETRY, self.ids[id].failures.into());
        self.keep_causes(id, causes, run.asked.is_some(), Some(cause));
        let due = due.max(self.soonest(id));
        self.take_place(id);
        self.ids[id].wait = Wait::Retry;
        self.delay(id, due);
        if run.asked == Some(Priority::Event) {
            self.overtake(now, id, due, Priority::Event);
        }
        if self.ids[id].record.is_some() {
            self.write(id);
        }
        if matches!(self.ids[id].at, At::Delayed(_)) { Next::At(due) } else { Next::Again }
    }

    /// The attempt that a resync gave failed.
    fn attempt_failed(&mut self, now: Time, id: usize, run: &Run, causes: &Why) -> Next {
        match run.asked {
            Some(Priority::Event) => self.go_on_anew(now, id, run, causes),
            Some(_) => {
                self.keep_causes(id, causes, true, None);
                self.pend(now, id, Priority::Resync);
                Next::Again
            }
            None => {
                self.keep_causes(id, causes, false, None);
                (self.ids[id].at, self.ids[id].seat) = (At::Parked, Seat::None);
                Next::Parked(self.ids[id].parked.expect("it was"))
            }
        }
    }

    fn give_up(&mut self, now: Time, id: usize, run: &Run, causes: &Why) -> Next {
        if run.asked == Some(Priority::Event) {
            return self.go_on_anew(now, id, run, causes);
        }
        if !self.may_park(id) {
            self.ids[id].overdue = true;
            let longest = self.settings.kinds[id % self.settings.kinds.len()].retry.max_delay;
            return self.retry(now, id, now.after(longest), run, causes);
        }
        self.counters.given_up += 1;
        self.keep_causes(id, causes, run.asked.is_some(), None);
        self.park(now, id, ParkReason::GivenUp, run.asked)
    }

    fn stopped(&mut self, now: Time, id: usize, run: &Run, causes: &Why) -> Next {
        self.unanswered(id);
        if run.park && run.after_cancel == Some(Priority::Event) {
            return self.go_on_anew(now, id, run, causes);
        }
        if run.park && self.may_park(id) {
            self.keep_causes(id, causes, run.asked.is_some(), None);
            return self.park(now, id, ParkReason::Cancelled, run.after_cancel);
        }
        let cause = Receipt::new(SourceId::CANCELLED, run.number);
        self.keep_causes(id, causes, run.asked.is_some(), Some(cause));
        if run.asked == Some(Priority::Event) && (self.ids[id].parked.is_some() || self.ids[id].overdue) {
            self.start_anew(id);
        }
        self.take_place(id);
        self.pend(now, id, run.asked.unwrap_or(Priority::Event));
        Next::Again
    }

    /// It would rest, but an event came: as if it rested and the event came then.
    fn go_on_anew(&mut self, now: Time, id: usize, run: &Run, causes: &Why) -> Next {
        self.keep_causes(id, causes, run.asked.is_some(), None);
        self.start_anew(id);
        self.take_place(id);
        let soonest = self.soonest(id);
        if soonest <= now {
            self.pend(now, id, Priority::Event);
            return Next::Again;
        }
        (self.ids[id].wait, self.ids[id].priority) = (Wait::TooSoon, Priority::Event);
        self.delay(id, soonest);
        Next::At(soonest)
    }

    pub(super) fn park(&mut self, now: Time, id: usize, reason: ParkReason, meanwhile: Option<Priority>) -> Next {
        let it = &mut self.ids[id];
        (it.at, it.parked, it.seat) = (At::Parked, Some(reason), Seat::None);
        (it.retry_kept, it.hanging, it.overdue) = (None, false, false);
        it.letter_owed |= reason == ParkReason::GivenUp;
        self.write(id);
        if meanwhile == Some(Priority::Resync) && self.admitted() < self.settings.admitted_max.get() {
            self.admit(now, id, Priority::Resync);
            return Next::Again;
        }
        Next::Parked(reason)
    }

    fn unanswered(&mut self, id: usize) {
        for owed in self.owed.iter_mut().filter(|owed| owed.id == id) {
            owed.running = false;
        }
    }

    pub(super) fn keep_causes(&mut self, id: usize, ended: &Why, asked: bool, one_more: Option<Receipt>) {
        let it = &mut self.ids[id];
        let came = std::mem::take(&mut it.causes);
        let mut all = ended.clone();
        if asked {
            came.kept.iter().for_each(|cause| all.add(*cause));
            all.more += came.more;
        }
        all.kept.retain(|cause| !matches!(cause.source, SourceId::RETRY | SourceId::CANCELLED));
        one_more.into_iter().for_each(|cause| all.add(cause));
        it.causes = all;
    }
}
