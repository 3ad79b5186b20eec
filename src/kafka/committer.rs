//! The last hand on a stream's offsets: commits go on after intake has stopped, until the drain is over.
//!
//! Must never block the async runtime, nor wait longer than it was told. Tested live, with a broker that is dead too.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use super::session::Note;

/// Offsets were not committed, or the client was not closed, in time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// The brokers did not acknowledge within the bound; what was done since the last commit will be looked at again.
    #[error("offsets were not committed within {0:?}; the events since the last commit will be looked at again")]
    Late(Duration),
    /// The consumer has ended, with what it had committed until then.
    #[error("the Kafka consumer has ended")]
    Ended,
    /// It said no.
    #[error("{0}")]
    Refused(String),
}

/// The consumer that runs now.
pub(super) struct Running {
    pub(super) notes: Sender<Note>,
    pub(super) ended: watch::Receiver<Option<Result<(), String>>>,
}

/// Where the stream and its committer meet.
#[derive(Default)]
pub(super) struct Meeting {
    running: Mutex<Option<Running>>,
}

impl Meeting {
    pub(super) fn set(&self, running: Running) {
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = Some(running);
    }

    fn notes(&self) -> Option<Sender<Note>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|running| running.notes.clone())
    }

    fn ended(&self) -> Option<watch::Receiver<Option<Result<(), String>>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(|running| running.ended.clone())
    }

    /// Commits what is done; nothing to do where nothing runs.
    pub(super) async fn commit(&self, bound: Duration) -> Result<(), CommitError> {
        let Some(notes) = self.notes() else { return Ok(()) };
        let (tell, told) = oneshot::channel();
        notes.send(Note::Flush(tell)).map_err(|_| CommitError::Ended)?;
        match timeout(bound, told).await {
            Ok(Ok(result)) => result.map_err(CommitError::Refused),
            Ok(Err(_)) => Err(CommitError::Ended),
            Err(_) => Err(CommitError::Late(bound)),
        }
    }

    /// Commits, then ends the consumer; both within the bound.
    pub(super) async fn close(&self, bound: Duration) -> Result<(), CommitError> {
        let deadline = tokio::time::Instant::now() + bound;
        // A quarter of it is left for the end, since a commit to dead brokers takes all that it is given.
        let committed = match self.commit(bound - bound / 4).await {
            Err(CommitError::Ended) => Ok(()),
            other => other,
        };
        if let (Some(notes), Some(mut ended)) = (self.notes(), self.ended()) {
            let _ = notes.send(Note::Close);
            // An error means that the thread is gone, which is what was wanted.
            let waited = tokio::time::timeout_at(deadline, ended.wait_for(Option::is_some)).await;
            if waited.is_err() {
                tracing::warn!("the Kafka consumer did not end within {bound:?}; left behind");
            }
        }
        committed
    }
}

/// Commits for a stream whose intake has stopped; clones go to the same consumer.
#[derive(Clone)]
pub struct KafkaCommitter {
    pub(super) meeting: Arc<Meeting>,
}

impl KafkaCommitter {
    /// Commits everything that is done now, and returns when the brokers have it. Cheap when nothing changed.
    ///
    /// # Errors
    /// It could not be committed within the bound.
    ///
    /// # Cancel safety
    /// Safe; the commit goes on.
    pub async fn commit_now(&self, bound: Duration) -> Result<(), CommitError> {
        self.meeting.commit(bound).await
    }

    /// Commits a last time and lets go of the client. Returns within the bound, whatever the brokers do; a client that
    /// does not close is left behind and ends with the process.
    ///
    /// # Errors
    /// The last commit did not succeed.
    ///
    /// # Cancel safety
    /// Safe; the client may stay open.
    pub async fn close(&self, bound: Duration) -> Result<(), CommitError> {
        self.meeting.close(bound).await
    }
}
