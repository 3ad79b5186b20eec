//! The beginning and the end of a term, and its numbers where others can read them.
//!
//! Must never leave anything of a term behind for the next one: no permit, no level, no problem; only counters go on
//! (B75, B76). Tested in `tests/it/engine_terms.rs`.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::ShardLoop;
use super::records::{letter_problem, store_problem};
use crate::engine::log;
use crate::engine::stats::ShardStats;
use crate::scheduler::{Counters, Priority, Time};

/// A bound that is reached, left and reached again is not said again within this time.
const WARN_AGAIN: Duration = Duration::from_secs(60);

impl ShardLoop {
    pub(super) fn begin(&mut self) {
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

    pub(super) fn finish(&mut self) {
        let shared = Arc::clone(&self.shared);
        let door = shared.door(self.id);
        door.led.store(false, Relaxed);
        door.beacon.idle();
        for (kind, permits) in shared.kinds.iter().zip(&mut self.permits) {
            if let Some(next) = kind.pool.give(self.id, std::mem::take(permits), false) {
                shared.wake(next);
            }
        }
        shared.led.send_modify(|led| led.retain(|shard| *shard != self.id));
        // What was handed over and not taken is dropped with the term: its source still owes it, or a resync finds it.
        for held in &self.intakes {
            held.intake.empty();
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
        // Who waits for an answer hears that the term is over.
        self.notes.clear();
        shared.problems.clear(&store_problem(self.id));
        shared.problems.clear(&letter_problem(self.id));
    }

    /// Copies the numbers where others can read them.
    pub(super) fn publish(&mut self) {
        self.warn_of_bounds();
        let stats = &self.shared.door(self.id).stats;
        let (levels, counters, before) = (self.core.levels(), self.core.counters(), self.before);
        for (to, from) in [
            (&stats.admitted, before.admitted + counters.admitted),
            (&stats.present, before.present + counters.present),
            (&stats.refused, before.refused + counters.refused),
            (&stats.started, before.started + counters.started),
            (&stats.records_full, before.records_full + counters.records_full),
            (&stats.running, u64::from(self.core.running())),
            (&stats.delayed, u64::from(self.core.delayed())),
            (&stats.parked, u64::from(levels.parked)),
            (&stats.records, u64::from(levels.records)),
            (&stats.seats, u64::from(levels.admitted)),
            (&stats.timers, u64::from(levels.timers)),
            (&stats.overdue, u64::from(levels.overdue)),
            (&stats.full, u64::from(self.is_full())),
            (&stats.oldest_hold_ms, self.core.oldest_hold().map_or(0, |time| time.0 / 1_000_000)),
        ] {
            to.store(from, Relaxed);
        }
        for (to, priority) in stats.pending.iter().zip(Priority::ALL) {
            to.store(u64::from(self.core.waiting_in(priority)), Relaxed);
        }
    }

    /// A bound that is reached is said once, and again only after a while (D6, D12).
    fn warn_of_bounds(&mut self) {
        let records_full = self.core.levels().records >= self.shared.limits.owed_records;
        for (bound, is_reached) in [(Bound::Admitted, self.is_full()), (Bound::OwedRecords, records_full)] {
            let warned = &mut self.warned[bound as usize];
            if !is_reached {
                warned.said = false;
                continue;
            }
            if warned.said {
                continue;
            }
            warned.said = true;
            let now = self.shared.clock.now();
            if warned.last.is_none_or(|last| now.since(last) >= WARN_AGAIN) {
                warned.last = Some(now);
                log::bound_reached(&self.shared, self.id, bound.name());
            }
        }
    }
}

/// A bound that holds sources back when it is reached.
#[derive(Debug, Clone, Copy)]
enum Bound {
    Admitted,
    OwedRecords,
}

impl Bound {
    const fn name(self) -> &'static str {
        match self {
            Self::Admitted => "limits.admitted",
            Self::OwedRecords => "limits.owed_records",
        }
    }
}

/// When a bound was warned of.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Warned {
    /// Since it was reached.
    said: bool,
    last: Option<Time>,
}

/// The counters that a shard shows so far.
pub(super) fn counters(stats: &ShardStats) -> Counters {
    Counters {
        admitted: ShardStats::get(&stats.admitted),
        present: ShardStats::get(&stats.present),
        refused: ShardStats::get(&stats.refused),
        started: ShardStats::get(&stats.started),
        records_full: ShardStats::get(&stats.records_full),
        ..Counters::default()
    }
}
