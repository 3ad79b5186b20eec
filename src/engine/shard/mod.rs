//! The loop of one shard for one term: one task, one turn after the other.
//!
//! A turn takes what has come (events, ends of runs, answers of the store, questions), lets the scheduler decide,
//! carries its commands out, starts what may start, and waits. Nothing else touches the scheduler, so nothing is
//! locked.
//!
//! `runs` starts and ends runs, `records` writes what is owed, `answers` serves people.

mod answers;
mod notes;
mod records;
mod runs;
mod spans;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::intake::{Batch, Intake};
use super::journal::Journal;
use super::news::{Point, ShardNews};
use super::shared::Shared;
use super::stats::Durations;
use super::view::{
    Explanation, JournalEntry, JournalQuery, QueuePage, QueueQuery, ShardStatus, SteerAnswer, TriggerAnswer, WaitFor,
};
use crate::contract::{Class, Leadership, Source, StoreError, Term};
use crate::id::{Receipt, ShardId, SourceId, WorkerId};
use crate::scheduler::{
    Admission, Arrival, ArrivalClass, Command, KindSettings, Priority, Settings, Shard, Slot, Time,
};
use notes::Notes;
use records::Writer;
use runs::{Ended, Runs};

/// Runs started in one turn, at most; then others of the runtime get their turn too.
const RUNS_PER_TURN: usize = 512;
/// Messages taken in one turn, at most.
const MESSAGES_PER_TURN: usize = 1_024;
/// How long the last writes of a term may take after its runs have ended.
const LAST_WRITES: Duration = Duration::from_secs(5);

/// What a shard's loop can hear.
///
/// The channel is unbounded but its content is not: an end per run in flight, an answer per write under way, a
/// question per open request.
pub(crate) enum Message {
    /// A run that had a task of its own has ended.
    Ended(Slot, u64, Ended),
    /// These record writes are durable.
    Recorded(Vec<(Slot, u64)>),
    /// The store takes no more records in this term.
    StoreFailed(StoreError),
    /// Requests of people and programs.
    Trigger {
        ids: Vec<(String, WorkerId)>,
        wait: WaitFor,
        reply: oneshot::Sender<Vec<oneshot::Receiver<TriggerAnswer>>>,
    },
    Explain {
        id: String,
        worker: WorkerId,
        reply: oneshot::Sender<Explanation>,
    },
    Status {
        reply: oneshot::Sender<ShardStatus>,
    },
    Page {
        query: QueueQuery,
        after: Option<Slot>,
        reply: oneshot::Sender<(QueuePage, Option<Slot>)>,
    },
    Journal {
        query: JournalQuery,
        reply: oneshot::Sender<Vec<JournalEntry>>,
    },
    News {
        id: Option<String>,
        point: Point,
        limit: usize,
        reply: oneshot::Sender<ShardNews>,
    },
    Cancel {
        id: String,
        reply: oneshot::Sender<SteerAnswer>,
    },
    Redrive {
        id: String,
        reply: oneshot::Sender<SteerAnswer>,
    },
    RedriveMatching {
        pattern: String,
        reply: oneshot::Sender<Vec<SteerAnswer>>,
    },
}

/// Why a term's loop ended.
#[derive(Debug)]
pub(crate) enum TermEnd {
    /// As asked; all that was owed is recorded, unless this says otherwise.
    Drained { unwritten: usize },
    /// Leadership was lost.
    Lost,
    /// The store cannot be read.
    Store(StoreError),
}

/// The loop of one shard for one term.
pub(crate) struct ShardLoop {
    shared: Arc<Shared>,
    id: ShardId,
    term: Term,
    core: Shard,
    commands: Vec<Command>,
    inbox: mpsc::UnboundedReceiver<Message>,
    intakes: Vec<(Arc<Intake>, Batch)>,
    intakes_version: u64,
    spare: Batch,
    runs: Runs,
    notes: Notes,
    journal: Journal,
    writer: Writer,
    durations: Vec<Durations>,
    released: Vec<Receipt>,
    sources: Vec<Option<Arc<Source>>>,
    stage: Stage,
    store_failed: Option<StoreError>,
}

/// How far a stop has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    /// Nothing starts; runs may finish until then.
    Draining {
        until: Time,
    },
    /// Runs were told to stop; they are cut off then.
    Cancelling {
        until: Time,
    },
    /// Only writes are left; given up then.
    Writing {
        until: Time,
    },
}

impl ShardLoop {
    pub(crate) fn new(shared: Arc<Shared>, term: Term, inbox: mpsc::UnboundedReceiver<Message>) -> Self {
        let mut core = Shard::new(settings(&shared));
        for fault in &shared.planted {
            core.plant(fault);
        }
        let writer = Writer::start(&shared, term);
        let durations =
            shared.kinds.iter().map(|kind| shared.instruments.bind(&shared.name, &kind.name, term.shard)).collect();
        Self {
            id: term.shard,
            term,
            core,
            commands: Vec::new(),
            inbox,
            intakes: Vec::new(),
            intakes_version: 0,
            spare: Batch::default(),
            runs: Runs::default(),
            notes: Notes::default(),
            journal: Journal::default(),
            writer,
            durations,
            released: Vec::new(),
            sources: Vec::new(),
            stage: Stage::Running,
            store_failed: None,
            shared,
        }
    }

    /// Runs the term until it is told to stop or leadership is lost; gives the inbox back for the next term.
    pub(crate) async fn run(mut self, leadership: &Leadership) -> (mpsc::UnboundedReceiver<Message>, TermEnd) {
        let end = match self.recover().await {
            Err(error) => TermEnd::Store(error),
            Ok(()) => {
                self.begin();
                let end = self.turns(leadership).await;
                self.finish();
                end
            }
        };
        self.writer.stop().await;
        (self.inbox, end)
    }

    fn begin(&mut self) {
        let door = self.shared.door(self.id);
        door.stats.terms.fetch_add(1, Relaxed);
        door.stats.led.store(1, Relaxed);
        door.led.store(true, Relaxed);
        self.shared.led.send_modify(|led| {
            if !led.contains(&self.id) {
                led.push(self.id);
                led.sort_unstable();
            }
        });
    }

    fn finish(&mut self) {
        let shared = Arc::clone(&self.shared);
        let door = shared.door(self.id);
        door.led.store(false, Relaxed);
        door.beacon.idle();
        for kind in &shared.kinds {
            kind.pool.forget(self.id);
        }
        shared.led.send_modify(|led| led.retain(|shard| *shard != self.id));
        // What was handed over and not taken is dropped with the term: its source still owes it, or a resync finds it.
        for (intake, _) in &self.intakes {
            intake.empty();
        }
        self.publish();
        door.stats.led.store(0, Relaxed);
        for gauge in door.stats.pending.iter().chain([
            &door.stats.running,
            &door.stats.delayed,
            &door.stats.parked,
            &door.stats.records,
            &door.stats.seats,
            &door.stats.timers,
            &door.stats.overdue,
            &door.stats.full,
            &door.stats.oldest_hold_ms,
        ]) {
            gauge.store(0, Relaxed);
        }
        // What the loop holds of the next term's questions is answered by their dropped senders.
        self.notes.clear();
    }

    async fn turns(&mut self, leadership: &Leadership) -> TermEnd {
        loop {
            let now = self.now();
            self.beacon_busy(now);
            let mut busy = self.take_messages(now);
            busy |= self.take_intakes(now);
            busy |= self.take_time(now);
            self.carry_out();
            busy |= self.start_runs() == RUNS_PER_TURN;
            self.end_turn();
            if leadership.ended.is_cancelled() {
                self.runs.cut_all();
                return TermEnd::Lost;
            }
            if let Some(error) = self.store_failed.take() {
                self.runs.cut_all();
                return match error {
                    StoreError::Fenced => TermEnd::Lost,
                    error => TermEnd::Store(error),
                };
            }
            if let Some(end) = self.advance_stop(leadership) {
                return end;
            }
            if busy {
                tokio::task::yield_now().await;
            } else {
                self.wait(leadership).await;
            }
        }
    }

    fn now(&self) -> Time {
        self.shared.clock.now()
    }

    fn beacon_busy(&self, now: Time) {
        self.shared.door(self.id).beacon.busy(now.0 / 1_000_000);
    }

    /// Waits until something happens or something is due.
    async fn wait(&mut self, leadership: &Leadership) {
        let shared = Arc::clone(&self.shared);
        let door = shared.door(self.id);
        door.beacon.idle();
        let deadline =
            [self.core.next_time(), self.runs.next_time(), self.stage.next_time()].into_iter().flatten().min();
        let until = deadline.map(|time| shared.clock.instant(time));
        let due = async {
            match until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        let stopping = self.stage != Stage::Running;
        let message = tokio::select! {
            biased;
            () = leadership.ended.cancelled() => None,
            () = leadership.ending.cancelled(), if !stopping => None,
            () = shared.stop.shards.cancelled(), if !stopping => None,
            () = door.wake.notified() => None,
            message = self.inbox.recv() => message,
            () = due => None,
        };
        if let Some(message) = message {
            let now = self.now();
            self.beacon_busy(now);
            self.handle(now, message);
        }
    }

    fn take_messages(&mut self, now: Time) -> bool {
        for _ in 0..MESSAGES_PER_TURN {
            match self.inbox.try_recv() {
                Ok(message) => self.handle(now, message),
                Err(_) => return false,
            }
        }
        true
    }

    fn handle(&mut self, now: Time, message: Message) {
        match message {
            Message::Ended(slot, run, ended) => self.task_ended(now, slot, run, ended),
            Message::Recorded(writes) => self.recorded(now, &writes),
            Message::StoreFailed(error) => self.store_failed = Some(error),
            question => self.answer(now, question),
        }
        self.carry_out();
    }

    /// Takes what the streams have handed over. Gives whether there may be more.
    fn take_intakes(&mut self, now: Time) -> bool {
        self.refresh_intakes();
        if self.stage != Stage::Running {
            return false;
        }
        let mut more = false;
        for index in 0..self.intakes.len() {
            let mut held = std::mem::take(&mut self.intakes[index].1);
            if held.is_empty() {
                held = self.intakes[index].0.take(std::mem::take(&mut self.spare));
            }
            if held.is_empty() {
                self.spare = held;
                continue;
            }
            let class = self.intakes[index].0.class;
            let refused = self.take_batch(now, class, &held);
            more |= refused.is_empty();
            self.intakes[index].1 = refused;
            held.clear();
            self.spare = held;
        }
        more
    }

    /// Hands a batch to the scheduler; gives the events that found no room, in order.
    fn take_batch(&mut self, now: Time, class: Class, batch: &Batch) -> Batch {
        let mut refused = Batch::default();
        let class = arrival_class(class);
        for event in batch.iter() {
            let arrival = Arrival { id: event.id, kind: 0, worker: event.worker.0, receipt: event.receipt, class };
            match self.core.handle_event(now, &arrival, &mut self.commands) {
                Admission::Refused => refused.push(event.id, event.worker, event.receipt, event.trace),
                Admission::Admitted | Admission::Present => {
                    if let Some(trace) = event.trace {
                        self.notes.link(&self.core, event.id, trace);
                    }
                }
            }
        }
        refused
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
            self.intakes.push((Arc::clone(intake), Batch::default()));
        }
    }

    fn take_time(&mut self, now: Time) -> bool {
        self.check_deadlines(now);
        if self.core.next_time().is_some_and(|time| time <= now) {
            self.core.handle_time(now, &mut self.commands);
            return self.core.next_time().is_some_and(|time| time <= now);
        }
        false
    }

    /// Carries out what the scheduler asked for, in order.
    fn carry_out(&mut self) {
        if self.commands.is_empty() {
            return;
        }
        let now = self.now();
        let mut commands = std::mem::take(&mut self.commands);
        for command in commands.drain(..) {
            match command {
                Command::Release(receipt) => self.released.push(receipt),
                Command::Cancel { slot, run, reason } => self.cancel_run(now, slot, run, reason),
                Command::Write { slot, write, given_up } => self.write_record(now, slot, write, given_up),
                Command::Erase(id) => self.writer.erase(&id),
            }
        }
        self.commands = commands;
    }

    /// What is done once a turn: tell the sources, hand the writes on, publish the numbers, share the permits.
    fn end_turn(&mut self) {
        self.tell_sources();
        self.writer.send();
        self.share_permits();
        self.publish();
    }

    /// Tells the sources which of their events are done.
    fn tell_sources(&mut self) {
        if self.released.is_empty() {
            return;
        }
        self.released.sort_unstable_by_key(|receipt| receipt.source);
        let released = std::mem::take(&mut self.released);
        for of_one in released.chunk_by(|a, b| a.source == b.source) {
            let positions: Vec<u64> = of_one.iter().map(|receipt| receipt.position).collect();
            if let Some(tracker) = self.source(of_one[0].source).and_then(|source| source.tracker.clone()) {
                tracker.done(&positions);
            }
        }
        self.released = released;
        self.released.clear();
    }

    fn source(&mut self, id: SourceId) -> Option<&Arc<Source>> {
        let index = id.number()? as usize;
        if self.sources.len() <= index {
            self.sources.resize(index + 1, None);
        }
        if self.sources[index].is_none() {
            self.sources[index] = self.shared.sources.get(id);
        }
        self.sources[index].as_ref()
    }

    /// Gives permits back that this turn did not use, if other shards of this process may want them.
    fn share_permits(&mut self) {
        if self.shared.shards.len() == 1 {
            return;
        }
        for (number, kind) in self.shared.kinds.iter().enumerate() {
            let idle = self.core.reclaim(kind_number(number));
            if let Some(next) = kind.pool.give(idle).filter(|next| *next != self.id) {
                self.shared.wake(next);
            }
        }
    }

    /// Copies the numbers where others can read them.
    fn publish(&self) {
        let stats = &self.shared.door(self.id).stats;
        let (levels, counters) = (self.core.levels(), self.core.counters());
        for (to, from) in [
            (&stats.admitted, counters.admitted),
            (&stats.present, counters.present),
            (&stats.refused, counters.refused),
            (&stats.started, counters.started),
            (&stats.records_full, counters.records_full),
            (&stats.running, u64::from(self.core.running())),
            (&stats.delayed, u64::from(self.core.delayed())),
            (&stats.parked, u64::from(levels.parked)),
            (&stats.records, u64::from(levels.records)),
            (&stats.seats, u64::from(levels.admitted)),
            (&stats.timers, u64::from(levels.timers)),
            (&stats.overdue, u64::from(levels.overdue)),
            (&stats.full, u64::from(self.intakes.iter().any(|(_, held)| !held.is_empty()))),
            (&stats.oldest_hold_ms, self.core.oldest_hold().map_or(0, |time| time.0 / 1_000_000)),
        ] {
            to.store(from, Relaxed);
        }
        for (to, priority) in stats.pending.iter().zip(Priority::ALL) {
            to.store(u64::from(self.core.waiting_in(priority)), Relaxed);
        }
    }

    /// Leads a stop through its stages (L5): runs, then records.
    fn advance_stop(&mut self, leadership: &Leadership) -> Option<TermEnd> {
        let now = self.now();
        if self.stage == Stage::Running {
            let drain = self.shared.stop.shards.is_cancelled();
            if !drain && !leadership.ending.is_cancelled() {
                return None;
            }
            self.core.handle_drain(&mut self.commands);
            self.carry_out();
            let grace = self.shared.kinds.iter().map(|kind| kind.options.cancel_grace).max().unwrap_or_default();
            let drain_time = if drain { self.shared.timing.drain.saturating_sub(grace) } else { Duration::ZERO };
            self.stage = Stage::Draining { until: now.after(drain_time) };
        }
        if let Stage::Draining { until } = self.stage
            && (now >= until || self.core.running() == 0)
        {
            self.stage = Stage::Cancelling { until: self.cancel_all(now, leadership) };
        }
        if let Stage::Cancelling { until } = self.stage
            && (now >= until || self.core.running() == 0)
        {
            self.runs.cut_all();
            if self.core.running() == 0 || now >= until.after(LAST_WRITES) {
                self.stage = Stage::Writing { until: now.after(LAST_WRITES) };
            }
        }
        self.carry_out();
        self.end_turn();
        match self.stage {
            Stage::Writing { until } if self.writer.is_idle() || now >= until => {
                Some(TermEnd::Drained { unwritten: self.writer.waiting() })
            }
            _ => None,
        }
    }
}

impl Stage {
    fn next_time(self) -> Option<Time> {
        match self {
            Self::Running => None,
            Self::Draining { until } | Self::Writing { until } => Some(until),
            // Looked at again soon: what was cut off ends when the runtime comes to it.
            Self::Cancelling { until } => Some(until),
        }
    }
}

impl std::fmt::Debug for ShardLoop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardLoop").field("term", &self.term).finish_non_exhaustive()
    }
}

fn settings(shared: &Shared) -> Settings {
    let bound = |number: u32| std::num::NonZeroU32::new(number).unwrap_or(std::num::NonZeroU32::MIN);
    Settings {
        admitted_max: bound(shared.limits.admitted),
        timers_max: bound(shared.limits.timers),
        owed_records_max: bound(shared.limits.owed_records),
        max_hold: shared.timing.max_hold,
        min_requeue: shared.timing.min_requeue,
        resolution: shared.timing.resolution,
        durable: shared.is_durable(),
        hash_seed: random_seed(),
        kinds: shared
            .kinds
            .iter()
            .map(|kind| KindSettings {
                workers: std::num::NonZeroU16::new(kind.options.workers).unwrap_or(std::num::NonZeroU16::MIN),
                slots: bound(kind.options.slots()),
                retry: kind.options.retry,
            })
            .collect(),
    }
}

/// A number that nobody outside can guess: the standard library's own hash keys are drawn from the system.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

const fn arrival_class(class: Class) -> ArrivalClass {
    match class {
        Class::Event => ArrivalClass::Event,
        Class::Resync => ArrivalClass::Resync,
        Class::Trigger => ArrivalClass::Trigger,
    }
}

fn kind_number(index: usize) -> u16 {
    u16::try_from(index).expect("the builder takes fewer kinds than that")
}
