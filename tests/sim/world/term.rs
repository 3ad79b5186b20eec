//! One term: a shard with its driver, and an observer beside it that remembers all events and knows the rules, but not
//! how the scheduler keeps them.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use evenkeel::id::{Causes, Receipt, SourceId};
use evenkeel::scheduler::{
    Admission, Arrival, ArrivalClass, CancelAnswer, Command, Levels, Next, Outcome, RecordReason, Recovered, Settings,
    Shard, Slot, Start, State, Time,
};

use super::durable::{Change, Durable, Event};

/// A run under way.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) slot: Slot,
    pub(super) number: u64,
    pub(super) causes: Causes,
    /// It was told to stop: it covers nothing.
    pub(super) stopped: bool,
    /// Only resyncs came since it began.
    pub(super) only_resync: bool,
}

/// What the observer knows of an id.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// Events that came and that no run has begun for.
    pub(super) seen: BTreeSet<Event>,
    /// Events that the present run began after.
    pub(super) begun: BTreeSet<Event>,
    /// Events that the record stands for, as far as this term knows.
    pub(super) recorded: BTreeSet<Event>,
    pub(super) run: Option<Run>,
    /// An event came since the last start: a start must follow.
    pub(super) asked: bool,
    /// Something other than a resync asked since it was parked.
    pub(super) strongly: bool,
    /// It asked for this time, or failed, and nothing came since.
    pub(super) not_before: Option<Time>,
    pub(super) last_start: Option<Time>,
    /// It waited for a time since its last start.
    pub(super) was_delayed: bool,
    /// Starts of its lane by now, and by when it must have started.
    pub(super) waits: Option<u64>,
}

/// A source as this term reads it.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) next: u64,
    /// Delivered and not released.
    pub(super) owed: BTreeMap<u64, usize>,
    pub(super) hand: Option<u64>,
}

impl Source {
    fn low_water(&self) -> u64 {
        self.owed.first_key_value().map_or(self.next, |(position, _)| *position)
    }
}

pub(super) struct Term {
    pub(super) shard: Shard,
    pub(super) settings: Settings,
    pub(super) number: u32,
    pub(super) ids: Vec<Watch>,
    pub(super) sources: Vec<Source>,
    /// Not carried out yet, and how many of them the observer has seen.
    pub(super) out: Vec<Command>,
    pub(super) observed: usize,
    /// By write: whose it is, what it covers, and whether a delete has overtaken it.
    pub(super) covers: HashMap<u64, (usize, BTreeSet<Event>, bool)>,
    pub(super) changes: Vec<VecDeque<Change>>,
    pub(super) commits: VecDeque<(usize, u64)>,
    pub(super) lane_starts: HashMap<(u16, u16), u64>,
    pub(super) permits: Vec<u32>,
    pub(super) levels: Levels,
    pub(super) untracked: u64,
    pub(super) drained: bool,
    /// A drain found no room for all records.
    pub(super) was_full: bool,
}

impl Term {
    pub(super) fn new(
        settings: &Settings,
        number: u32,
        now: Time,
        ids: usize,
        durable: &mut Durable,
        fault: Option<&str>,
    ) -> Self {
        let mut shard = Shard::new(settings.clone());
        if let Some(fault) = fault {
            shard.plant(fault);
        }
        let source = |committed: &u64| Source { next: *committed, owed: BTreeMap::new(), hand: None };
        let mut term = Self {
            shard,
            settings: settings.clone(),
            number,
            ids: (0..ids).map(|_| Watch::default()).collect(),
            sources: durable.committed.iter().map(source).collect(),
            out: Vec::new(),
            observed: 0,
            covers: HashMap::new(),
            changes: (0..ids).map(|_| VecDeque::new()).collect(),
            commits: VecDeque::new(),
            lane_starts: HashMap::new(),
            permits: vec![0; settings.kinds.len()],
            levels: Levels::default(),
            untracked: 0,
            drained: false,
            was_full: false,
        };
        if !settings.durable {
            durable.records.clear();
        }
        for (id, stored) in &durable.records {
            term.recover(now, *id, stored);
        }
        term.levels = term.shard.levels();
        term
    }

    fn recover(&mut self, now: Time, id: usize, stored: &super::durable::Stored) {
        let (kind, worker) = self.lane(id);
        let record = &stored.record;
        let recovered = Recovered {
            id: name(id).into(),
            kind,
            worker,
            due: record.due,
            failures: record.failures,
            reason: record.reason,
        };
        self.shard.handle_recovered(now, &recovered);
        let watch = &mut self.ids[id];
        watch.recorded = stored.covers.clone();
        let parked = matches!(record.reason, RecordReason::Parked(_));
        watch.asked = !parked;
        watch.strongly = !parked;
        watch.not_before = Some(record.due).filter(|due| !parked && *due > now);
    }

    pub(super) fn lane(&self, id: usize) -> (u16, u16) {
        let kind = id % self.settings.kinds.len();
        let worker = id / self.settings.kinds.len() % usize::from(self.settings.kinds[kind].workers.get());
        (u16::try_from(kind).unwrap(), u16::try_from(worker).unwrap())
    }

    pub(super) fn source_id(&self, source: usize) -> SourceId {
        SourceId::numbered(self.number * 100 + u32::try_from(source).unwrap(), true)
    }

    // What the driver hears.

    /// The next event of a source, or the one in hand.
    pub(super) fn deliver(&mut self, now: Time, source: usize, durable: &mut Durable) -> Option<Admission> {
        let log = &durable.logs[source];
        let at = &mut self.sources[source];
        let position = at.hand.or_else(|| {
            (at.next..log.len() as u64).find(|position| log[usize::try_from(*position).unwrap()].is_some())
        });
        let Some(position) = position else {
            at.next = log.len() as u64;
            return None;
        };
        let (id, class) = log[usize::try_from(position).unwrap()].expect("no gap");
        at.next = at.next.max(position + 1);
        at.owed.insert(position, id);
        at.hand = Some(position);
        let admission = self.event(
            now,
            id,
            class,
            Receipt::new(self.source_id(source), position),
            Some((source, position)),
            durable,
        );
        if admission != Admission::Refused {
            self.sources[source].hand = None;
        }
        Some(admission)
    }

    /// An event that nobody wants to hear of again.
    pub(super) fn untracked(&mut self, now: Time, id: usize, class: ArrivalClass, durable: &mut Durable) -> Admission {
        self.untracked += 1;
        let receipt = Receipt::new(SourceId::numbered(self.number * 100 + 99, false), self.untracked);
        self.event(now, id, class, receipt, None, durable)
    }

    fn event(
        &mut self,
        now: Time,
        id: usize,
        class: ArrivalClass,
        receipt: Receipt,
        event: Option<Event>,
        durable: &mut Durable,
    ) -> Admission {
        let (kind, worker) = self.lane(id);
        let state = self.state(id);
        let has_room = self.shard.levels().admitted < self.settings.admitted_max.get();
        let arrival = Arrival { id: &name(id), kind, worker, receipt, class };
        let admission = self.shard.handle_event(now, &arrival, &mut self.out);
        match admission {
            Admission::Refused => {
                let owed = matches!(state, State::Pending | State::Running | State::Delayed);
                assert!(self.drained || !has_room && !owed, "k{id}: refused although {state:?}, room {has_room}");
            }
            Admission::Admitted | Admission::Present => {
                let watch = &mut self.ids[id];
                watch.seen.extend(event);
                watch.asked = true;
                watch.not_before = None;
                if class != ArrivalClass::Resync {
                    // Perhaps it stands at the end of a better queue now.
                    watch.waits = None;
                    watch.strongly = true;
                }
                if let Some(run) = &mut watch.run {
                    run.only_resync &= class == ArrivalClass::Resync;
                }
                assert!(self.drained || has_room || admission == Admission::Present, "k{id}: admitted without room");
            }
        }
        self.observe(durable);
        admission
    }

    /// The next run, if one may start.
    pub(super) fn start(&mut self, now: Time, durable: &mut Durable) -> Option<Start> {
        let Some(start) = self.shard.poll_start(now, &mut self.out) else {
            self.check_nothing_could_start();
            return None;
        };
        let id = number(&start.id);
        let lane = self.lane(id);
        assert_eq!((start.kind, start.worker), lane, "k{id}: in another's lane");
        self.permits[usize::from(lane.0)] =
            self.permits[usize::from(lane.0)].checked_sub(1).expect("a run without a permit");
        *self.lane_starts.entry(lane).or_default() += 1;
        let starts = self.lane_starts[&lane];
        let watch = &mut self.ids[id];
        assert!(watch.run.is_none(), "k{id} runs twice at a time");
        assert!(watch.not_before.is_none_or(|time| time <= now), "k{id} starts early: {:?}", watch.not_before);
        let soonest = watch.last_start.map(|last| last.after(self.settings.min_requeue)).filter(|_| watch.was_delayed);
        assert!(
            soonest.is_none_or(|soonest| soonest <= now),
            "k{id} starts again too soon after {:?}",
            watch.last_start
        );
        assert!(watch.waits.is_none_or(|latest| starts <= latest), "k{id} has starved");
        watch.begun = std::mem::take(&mut watch.seen);
        watch.begun.extend(&watch.recorded);
        (watch.asked, watch.not_before, watch.was_delayed, watch.last_start) = (false, None, false, Some(now));
        let (slot, number, causes) = (start.slot, start.run, start.causes);
        watch.run = Some(Run { slot, number, causes, stopped: false, only_resync: true });
        self.observe(durable);
        let lane_runs = self
            .ids
            .iter()
            .enumerate()
            .filter(|(other, watch)| watch.run.is_some() && self.lane(*other) == lane)
            .count();
        assert!(
            lane_runs <= self.settings.kinds[usize::from(lane.0)].slots.get() as usize,
            "lane {lane:?} beyond its slots"
        );
        Some(start)
    }

    fn check_nothing_could_start(&self) {
        for id in 0..self.ids.len() {
            let (kind, worker) = self.lane(id);
            let running = self
                .ids
                .iter()
                .enumerate()
                .filter(|(other, watch)| watch.run.is_some() && self.lane(*other) == (kind, worker));
            let slots = self.settings.kinds[usize::from(kind)].slots.get() as usize;
            let possible = self.permits[usize::from(kind)] > 0 && running.count() < slots;
            assert!(self.drained || !possible || self.state(id) != State::Pending, "k{id} could start, and does not");
        }
    }

    /// The run of this id has ended.
    pub(super) fn end(&mut self, now: Time, id: usize, outcome: Outcome, durable: &mut Durable) -> Next {
        let watch = &mut self.ids[id];
        let run = watch.run.take().expect("it runs");
        let success = matches!(outcome, Outcome::Done(_)) && !run.stopped;
        let begun = std::mem::take(&mut watch.begun);
        if success {
            durable.covered.extend(begun);
        } else {
            watch.seen.extend(begun);
        }
        let (kind, _) = self.lane(id);
        self.permits[usize::from(kind)] += 1;
        let next = self.shard.handle_outcome(now, run.slot, run.number, outcome, &run.causes, &mut self.out);
        let watch = &mut self.ids[id];
        match next {
            Next::At(time) => watch.not_before = Some(time),
            Next::Parked(_) => (watch.asked, watch.strongly) = (false, false),
            Next::Again if !success && run.only_resync => watch.strongly = false,
            Next::Idle => assert!(success && !watch.asked, "k{id}: idle although it is owed a run"),
            Next::Again => {}
            Next::Stale => panic!("k{id}: the end of a run that is under way is no stale one"),
        }
        self.observe(durable);
        durable.check(id);
        next
    }

    /// An end that was reported before, or of a run that never was: nothing may come of it.
    pub(super) fn end_again(&mut self, now: Time, slot: Slot, number: u64) {
        let count = self.out.len();
        let next = self.shard.handle_outcome(now, slot, number, Outcome::Done(None), &Causes::NONE, &mut self.out);
        assert_eq!((next, self.out.len()), (Next::Stale, count), "the end of a run that is over");
    }

    pub(super) fn time(&mut self, now: Time, durable: &mut Durable) {
        self.shard.handle_time(now, &mut self.out);
        self.observe(durable);
    }

    /// As a driver that is awake: until nothing is due.
    pub(super) fn all_due(&mut self, now: Time, durable: &mut Durable) {
        let mut turns = 0;
        while self.shard.next_time().is_some_and(|time| time <= now) {
            self.time(now, durable);
            turns += 1;
            assert!(turns <= 10 + self.ids.len(), "the driver spins");
        }
        let resolution = self.settings.resolution;
        for id in 0..self.ids.len() {
            let due = self.shard.view(&name(id)).and_then(|view| view.due).map(|due| round_up(due, resolution));
            assert!(due.is_none_or(|due| due > now), "k{id} is due at {due:?}, and nothing happens");
            let next = self.shard.next_time();
            assert!(
                due.is_none_or(|due| next.is_some_and(|next| next <= due)),
                "the driver sleeps past k{id}, until {next:?}"
            );
        }
    }

    pub(super) fn cancel(&mut self, now: Time, id: usize, durable: &mut Durable) -> CancelAnswer {
        let answer = self.shard.handle_cancel(now, &name(id), &mut self.out);
        let watch = &mut self.ids[id];
        match answer {
            CancelAnswer::Parked => (watch.asked, watch.strongly, watch.not_before) = (false, false, None),
            // What came before the cancel is parked with it.
            CancelAnswer::Stopping => {
                (watch.asked, watch.strongly) = (false, false);
                watch.run.as_mut().expect("it runs").only_resync = true;
            }
            CancelAnswer::AlreadyParked | CancelAnswer::Idle | CancelAnswer::Full => {}
        }
        self.observe(durable);
        answer
    }

    pub(super) fn redrive(&mut self, now: Time, wanted: impl Fn(usize) -> bool, durable: &mut Durable) -> usize {
        let (_, released) = self.shard.handle_redrive_matching(now, None, usize::MAX, |id| wanted(number(id)));
        for id in &released {
            let watch = &mut self.ids[number(id)];
            (watch.asked, watch.strongly, watch.not_before) = (true, true, None);
        }
        self.levels.admitted = self.levels.admitted.max(self.shard.levels().admitted);
        self.observe(durable);
        released.len()
    }

    pub(super) fn record_now(&mut self, id: usize, durable: &mut Durable) {
        let written = self.shard.record_now(&name(id), &mut self.out);
        self.observe(durable);
        if let Some((_, number)) = written {
            let of_id =
                self.covers.iter().filter(|(_, (of, _, overtaken))| *of == id && !overtaken).map(|(write, _)| *write);
            assert!(of_id.max().is_some_and(|latest| latest <= number), "k{id}: no write will cover what has come");
        }
    }

    pub(super) fn grant(&mut self, kind: usize, permits: u32) {
        self.permits[kind] += permits;
        self.shard.grant(u16::try_from(kind).unwrap(), permits);
    }

    pub(super) fn reclaim(&mut self, kind: usize) {
        let free = self.shard.reclaim(u16::try_from(kind).unwrap());
        assert_eq!(free, std::mem::take(&mut self.permits[kind]), "permits that no run uses");
    }

    pub(super) fn drain(&mut self, durable: &mut Durable) {
        self.drained = true;
        self.shard.handle_drain(&mut self.out);
        self.observe(durable);
    }

    /// The oldest change of this id has become durable, and the store says so.
    pub(super) fn answer(&mut self, now: Time, id: usize, durable: &mut Durable) -> bool {
        let Some(change) = self.changes[id].pop_front() else { return false };
        let written = if let Change::Write { slot, write, .. } = &change { Some((*slot, *write)) } else { None };
        durable.apply(self.settings.durable, id, change);
        if let Some((slot, write)) = written {
            let (_, covers, overtaken) = self.covers.remove(&write).expect("it was issued");
            if !overtaken {
                self.ids[id].recorded = covers;
            }
            self.shard.handle_recorded(now, slot, write, &mut self.out);
            self.observe(durable);
        }
        true
    }

    pub(super) fn commit(&mut self, source: usize) {
        self.commits.push_back((source, self.sources[source].low_water()));
    }

    /// Does what the shard asked for since the last time, in order; gives it back.
    pub(super) fn carry_out(&mut self, now: Time) -> Vec<Command> {
        self.observed = 0;
        let commands = std::mem::take(&mut self.out);
        for command in &commands {
            match *command {
                Command::Release(_) | Command::Cancel { .. } => {}
                Command::Write { slot, write, given_up } => {
                    let (id, covers, overtaken) = self.covers.get(&write).expect("it was issued");
                    if let Some(record) = self.shard.record(now, slot) {
                        assert_eq!(*record.id, *name(*id), "the record of another id");
                        let covers = covers.clone();
                        self.changes[*id].push_back(Change::Write { slot, write, record, given_up, covers });
                    } else {
                        assert!(overtaken, "k{id}: nothing to write, though it is owed a run");
                    }
                }
                Command::Erase(ref id) => self.changes[number(id)].push_back(Change::Erase),
            }
        }
        commands
    }
}

pub(super) fn name(id: usize) -> String {
    format!("k{id}")
}

pub(super) fn number(name: &str) -> usize {
    name[1..].parse().expect("a name of this world")
}

fn round_up(due: Time, resolution: Duration) -> Time {
    let resolution = u64::try_from(resolution.as_nanos()).unwrap();
    Time(due.0.div_ceil(resolution).saturating_mul(resolution))
}
