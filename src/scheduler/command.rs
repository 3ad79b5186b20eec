//! Everything that a shard tells its driver to do, and everything that it hands out.

use std::sync::Arc;

use super::entry::{ParkReason, Slot};
use super::time::Time;
use crate::id::{Causes, Receipt};

/// What the driver must do. It carries them out in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Tell this run to stop (C1); cut it off if it does not.
    Cancel {
        /// Where it runs.
        slot: Slot,
        /// Its number.
        run: u64,
        /// Why.
        reason: CancelCause,
    },
    /// This event is done (K4): a run that began after it succeeded, a record covers it, or another event of its source
    /// that is still held back stands before it.
    Release(Receipt),
    /// Write the owed record that [`Shard::record`](super::Shard::record) describes now, and answer with
    /// [`Shard::handle_recorded`](super::Shard::handle_recorded) once it is durable. Until then its events are held
    /// back. Writes and deletes of one id keep their order. Without a durable store this comes for give-ups only:
    /// answer once the dead letter has arrived, or at once if the user's config says that it may be forgotten (D3).
    Write {
        /// Whose.
        slot: Slot,
        /// The number of this write.
        write: u64,
        /// The id was given up: send a dead letter too, where there is a place for it (D3).
        given_up: bool,
    },
    /// Delete the owed record of this id.
    Erase(Arc<str>),
}

/// Why a run is told to stop by the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CancelCause {
    /// It was triggered explicitly while it ran; another run follows.
    Triggered,
    /// Somebody cancelled it; it will be parked.
    Asked,
}

/// A run to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// Where it runs; give it back with the outcome.
    pub slot: Slot,
    /// Its number within the term.
    pub run: u64,
    /// The id.
    pub id: Arc<str>,
    /// Its kind.
    pub kind: u16,
    /// Its worker.
    pub worker: u16,
    /// Which attempt it is, from 1.
    pub attempt: u32,
    /// Why it runs.
    pub causes: Causes,
    /// The latest event that it answers.
    pub latest: Option<Receipt>,
    /// Since when the id waited.
    pub since: Time,
}

/// How a run ended (D1); panics and timeouts are failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Success, and perhaps a time at which to run again (D4).
    Done(Option<Time>),
    /// Failed; try again after this delay or after the usual one (D2).
    Failed(Option<std::time::Duration>),
    /// Failed for good (D3).
    Terminal,
    /// Stopped by the driver on shutdown or loss of leadership; the id stays owed.
    Cancelled,
}

/// What follows a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Nothing.
    Idle,
    /// Another run, as soon as there is a place.
    Again,
    /// A run at this time.
    At(Time),
    /// Nothing until somebody comes.
    Parked(ParkReason),
    /// The outcome was of a run that is over already; it changed nothing.
    Stale,
}

/// What became of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// The id was not owed a run; now it is.
    Admitted,
    /// It was already; that run, or the one after the present run, answers this event too (Q4).
    Present,
    /// No place (Q5), or the shard drains: hold the event and offer it again.
    Refused,
}

/// One event for [`Shard::handle_event`](super::Shard::handle_event).
#[derive(Debug, Clone, Copy)]
pub struct Arrival<'a> {
    /// The id.
    pub id: &'a str,
    /// Its kind.
    pub kind: u16,
    /// Its worker.
    pub worker: u16,
    /// Which event it is; tracked sources get a `Release` for each.
    pub receipt: Receipt,
    /// How urgent it is.
    pub class: ArrivalClass,
}

/// How urgent an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ArrivalClass {
    /// News.
    Event,
    /// Everything that exists.
    Resync,
    /// Somebody asks; stops a run that is under way, and another follows (C1, C2).
    Trigger,
}

/// An owed record as the shard sees it (D12).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The id.
    pub id: Arc<str>,
    /// Its kind.
    pub kind: u16,
    /// When its next run is due.
    pub due: Time,
    /// Failures since the last success.
    pub failures: u32,
    /// Why it is owed.
    pub reason: RecordReason,
    /// The latest event that it stands for.
    pub latest: Option<Receipt>,
    /// Why the next run is owed; empty while it runs and nothing came since.
    pub causes: Causes,
}

/// Why an owed record stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RecordReason {
    /// A run is owed, now or as a retry.
    Held,
    /// A time was asked for.
    Requested,
    /// It waits for somebody.
    Parked(ParkReason),
}
