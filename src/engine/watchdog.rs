//! Watches the shards' loops from a thread of its own, since a stuck loop cannot watch itself (C4, L8).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::beacon::Blocking;
use super::log;
use super::patience::Patience;
use super::shard::Message;
use super::shared::Shared;
use crate::contract::{OwedReason, OwedRecord, RecordChange, Term};
use crate::id::ShardId;

/// How long recording a stuck run may take.
const RECORD_WITHIN: Duration = Duration::from_secs(5);

/// The watching thread; it ends when this is dropped.
pub(crate) struct Watchdog {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// What the engine hears of it.
#[derive(Clone, Default)]
pub(crate) struct Alarm {
    /// Cancelled when a loop has been silent for too long.
    pub(crate) silent: CancellationToken,
}

impl Watchdog {
    pub(crate) fn start(shared: &Arc<Shared>, alarm: Alarm) -> std::io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let seen = shared.shards.iter().map(|_| None).collect();
        let watch = Watch { shared: Arc::clone(shared), alarm, seen, polls: HashMap::new() };
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("evenkeel-watchdog".into()).spawn(move || watch.run(&stopped))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It never waits for anything but its timer and, bounded, the store.
            let _ = thread.join();
        }
    }
}

struct Watch {
    shared: Arc<Shared>,
    alarm: Alarm,
    /// What each shard's loop was seen doing.
    seen: Vec<Option<Seen>>,
    /// The polls that were seen while a loop did not answer, by shard and slot.
    polls: HashMap<(usize, u32), Seen>,
}

/// Something that goes on, and since when it was seen.
///
/// By this thread's own clock: the engine's may stand still in a test.
struct Seen {
    pulse: u64,
    since: Instant,
    reported: Option<String>,
}

impl Seen {
    fn new(pulse: u64) -> Self {
        Self { pulse, since: Instant::now(), reported: None }
    }
}

impl Watch {
    fn run(mut self, stop: &AtomicBool) {
        while !stop.load(Relaxed) {
            let slept = Instant::now();
            std::thread::park_timeout(self.patience().look_every);
            if slept.elapsed() > self.patience().stopped_min {
                // The whole process stood still, and its loops with it: nobody was silent meanwhile.
                let now = Instant::now();
                self.seen.iter_mut().flatten().chain(self.polls.values_mut()).for_each(|seen| seen.since = now);
            }
            let mut silent = false;
            for shard in 0..self.shared.shards.len() {
                silent |= self.look(shard);
            }
            if silent {
                self.look_at_polls();
            } else {
                self.forget_polls();
            }
        }
    }

    /// Looks at a shard's loop. Gives whether it waits and does not answer: then something else blocks the threads.
    fn look(&mut self, shard: usize) -> bool {
        let door = &self.shared.shards[shard];
        let (busy, pulse) = (door.beacon.read(), door.beacon.pulse());
        let lasted = match &self.seen[shard] {
            Some(seen) if seen.pulse == pulse => seen.since.elapsed(),
            _ => {
                let before = self.seen[shard].replace(Seen::new(pulse));
                self.went_on(shard, before);
                return false;
            }
        };
        let Some(busy) = busy else { return self.look_at_waiting(shard, lasted) };
        if let Some(run) = &busy.run
            && lasted > self.allowed()
            && let Some(seen) = self.seen[shard].as_mut().filter(|seen| seen.reported.is_none())
        {
            seen.reported = Some(run.id.clone());
            self.report(shard, run);
        }
        if lasted > self.patience().silent_max {
            let of_run = |run: &Blocking| format!("a run of {:?}", run.id);
            self.silent(shard, lasted, &busy.run.as_ref().map_or_else(|| "the loop itself".to_owned(), of_run));
        }
        busy.run.is_none()
    }

    /// A loop that waits is nudged now and then, since it may wait for a thread.
    fn look_at_waiting(&mut self, shard: usize, lasted: Duration) -> bool {
        let door = &self.shared.shards[shard];
        if !door.is_led() {
            return false;
        }
        let Some(unanswered) = lasted.checked_sub(self.patience().nudge_after) else { return false };
        door.wake.notify_one();
        if unanswered > self.patience().silent_max {
            let ids: Vec<&str> = self.polls.values().filter_map(|seen| seen.reported.as_deref()).collect();
            self.silent(shard, unanswered, &format!("a runtime whose threads are blocked by runs of {ids:?}"));
        }
        unanswered > self.patience().look_every
    }

    fn silent(&self, shard: usize, lasted: Duration, what: &str) {
        if !self.alarm.silent.is_cancelled() {
            let text = format!("the loop of shard {shard} is silent for {} s, in {what}", lasted.as_secs());
            self.shared.problems.set(format!("silent {shard}"), text, true);
            self.alarm.silent.cancel();
        }
    }

    /// While a loop does not answer, looks for the runs that block the threads.
    fn look_at_polls(&mut self) {
        let (mut stuck, allowed) = (Vec::new(), self.allowed());
        for (shard, door) in self.shared.shards.iter().enumerate() {
            let polled = door.polled.lock().unwrap_or_else(PoisonError::into_inner);
            for (slot, task) in polled.iter() {
                let Some(poll) = task.poll() else { continue };
                let seen = self.polls.entry((shard, *slot)).or_insert_with(|| Seen::new(poll));
                if seen.pulse != poll {
                    *seen = Seen::new(poll);
                } else if seen.reported.is_none() && seen.since.elapsed() > allowed {
                    seen.reported = Some(task.run.id.clone());
                    stuck.push((shard, Arc::clone(task)));
                }
            }
        }
        for (shard, task) in stuck {
            self.report(shard, &task.run);
        }
    }

    /// The loops answer again.
    fn forget_polls(&mut self) {
        for ((shard, _), seen) in std::mem::take(&mut self.polls) {
            self.went_on(shard, Some(seen));
        }
    }

    /// What was reported has gone on: the loop puts right what was recorded in its place.
    fn went_on(&self, shard: usize, seen: Option<Seen>) {
        if let Some(id) = seen.and_then(|seen| seen.reported) {
            self.shared.problems.clear(&log::stuck_key(&id));
            let _ = self.shared.shards[shard].messages.send(Message::GoesOn(id));
        }
    }

    fn patience(&self) -> Patience {
        self.shared.patience
    }

    /// How long one poll of a run may block the loop.
    fn allowed(&self) -> Duration {
        let longest = |kind: &super::shared::Kind| kind.options.timeout.unwrap_or_default() + kind.options.cancel_grace;
        let allowed = self.shared.kinds.iter().map(longest).max().unwrap_or_default() + self.patience().blocked_margin;
        allowed.min(self.patience().silent_max - self.patience().blocked_margin)
    }

    /// A run blocks the loop: records the attempt in the loop's place, and then makes liveness fail.
    fn report(&self, shard: usize, run: &Blocking) {
        let shard = ShardId(u16::try_from(shard).unwrap_or(u16::MAX));
        log::stuck(&self.shared, shard, &run.id);
        self.record(shard, run);
        self.shared.problems.set(log::stuck_key(&run.id), log::stuck_text(&run.id), true);
    }

    fn record(&self, shard: ShardId, run: &Blocking) {
        let (Some(store), Some(term)) = (&self.shared.store, self.shared.term(shard)) else { return };
        let changes = [RecordChange::Put(record(&self.shared, term, run))];
        if let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() {
            let _ = runtime.block_on(async { tokio::time::timeout(RECORD_WITHIN, store.commit(term, &changes)).await });
        }
    }
}

/// The record of a run that blocks its thread; it counts as an attempt that failed.
fn record(shared: &Shared, term: Term, run: &Blocking) -> OwedRecord {
    OwedRecord {
        id: run.id.clone(),
        due: std::time::SystemTime::now(),
        attempt: run.attempt,
        reason: OwedReason::Held,
        key: shared.sources.key(term, &run.id, None),
        stuck: u8::try_from(run.stuck + 1).unwrap_or(u8::MAX),
        error: Some(log::stuck_text(&run.id)),
        causes: Vec::new(),
    }
}
