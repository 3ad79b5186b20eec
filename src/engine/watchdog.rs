//! Watches the shards' loops from a thread of its own, since a stuck loop cannot watch itself (C4, L8).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use super::beacon::Blocking;
use super::log;
use super::shared::Shared;
use crate::contract::{OwedReason, OwedRecord, RecordChange, Term};
use crate::id::ShardId;

/// How often it looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A loop that is silent for longer ends the process, so that another can lead (L8).
pub(crate) const SILENT_MAX: Duration = Duration::from_secs(30);
/// A run that blocks the loop's thread for longer than it may take and to be cut off is reported; this much is
/// allowed on top.
const BLOCKED_MARGIN: Duration = Duration::from_secs(2);
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
        let watch = Watch { shared: Arc::clone(shared), alarm, seen: shared.shards.iter().map(|_| None).collect() };
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
    /// What each shard's loop was seen doing, if it did something.
    seen: Vec<Option<Seen>>,
}

/// Something that a loop does, and since when it was seen doing it.
///
/// By this thread's own clock: the engine's may stand still in a test.
struct Seen {
    pulse: u64,
    since: Instant,
    reported: bool,
}

impl Watch {
    fn run(mut self, stop: &AtomicBool) {
        while !stop.load(Relaxed) {
            std::thread::park_timeout(LOOK_EVERY);
            for shard in 0..self.shared.shards.len() {
                self.look(shard);
            }
        }
    }

    fn look(&mut self, shard: usize) {
        let Some(busy) = self.shared.shards[shard].beacon.read() else {
            self.seen[shard] = None;
            return;
        };
        let lasted = match &self.seen[shard] {
            Some(seen) if seen.pulse == busy.pulse => seen.since.elapsed(),
            _ => {
                self.seen[shard] = Some(Seen { pulse: busy.pulse, since: Instant::now(), reported: false });
                return;
            }
        };
        if let Some(run) = &busy.run
            && lasted > self.allowed()
            && let Some(seen) = self.seen[shard].as_mut().filter(|seen| !seen.reported)
        {
            seen.reported = true;
            self.report(shard, run);
        }
        if lasted > SILENT_MAX && !self.alarm.silent.is_cancelled() {
            let what = busy.run.map_or_else(|| "the loop itself".to_owned(), |run| format!("a run of {:?}", run.id));
            let text = format!("the loop of shard {shard} is silent for {} s, in {what}", lasted.as_secs());
            self.shared.problems.set(format!("silent {shard}"), text, true);
            self.alarm.silent.cancel();
        }
    }

    /// How long one poll of a run may block the loop.
    fn allowed(&self) -> Duration {
        let longest = |kind: &super::shared::Kind| kind.options.timeout.unwrap_or_default() + kind.options.cancel_grace;
        let allowed = self.shared.kinds.iter().map(longest).max().unwrap_or_default() + BLOCKED_MARGIN;
        allowed.min(SILENT_MAX - BLOCKED_MARGIN)
    }

    /// A run blocks the loop itself: records the attempt in the loop's place, and makes liveness fail.
    fn report(&self, shard: usize, run: &Blocking) {
        let shard = ShardId(u16::try_from(shard).unwrap_or(u16::MAX));
        self.shared.problems.set(format!("stuck {}", run.id), log::stuck_text(&run.id), true);
        log::stuck(&self.shared, shard, &run.id);
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
