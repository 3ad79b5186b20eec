//! One shard, decided: a value without clock, IO or async. Time comes in as an argument, what must be done comes out.
//!
//! ```text
//!  handle_event ──┐                                  ┌── Command::{Cancel, Release, Write, Erase}
//!  handle_time ───┤        ┌────────────────┐        │
//!  handle_outcome ┼───────▶│ Shard          ├────────┤
//!  handle_recorded┤        │ one entry/id   │        ├── poll_start → Start
//!  handle_cancel  ┤        │ lanes · delays │        │
//!  handle_redrive ┘        │ marks · seats  │        └── next_time
//!                          └────────────────┘
//! ```
//!
//! A driver's turn: give it what has happened (`handle_*`), carry the commands out in order, ask [`Shard::poll_start`]
//! until it has nothing, then wait until something happens or [`Shard::next_time`] comes. Every call has the present
//! time, and times never go back.
//!
//! It must never read a clock, await, log, draw a random number or touch anything outside; a test keeps that. Tested by
//! text scripts (`tests/scenarios`), against a naive model and by a seeded simulation (`tests/sim`).

mod command;
mod delay;
mod entry;
mod lanes;
mod list;
mod marks;
mod settings;
mod shard;
mod table;
mod time;

pub use command::{Admission, Arrival, ArrivalClass, CancelCause, Command, Next, Outcome, Record, RecordReason, Start};
pub use entry::{ParkReason, Priority, Slot, State};
pub use settings::{DELAY_MAX, IDLE_KEPT_MAX, KindSettings, RESYNC_WAITING_MAX, Retry, Settings};
pub use shard::{CancelAnswer, Counters, EntryView, Levels, Recovered, Shard, Why};
pub use time::Time;
