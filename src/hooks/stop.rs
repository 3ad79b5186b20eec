//! When a hook has to stop: its time is over, or its run was cancelled.

use std::fmt;
use std::time::Duration;

use crate::contract::{CancelReason, DURATION_MAX, Run};

/// Why a hook had to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// It took longer than this.
    Timeout(Duration),
    /// Its run was cancelled.
    Cancelled(CancelReason),
}

impl Stop {
    /// Resolves when the run has to stop.
    ///
    /// # Cancel safety
    /// Safe.
    pub(super) async fn of(run: &Run) -> Self {
        let limit = run.timeout().unwrap_or(DURATION_MAX);
        tokio::select! {
            biased;
            reason = run.cancelled() => match reason {
                CancelReason::Timeout => Self::Timeout(limit),
                reason => Self::Cancelled(reason),
            },
            () = Self::after(run.time_left()) => Self::Timeout(limit),
        }
    }

    /// Resolves after this long; never where there is no limit.
    pub(super) async fn after(limit: Option<Duration>) {
        match limit {
            Some(limit) => tokio::time::sleep(limit).await,
            None => std::future::pending().await,
        }
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout(limit) => write!(f, "it took longer than {limit:?}"),
            Self::Cancelled(CancelReason::Triggered) => {
                f.write_str("the run was cancelled: the id was triggered again")
            }
            Self::Cancelled(CancelReason::Asked) => f.write_str("the run was cancelled: somebody asked for it"),
            Self::Cancelled(CancelReason::Shutdown) => f.write_str("the run was cancelled: the process is stopping"),
            Self::Cancelled(CancelReason::LeadershipLost) => {
                f.write_str("the run was cancelled: another process leads the shard")
            }
            Self::Cancelled(CancelReason::Timeout) => f.write_str("it took too long"),
        }
    }
}
