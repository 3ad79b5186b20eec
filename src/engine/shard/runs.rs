//! Starting and ending runs: first poll inline, a task only for what is pending, deadlines, panics, cut-off (C1, C4,
//! D10).

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use fnv::FnvHashMap;
use tokio::task::AbortHandle;

use super::{Message, RUNS_PER_TURN, ShardLoop, kind_number};
use crate::contract::{Action, CancelReason, CancelSignal, Failure, FailureKind, Leadership, Requeue, Run, RunParts};
use crate::engine::beacon::Polled;
use crate::engine::invoke::{RunFuture, empty, poll_once};
use crate::engine::journal;
use crate::engine::log;
use crate::engine::view::RunOutcome;
use crate::id::{Causes, WorkerId};
use crate::scheduler::{CancelCause, Next, Outcome, Slot, Start, Time};

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
    active: FnvHashMap<u32, Active>,
    /// Deadlines of runs, in the order of their starts: all runs of a kind have the same timeout.
    deadlines: Vec<VecDeque<(Time, Slot, u64)>>,
    /// When runs that were told to stop are cut off.
    graces: VecDeque<(Time, Slot, u64)>,
    /// When runs that were cut off must have ended.
    cuts: VecDeque<(Time, Slot, u64)>,
    /// The run value and the box of the last run that ended at its first poll.
    kept: Option<Arc<Run>>,
    future: Option<RunFuture>,
}

/// A run that has a task of its own.
struct Active {
    start: Start,
    began: Time,
    signal: CancelSignal,
    task: AbortHandle,
    reason: Option<CancelReason>,
    cut: bool,
    stuck: Option<Stuck>,
}

/// A run that blocks its thread.
struct Stuck {
    /// The record write that says so, if one was issued.
    write: Option<u64>,
    /// Whether the liveness check knows.
    said: bool,
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

    fn is_active(&self, slot: Slot, run: u64) -> bool {
        self.active.get(&slot.0).is_some_and(|active| active.start.run == run)
    }
}

/// Whoever drops the loop in mid-term wants nothing to go on.
impl Drop for Runs {
    fn drop(&mut self) {
        self.cut_all();
    }
}

/// Takes the entries of a queue whose time has come.
fn due(queue: &mut VecDeque<(Time, Slot, u64)>, now: Time) -> Option<(Slot, u64)> {
    let (_, slot, run) = *queue.front().filter(|(time, _, _)| *time <= now)?;
    queue.pop_front();
    Some((slot, run))
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

    /// Asks the process's pool for as many permits as could be used.
    fn take_permits(&mut self) {
        let alone = self.shared.shards.len() == 1;
        for (number, kind) in self.shared.kinds.iter().enumerate() {
            let wanted = if alone { u32::MAX } else { self.core.waiting().min(kind.options.concurrency) };
            if !alone || self.core.is_starved(kind_number(number)) {
                let taken = kind.pool.take(self.id, wanted);
                self.permits[number] += taken;
                self.core.grant(kind_number(number), taken);
            }
        }
    }

    /// Begins a run and polls it once; gives the time at which that was over.
    fn begin_run(&mut self, start: Start, now: Time) -> Time {
        let kind = usize::from(start.kind);
        self.durations[kind].wait.record(now.seconds_since(start.since));
        let stuck = self.notes.get(start.slot).map_or(0, |note| note.stuck);
        let run = self.new_run(&start, now);
        let mut future = self.runs.future.take().unwrap_or_else(empty);
        let beacon = &self.shared.door(self.id).beacon;
        beacon.enter(&start.id, start.attempt, stuck);
        self.shared.kinds[kind].reconciler.invoke(Arc::clone(&run), &mut future);
        let polled = catch_unwind(AssertUnwindSafe(|| poll_once(future.get_pin())));
        beacon.leave();
        let end = self.now();
        match polled {
            Ok(Poll::Pending) => self.give_task(start, run, future, now),
            Ok(Poll::Ready(result)) => {
                // A future that has ended holds nothing any more, so the run is free.
                self.runs.kept = Some(run);
                self.runs.future = Some(future);
                self.run_ended(start, Ended::Returned(result), None, now, end);
            }
            Err(panic) => self.run_ended(start, Ended::Panicked(panic_text(panic)), None, now, end),
        }
        end
    }

    /// A run value, used again where one is free: then only what differs is written.
    fn new_run(&mut self, start: &Start, now: Time) -> Arc<Run> {
        let note = self.notes.get(start.slot);
        let answers_event = start.latest.is_some_and(|receipt| receipt.source.is_event());
        let kept_key = note.and_then(|note| note.key).filter(|_| !answers_event);
        let last_error = note.and_then(|note| note.error.clone());
        let trace = self.attempt_span(start);
        let kind = &self.shared.kinds[usize::from(start.kind)];
        if let Some(mut kept) = self.runs.kept.take()
            && let Some(run) = Arc::get_mut(&mut kept)
        {
            let parts = &mut run.parts;
            if !Arc::ptr_eq(&parts.kind, &kind.name) {
                parts.kind = Arc::clone(&kind.name);
                parts.timeout = kind.options.timeout;
            }
            parts.id = Arc::clone(&start.id);
            parts.worker = WorkerId(start.worker);
            parts.number = start.run;
            parts.attempt = start.attempt;
            parts.latest = start.latest;
            parts.kept_key = kept_key;
            parts.causes = start.causes;
            parts.last_error = last_error;
            parts.started_nanos = now.0;
            parts.trace = trace;
            parts.cancel.take();
            return kept;
        }
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
            cancel: OnceLock::new(),
        };
        Arc::new(Run { parts })
    }

    /// Gives a run that is still pending a task of its own.
    fn give_task(&mut self, start: Start, run: Arc<Run>, future: RunFuture, began: Time) {
        let signal = run.parts.signal().clone();
        drop(run);
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
        let texts = journal::Texts { message: verdict.message, cause_error };
        let entry = journal::Entry {
            id: start.id,
            kind: start.kind,
            worker: WorkerId(start.worker),
            outcome,
            attempt: start.attempt,
            waiting_since: start.since,
            started: began,
            ended: now,
            causes: start.causes,
            next: if let Next::At(due) = next { Some(due) } else { None },
            texts: (texts.message.is_some() || texts.cause_error.is_some()).then(|| Box::new(texts)),
        };
        self.end_span(slot, &entry, next);
        log::run_ended(&self.shared, self.id, &entry, verdict.unchanged);
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
        stats.runs[outcome as usize].fetch_add(1, Relaxed);
        if verdict.cause == RunOutcome::Panicked {
            stats.panics.fetch_add(1, Relaxed);
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

    /// The scheduler wants a run to stop.
    pub(super) fn cancel_run(&mut self, now: Time, slot: Slot, run: u64, cause: CancelCause) {
        let reason = match cause {
            CancelCause::Triggered => CancelReason::Triggered,
            CancelCause::Asked => CancelReason::Asked,
        };
        self.tell_to_stop(now, slot, run, reason);
    }

    fn tell_to_stop(&mut self, now: Time, slot: Slot, run: u64, reason: CancelReason) {
        let Some(active) = self.runs.active.get_mut(&slot.0).filter(|active| active.start.run == run) else { return };
        if active.reason.is_some() {
            return;
        }
        active.reason = Some(reason);
        let _ = active.signal.reason.set(reason);
        active.signal.token.cancel();
        let grace = self.shared.kinds[usize::from(active.start.kind)].options.cancel_grace;
        self.runs.graces.push_back((now.after(grace), slot, run));
    }

    /// Tells all runs to stop; gives the time at which they are cut off.
    pub(super) fn cancel_all(&mut self, now: Time, leadership: &Leadership) -> Time {
        let reason =
            if leadership.ending.is_cancelled() { CancelReason::LeadershipLost } else { CancelReason::Shutdown };
        let runs: Vec<(Slot, u64)> =
            self.runs.active.values().map(|active| (active.start.slot, active.start.run)).collect();
        for (slot, run) in runs {
            self.tell_to_stop(now, slot, run, reason);
        }
        now.after(self.shared.kinds.iter().map(|kind| kind.options.cancel_grace).max().unwrap_or_default())
    }

    /// Timeouts, cut-offs, and runs that nothing can stop.
    pub(super) fn check_deadlines(&mut self, now: Time) {
        for kind in 0..self.runs.deadlines.len() {
            // What has ended needs no deadline; only a long run keeps those behind it.
            while let Some((_, slot, run)) = self.runs.deadlines[kind].front().copied()
                && !self.runs.is_active(slot, run)
            {
                self.runs.deadlines[kind].pop_front();
            }
            while let Some((slot, run)) = due(&mut self.runs.deadlines[kind], now) {
                self.tell_to_stop(now, slot, run, CancelReason::Timeout);
            }
        }
        while let Some((slot, run)) = due(&mut self.runs.graces, now) {
            if let Some(active) = self.runs.active.get_mut(&slot.0).filter(|active| active.start.run == run) {
                active.cut = true;
                active.task.abort();
                self.runs.cuts.push_back((now.after(self.shared.patience.cut_off_max), slot, run));
            }
        }
        while let Some((slot, run)) = due(&mut self.runs.cuts, now) {
            match self.runs.active.get(&slot.0).filter(|active| active.start.run == run) {
                Some(active) if active.stuck.is_none() => self.run_is_stuck(now, slot),
                // Its record is not durable yet; that cannot be waited for any longer.
                Some(_) => self.say_stuck(slot),
                None => {}
            }
        }
    }

    /// The runs that a stop could not end.
    pub(super) fn record_stuck_runs(&mut self, now: Time) {
        let slots: Vec<Slot> =
            self.runs.active.values().filter(|active| active.stuck.is_none()).map(|active| active.start.slot).collect();
        for slot in slots {
            self.run_is_stuck(now, slot);
        }
    }

    /// A run blocks its thread: nobody can end it but the end of the process. Its attempt is recorded first (C4).
    fn run_is_stuck(&mut self, now: Time, slot: Slot) {
        let Some(active) = self.runs.active.get_mut(&slot.0) else { return };
        active.stuck = Some(Stuck { write: None, said: false });
        let (id, run) = (Arc::clone(&active.start.id), active.start.run);
        log::stuck(&self.shared, self.id, &id);
        let note = self.notes.entry(slot);
        note.stuck = note.stuck.saturating_add(1);
        note.error = Some(log::stuck_text(&id).into());
        let Some((_, write)) = self.core.record_now(&id, &mut self.commands) else { return self.say_stuck(slot) };
        if let Some(stuck) = self.runs.active.get_mut(&slot.0).and_then(|active| active.stuck.as_mut()) {
            stuck.write = Some(write);
        }
        self.runs.cuts.push_back((now.after(self.shared.patience.cut_off_max), slot, run));
    }

    /// Whether the run of this id blocks its thread.
    pub(super) fn is_stuck(&self, slot: Slot) -> bool {
        self.runs.active.get(&slot.0).is_some_and(|active| active.stuck.is_some())
    }

    /// A record is durable: if it is that of a run that blocks its thread, the process may be ended now.
    pub(super) fn recorded_stuck(&mut self, slot: Slot, write: u64) {
        let stuck = self.runs.active.get(&slot.0).and_then(|active| active.stuck.as_ref());
        if stuck.and_then(|stuck| stuck.write).is_some_and(|wanted| wanted <= write) {
            self.say_stuck(slot);
        }
    }

    /// Makes the liveness check fail, once.
    fn say_stuck(&mut self, slot: Slot) {
        let Some(active) = self.runs.active.get_mut(&slot.0) else { return };
        let Some(stuck) = active.stuck.as_mut().filter(|stuck| !stuck.said) else { return };
        stuck.said = true;
        let id = &active.start.id;
        self.shared.problems.set(log::stuck_key(id), log::stuck_text(id), true);
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
            Ok(Poll::Ready(result)) => Ended::Returned(result),
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

/// What a run's end means.
struct Verdict {
    outcome: Outcome,
    cause: RunOutcome,
    message: Option<Arc<str>>,
    unchanged: bool,
}

impl Verdict {
    fn of(
        ended: Ended,
        reason: Option<CancelReason>,
        timeout: Option<Duration>,
        time: impl FnOnce(Requeue) -> Time,
    ) -> Self {
        let plain = |outcome, cause, message: Option<Arc<str>>| Self { outcome, cause, message, unchanged: false };
        match (reason, ended) {
            (_, Ended::Panicked(text)) => {
                plain(Outcome::Failed(None), RunOutcome::Panicked, Some(format!("panicked: {text}").into()))
            }
            (Some(CancelReason::Timeout), _) => {
                let text = format!("took longer than {:?}", timeout.unwrap_or_default());
                plain(Outcome::Failed(None), RunOutcome::TimedOut, Some(text.into()))
            }
            (Some(reason), _) => plain(Outcome::Cancelled, RunOutcome::Cancelled, Some(cancel_text(reason).into())),
            (None, Ended::CutOff) => plain(Outcome::Cancelled, RunOutcome::Cancelled, Some("cut off".into())),
            (None, Ended::Returned(Ok(action))) => {
                let outcome = Outcome::Done(action.requeue().map(time));
                let cause = if action.requeue().is_some() { RunOutcome::Requeued } else { RunOutcome::Done };
                let unchanged = action.is_unchanged();
                Self { outcome, cause, message: action.message().map(Arc::from), unchanged }
            }
            (None, Ended::Returned(Err(failure))) => {
                let outcome = match failure.kind() {
                    FailureKind::Transient(delay) => Outcome::Failed(delay),
                    FailureKind::Terminal => Outcome::Terminal,
                };
                plain(outcome, RunOutcome::Failed, Some(failure.into_message().into()))
            }
        }
    }

    /// How it is shown, knowing what follows.
    fn shown(&self, next: Next) -> RunOutcome {
        match (self.cause, next) {
            (RunOutcome::Failed | RunOutcome::Panicked | RunOutcome::TimedOut, Next::Parked(_)) => RunOutcome::GivenUp,
            (cause, _) => cause,
        }
    }
}

const fn cancel_text(reason: CancelReason) -> &'static str {
    match reason {
        CancelReason::Triggered => "cancelled: triggered again",
        CancelReason::Asked => "cancelled by request",
        CancelReason::Timeout => "took too long",
        CancelReason::Shutdown => "cancelled: the process is stopping",
        CancelReason::LeadershipLost => "cancelled: leadership was lost",
    }
}

/// The text of a panic, whatever its payload (B19): one that panics when it is dropped does no harm either.
fn panic_text(panic: Box<dyn Any + Send>) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "with a payload that is no text".to_owned());
    if let Err(again) = catch_unwind(AssertUnwindSafe(move || drop(panic))) {
        std::mem::forget(again);
    }
    text
}
