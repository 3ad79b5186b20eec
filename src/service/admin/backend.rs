//! What the server asks of the engine: the methods of [`Handle`], behind a trait, so that its answers to a full, stuck
//! or stopping engine can be tested without making one.
//!
//! Must never hold state of its own.

use crate::contract::BoxFuture;
use crate::engine::view::{
    Explanation, Health, JournalEntry, JournalQuery, QueuePage, QueueQuery, ShardStatus, Status, SteerAnswer,
    TriggerAnswer, WaitFor,
};
use crate::engine::{Handle, HandleError, JournalCursor, JournalNews, Select};

/// An answer that the engine may refuse.
pub type Asked<'a, T> = BoxFuture<'a, Result<T, HandleError>>;

/// A running engine, as the server sees it. See [`Handle`] for what each method does.
///
/// `drain` and `health` are called on the server's only thread: they must not wait for anything that a run can hold.
#[expect(missing_docs, reason = "the methods are those of Handle")]
pub trait Backend: Send + Sync + 'static {
    fn trigger(&self, ids: Vec<String>, wait: WaitFor) -> BoxFuture<'_, Vec<TriggerAnswer>>;
    fn explain<'a>(&'a self, id: &'a str) -> Asked<'a, Explanation>;
    fn status(&self) -> Asked<'_, Status>;
    fn shards(&self) -> Asked<'_, Vec<ShardStatus>>;
    fn queues(&self, query: QueueQuery) -> Asked<'_, QueuePage>;
    fn journal(&self, query: JournalQuery) -> Asked<'_, Vec<JournalEntry>>;
    fn reader(&self) -> Box<dyn JournalReader>;
    fn redrive(&self, select: Select) -> Asked<'_, Vec<SteerAnswer>>;
    fn cancel(&self, ids: Vec<String>) -> Asked<'_, Vec<SteerAnswer>>;
    fn drain(&self);
    fn health(&self) -> Health;
}

/// Somebody who reads the journal as it grows.
pub trait JournalReader: Send {
    /// What is new since the last call, the latest `limit` runs of it; the first call gives the last runs.
    fn news<'a>(&'a mut self, id: Option<&'a str>, limit: usize) -> Asked<'a, JournalNews>;
}

/// A reader of a real engine.
struct HandleReader {
    handle: Handle,
    cursor: JournalCursor,
}

impl JournalReader for HandleReader {
    fn news<'a>(&'a mut self, id: Option<&'a str>, limit: usize) -> Asked<'a, JournalNews> {
        Box::pin(self.handle.journal_news(&mut self.cursor, id, limit))
    }
}

impl Backend for Handle {
    fn trigger(&self, ids: Vec<String>, wait: WaitFor) -> BoxFuture<'_, Vec<TriggerAnswer>> {
        Box::pin(self.trigger_batch(ids, wait))
    }

    fn explain<'a>(&'a self, id: &'a str) -> Asked<'a, Explanation> {
        Box::pin(self.explain(id))
    }

    fn status(&self) -> Asked<'_, Status> {
        Box::pin(self.status())
    }

    fn shards(&self) -> Asked<'_, Vec<ShardStatus>> {
        Box::pin(self.shards())
    }

    fn queues(&self, query: QueueQuery) -> Asked<'_, QueuePage> {
        Box::pin(self.queues(query))
    }

    fn journal(&self, query: JournalQuery) -> Asked<'_, Vec<JournalEntry>> {
        Box::pin(async move { self.journal(&query).await })
    }

    fn reader(&self) -> Box<dyn JournalReader> {
        Box::new(HandleReader { handle: self.clone(), cursor: JournalCursor::default() })
    }

    fn redrive(&self, select: Select) -> Asked<'_, Vec<SteerAnswer>> {
        Box::pin(self.redrive(select))
    }

    fn cancel(&self, ids: Vec<String>) -> Asked<'_, Vec<SteerAnswer>> {
        Box::pin(self.cancel(ids))
    }

    fn drain(&self) {
        self.drain();
    }

    fn health(&self) -> Health {
        self.health()
    }
}
