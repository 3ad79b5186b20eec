//! Streams for programs that embed the engine: a channel, or any stream of ids.
//!
//! Must never lose an id that it has taken in hand while the process lives: it is held until the engine has it (B20).
//! Tested in tests/it/streams.rs.

use std::fmt;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};

use crate::contract::{EventStream, Events, Sent, StreamError};

/// A channel into the engine: ids that are sent come out of the event stream.
///
/// At most `capacity` ids wait in it (at least one); while the engine has no room, senders wait. Ids in the channel
/// live in memory: they are lost with the process.
#[must_use]
pub fn channel(capacity: usize) -> (Sender, FromStream<ReceiverStream<String>>) {
    let (sender, receiver) = mpsc::channel(capacity.max(1));
    (Sender(sender), from_stream(ReceiverStream::new(receiver)))
}

/// An event stream from any stream of ids. It ends when that one does.
///
/// An id is taken from it only when the one before is handed over. Where several processes share the shards, an id that
/// belongs to another process is passed over and counted as the error `foreign`: give every process the same ids, or
/// use a stream that all can read.
pub fn from_stream<S: Stream<Item = String> + Send + 'static>(stream: S) -> FromStream<S> {
    FromStream { stream: Some(Box::pin(stream)), in_hand: None }
}

/// Sends ids into the engine; clones share the channel.
#[derive(Debug, Clone)]
pub struct Sender(mpsc::Sender<String>);

/// The stream at the other end is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the event stream has ended")]
pub struct Closed;

impl Sender {
    /// Sends an id, waiting while the channel is full.
    ///
    /// # Errors
    /// [`Closed`] if nobody takes ids any more.
    ///
    /// # Cancel safety
    /// Dropped while it waits, the id was not sent.
    pub async fn send(&self, id: impl Into<String>) -> Result<(), Closed> {
        self.0.send(id.into()).await.map_err(|_| Closed)
    }

    /// Sends an id if there is room now, and says whether there was.
    ///
    /// # Errors
    /// [`Closed`] if nobody takes ids any more.
    pub fn try_send(&self, id: impl Into<String>) -> Result<bool, Closed> {
        match self.0.try_send(id.into()) {
            Ok(()) => Ok(true),
            Err(mpsc::error::TrySendError::Full(_)) => Ok(false),
            Err(mpsc::error::TrySendError::Closed(_)) => Err(Closed),
        }
    }
}

/// An event stream made from a stream of ids.
pub struct FromStream<S> {
    /// Until it has ended.
    stream: Option<std::pin::Pin<Box<S>>>,
    /// Taken from the stream, and not yet handed over: kept when the future of [`run`](EventStream::run) is dropped.
    in_hand: Option<String>,
}

impl<S: Stream<Item = String> + Send + 'static> EventStream for FromStream<S> {
    async fn run(&mut self, events: Events) -> Result<(), StreamError> {
        loop {
            if let Some(id) = &self.in_hand {
                if let Sent::Foreign(shard) = events.send(id).await? {
                    tracing::debug!(stream = %events.name(), id, %shard, "another process leads the shard of this id");
                    events.count_error("foreign");
                }
                self.in_hand = None;
            }
            let Some(stream) = &mut self.stream else { return Ok(()) };
            tokio::select! {
                next = stream.next() => match next {
                    Some(id) => self.in_hand = Some(id),
                    None => self.stream = None,
                },
                () = events.stopping() => return Ok(()),
            }
        }
    }
}

impl<S> fmt::Debug for FromStream<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ended, in_hand) = (self.stream.is_none(), &self.in_hand);
        f.debug_struct("FromStream").field("ended", &ended).field("in_hand", in_hand).finish()
    }
}
