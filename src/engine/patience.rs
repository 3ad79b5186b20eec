//! How long the engine bears with what does not answer: runs that block their threads, loops that are silent.
//!
//! Must never be short enough for a busy machine to look like a fault. Tested in `tests/it/engine_blocked.rs`, hastily.

use std::time::Duration;

/// The times, which belong together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// How often the watchdog looks.
    pub(crate) look_every: Duration,
    /// A look that comes so late says that the whole process was stopped.
    pub(crate) stopped_min: Duration,
    /// A loop that has waited for so long is nudged, and must answer.
    pub(crate) nudge_after: Duration,
    /// A loop that is silent for longer ends the engine, so that another can lead (L8).
    pub(crate) silent_max: Duration,
    /// A run that blocks its thread for longer than it may take and to be cut off is reported; this much is allowed on
    /// top.
    pub(crate) blocked_margin: Duration,
    /// A run that was cut off and has not ended after this long blocks its thread.
    pub(crate) cut_off_max: Duration,
}

impl Patience {
    pub(crate) const USUAL: Self = Self {
        look_every: Duration::from_secs(1),
        stopped_min: Duration::from_secs(4),
        nudge_after: Duration::from_secs(5),
        silent_max: Duration::from_secs(30),
        blocked_margin: Duration::from_secs(2),
        cut_off_max: Duration::from_secs(5),
    };

    /// A tenth of the usual, for tests that would wait for minutes.
    pub(crate) fn hasty() -> Self {
        let usual = Self::USUAL;
        Self {
            look_every: usual.look_every / 10,
            stopped_min: usual.stopped_min / 10,
            nudge_after: usual.nudge_after / 10,
            silent_max: usual.silent_max / 10,
            blocked_margin: usual.blocked_margin / 10,
            cut_off_max: usual.cut_off_max / 10,
        }
    }
}
