//! What the engine and the parts around it agree on: the traits that users and adapters implement, and their types.
//!
//! Must never know an adapter or the engine: it depends on `id` alone. Everything a user of the library touches while
//! writing a reconciler or a stream is here.

mod action;
mod cause;
mod dead_letter;
mod duration;
mod elector;
mod failure;
mod list;
mod reconciler;
mod run;
mod secret;
mod source;
mod store;
mod stream;
mod token;

use std::future::Future;
use std::pin::Pin;

pub use action::{Action, Requeue};
pub use cause::{Cause, Position};
pub use dead_letter::{DeadLetter, DeadLetterError, Letter};
pub use duration::{DURATION_MAX, DurationError, parse_duration};
pub use elector::{Elector, ElectorError, Leader, Leadership, Validity};
pub use failure::{Failure, FailureKind};
pub use list::{IdList, ListError};
pub use reconciler::Reconciler;
pub use run::{CancelReason, Run};
pub(crate) use run::{CancelSignal, CancelSlot, RunParts};
pub use secret::Secret;
pub use source::{Source, Sources, Tracker};
pub use store::{
    ClusterRecord, OwedReason, OwedRecord, RECORD_ERROR_BYTES_MAX, RECORD_FORMAT, RecordChange, RecordStore, StoreError,
};
pub use stream::{Class, Event, EventSink, EventStream, Events, Offer, Sent, Stopped, StreamError};
pub use token::{FencingToken, Term};

/// A boxed future, for the traits that are used behind `dyn`.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;
