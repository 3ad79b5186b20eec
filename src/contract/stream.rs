//! Event streams: anything that says "look at this id again" (Q1).

use std::future::Future;
use std::sync::Arc;

use opentelemetry::metrics::Meter;
use opentelemetry::trace::SpanContext;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::BoxFuture;
use super::source::Source;
use crate::id::{IdError, Receipt, ShardId, SourceId};

/// A source of events. It runs once per process while the process leads a shard, and hands over ids until it is told to
/// stop.
///
/// ```
/// use evenkeel::{EventStream, Events, StreamError};
///
/// struct Ticker;
///
/// impl EventStream for Ticker {
///     async fn run(&mut self, events: Events) -> Result<(), StreamError> {
///         let mut tick = tokio::time::interval(std::time::Duration::from_secs(60));
///         loop {
///             tick.tick().await;
///             events.send("heartbeat").await?;
///         }
///     }
/// }
/// ```
///
/// # Cancel safety
/// On shutdown and on loss of leadership the future is dropped at an await. What it had not handed over is gone for
/// this process; a stream that owes its events to somebody opens a [`Source`] with a tracker and acknowledges what is
/// done.
pub trait EventStream: Send + 'static {
    /// Runs until it fails or ends by itself. A failure restarts it with growing delays, unless it is `critical` (Q8);
    /// an end is reported in health.
    ///
    /// # Errors
    /// Whatever stopped it; the message is shown to people.
    fn run(&mut self, events: Events) -> impl Future<Output = Result<(), StreamError>> + Send;

    /// Which share of the workers its ids get (Q6).
    fn class(&self) -> Class {
        Class::Event
    }
}

/// What kind of events a source gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// News: they go first.
    Event,
    /// Everything that exists: it goes last, and keeps at most a few ids waiting (Q6).
    Resync,
    /// Somebody asks: goes first, and a run that is under way is cancelled and followed by another (C1).
    Trigger,
}

/// A stream gave up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// It failed; the text says how.
    #[error("{0}")]
    Failed(String),
    /// The engine is stopping; nothing went wrong.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

impl StreamError {
    /// A failure with this message.
    pub fn failed(message: impl std::fmt::Display) -> Self {
        Self::Failed(message.to_string())
    }
}

/// The engine takes no more events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the engine is stopping")]
pub struct Stopped;

/// What a stream hands over.
#[derive(Debug, Clone)]
pub struct Event<'a> {
    /// The id to look at again.
    pub id: &'a str,
    /// Its receipt, from a source that the stream opened.
    pub receipt: Receipt,
    /// The producer's span, which the run's trace links to (K7).
    pub trace: Option<SpanContext>,
}

/// What became of an event that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sent {
    /// Handed to the shard that owns the id.
    Taken,
    /// Another process leads the id's shard. Whoever owes the event to somebody passes it on there; a resync does not
    /// need to, since that leader lists for itself.
    Foreign(ShardId),
    /// The user's own hash dropped it; it counts as done.
    Dropped,
}

/// What became of an event that was offered.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Offer {
    /// Sent.
    Sent(Sent),
    /// The shard has no room (Q5). Hold the event and wait for [`Events::room`].
    Full(ShardId),
    /// The text is no id (I1); it was counted.
    Refused(IdError),
    /// The engine is stopping.
    Stopped,
}

/// A stream's way to the engine. Clones are cheap and go to the same place.
#[derive(Clone)]
pub struct Events {
    sink: Arc<dyn EventSink>,
    default_source: SourceId,
    position: Arc<std::sync::atomic::AtomicU64>,
}

/// The engine's side of [`Events`].
pub trait EventSink: Send + Sync {
    /// Takes an event, or says why not. Never blocks.
    fn offer(&self, event: &Event<'_>) -> Offer;
    /// Takes as many of these events as there is room for, in order. Gives their number, and why it stopped if it did.
    fn offer_all(&self, events: &[Event<'_>]) -> (usize, Option<Offer>) {
        for (taken, event) in events.iter().enumerate() {
            match self.offer(event) {
                Offer::Sent(_) | Offer::Refused(_) => {}
                stop => return (taken, Some(stop)),
            }
        }
        (events.len(), None)
    }
    /// Resolves when the shard may have room for an event of this stream again.
    fn room(&self, shard: ShardId) -> BoxFuture<'_, ()>;
    /// Numbers a source of this stream.
    fn open(&self, source: Source) -> SourceId;
    /// The stream's name.
    fn name(&self) -> &Arc<str>;
    /// The shards that this process leads, as they change.
    fn shards(&self) -> watch::Receiver<Vec<ShardId>>;
    /// The shard of an id, or `None` if the user's hash drops it.
    fn shard_of(&self, id: &str) -> Option<ShardId>;
    /// Cancelled when intake stops.
    fn stopping(&self) -> &CancellationToken;
    /// Says how the stream is: `None` well, else what is wrong; shown in health.
    fn report(&self, problem: Option<String>);
    /// Counts an error of this stream under a short fixed name.
    fn count_error(&self, name: &'static str);
    /// For instruments of the stream's own.
    fn meter(&self) -> &Meter;
}

impl Events {
    /// A way to this sink, for streams whose events come from `default_source`.
    pub fn new(sink: Arc<dyn EventSink>, class: Class) -> Self {
        let default_source = sink.open(Source::untracked(Arc::clone(sink.name()), class));
        Self { sink, default_source, position: Arc::default() }
    }

    /// Hands over an id, waiting while the shard has no room. An empty id is ignored (Q1), one that breaks the id rules
    /// is counted and passed over.
    ///
    /// # Errors
    /// [`Stopped`] when the engine takes no more events.
    ///
    /// # Cancel safety
    /// Dropped while it waits for room, the id was not handed over.
    pub async fn send(&self, id: &str) -> Result<Sent, Stopped> {
        self.send_event(&Event { id, receipt: self.receipt(), trace: None }).await
    }

    /// Hands over an event with a receipt of the stream's own, waiting while the shard has no room.
    ///
    /// # Errors
    /// [`Stopped`] when the engine takes no more events.
    ///
    /// # Cancel safety
    /// Dropped while it waits for room, the event was not handed over.
    pub async fn send_event(&self, event: &Event<'_>) -> Result<Sent, Stopped> {
        loop {
            match self.sink.offer(event) {
                Offer::Sent(sent) => return Ok(sent),
                Offer::Refused(_) => return Ok(Sent::Dropped),
                Offer::Stopped => return Err(Stopped),
                Offer::Full(shard) => {
                    tokio::select! {
                        () = self.sink.room(shard) => {}
                        () = self.sink.stopping().cancelled() => return Err(Stopped),
                    }
                }
            }
        }
    }

    /// Hands over many events at once, waiting while there is no room; cheaper than one by one. Refused and foreign
    /// ones are passed over.
    ///
    /// # Errors
    /// [`Stopped`] when the engine takes no more events.
    ///
    /// # Cancel safety
    /// Dropped while it waits for room, a first part was handed over.
    pub async fn send_all(&self, mut events: &[Event<'_>]) -> Result<(), Stopped> {
        loop {
            let (taken, stop) = self.sink.offer_all(events);
            events = &events[taken..];
            match stop {
                None => return Ok(()),
                Some(Offer::Full(shard)) => {
                    tokio::select! {
                        () = self.sink.room(shard) => {}
                        () = self.sink.stopping().cancelled() => return Err(Stopped),
                    }
                }
                Some(_) => return Err(Stopped),
            }
        }
    }

    /// Hands over an event if there is room now; for streams that hold back in a way of their own.
    #[must_use]
    pub fn offer(&self, event: &Event<'_>) -> Offer {
        self.sink.offer(event)
    }

    /// Resolves when the shard may have room again.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn room(&self, shard: ShardId) {
        self.sink.room(shard).await;
    }

    /// The next receipt of the stream's own untracked source.
    #[must_use]
    pub fn receipt(&self) -> Receipt {
        Receipt::new(self.default_source, self.position.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
    }

    /// Numbers a source of this stream; every assignment is a new one, so that late answers of an old one settle
    /// nothing.
    #[must_use]
    pub fn open(&self, source: Source) -> SourceId {
        self.sink.open(source)
    }

    /// The stream's name.
    #[must_use]
    pub fn name(&self) -> &Arc<str> {
        self.sink.name()
    }

    /// The shards that this process leads, as they change.
    #[must_use]
    pub fn shards(&self) -> watch::Receiver<Vec<ShardId>> {
        self.sink.shards()
    }

    /// The shard of an id, or `None` if the user's hash drops it.
    #[must_use]
    pub fn shard_of(&self, id: &str) -> Option<ShardId> {
        self.sink.shard_of(id)
    }

    /// Resolves when intake stops: hand over nothing more, and end.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn stopping(&self) {
        self.sink.stopping().cancelled().await;
    }

    /// Whether intake has stopped.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.sink.stopping().is_cancelled()
    }

    /// Says how the stream is: `None` well, else what is wrong and what to do; shown in health and status.
    pub fn report(&self, problem: Option<String>) {
        self.sink.report(problem);
    }

    /// Counts an error of this stream under a short fixed name (an attribute of a metric).
    pub fn count_error(&self, name: &'static str) {
        self.sink.count_error(name);
    }

    /// For instruments of the stream's own.
    #[must_use]
    pub fn meter(&self) -> &Meter {
        self.sink.meter()
    }
}
