//! The observer of a term: it sees the commands that come out and the state as anybody can see it, and holds them
//! against the rules.

use std::collections::VecDeque;

use evenkeel::id::Receipt;
use evenkeel::scheduler::{Command, Levels, Priority, RecordReason, Settings, Slot, State, Time, Why};

use super::durable::Durable;
use super::term::{Term, name, number};

/// Runs of a lane that may begin before an id that waits there, for each one that was there before it and for itself
/// (Q6).
const TURNS: u64 = 8;

impl Term {
    /// Looks at the commands that have come since it looked last.
    pub(super) fn observe(&mut self, durable: &Durable) {
        self.was_full |= self.drained && self.shard.levels().records >= self.settings.owed_records_max.get();
        for index in self.observed..self.out.len() {
            match self.out[index].clone() {
                Command::Release(receipt) => self.released(receipt, durable),
                Command::Cancel { slot, run, .. } => self.stopped(slot, run),
                Command::Write { slot, write, .. } => {
                    let id = number(&self.shard.view_at(slot).expect("something is owed").id);
                    let watch = &self.ids[id];
                    let covers = watch.seen.iter().chain(&watch.begun).chain(&watch.recorded).copied().collect();
                    self.covers.insert(write, (id, covers, false));
                }
                Command::Erase(id) => self.erased(number(&id), durable),
            }
        }
        self.observed = self.out.len();
    }

    fn stopped(&mut self, slot: Slot, number: u64) {
        let mut runs = self.ids.iter_mut().filter_map(|watch| watch.run.as_mut());
        let run = runs.find(|run| (run.slot, run.number) == (slot, number)).expect("it runs");
        assert!(!std::mem::replace(&mut run.stopped, true), "told to stop twice");
    }

    /// An event leaves once, and only when it is done, or when another event of its source and id that came before it
    /// is still owed.
    fn released(&mut self, receipt: Receipt, durable: &Durable) {
        let source =
            (0..self.sources.len()).find(|source| self.source_id(*source) == receipt.source).expect("of this term");
        let id =
            self.sources[source].owed.remove(&receipt.position).unwrap_or_else(|| panic!("{receipt} leaves twice"));
        let event = (source, receipt.position);
        let recorded = self.ids[id].recorded.contains(&event);
        let held_back = self.sources[source].owed.range(..receipt.position).any(|(_, other)| *other == id);
        assert!(
            durable.is_answered(event) || recorded || held_back,
            "event {event:?} of k{id} leaves before it is done"
        );
    }

    /// A record goes only when all that it stands for is done.
    fn erased(&mut self, id: usize, durable: &Durable) {
        let mut stands_for = std::mem::take(&mut self.ids[id].recorded);
        for (_, covers, overtaken) in self.covers.values_mut().filter(|(of, ..)| *of == id) {
            if !std::mem::replace(overtaken, true) {
                stands_for.extend(covers.iter());
            }
        }
        let lost = stands_for.into_iter().find(|event| !durable.is_answered(*event));
        assert!(lost.is_none(), "the record of k{id} goes although event {lost:?} is not done");
    }

    pub(super) fn state(&self, id: usize) -> State {
        self.shard.view(&name(id)).map_or(State::Idle, |view| view.state)
    }

    /// What must hold after every step, as far as it can be seen from outside.
    pub(super) fn check(&mut self, recovering: bool) {
        let mut counts = [0_u32; 4];
        let states: Vec<_> = (0..self.ids.len()).map(|id| self.state(id)).collect();
        for (id, state) in states.iter().enumerate() {
            self.check_why(id, *state);
            self.check_turn(id, &states);
            let watch = &mut self.ids[id];
            watch.was_delayed = *state == State::Delayed || watch.was_delayed && *state != State::Parked;
            assert_eq!(watch.run.is_some(), *state == State::Running, "k{id}: {state:?}");
            assert!(
                !watch.asked || *state != State::Idle && *state != State::Parked,
                "k{id}: owed a run, and {state:?}"
            );
            match state {
                State::Pending => counts[0] += 1,
                State::Running => counts[1] += 1,
                State::Delayed => counts[2] += 1,
                State::Parked => counts[3] += 1,
                State::Free | State::Idle => {}
            }
        }
        let levels = self.shard.levels();
        let parked = levels.parked.min(counts[3]);
        assert_eq!([self.shard.waiting(), self.shard.running(), self.shard.delayed(), parked], counts);
        assert!(self.shard.known() as usize <= self.ids.len());
        self.check_bounds(levels, recovering);
        self.check_memory();
    }

    /// Nothing grows beyond its bound, except by what earlier terms left and what people release.
    fn check_bounds(&mut self, levels: Levels, recovering: bool) {
        let Settings { admitted_max, timers_max, owed_records_max, .. } = &self.settings;
        let before = std::mem::replace(&mut self.levels, levels);
        for (name, before, now, max) in [
            ("admitted", before.admitted, levels.admitted, admitted_max),
            ("timers", before.timers, levels.timers, timers_max),
            ("parked", before.parked, levels.parked, owed_records_max),
            ("records", before.records, levels.records, owed_records_max),
        ] {
            assert!(recovering || now <= before.max(max.get()), "{name} went from {before} to {now}, beyond {max}");
        }
        assert!(self.shard.waiting_in(Priority::Resync) <= self.shard.waiting());
    }

    /// Of one id and one source no more events are kept than there are fates for them.
    fn check_memory(&self) {
        for (number, source) in self.sources.iter().enumerate() {
            let kept = |id: usize| {
                source.owed.iter().filter(|(position, of)| **of == id && source.hand != Some(**position)).count()
            };
            let most = (0..self.ids.len()).map(kept).max().unwrap_or(0);
            assert!(most <= 4, "{most} events of one id and source {number} are kept");
        }
    }

    fn check_why(&self, id: usize, state: State) {
        let why = self.shard.why(&name(id));
        let fits = match state {
            State::Free | State::Idle => why == Why::Idle,
            State::Pending => matches!(why, Why::Next | Why::WorkerBusy { .. } | Why::KindBusy { .. } | Why::Draining),
            State::Running => matches!(why, Why::Running { .. }),
            State::Delayed => matches!(why, Why::Retry { .. } | Why::Requested { .. } | Why::TooSoon { .. }),
            State::Parked => matches!(why, Why::Parked { .. }),
        };
        assert!(fits, "k{id} is {state:?}, and why says {why:?}");
    }

    /// Nobody waits for ever while others of the lane run.
    fn check_turn(&mut self, id: usize, states: &[State]) {
        let lane = self.lane(id);
        let starts = self.lane_starts.get(&lane).copied().unwrap_or(0);
        if states[id] != State::Pending {
            self.ids[id].waits = None;
            return;
        }
        let others =
            (0..self.ids.len()).filter(|other| states[*other] == State::Pending && self.lane(*other) == lane).count();
        let latest = *self.ids[id].waits.get_or_insert(starts + TURNS * others as u64);
        assert!(starts < latest, "k{id} has starved");
    }

    /// Whether nothing is left to do.
    pub(super) fn is_at_rest(&self, durable: &Durable) -> bool {
        let idle = (0..self.ids.len()).all(|id| self.state(id) == State::Idle && !self.ids[id].asked);
        let ends = |source: usize| durable.logs[source].len() as u64;
        let read = self.sources.iter().enumerate().all(|(number, source)| {
            source.next == ends(number) && source.owed.is_empty() && durable.committed[number] == source.next
        });
        idle && read && durable.records.is_empty() && self.changes.iter().all(VecDeque::is_empty) && self.out.is_empty()
    }

    /// A drain has ended: whatever was owed a run is recorded, as it was owed.
    pub(super) fn check_handed_over(&self, now: Time, durable: &Durable) {
        if !self.settings.durable {
            return;
        }
        for (id, watch) in self.ids.iter().enumerate() {
            let Some(view) = self.shard.view(&name(id)) else { continue };
            let Some(stored) = durable.records.get(&id) else {
                assert!(self.was_full, "k{id} is owed a run, and not recorded: {view:?}");
                continue;
            };
            let parked = matches!(stored.record.reason, RecordReason::Parked(_));
            assert!(!(parked && watch.strongly), "k{id} was asked for, and is recorded as parked");
            assert!(parked || view.state != State::Parked, "k{id} is parked, and recorded as {:?}", stored.record);
            let due = view.due.unwrap_or(now).max(now);
            assert!(
                parked || stored.record.due <= due,
                "k{id} is due at {due:?}, and recorded for {:?}",
                stored.record.due
            );
        }
    }
}
