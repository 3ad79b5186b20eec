//! The rules of one shard, told as plainly as possible: maps and lists, everything looked for and counted from scratch,
//! no care for speed.
//!
//! It shares with the scheduler only the words of its interface. Where the two disagree one of them is wrong; the rules
//! decide which.

mod ends;
mod owed;

use std::collections::BTreeMap;

use evenkeel::id::{CAUSES_KEPT, Receipt, SourceId};
use evenkeel::scheduler::{Admission, ArrivalClass, Counters, ParkReason, Priority, Settings, Time};

/// What a call brought about, beside its answer. Events that leave are found by what is left.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Effect {
    Stop(usize),
    Write(usize, bool),
    Erase(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum At {
    Idle,
    /// With its turn among those of its priority.
    Pending(u64),
    Running,
    Delayed(Time),
    Parked,
}

/// What a delayed id waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    Retry,
    Asked,
    TooSoon,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seat {
    None,
    Admitted,
    Timer,
}

/// An event that has not left for good.
#[derive(Debug, Clone, Copy)]
struct Owed {
    id: usize,
    event: Receipt,
    running: bool,
    /// The write under way that covers it.
    covered: bool,
}

/// The present run.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) number: u64,
    began: u64,
    pub(super) stopped: bool,
    park: bool,
    /// The most urgent of what came since it began, and since it was cancelled.
    pub(super) asked: Option<Priority>,
    after_cancel: Option<Priority>,
}

#[derive(Debug, Clone, Default)]
struct Kept {
    stored: bool,
    writing: Option<u64>,
    again: bool,
    /// The moment of the latest event that it stands for.
    covers_to: u64,
    /// It says less than what is owed now.
    outdated: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Why {
    pub(super) kept: Vec<Receipt>,
    pub(super) more: u32,
}

impl Why {
    fn one(cause: Receipt) -> Self {
        Self { kept: vec![cause], more: 0 }
    }

    fn add(&mut self, cause: Receipt) {
        if self.kept.len() < CAUSES_KEPT { self.kept.push(cause) } else { self.more += 1 }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Id {
    pub(super) at: At,
    pub(super) wait: Wait,
    pub(super) priority: Priority,
    pub(super) since: Time,
    pub(super) failures: u32,
    retry_kept: Option<Time>,
    pub(super) run: Option<Run>,
    pub(super) parked: Option<ParkReason>,
    pub(super) overdue: bool,
    seat: Seat,
    record: Option<Kept>,
    letter_owed: bool,
    hanging: bool,
    held: Option<Time>,
    pub(super) latest: Option<Receipt>,
    pub(super) causes: Why,
    last_event: u64,
    /// Its turn among those that come due together.
    delayed: u64,
}

pub(super) struct Rules {
    pub(super) settings: Settings,
    pub(super) ids: Vec<Id>,
    owed: Vec<Owed>,
    /// Ids that hold something back, the longest first.
    holding: Vec<usize>,
    pub(super) effects: Vec<Effect>,
    pub(super) counters: Counters,
    writes: u64,
    /// Counts calls: what came before what.
    moment: u64,
    turn: u64,
    pub(super) draining: bool,
}

impl Rules {
    pub(super) fn new(settings: Settings, ids: usize) -> Self {
        let id = Id {
            at: At::Idle,
            wait: Wait::Asked,
            priority: Priority::Event,
            since: Time::ZERO,
            failures: 0,
            retry_kept: None,
            run: None,
            parked: None,
            overdue: false,
            seat: Seat::None,
            record: None,
            letter_owed: false,
            hanging: false,
            held: None,
            latest: None,
            causes: Why::default(),
            last_event: 0,
            delayed: 0,
        };
        Self {
            settings,
            ids: vec![id; ids],
            owed: Vec::new(),
            holding: Vec::new(),
            effects: Vec::new(),
            counters: Counters::default(),
            writes: 0,
            moment: 0,
            turn: 0,
            draining: false,
        }
    }

    // Events.

    pub(super) fn event(&mut self, now: Time, id: usize, class: ArrivalClass, receipt: Receipt) -> Admission {
        self.moment += 1;
        if self.draining {
            return Admission::Refused;
        }
        let present = matches!(self.ids[id].at, At::Pending(_) | At::Running | At::Delayed(_));
        if !present && self.admitted() >= self.settings.admitted_max.get() {
            self.counters.refused += 1;
            return Admission::Refused;
        }
        if receipt.source.is_tracked() {
            self.owed.push(Owed { id, event: receipt, running: false, covered: false });
            self.hold(now, id);
        }
        self.ids[id].last_event = self.moment;
        self.cause(id, receipt);
        let priority = if class == ArrivalClass::Resync { Priority::Resync } else { Priority::Event };
        if !present {
            self.counters.admitted += 1;
            self.admit(now, id, priority);
            return Admission::Admitted;
        }
        self.counters.present += 1;
        let given_up = self.ids[id].parked.is_some() || self.ids[id].overdue;
        if given_up && priority == Priority::Event && self.ids[id].at != At::Running {
            self.start_anew(id);
        }
        match self.ids[id].at {
            At::Pending(_) if priority < self.ids[id].priority => self.queue(id, priority),
            At::Running => self.event_during_run(id, class, priority),
            At::Delayed(_) if priority == Priority::Resync && self.ids[id].wait == Wait::Retry => {}
            At::Delayed(due) => self.overtake(now, id, due, priority),
            _ => {}
        }
        Admission::Present
    }

    fn cause(&mut self, id: usize, receipt: Receipt) {
        let it = &mut self.ids[id];
        let among_others = match it.at {
            At::Idle => false,
            At::Running => it.run.as_ref().unwrap().asked.is_some(),
            _ => it.latest.is_some(),
        };
        if among_others {
            it.causes.add(receipt);
        } else {
            it.causes = Why::one(receipt);
        }
        it.latest = Some(receipt);
    }

    fn event_during_run(&mut self, id: usize, class: ArrivalClass, priority: Priority) {
        let run = self.ids[id].run.as_mut().unwrap();
        run.asked = Some(run.asked.map_or(priority, |asked| asked.min(priority)));
        if run.park {
            run.after_cancel = Some(run.after_cancel.map_or(priority, |after| after.min(priority)));
        }
        if class == ArrivalClass::Trigger && !std::mem::replace(&mut run.stopped, true) {
            self.effects.push(Effect::Stop(id));
        }
    }

    fn admit(&mut self, now: Time, id: usize, priority: Priority) {
        if priority != Priority::Resync && self.ids[id].parked.is_some() {
            self.start_anew(id);
        }
        self.ids[id].seat = Seat::Admitted;
        self.pend(now, id, priority);
    }

    /// An event for an id that waits until `due`: it runs now, or as soon as `min_requeue` allows.
    fn overtake(&mut self, now: Time, id: usize, due: Time, priority: Priority) {
        let soonest = self.soonest(id);
        let it = &mut self.ids[id];
        if it.wait == Wait::Retry {
            it.retry_kept = it.retry_kept.or(Some(due));
        }
        self.outdate(id);
        let it = &mut self.ids[id];
        if soonest <= now {
            self.take_place(id);
            return self.pend(now, id, priority);
        }
        it.priority = if it.wait == Wait::TooSoon { it.priority.min(priority) } else { priority };
        it.wait = Wait::TooSoon;
        if soonest < due {
            self.delay(id, soonest);
        }
    }

    // Runs.

    /// The ids that may start: of each queue of each free lane the first.
    pub(super) fn may_start(&self, lane: impl Fn(usize) -> (u16, u16), permits: &[u32]) -> Vec<usize> {
        let turn = |id: usize| if let At::Pending(turn) = self.ids[id].at { Some(turn) } else { None };
        let running = |at| (0..self.ids.len()).filter(|id| self.ids[*id].at == At::Running && lane(*id) == at).count();
        let first = |id: &usize| {
            let same = |other: usize| lane(other) == lane(*id) && self.ids[other].priority == self.ids[*id].priority;
            (0..self.ids.len()).filter(|other| same(*other)).filter_map(turn).min() == turn(*id)
        };
        let slots = |kind: u16| self.settings.kinds[usize::from(kind)].slots.get() as usize;
        let free = |id: &usize| running(lane(*id)) < slots(lane(*id).0) && permits[usize::from(lane(*id).0)] > 0;
        let all = 0..if self.draining { 0 } else { self.ids.len() };
        all.filter(|id| turn(*id).is_some()).filter(free).filter(first).collect()
    }

    pub(super) fn start(&mut self, now: Time, id: usize) -> (Why, Time) {
        self.moment += 1;
        self.counters.started += 1;
        for owed in self.owed.iter_mut().filter(|owed| owed.id == id) {
            owed.running = true;
        }
        let (number, began) = (self.counters.started, self.moment);
        let it = &mut self.ids[id];
        it.at = At::Running;
        it.run = Some(Run { number, began, stopped: false, park: false, asked: None, after_cancel: None });
        let since = std::mem::replace(&mut it.since, now);
        (std::mem::take(&mut it.causes), since)
    }

    // Time.

    pub(super) fn time(&mut self, now: Time) {
        self.moment += 1;
        let mut due: BTreeMap<Time, Vec<usize>> = BTreeMap::new();
        for (id, it) in self.ids.iter().enumerate() {
            if let At::Delayed(time) = it.at
                && self.round_up(time) <= now
            {
                due.entry(self.round_up(time)).or_default().push(id);
            }
        }
        for mut together in due.into_values() {
            // Places go to those that have waited longer; in the lanes they share a turn.
            together.sort_by_key(|id| self.ids[*id].delayed);
            let turn = self.turn + 1;
            for id in together {
                self.come_due(now, id);
                self.ids[id].at = At::Pending(turn);
            }
        }
        if self.settings.durable {
            self.record_held(now);
        }
    }

    fn come_due(&mut self, now: Time, id: usize) {
        let started = self.counters.started;
        let it = &mut self.ids[id];
        let priority = if it.wait == Wait::TooSoon { it.priority } else { Priority::Due };
        if it.latest.is_none() {
            let requested = Receipt::new(SourceId::REQUESTED, started);
            (it.latest, it.causes) = (Some(requested), Why::one(requested));
        }
        self.take_place(id);
        self.pend(now, id, priority);
    }

    fn record_held(&mut self, now: Time) {
        while let Some(id) = self.holding.first().copied() {
            if self.hold_end(id) > now {
                return;
            }
            self.let_go(id);
            self.write(id);
            self.hold(now, id);
        }
    }

    /// When the first of those that hold something back gets a record.
    pub(super) fn next_hold(&self) -> Option<Time> {
        self.holding.first().map(|id| self.hold_end(*id)).filter(|_| self.settings.durable && !self.draining)
    }

    fn hold_end(&self, id: usize) -> Time {
        let quarter = 250_000_000;
        let held = self.ids[id].held.expect("it holds");
        Time(held.0.div_ceil(quarter) * quarter).after(self.settings.max_hold)
    }

    pub(super) fn round_up(&self, time: Time) -> Time {
        let resolution = u64::try_from(self.settings.resolution.as_nanos()).unwrap();
        Time(time.0.div_ceil(resolution).saturating_mul(resolution))
    }

    fn soonest(&self, id: usize) -> Time {
        self.ids[id].since.after(self.settings.min_requeue)
    }

    // Ways and counts.

    fn start_anew(&mut self, id: usize) {
        let it = &mut self.ids[id];
        let had_failed = it.failures > 0 || it.parked.is_some();
        (it.failures, it.parked, it.overdue, it.letter_owed, it.retry_kept) = (0, None, false, false, None);
        if it.wait == Wait::Retry {
            it.wait = Wait::Asked;
        }
        if had_failed {
            self.outdate(id);
        }
    }

    fn pend(&mut self, now: Time, id: usize, priority: Priority) {
        self.ids[id].since = now;
        self.queue(id, priority);
    }

    fn queue(&mut self, id: usize, priority: Priority) {
        self.turn += 1;
        (self.ids[id].at, self.ids[id].priority) = (At::Pending(self.turn), priority);
    }

    fn delay(&mut self, id: usize, due: Time) {
        self.turn += 1;
        (self.ids[id].at, self.ids[id].delayed) = (At::Delayed(due), self.turn);
    }

    fn take_place(&mut self, id: usize) {
        if self.admitted() < self.settings.admitted_max.get() {
            self.ids[id].seat = Seat::Admitted;
        }
    }

    pub(super) fn count(&self, wanted: impl Fn(&Id) -> bool) -> u32 {
        u32::try_from(self.ids.iter().filter(|it| wanted(it)).count()).unwrap()
    }

    pub(super) fn admitted(&self) -> u32 {
        self.count(|it| it.seat == Seat::Admitted)
    }

    pub(super) fn timers(&self) -> u32 {
        self.count(|it| it.seat == Seat::Timer)
    }

    pub(super) fn records(&self) -> (u32, u32) {
        let writing = |it: &Id| it.record.as_ref().is_some_and(|record| record.writing.is_some());
        (self.count(|it| it.record.is_some()), self.count(writing))
    }

    pub(super) fn is_recorded(&self, id: usize) -> (bool, bool) {
        self.ids[id].record.as_ref().map_or((false, false), |record| (record.stored, record.writing.is_some()))
    }

    /// The events that are held back: of what shares an id, a source and a fate the lowest.
    pub(super) fn kept(&self) -> Vec<Receipt> {
        let same = |a: &Owed, b: &Owed| {
            (a.id, a.event.source, a.running, a.covered) == (b.id, b.event.source, b.running, b.covered)
        };
        let lowest = |it: &&Owed| !self.owed.iter().any(|other| same(it, other) && other.event < it.event);
        let mut kept: Vec<_> = self.owed.iter().filter(lowest).map(|owed| owed.event).collect();
        kept.sort();
        kept
    }
}
