//! The scheduler beside a naive telling of its rules: the same calls to both, and after each call the same answer, the
//! same commands, the same state of every id, the same counts.
//!
//! Histories are those of the simulated world, without its terms. What is left open (which of several queues goes
//! first) is looked at in `scheduler/lanes` and by the simulation's observer.

mod rules;

use std::collections::BTreeSet;

use evenkeel::id::{Causes, Receipt, SourceId};
use evenkeel::scheduler::{
    Admission, Arrival, ArrivalClass, Command, EntryView, Levels, Next, Outcome, Shard, Slot, State, Time, Why,
};

use crate::history::{Failure, Game, guarded};
use crate::world::plan::{self, Op, Plan};
use rules::{At, Effect, Rules, Wait};

/// Both, and a driver that does to both the same.
struct Duel {
    plan: Plan,
    now: Time,
    shard: Shard,
    rules: Rules,
    out: Vec<Command>,
    runs: Vec<Option<(Slot, u64, Causes, rules::Why)>>,
    permits: Vec<u32>,
    /// Events of each source that were not delivered yet, the refused one first.
    logs: Vec<Vec<(usize, ArrivalClass)>>,
    positions: Vec<u64>,
    /// Writes that are not answered, by id.
    writes: Vec<Vec<(Slot, u64)>>,
    kept: BTreeSet<Receipt>,
    /// A drain is the end of a history; not all of them have one.
    drains: bool,
}

impl Duel {
    fn new(seed: u64) -> Self {
        let mut plan = Plan::new(seed, seed);
        plan.settings.kinds.iter_mut().for_each(|kind| kind.retry.jitter = 0.0);
        let (ids, sources, kinds) = (plan.ids, plan.sources, plan.settings.kinds.len());
        let mut duel = Self {
            now: Time(plan.start),
            shard: Shard::new(plan.settings.clone()),
            rules: Rules::new(plan.settings.clone(), ids),
            out: Vec::new(),
            runs: vec![None; ids],
            permits: vec![0; kinds],
            logs: vec![Vec::new(); sources],
            positions: vec![0; sources],
            writes: vec![Vec::new(); ids],
            kept: BTreeSet::new(),
            drains: seed.is_multiple_of(4),
            plan,
        };
        for kind in 0..kinds {
            duel.permits(kind);
        }
        duel
    }

    fn permits(&mut self, kind: usize) {
        let number = u16::try_from(kind).unwrap();
        assert_eq!(self.shard.reclaim(number), self.permits[kind]);
        self.permits[kind] = self.plan.permits.saturating_sub(self.shard.running());
        self.shard.grant(number, self.permits[kind]);
    }

    fn step(&mut self, op: Op) {
        let now = self.now;
        match op {
            Op::Produce { source, id, class } => self.logs[source].extend(id.map(|id| (id, class))),
            Op::Deliver { source } => self.deliver(source),
            Op::Untracked { id, class } => {
                self.positions[0] += 1;
                let receipt = Receipt::new(SourceId::numbered(99, false), self.positions[0]);
                self.event(id, class, receipt);
            }
            Op::Start { count } => (0..count).for_each(|_| self.start()),
            Op::End { which, outcome } => self.end(which, outcome.at(now)),
            Op::Advance { by, awake } => {
                self.now = now.after(by);
                while awake && self.shard.next_time().is_some_and(|time| time <= self.now) {
                    self.time();
                }
            }
            Op::Time => self.time(),
            Op::Cancel { id } => {
                let answer = self.shard.handle_cancel(now, &name(id), &mut self.out);
                assert_eq!(answer, self.rules.cancel(now, id));
            }
            Op::Redrive { id } => {
                for id in (0..self.plan.ids).filter(|other| id.is_none_or(|id| id == *other)) {
                    assert_eq!(self.shard.handle_redrive(now, &name(id)), self.rules.redrive(now, id));
                }
            }
            Op::RecordNow { id } => {
                let issued = self.shard.record_now(&name(id), &mut self.out).is_some();
                assert_eq!(issued, self.rules.record_now(id));
            }
            Op::Answer { id } => self.answer(id),
            Op::Permits { kind } => self.permits(kind),
            Op::HandOver if self.drains => {
                let mut order: Vec<_> = (0..self.plan.ids).collect();
                order.sort_by_key(|id| self.shard.slot(&name(*id)));
                self.shard.handle_drain(&mut self.out);
                self.rules.drain(&order);
            }
            Op::EndAgain | Op::CarryOut | Op::Commit { .. } | Op::AnswerCommit | Op::Kill { .. } | Op::HandOver => {}
        }
        self.compare();
    }

    fn deliver(&mut self, source: usize) {
        let Some((id, class)) = self.logs[source].first().copied() else { return };
        let receipt = Receipt::new(SourceId::numbered(u32::try_from(source).unwrap(), true), self.positions[source]);
        if self.event(id, class, receipt) != Admission::Refused {
            self.kept.insert(receipt);
            self.logs[source].remove(0);
            self.positions[source] += 1;
        }
    }

    fn event(&mut self, id: usize, class: ArrivalClass, receipt: Receipt) -> Admission {
        let (kind, worker) = self.plan.lane(id);
        let arrival = Arrival { id: &name(id), kind, worker, receipt, class };
        let admission = self.shard.handle_event(self.now, &arrival, &mut self.out);
        assert_eq!(admission, self.rules.event(self.now, id, class, receipt), "k{id}");
        admission
    }

    fn start(&mut self) {
        let may_start = self.rules.may_start(|id| self.plan.lane(id), &self.permits);
        let Some(start) = self.shard.poll_start(self.now, &mut self.out) else {
            return assert!(may_start.is_empty(), "{may_start:?} may start, and nothing does");
        };
        let id = number(&start.id);
        assert!(may_start.contains(&id), "k{id} starts, and only {may_start:?} may");
        let it = &self.rules.ids[id];
        let expected = (it.failures + 1, it.latest, self.rules.counters.started + 1);
        assert_eq!((start.attempt, start.latest, start.run), expected, "k{id}");
        let (causes, since) = self.rules.start(self.now, id);
        assert_eq!((words(&start.causes), start.since), (causes.clone(), since), "k{id}");
        self.permits[usize::from(start.kind)] -= 1;
        self.runs[id] = Some((start.slot, start.run, start.causes, causes));
        self.compare();
    }

    fn end(&mut self, which: usize, outcome: Outcome) {
        let running: Vec<_> = (0..self.plan.ids).filter(|id| self.runs[*id].is_some()).collect();
        let Some(id) = running.get(which % running.len().max(1)).copied() else { return };
        let (slot, run, causes, words) = self.runs[id].take().unwrap();
        let next = self.shard.handle_outcome(self.now, slot, run, outcome, &causes, &mut self.out);
        assert_eq!(next, self.rules.end(self.now, id, outcome, &words), "k{id}");
        assert_ne!(next, Next::Stale);
        self.permits[usize::from(self.plan.lane(id).0)] += 1;
    }

    fn time(&mut self) {
        self.shard.handle_time(self.now, &mut self.out);
        self.rules.time(self.now);
        self.compare();
    }

    fn answer(&mut self, id: usize) {
        if !self.writes[id].is_empty() {
            let (slot, write) = self.writes[id].remove(0);
            self.shard.handle_recorded(self.now, slot, write, &mut self.out);
            self.rules.written(self.now, id, write);
        }
    }

    /// Both must be the same in everything that can be seen.
    fn compare(&mut self) {
        self.compare_commands();
        for id in 0..self.plan.ids {
            self.compare_id(id);
        }
        let rules = &self.rules;
        let (records, writing) = rules.records();
        let levels = Levels {
            admitted: rules.admitted(),
            timers: rules.timers(),
            parked: rules.count(|it| it.parked.is_some()),
            records,
            writing,
            idle: self.shard.levels().idle,
            overdue: rules.count(|it| it.overdue),
        };
        assert_eq!(self.shard.levels(), levels);
        assert_eq!(self.shard.counters(), rules.counters);
        let counts = [self.shard.waiting(), self.shard.running(), self.shard.delayed()];
        let pending = rules.count(|it| matches!(it.at, At::Pending(_)));
        let delayed = rules.count(|it| matches!(it.at, At::Delayed(_)));
        assert_eq!(counts, [pending, rules.count(|it| it.at == At::Running), delayed]);
        self.compare_next_time();
    }

    /// The driver is woken for what is due and for what is held for too long, and for nothing that never comes.
    fn compare_next_time(&self) {
        let due = self
            .rules
            .ids
            .iter()
            .filter_map(|it| if let At::Delayed(due) = it.at { Some(self.rules.round_up(due)) } else { None });
        // What is over is due now.
        let next = self.shard.next_time().map(|time| time.max(self.now));
        let expected = due.chain(self.rules.next_hold()).min().map(|time| time.max(self.now));
        assert!(next.is_some() == expected.is_some() && next <= expected, "{next:?}, not {expected:?}");
    }

    fn compare_commands(&mut self) {
        let mut effects = Vec::new();
        for command in std::mem::take(&mut self.out) {
            match command {
                Command::Release(receipt) => assert!(self.kept.remove(&receipt), "{receipt} leaves twice"),
                Command::Cancel { slot, run, .. } => {
                    let same = |it: &Option<(Slot, u64, Causes, rules::Why)>| {
                        it.as_ref().is_some_and(|it| (it.0, it.1) == (slot, run))
                    };
                    effects.push(Effect::Stop(self.runs.iter().position(same).expect("it runs")));
                }
                Command::Write { slot, write, given_up } => {
                    let record = self.shard.record(self.now, slot).expect("something is owed");
                    let id = number(&record.id);
                    assert_eq!((record.due, record.failures, record.reason), self.rules.record(self.now, id), "k{id}");
                    assert_eq!(record.latest, self.rules.ids[id].latest, "k{id}");
                    self.writes[id].push((slot, write));
                    effects.push(Effect::Write(id, given_up));
                }
                Command::Erase(id) => effects.push(Effect::Erase(number(&id))),
            }
        }
        assert_eq!(effects, std::mem::take(&mut self.rules.effects));
        assert_eq!(self.kept.iter().copied().collect::<Vec<_>>(), self.rules.kept(), "events held back");
    }

    fn compare_id(&self, id: usize) {
        let view = self.shard.view(&name(id));
        let it = &self.rules.ids[id];
        let (stored, writing) = self.rules.is_recorded(id);
        let due = if let At::Delayed(due) = it.at { Some(due) } else { None };
        let state = match it.at {
            At::Idle => return assert_eq!((view, self.shard.why(&name(id))), (None, Why::Idle), "k{id}"),
            At::Pending(_) => State::Pending,
            At::Running => State::Running,
            At::Delayed(_) => State::Delayed,
            At::Parked => State::Parked,
        };
        let EntryView { causes, .. } = view.as_ref().expect("something is owed");
        let asked = it.run.as_ref().is_none_or(|run| run.asked.is_some());
        assert_eq!(words(causes), if asked { it.causes.clone() } else { rules::Why::default() }, "k{id}");
        let (kind, worker) = self.plan.lane(id);
        let expected = EntryView {
            slot: view.as_ref().unwrap().slot,
            id: name(id).into(),
            kind,
            worker,
            state,
            failures: it.failures,
            since: it.since,
            due,
            parked: it.parked.filter(|_| it.at == At::Parked),
            causes: *causes,
            recorded: stored,
        };
        assert_eq!(view, Some(expected));
        let why = self.shard.why(&name(id));
        let expected = match (it.at, it.wait) {
            (At::Delayed(due), Wait::Retry) => Why::Retry { due, failures: it.failures, overdue: it.overdue },
            (At::Delayed(due), Wait::Asked) => Why::Requested { due },
            (At::Delayed(due), Wait::TooSoon) => Why::TooSoon { due },
            (At::Parked, _) => Why::Parked { reason: it.parked.unwrap(), recorded: stored && !writing },
            (At::Running, _) => {
                let run = it.run.as_ref().unwrap();
                Why::Running { since: it.since, again: run.asked.is_some(), stopping: run.stopped }
            }
            _ => self.why_pending(id),
        };
        assert_eq!(why, expected, "k{id}");
    }

    fn why_pending(&self, id: usize) -> Why {
        let lane = self.plan.lane(id);
        let slots = self.plan.settings.kinds[usize::from(lane.0)].slots.get();
        let runs = |wanted: &dyn Fn((u16, u16)) -> bool| {
            u32::try_from(
                (0..self.plan.ids).filter(|id| self.runs[*id].is_some() && wanted(self.plan.lane(*id))).count(),
            )
            .unwrap()
        };
        let running = runs(&|other| other == lane);
        if self.rules.draining {
            Why::Draining
        } else if running == slots {
            Why::WorkerBusy { running, slots }
        } else if self.permits[usize::from(lane.0)] == 0 {
            Why::KindBusy { running: runs(&|(kind, _)| kind == lane.0) }
        } else {
            Why::Next
        }
    }
}

fn words(causes: &Causes) -> rules::Why {
    rules::Why { kept: causes.iter().collect(), more: causes.more() }
}

fn name(id: usize) -> String {
    format!("k{id}")
}

fn number(name: &str) -> usize {
    name[1..].parse().expect("a name of this world")
}

fn play(seed: u64, ops: &[Op]) -> Result<u64, Failure> {
    let mut duel = guarded(0, || Duel::new(seed))?;
    for (step, op) in ops.iter().enumerate() {
        guarded(step, || duel.step(*op))?;
    }
    Ok(0)
}

#[test]
fn q_d_c_the_scheduler_does_what_its_rules_say() {
    Game::new("q_d_c_the_scheduler_does_what_its_rules_say", plan::history, play).check(1_200, 200);
}
