//! The loop of one shard for one term: one task, one turn after the other.
//!
//! A turn takes what has come (events, ends of runs, answers of the store, questions), lets the scheduler decide,
//! carries its commands out, starts what may start, and waits. Nothing else touches the scheduler, so nothing is
//! locked.
//!
//! `intakes` takes what streams hand over, `runs` starts and ends runs, `records` writes what is owed, `answers` serves
//! people, `term` begins and ends a term, `stop` leads through a stop.

mod answers;
mod deadlines;
mod intakes;
mod notes;
mod records;
mod runs;
mod spans;
mod stop;
mod term;
mod verdict;

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::intake::Batch;
use super::journal::Journal;
use super::news::{Point, ShardNews};
use super::shared::Shared;
use super::stats::Durations;
use super::view::{
    Explanation, JournalEntry, JournalQuery, QueuePage, QueueQuery, ShardStatus, SteerAnswer, TriggerAnswer, WaitFor,
};
use crate::contract::{Leadership, Source, StoreError, Term};
use crate::id::{Receipt, ShardId, SourceId, WorkerId};
use crate::scheduler::{Command, Counters, KindSettings, Settings, Shard, Slot, Time};
use intakes::Held;
use notes::Notes;
use records::Writer;
use runs::{Ended, Runs};
use stop::Stage;
use term::Warned;

/// Runs started in one turn, at most; then others of the runtime get their turn too.
const RUNS_PER_TURN: usize = 512;
/// Messages taken in one turn, at most.
const MESSAGES_PER_TURN: usize = 1_024;

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
    /// A run of this id that was reported to block its thread has gone on.
    GoesOn(String),
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
    /// As asked; so many owed records were not written, and so many dead letters have not arrived.
    Drained { records: usize, letters: usize },
    /// Leadership was lost.
    Lost,
    /// The store cannot be used.
    Store(StoreError),
    /// A run blocks its thread and has not ended: only the end of the process ends it (C4).
    Stuck(String),
}

/// The loop of one shard for one term.
pub(crate) struct ShardLoop {
    shared: Arc<Shared>,
    id: ShardId,
    term: Term,
    core: Shard,
    commands: Vec<Command>,
    inbox: mpsc::UnboundedReceiver<Message>,
    intakes: Vec<Held>,
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
    /// Permits taken from the pool of each kind and not given back.
    permits: Vec<u32>,
    /// The counters of the terms before this one: what is shown only grows.
    before: Counters,
    warned: [Warned; 2],
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
            permits: vec![0; shared.kinds.len()],
            before: term::counters(&shared.door(term.shard).stats),
            warned: Default::default(),
            shared,
        }
    }

    /// Runs the term until it is told to stop or leadership is lost; gives the inbox back for the next term.
    pub(crate) async fn run(mut self, leadership: &Leadership) -> (mpsc::UnboundedReceiver<Message>, TermEnd) {
        let stop = self.shared.stop.shards.clone();
        // A store that does not answer must not hold up a stop (B89).
        let recovered = tokio::select! {
            biased;
            () = leadership.ended.cancelled() => Err(TermEnd::Lost),
            () = leadership.ending.cancelled() => Err(TermEnd::Drained { records: 0, letters: 0 }),
            () = stop.cancelled() => Err(TermEnd::Drained { records: 0, letters: 0 }),
            recovered = self.recover() => recovered.map_err(TermEnd::Store),
        };
        let end = match recovered {
            Err(end) => end,
            Ok(()) => {
                self.begin();
                let end = self.turns(leadership).await;
                self.finish();
                end
            }
        };
        self.writer.stop().await;
        // Ends of runs and answers of the store belong to this term, and its numbers mean other things in the next.
        while self.inbox.try_recv().is_ok() {}
        (self.inbox, end)
    }

    async fn turns(&mut self, leadership: &Leadership) -> TermEnd {
        // Looked at before what runs say is heard and again before the sources hear of it: a run that ends after the
        // leadership settles nothing, however late this loop comes to know of either (L3). A process that stood still
        // looks at the clock, since nobody could tell it.
        let lost = || leadership.is_over();
        while !lost() {
            let now = self.now();
            self.beacon_busy();
            let mut busy = self.take_messages(now);
            busy |= self.take_intakes(now);
            busy |= self.take_time(now);
            self.carry_out();
            busy |= self.start_runs() == RUNS_PER_TURN;
            busy |= self.held_has_room();
            if lost() {
                break;
            }
            self.end_turn();
            if let Some(error) = self.store_failed.take() {
                let end = match error {
                    StoreError::Fenced => TermEnd::Lost,
                    error => TermEnd::Store(error),
                };
                return self.cut_off(end).await;
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
        self.cut_off(TermEnd::Lost).await
    }

    fn now(&self) -> Time {
        self.shared.clock.now()
    }

    fn beacon_busy(&self) {
        self.shared.door(self.id).beacon.busy();
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
            self.beacon_busy();
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
            Message::GoesOn(id) => self.goes_on(&id),
            question => self.answer(now, question),
        }
        self.carry_out();
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
            self.permits[number] -= idle;
            if let Some(next) = kind.pool.give(self.id, idle, self.core.is_starved(kind_number(number))) {
                self.shared.wake(next);
            }
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

fn kind_number(index: usize) -> u16 {
    u16::try_from(index).expect("the builder takes fewer kinds than that")
}
