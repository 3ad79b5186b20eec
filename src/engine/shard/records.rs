//! Owed records on their way to the store (D12): collected in a turn, written in groups by a task of their own,
//! answered together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use super::{Message, ShardLoop};
use crate::contract::{
    Cause, DeadLetter, Letter, OwedReason, OwedRecord, RECORD_ERROR_BYTES_MAX, RecordChange, RecordStore, StoreError,
    Term,
};
use crate::engine::log;
use crate::engine::shared::Shared;
use crate::id::{Causes, ShardId};
use crate::scheduler::{ParkReason, Record, RecordReason, Recovered, Slot, Time};

/// Changes committed together, at most.
const GROUP_MAX: usize = 1_000;
/// Records loaded at once.
const LOAD_MAX: usize = 1_000;
/// A store or a dead-letter topic that refuses is tried again after this long, then after twice as long, up to the
/// maximum.
const RETRY_FIRST: Duration = Duration::from_millis(250);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// A run that blocks its thread until the process is ended is parked the third time (C4).
const STUCK_MAX: u8 = 3;

enum Op {
    Put { record: Box<OwedRecord>, slot: Slot, write: u64, letter: Option<(Arc<dyn DeadLetter>, Letter)> },
    Erase(String),
}

/// What the writer's task has not done yet.
#[derive(Default)]
struct Waiting {
    records: AtomicUsize,
    letters: AtomicUsize,
}

/// The shard's way to the store: keeps the order of all changes.
pub(super) struct Writer {
    ops: Vec<Op>,
    to_task: mpsc::UnboundedSender<Op>,
    waiting: Arc<Waiting>,
    task: AbortOnDropHandle<()>,
}

impl Writer {
    pub(super) fn start(shared: &Arc<Shared>, term: Term) -> Self {
        let (to_task, ops) = mpsc::unbounded_channel();
        let waiting = Arc::new(Waiting::default());
        let task = AbortOnDropHandle::new(tokio::spawn(write(Arc::clone(shared), term, ops, Arc::clone(&waiting))));
        Self { ops: Vec::new(), to_task, waiting, task }
    }

    pub(super) fn erase(&mut self, id: &str) {
        self.ops.push(Op::Erase(id.to_owned()));
    }

    /// Hands on what this turn has collected.
    pub(super) fn send(&mut self) {
        if self.ops.is_empty() {
            return;
        }
        self.waiting.records.fetch_add(self.ops.len(), Relaxed);
        for op in self.ops.drain(..) {
            // The task ends before the loop only if the term is over; then nothing may be written any more.
            let _ = self.to_task.send(op);
        }
    }

    /// How many changes are not durable yet, and how many dead letters have not arrived.
    pub(super) fn waiting(&self) -> (usize, usize) {
        (self.ops.len() + self.waiting.records.load(Relaxed), self.waiting.letters.load(Relaxed))
    }

    pub(super) fn is_idle(&self) -> bool {
        self.waiting() == (0, 0)
    }

    /// Ends the task; what it has not written is lost to this term.
    pub(super) async fn stop(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

/// Writes until the term is over.
async fn write(shared: Arc<Shared>, term: Term, mut ops: mpsc::UnboundedReceiver<Op>, waiting: Arc<Waiting>) {
    let (to_letters, letters) = mpsc::unbounded_channel();
    let mut letters = std::pin::pin!(send_letters(&shared, term, letters, &waiting));
    let mut group = Vec::with_capacity(GROUP_MAX);
    let writing = async {
        while ops.recv_many(&mut group, GROUP_MAX).await > 0 {
            let mut written = Vec::new();
            let mut changes = Vec::with_capacity(group.len());
            for op in group.drain(..) {
                match op {
                    Op::Erase(id) => changes.push(RecordChange::Delete(id)),
                    Op::Put { record, slot, write, letter } => {
                        changes.push(RecordChange::Put(*record));
                        // Without a durable record the letter is what makes the give-up durable (D3).
                        let by_letter = letter.is_some() && !shared.is_durable();
                        if !by_letter {
                            written.push((slot, write));
                        }
                        if let Some((to, letter)) = letter {
                            waiting.letters.fetch_add(1, Relaxed);
                            let _ = to_letters.send((to, letter, by_letter.then_some((slot, write))));
                        }
                    }
                }
            }
            let count = changes.len();
            if let Some(store) = &shared.store
                && !commit(&shared, &**store, term, &changes).await
            {
                return;
            }
            if !written.is_empty() {
                let _ = shared.door(term.shard).messages.send(Message::Recorded(written));
            }
            waiting.records.fetch_sub(count, Relaxed);
            shared.wake(term.shard);
        }
    };
    tokio::select! {
        () = writing => {}
        () = &mut letters => {}
    }
}

/// Under what name a store's problem is shown.
pub(super) fn store_problem(shard: ShardId) -> String {
    format!("store {shard}")
}

/// Under what name a dead-letter topic's problem is shown.
pub(super) fn letter_problem(shard: ShardId) -> String {
    format!("dead letter {shard}")
}

/// Commits until it succeeds; `false` once the term is over.
async fn commit(shared: &Shared, store: &dyn RecordStore, term: Term, changes: &[RecordChange]) -> bool {
    let problem = store_problem(term.shard);
    let mut delay = RETRY_FIRST;
    loop {
        match store.commit(term, changes).await {
            Ok(()) => {
                shared.problems.clear(&problem);
                return true;
            }
            // Waiting mends neither: another process leads, or the store works again only in a new process.
            Err(error @ (StoreError::Fenced | StoreError::Unusable(_))) => {
                let _ = shared.door(term.shard).messages.send(Message::StoreFailed(error));
                return false;
            }
            Err(error) => {
                if delay == RETRY_FIRST {
                    log::store_failed(shared, term.shard, &error);
                }
                shared.problems.set(&problem, format!("owed records cannot be written: {error}"), false);
            }
        }
        tokio::time::sleep(delay).await;
        delay = (delay * 2).min(RETRY_MAX);
    }
}

type ToSend = (Arc<dyn DeadLetter>, Letter, Option<(Slot, u64)>);

/// Sends dead letters, one after the other, each until it has arrived.
async fn send_letters(shared: &Shared, term: Term, mut letters: mpsc::UnboundedReceiver<ToSend>, waiting: &Waiting) {
    let problem = letter_problem(term.shard);
    while let Some((to, letter, answer)) = letters.recv().await {
        let mut delay = RETRY_FIRST;
        while let Err(error) = to.send(letter.clone()).await {
            if delay == RETRY_FIRST {
                log::letter_failed(shared, term.shard, &letter.id, &error);
            }
            shared.problems.set(&problem, format!("dead letters cannot be sent: {error}"), false);
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(RETRY_MAX);
        }
        shared.problems.clear(&problem);
        if let Some(write) = answer {
            let _ = shared.door(term.shard).messages.send(Message::Recorded(vec![write]));
        }
        waiting.letters.fetch_sub(1, Relaxed);
        shared.wake(term.shard);
    }
    std::future::pending::<()>().await;
}

impl ShardLoop {
    /// Takes over the owed records of earlier terms, before any event of this one.
    pub(super) async fn recover(&mut self) -> Result<(), StoreError> {
        let Some(store) = self.shared.store.clone() else { return Ok(()) };
        let mut after: Option<String> = None;
        let mut count = 0_usize;
        loop {
            let page = self.load(&*store, after.as_deref()).await?;
            let now = self.now();
            for record in &page {
                self.recover_one(now, record);
            }
            count += page.len();
            if page.len() < LOAD_MAX {
                log::recovered(&self.shared, self.id, count);
                return Ok(());
            }
            after = page.last().map(|record| record.id.clone());
            tokio::task::yield_now().await;
        }
    }

    /// Loads a page of records. A store that does not answer, or refuses, is asked again: it may be back in a moment.
    async fn load(&self, store: &dyn RecordStore, after: Option<&str>) -> Result<Vec<OwedRecord>, StoreError> {
        let problem = store_problem(self.id);
        let mut delay = RETRY_FIRST;
        loop {
            match store.load(self.id, after, LOAD_MAX).await {
                Ok(page) => {
                    self.shared.problems.clear(&problem);
                    return Ok(page);
                }
                Err(error @ (StoreError::Unknown(_) | StoreError::Refused(_))) => {
                    if delay == RETRY_FIRST {
                        log::store_unread(&self.shared, self.id, &error);
                    }
                    self.shared.problems.set(&problem, format!("owed records cannot be read: {error}"), false);
                }
                Err(error) => return Err(error),
            }
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(RETRY_MAX);
        }
    }

    fn recover_one(&mut self, now: Time, record: &OwedRecord) {
        let Some(place) = self.shared.router.place(&record.id) else { return };
        let reason = match record.reason {
            _ if record.stuck >= STUCK_MAX => RecordReason::Parked(ParkReason::Stuck),
            OwedReason::Held => RecordReason::Held,
            OwedReason::Requested => RecordReason::Requested,
            OwedReason::GivenUp => RecordReason::Parked(ParkReason::GivenUp),
            OwedReason::Cancelled => RecordReason::Parked(ParkReason::Cancelled),
            OwedReason::Stuck => RecordReason::Parked(ParkReason::Stuck),
        };
        let recovered = Recovered {
            id: record.id.as_str().into(),
            kind: 0,
            worker: place.worker.0,
            due: self.shared.clock.moment(record.due),
            failures: record.attempt,
            reason,
        };
        self.core.handle_recovered(now, &recovered);
        if let Some(slot) = self.core.slot(&record.id) {
            let note = self.notes.entry(slot);
            note.error = record.error.as_deref().map(Into::into);
            note.key = Some(record.key);
            note.stuck = record.stuck;
            note.recovered.clone_from(&record.causes);
        }
    }

    /// Writes the record that the scheduler asked for.
    pub(super) fn write_record(&mut self, now: Time, slot: Slot, write: u64, given_up: bool) {
        let Some(record) = self.core.record(now, slot) else { return };
        let letter = if given_up { self.letter(&record, slot) } else { None };
        let record = Box::new(self.owed_record(&record, slot));
        self.writer.ops.push(Op::Put { record, slot, write, letter });
    }

    /// A run that the watchdog found stuck has gone on: what was recorded of it in the loop's place is put right.
    pub(super) fn goes_on(&mut self, id: &str) {
        if self.core.view(id).is_none() {
            self.writer.erase(id);
        } else {
            self.core.record_now(id, &mut self.commands);
        }
    }

    fn owed_record(&self, record: &Record, slot: Slot) -> OwedRecord {
        let note = self.notes.get(slot);
        let stuck = note.map_or(0, |note| note.stuck);
        let answers_event = record.latest.is_some_and(|receipt| receipt.source.is_event());
        let kept_key = note.and_then(|note| note.key).filter(|_| !answers_event);
        let reason = match record.reason {
            _ if stuck >= STUCK_MAX => OwedReason::Stuck,
            RecordReason::Held => OwedReason::Held,
            RecordReason::Requested => OwedReason::Requested,
            RecordReason::Parked(ParkReason::GivenUp) => OwedReason::GivenUp,
            RecordReason::Parked(ParkReason::Cancelled) => OwedReason::Cancelled,
            RecordReason::Parked(ParkReason::Stuck) => OwedReason::Stuck,
        };
        OwedRecord {
            id: record.id.to_string(),
            due: self.shared.clock.wall(record.due),
            // A run that blocks its thread will not end; its attempt counts all the same (C4).
            attempt: record.failures + u32::from(self.is_stuck(slot)),
            reason,
            key: kept_key.unwrap_or_else(|| self.shared.sources.key(self.term, &record.id, record.latest)),
            stuck,
            error: note.and_then(|note| note.error.as_deref()).map(|error| cut(error).to_owned()),
            causes: self.record_causes(record, slot),
        }
    }

    fn record_causes(&self, record: &Record, slot: Slot) -> Vec<Cause> {
        let note = self.notes.get(slot);
        let mut causes = note.map(|note| note.recovered.clone()).unwrap_or_default();
        let mut all = self.runs.causes(slot).unwrap_or(Causes::NONE);
        all.extend(&record.causes);
        let error = note.and_then(|note| note.error.as_ref());
        causes.extend(all.iter().map(|cause| self.shared.sources.cause(cause, error)));
        causes.retain(|cause| !matches!(cause, Cause::Recovered {}));
        causes.truncate(crate::id::CAUSES_KEPT);
        causes
    }

    /// The dead letter of an id, if one of the streams that it was owed for has a place for letters.
    fn letter(&mut self, record: &Record, slot: Slot) -> Option<(Arc<dyn DeadLetter>, Letter)> {
        let streams: Vec<_> = record.causes.iter().filter_map(|cause| self.source(cause.source).cloned()).collect();
        let to = streams.iter().find_map(|source| self.shared.dead_letters.get(&source.stream))?;
        let letter = Letter {
            id: record.id.to_string(),
            error: self.notes.get(slot).and_then(|note| note.error.as_deref()).unwrap_or_default().to_owned(),
            attempts: record.failures,
            causes: self.record_causes(record, slot),
            fencing_token: self.term.token(self.core.counters().started).to_string(),
        };
        Some((Arc::clone(to), letter))
    }

    /// The store has answered.
    pub(super) fn recorded(&mut self, now: Time, writes: &[(Slot, u64)]) {
        for (slot, write) in writes {
            self.core.handle_recorded(now, *slot, *write, &mut self.commands);
            self.tell_durable(*slot, *write);
            self.recorded_stuck(*slot, *write);
        }
    }
}

/// The text cut to what a record keeps, at a character's end.
fn cut(text: &str) -> &str {
    let end = (0..=RECORD_ERROR_BYTES_MAX.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}
