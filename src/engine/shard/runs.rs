//! Starting and ending runs: first poll inline, a task only for what is pending.
//!
//! `deadlines` tells runs to stop and finds those that do not; `verdict` says what an end means.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use fnv::FnvHashMap;
use tokio::task::AbortHandle;

use super::verdict::{Verdict, panic_text};
use super::{Message, RUNS_PER_TURN, ShardLoop, kind_number};
use crate::contract::{Action, CancelReason, CancelSignal, CancelSlot, Failure, Requeue, Run, RunParts};
use crate::engine::beacon::Polled;
use crate::engine::invoke::{Call, RunFuture, empty, poll_once};
use crate::engine::journal;
use crate::engine::log;
use crate::engine::pool::Wish;
use crate::engine::stats::ShardStats;
use crate::engine::view::RunOutcome;
use crate::id::{Causes, WorkerId};
use crate::scheduler::{Next, Outcome, Slot, Start, Time};

/// How a run ended, as its task says.
#[derive(Debug)]
pub(crate) enum Ended {
    Returned(Result<Action, Failure>),
    Panicked(String),
    /// Its future was dropped.
    CutOff,
}

/// Runs under way.
#[derive(Default)]
pub(super) struct Runs {
    pub(super) active: FnvHashMap<u32, Active>,
    /// Deadlines of runs, in the order of their starts: all runs of a kind have the same timeout.
    pub(super) deadlines: Vec<VecDeque<(Time, Slot, u64)>>,
    /// When runs that were told to stop are cut off.
    pub(super) graces: VecDeque<(Time, Slot, u64)>,
    /// When runs that were cut off must have ended.
    pub(super) cuts: VecDeque<(Time, Slot, u64)>,
    /// The call of the last run that ended at its first poll, and the box of its future.
    kept: Option<Kept>,
    future: Option<RunFuture>,
}

/// A call that the next run can use, and how its run would be told to stop.
struct Kept {
    call: Box<Call>,
    cancel: Arc<CancelSlot>,
}

/// A run that has a task of its own.
pub(super) struct Active {
    pub(super) start: Start,
    pub(super) began: Time,
    pub(super) signal: CancelSignal,
    pub(super) task: AbortHandle,
    pub(super) reason: Option<CancelReason>,
    pub(super) cut: bool,
    pub(super) stuck: Option<Stuck>,
}

/// A run that blocks its thread.
pub(super) struct Stuck {
    /// The record write that says so, if one was issued.
    pub(super) write: Option<u64>,
    /// Whether the liveness check knows.
    pub(super) said: bool,
}

impl Runs {
    pub(super) fn next_time(&self) -> Option<Time> {
        let first = |queue: &VecDeque<(Time, Slot, u64)>| queue.front().map(|(time, _, _)| *time);
        let deadlines = self.deadlines.iter().filter_map(first).min();
        [deadlines, first(&self.graces), first(&self.cuts)].into_iter().flatten().min()
    }

    /// Cuts everything off that still runs.
    pub(super) fn cut_all(&mut self) {
        for active in self.active.values_mut().filter(|active| !active.cut) {
            active.cut = true;
            active.task.abort();
        }
    }

    /// The causes of the run of this id, if one with a task is under way.
    pub(super) fn causes(&self, slot: Slot) -> Option<Causes> {
        self.active.get(&slot.0).map(|active| active.start.causes)
    }

    /// How many runs have a task.
    pub(super) fn count(&self) -> usize {
        self.active.len()
    }

    /// The ids of the runs that have a task.
    pub(super) fn ids(&self) -> impl Iterator<Item = &str> {
        self.active.values().map(|active| &*active.start.id)
    }

    pub(super) fn is_active(&self, slot: Slot, run: u64) -> bool {
        self.active.get(&slot.0).is_some_and(|active| active.start.run == run)
    }
}

/// Whoever drops the loop in mid-term wants nothing to go on.
impl Drop for Runs {
    fn drop(&mut self) {
        self.cut_all();
    }
}

impl ShardLoop {
    /// Starts what may start, at most a turn's worth; gives how many.
    pub(super) fn start_runs(&mut self) -> usize {
        self.take_permits();
        let mut now = self.now();
        for started in 0..RUNS_PER_TURN {
            let Some(start) = self.core.poll_start(now, &mut self.commands) else { return started };
            now = self.begin_run(start, now);
            self.carry_out();
        }
        RUNS_PER_TURN
    }

    /// Asks the process's pool for as many permits as could be used. With other shards beside it, a shard offers first
    /// what runs that ended have left.
    fn take_permits(&mut self) {
        let alone = self.shared.shards.len() == 1;
        let shared = Arc::clone(&self.shared);
        for (number, kind) in shared.kinds.iter().enumerate() {
            let idle = if alone { 0 } else { self.core.reclaim(kind_number(number)) };
            let wanted = match self.core.is_starved(kind_number(number)) {
                false => 0,
                true if alone => u32::MAX,
                true => self.core.waiting().min(kind.options.concurrency),
            };
            if alone && wanted == 0 {
                continue;
            }
            let (taken, next) = kind.pool.exchange(self.id, Wish { idle, wanted });
            self.permits[number] = self.permits[number] + taken - idle;
            self.core.grant(kind_number(number), taken);
            next.into_iter().for_each(|next| shared.wake(next));
        }
    }

    /// Begins a run and polls it once; gives the time at which that was over.
    fn begin_run(&mut self, mut start: Start, now: Time) -> Time {
        let kind = usize::from(start.kind);
        self.durations[kind].wait.record(now.seconds_since(start.since));
        let stuck = self.notes.get(start.slot).map_or(0, |note| note.stuck);
        let Kept { call, cancel } = self.new_call(&mut start, now);
        let mut future = self.runs.future.take().unwrap_or_else(empty);
        let beacon = &self.shared.door(self.id).beacon;
        beacon.enter(call.run.id(), start.attempt, stuck);
        self.shared.kinds[kind].reconciler.invoke(call, &mut future);
        let polled = catch_unwind(AssertUnwindSafe(|| poll_once(future.get_pin())));
        beacon.leave();
        let end = self.now();
        match polled {
            Ok(Poll::Pending) => {
                start.id = self.core.id(start.slot);
                self.give_task(start, &cancel, future, now);
            }
            Ok(Poll::Ready((result, mut call))) => {
                std::mem::swap(&mut start.id, &mut call.run.parts.id);
                // A run that has asked for its signal keeps it.
                self.runs.kept = cancel.get().is_none().then(|| Kept { call, cancel });
                self.runs.future = Some(future);
                self.run_ended(start, Ended::Returned(result), None, now, end);
            }
            Err(panic) => {
                start.id = self.core.id(start.slot);
                self.run_ended(start, Ended::Panicked(panic_text(panic)), None, now, end);
            }
        }
        end
    }

    /// A call for this run; one that is free is used again, and then only what differs is written. The id goes from the
    /// start into the run, and comes back with the call: that counts no owner.
    fn new_call(&mut self, start: &mut Start, now: Time) -> Kept {
        let note = self.notes.get(start.slot);
        let answers_event = start.latest.is_some_and(|receipt| receipt.source.is_event());
        let kept_key = note.and_then(|note| note.key).filter(|_| !answers_event);
        let last_error = note.and_then(|note| note.error.clone());
        let trace = if self.shared.tracing.is_some() { self.attempt_span(start) } else { None };
        let kind = &self.shared.kinds[usize::from(start.kind)];
        if let Some(mut kept) = self.runs.kept.take()
            && Arc::ptr_eq(&kept.call.run.parts.kind, &kind.name)
        {
            let parts = &mut kept.call.run.parts;
            std::mem::swap(&mut parts.id, &mut start.id);
            parts.worker = WorkerId(start.worker);
            parts.number = start.run;
            parts.attempt = start.attempt;
            parts.latest = start.latest;
            parts.kept_key = kept_key;
            parts.causes = start.causes;
            parts.last_error = last_error;
            parts.started_nanos = now.0;
            parts.trace = trace;
            return kept;
        }
        let cancel = Arc::new(CancelSlot::new());
        let parts = RunParts {
            id: Arc::clone(&start.id),
            kind: Arc::clone(&kind.name),
            term: self.term,
            worker: WorkerId(start.worker),
            number: start.run,
            attempt: start.attempt,
            latest: start.latest,
            kept_key,
            causes: start.causes,
            sources: Arc::clone(&self.shared.sources),
            last_error,
            timeout: kind.options.timeout,
            origin: self.shared.clock.origin(),
            started_nanos: now.0,
            trace,
            cancel: Arc::clone(&cancel),
        };
        Kept { call: kind.reconciler.call(Run { parts }), cancel }
    }

    /// Gives a run that is still pending a task of its own.
    fn give_task(&mut self, start: Start, cancel: &CancelSlot, future: RunFuture, began: Time) {
        let signal = cancel.get_or_init(CancelSignal::default).clone();
        let (slot, number) = (start.slot, start.run);
        let messages = self.shared.door(self.id).messages.clone();
        let last = LastWord { messages, slot, run: number, ended: Some(Ended::CutOff) };
        let stuck = self.notes.get(slot).map_or(0, |note| note.stuck);
        let polled = Arc::new(Polled::new(&start.id, start.attempt, stuck));
        lock(&self.shared.door(self.id).polled).insert(slot.0, Arc::clone(&polled));
        let task = tokio::spawn(RunTask { future, polled, last });
        let kind = usize::from(start.kind);
        if let Some(timeout) = self.shared.kinds[kind].options.timeout {
            if self.runs.deadlines.len() <= kind {
                self.runs.deadlines.resize_with(kind + 1, VecDeque::new);
            }
            self.runs.deadlines[kind].push_back((began.after(timeout), slot, number));
        }
        let active = Active { start, began, signal, task: task.abort_handle(), reason: None, cut: false, stuck: None };
        self.runs.active.insert(slot.0, active);
    }

    /// A run that had a task has ended.
    pub(super) fn task_ended(&mut self, now: Time, slot: Slot, run: u64, ended: Ended) {
        if !self.runs.is_active(slot, run) {
            return;
        }
        let Some(active) = self.runs.active.remove(&slot.0) else { return };
        lock(&self.shared.door(self.id).polled).remove(&slot.0);
        if active.stuck.is_some() {
            self.shared.problems.clear(&log::stuck_key(&active.start.id));
        }
        if active.cut {
            self.shared.door(self.id).stats.cut_off.fetch_add(1, Relaxed);
        }
        self.run_ended(active.start, ended, active.reason, active.began, now);
    }

    /// A run that was cut off at the end of a term has ended; nothing follows.
    pub(super) fn forget_run(&mut self, slot: Slot, run: u64) {
        if self.runs.is_active(slot, run) {
            self.runs.active.remove(&slot.0);
            let door = self.shared.door(self.id);
            lock(&door.polled).remove(&slot.0);
            door.stats.cut_off.fetch_add(1, Relaxed);
        }
    }

    /// Every run ends here.
    fn run_ended(&mut self, start: Start, ended: Ended, reason: Option<CancelReason>, began: Time, now: Time) {
        let (slot, run) = (start.slot, start.run);
        let timeout = self.shared.kinds[usize::from(start.kind)].options.timeout;
        let verdict = Verdict::of(ended, reason, timeout, |requeue| self.requeue_time(requeue, now));
        let success = matches!(verdict.outcome, Outcome::Done(_));
        let cause_error = if start.attempt > 1 { self.note_error(slot) } else { None };
        if !success {
            self.notes.entry(slot).error.clone_from(&verdict.message);
        }
        let next = self.core.handle_outcome(now, slot, run, verdict.outcome, &start.causes, &mut self.commands);
        let outcome = verdict.shown(next);
        self.count(usize::from(start.kind), &verdict, outcome, now.seconds_since(began), next, now);
        let (cause, more) = journal::told(&start.causes, verdict.message, cause_error);
        let entry = journal::Entry {
            id: start.id,
            kind: start.kind,
            worker: WorkerId(start.worker),
            outcome,
            attempt: start.attempt,
            waiting_since: start.since,
            started: began,
            ended: now,
            next: if let Next::At(due) = next { Some(due) } else { None },
            cause,
            more,
        };
        let in_attempt = self.end_span(slot, &entry, next);
        log::run_ended(&self.shared, self.id, &entry, verdict.unchanged);
        drop(in_attempt);
        self.tell_waiting(slot, run, &entry, next);
        self.journal.push(entry);
        if next == Next::Idle {
            self.notes.forget(slot);
        } else if success && let Some(note) = self.notes.get_mut(slot) {
            note.error = None;
            note.key = None;
            note.stuck = 0;
        }
    }

    fn note_error(&self, slot: Slot) -> Option<Arc<str>> {
        self.notes.get(slot).and_then(|note| note.error.clone())
    }

    fn count(&self, kind: usize, verdict: &Verdict, outcome: RunOutcome, seconds: f64, next: Next, now: Time) {
        let stats = &self.shared.door(self.id).stats;
        ShardStats::count(&stats.runs[outcome as usize]);
        if verdict.cause == RunOutcome::Panicked {
            ShardStats::count(&stats.panics);
        }
        let durations = &self.durations[kind];
        durations.run[outcome as usize].record(seconds);
        if let Next::At(due) = next {
            let asked = usize::from(matches!(verdict.outcome, Outcome::Done(_)));
            durations.requeue_delay[asked].record(due.seconds_since(now));
        }
    }

    fn requeue_time(&self, requeue: Requeue, now: Time) -> Time {
        match requeue {
            Requeue::After(delay) => now.after(delay),
            Requeue::At(wall) => self.shared.clock.moment(wall),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A run with a task of its own. Dropped, also before it was ever polled, its future goes first: so the end is heard
/// when the run has really ended.
struct RunTask {
    future: RunFuture,
    polled: Arc<Polled>,
    last: LastWord,
}

impl Future for RunTask {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        this.polled.turn();
        let poll = catch_unwind(AssertUnwindSafe(|| this.future.poll(context)));
        this.polled.turn();
        let ended = match poll {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready((result, _))) => Ended::Returned(result),
            Err(panic) => Ended::Panicked(panic_text(panic)),
        };
        this.last.ended = Some(ended);
        Poll::Ready(())
    }
}

/// Says how a run ended, whatever happens to its task.
struct LastWord {
    messages: tokio::sync::mpsc::UnboundedSender<Message>,
    slot: Slot,
    run: u64,
    ended: Option<Ended>,
}

impl Drop for LastWord {
    fn drop(&mut self) {
        if let Some(ended) = self.ended.take() {
            // The loop may be gone after a lost term; then nobody needs to know.
            let _ = self.messages.send(Message::Ended(self.slot, self.run, ended));
        }
    }
}
