//! What a run that succeeded asks for.

use std::time::{Duration, SystemTime};

/// The answer of a run that succeeded (D1): done, perhaps with another run later.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "an action does nothing until the reconciler returns it"]
pub struct Action {
    requeue: Option<Requeue>,
    unchanged: bool,
    message: Option<Box<str>>,
}

/// When to run the id again although it is done. No failure: it does not count as an attempt (D4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requeue {
    /// After this long, counted from the end of the run.
    After(Duration),
    /// At this time; a time in the past means at once, but not twice within `min_requeue` (D9).
    At(SystemTime),
}

impl Action {
    /// Done; the id runs again when something asks for it.
    pub const fn done() -> Self {
        Self { requeue: None, unchanged: false, message: None }
    }

    /// Done, and nothing was different from what it should be.
    pub const fn unchanged() -> Self {
        Self { requeue: None, unchanged: true, message: None }
    }

    /// Runs the id again this long after the run has ended, at the latest.
    pub fn requeue_after(mut self, delay: Duration) -> Self {
        self.requeue = Some(Requeue::After(delay));
        self
    }

    /// Runs the id again at this time, at the latest.
    pub fn requeue_at(mut self, time: SystemTime) -> Self {
        self.requeue = Some(Requeue::At(time));
        self
    }

    /// A line for people, shown in the log and the journal.
    pub fn with_message(mut self, message: impl Into<Box<str>>) -> Self {
        self.message = Some(message.into());
        self
    }

    /// When to run again, if asked for.
    #[must_use]
    pub const fn requeue(&self) -> Option<Requeue> {
        self.requeue
    }

    /// Whether the run said that nothing had to change.
    #[must_use]
    pub const fn is_unchanged(&self) -> bool {
        self.unchanged
    }

    /// The line for people.
    #[must_use]
    pub fn message(&self) -> Option<&str> {
        self.message.as_deref()
    }
}
