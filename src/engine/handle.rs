//! A cheap handle to a running engine: trigger, look, steer.

use super::view::{
    Explanation, Health, JournalEntry, JournalQuery, QueuePage, QueueQuery, ShardStatus, Status, SteerAnswer,
    TriggerAnswer, TriggerResult, WaitFor,
};

/// A way to a running engine; clones are cheap.
#[derive(Debug, Clone)]
pub struct Handle {}

/// The engine cannot answer.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum HandleError {
    /// It has stopped.
    #[error("the engine has stopped")]
    Stopped,
    /// Another process leads the shard.
    #[error("shard {0} is not led by this process")]
    NotLed(u16),
    /// What was asked makes no sense.
    #[error("{0}")]
    Invalid(String),
}

/// Which ids to steer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Select {
    /// These.
    Ids(Vec<String>),
    /// All parked ids that match the pattern (`*` stands for any text).
    Match(String),
}

impl Handle {
    /// Asks for a run of an id now, without waiting for an answer; the fast way.
    ///
    /// # Errors
    /// What stands in the way, as a [`TriggerResult`].
    pub fn trigger(&self, _id: &str) -> Result<(), TriggerResult> {
        todo!()
    }

    /// Asks for runs and says per id what became of it (X7).
    ///
    /// # Cancel safety
    /// Dropping it forgets the answers; the ids run all the same.
    pub async fn trigger_batch(&self, _ids: Vec<String>, _wait: WaitFor) -> Vec<TriggerAnswer> {
        todo!()
    }

    /// Why an id runs, waits, or does not (X4).
    ///
    /// # Errors
    /// The text is no id, or the engine has stopped.
    pub async fn explain(&self, _id: &str) -> Result<Explanation, HandleError> {
        todo!()
    }

    /// The whole process at a glance.
    ///
    /// # Errors
    /// The engine has stopped.
    pub async fn status(&self) -> Result<Status, HandleError> {
        todo!()
    }

    /// The shards.
    ///
    /// # Errors
    /// The engine has stopped.
    pub async fn shards(&self) -> Result<Vec<ShardStatus>, HandleError> {
        todo!()
    }

    /// What waits and runs, a page at a time.
    ///
    /// # Errors
    /// The engine has stopped, or the page's start is not one that an earlier page gave.
    pub async fn queues(&self, _query: QueueQuery) -> Result<QueuePage, HandleError> {
        todo!()
    }

    /// The last runs, the latest first.
    #[must_use]
    pub fn journal(&self, _query: &JournalQuery) -> Vec<JournalEntry> {
        todo!()
    }

    /// Releases parked ids, with a fresh count of attempts.
    ///
    /// # Errors
    /// The engine has stopped.
    pub async fn redrive(&self, _select: Select) -> Result<Vec<SteerAnswer>, HandleError> {
        todo!()
    }

    /// Ends the runs of these ids and parks them.
    ///
    /// # Errors
    /// The engine has stopped.
    pub async fn cancel(&self, _ids: Vec<String>) -> Result<Vec<SteerAnswer>, HandleError> {
        todo!()
    }

    /// Starts a graceful stop, as SIGTERM does.
    pub fn drain(&self) {
        todo!()
    }

    /// Whether the process is alive and ready.
    #[must_use]
    pub fn health(&self) -> Health {
        todo!()
    }
}
