//! How a term stops: in order when it is told to (L5), at once when it may not go on (L3).
//!
//! Must never hand a shard back while one of its runs is under way: what cannot be ended ends the process (C4). Tested
//! in `tests/it/engine_stop.rs` and `tests/it/engine_blocked.rs`.

use std::time::Duration;

use tokio::time::Instant;

use super::{Message, ShardLoop, TermEnd};
use crate::contract::Leadership;
use crate::scheduler::Time;

/// How long the last writes of a term may take after its runs have ended.
const LAST_WRITES: Duration = Duration::from_secs(5);
/// How far a stop has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Running,
    /// Nothing starts; runs may finish until then.
    Draining {
        until: Time,
    },
    /// Runs were told to stop; they are cut off then.
    Cancelling {
        until: Time,
    },
    /// Runs were cut off; those that have not ended then block their threads.
    Cut {
        until: Time,
    },
    /// Only writes are left; given up then.
    Writing {
        until: Time,
    },
}

impl Stage {
    pub(super) fn next_time(self) -> Option<Time> {
        match self {
            Self::Running => None,
            Self::Draining { until } | Self::Cancelling { until } | Self::Cut { until } | Self::Writing { until } => {
                Some(until)
            }
        }
    }

    fn is_over(self, now: Time) -> bool {
        self.next_time().is_some_and(|until| now >= until)
    }
}

impl ShardLoop {
    /// Leads a stop through its stages: runs, then records.
    pub(super) fn advance_stop(&mut self, leadership: &Leadership) -> Option<TermEnd> {
        let now = self.now();
        if self.stage == Stage::Running {
            self.begin_stop(now, leadership)?;
        }
        while let Some(next) = self.next_stage(now, leadership) {
            self.stage = next;
        }
        self.carry_out();
        self.end_turn();
        if !matches!(self.stage, Stage::Writing { .. }) || !(self.writer.is_idle() || self.stage.is_over(now)) {
            return None;
        }
        if self.core.running() > 0 {
            return Some(TermEnd::Stuck(self.stuck_runs()));
        }
        let (records, letters) = self.writer.waiting();
        Some(TermEnd::Drained { records, letters })
    }

    /// Begins a stop if there is a reason for one.
    fn begin_stop(&mut self, now: Time, leadership: &Leadership) -> Option<()> {
        let drain = self.shared.stop.shards.is_cancelled();
        if !drain && !leadership.ending.is_cancelled() {
            return None;
        }
        self.core.handle_drain(&mut self.commands);
        self.carry_out();
        let grace = self.shared.kinds.iter().map(|kind| kind.options.cancel_grace).max().unwrap_or_default();
        let drain_time = if drain { self.shared.timing.drain.saturating_sub(grace) } else { Duration::ZERO };
        self.stage = Stage::Draining { until: now.after(drain_time) };
        Some(())
    }

    fn next_stage(&mut self, now: Time, leadership: &Leadership) -> Option<Stage> {
        let quiet = self.core.running() == 0;
        if !(quiet || self.stage.is_over(now)) {
            return None;
        }
        match self.stage {
            Stage::Running | Stage::Writing { .. } => None,
            Stage::Draining { .. } => Some(Stage::Cancelling { until: self.cancel_all(now, leadership) }),
            Stage::Cancelling { .. } => {
                self.runs.cut_all();
                Some(Stage::Cut { until: now.after(self.shared.patience.cut_off_max) })
            }
            Stage::Cut { .. } => {
                self.record_stuck_runs(now);
                Some(Stage::Writing { until: now.after(LAST_WRITES) })
            }
        }
    }

    /// Cuts off what runs, and waits until it has really ended: only then may anybody lead again (L3).
    pub(super) async fn cut_off(&mut self, end: TermEnd) -> TermEnd {
        self.runs.cut_all();
        let deadline = Instant::now() + self.shared.patience.cut_off_max;
        while self.runs.count() > 0 {
            match tokio::time::timeout_at(deadline, self.inbox.recv()).await {
                Ok(Some(Message::Ended(slot, run, _))) => self.forget_run(slot, run),
                // Whoever asks something now hears that the shard is not led.
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return TermEnd::Stuck(self.stuck_runs()),
            }
        }
        end
    }

    fn stuck_runs(&self) -> String {
        let ids: Vec<String> = self.runs.ids().map(|id| format!("{id:?}")).collect();
        format!("runs of shard {} block their threads and cannot be ended: {}", self.id, ids.join(", "))
    }
}
