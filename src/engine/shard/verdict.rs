//! What a run's end means: for the scheduler, for the counters, for people (D1).
//!
//! Must never take a run that was told to stop for a success (K4). Tested in `tests/it/engine_results.rs` and
//! `tests/it/engine_panics.rs`.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::runs::Ended;
use crate::contract::{CancelReason, FailureKind, Requeue};
use crate::engine::view::RunOutcome;
use crate::scheduler::{Next, Outcome, Time};

/// What a run's end means.
pub(super) struct Verdict {
    pub(super) outcome: Outcome,
    pub(super) cause: RunOutcome,
    pub(super) message: Option<Arc<str>>,
    pub(super) unchanged: bool,
}

impl Verdict {
    pub(super) fn of(
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
    pub(super) fn shown(&self, next: Next) -> RunOutcome {
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
pub(super) fn panic_text(panic: Box<dyn Any + Send>) -> String {
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
