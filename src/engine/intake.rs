//! Where streams hand over: one open batch per stream and shard, swapped out whole by the shard's loop.
//!
//! Bounded: an open batch and the one in the loop's hand. A stream that finds it full holds its event and waits for
//! room (Q5).

use std::sync::{Mutex, PoisonError};

use opentelemetry::trace::SpanContext;
use tokio::sync::Notify;

use crate::contract::{Class, Event};
use crate::id::{Receipt, WorkerId};

/// Events of an open batch, at most: enough that a busy loop swaps rarely, little enough that the loop's turn stays
/// short.
pub(crate) const BATCH_EVENTS_MAX: usize = 256;

/// Bytes of ids of an open batch, at most.
const BATCH_BYTES_MAX: usize = 256 * 1_024;

/// Events handed over together; their ids lie in one text, so that an event allocates nothing.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    text: String,
    events: Vec<Handed>,
    traces: Vec<(usize, SpanContext)>,
}

#[derive(Debug, Clone, Copy)]
struct Handed {
    end: u32,
    worker: WorkerId,
    receipt: Receipt,
}

/// One event of a batch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Taken<'a> {
    pub(crate) id: &'a str,
    pub(crate) worker: WorkerId,
    pub(crate) receipt: Receipt,
    pub(crate) trace: Option<&'a SpanContext>,
}

impl Batch {
    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.events.len() >= BATCH_EVENTS_MAX || self.text.len() >= BATCH_BYTES_MAX
    }

    pub(crate) fn push(&mut self, id: &str, worker: WorkerId, receipt: Receipt, trace: Option<&SpanContext>) {
        self.text.push_str(id);
        if let Some(trace) = trace {
            self.traces.push((self.events.len(), trace.clone()));
        }
        let end = u32::try_from(self.text.len()).expect("a batch is at most BATCH_BYTES_MAX and one id long");
        self.events.push(Handed { end, worker, receipt });
    }

    /// The events in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Taken<'_>> {
        let mut start = 0;
        let mut traces = self.traces.iter().peekable();
        self.events.iter().enumerate().map(move |(index, event)| {
            let end = event.end as usize;
            let id = &self.text[start..end];
            start = end;
            let trace = traces.next_if(|(at, _)| *at == index).map(|(_, trace)| trace);
            Taken { id, worker: event.worker, receipt: event.receipt, trace }
        })
    }

    pub(crate) fn clear(&mut self) {
        self.text.clear();
        self.events.clear();
        self.traces.clear();
    }
}

/// One stream's way into one shard.
#[derive(Debug)]
pub(crate) struct Intake {
    open: Mutex<Batch>,
    room: Notify,
    pub(crate) class: Class,
}

impl Intake {
    pub(crate) fn new(class: Class) -> Self {
        Self { open: Mutex::default(), room: Notify::new(), class }
    }

    /// Adds events while there is room; gives how many it took, and whether the batch was empty before.
    pub(crate) fn push<'e>(&self, events: impl IntoIterator<Item = (&'e Event<'e>, WorkerId)>) -> Pushed {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let first = open.is_empty();
        let mut count = 0;
        for (event, worker) in events {
            if open.is_full() {
                return Pushed { count, first, full: true };
            }
            open.push(event.id, worker, event.receipt, event.trace.as_ref());
            count += 1;
        }
        Pushed { count, first, full: false }
    }

    /// Swaps the open batch for an empty one. Whoever waits for room is woken.
    pub(crate) fn take(&self, empty: Batch) -> Batch {
        let batch = std::mem::replace(&mut *self.open.lock().unwrap_or_else(PoisonError::into_inner), empty);
        if batch.is_full() {
            self.room.notify_waiters();
        }
        batch
    }

    /// Drops what was handed over; who waits for room looks again.
    pub(crate) fn empty(&self) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.room.notify_waiters();
    }

    /// Resolves when there is room.
    pub(crate) async fn room(&self) {
        loop {
            let woken = self.room.notified();
            tokio::pin!(woken);
            woken.as_mut().enable();
            if !self.open.lock().unwrap_or_else(PoisonError::into_inner).is_full() {
                return;
            }
            woken.await;
        }
    }
}

/// What became of a push.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pushed {
    /// Events taken.
    pub(crate) count: usize,
    /// The batch was empty: the loop must be woken.
    pub(crate) first: bool,
    /// It stopped because the batch is full.
    pub(crate) full: bool,
}
