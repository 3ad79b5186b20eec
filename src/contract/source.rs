//! Sources of events: what a receipt's number stands for, and who waits for its events to be done.

use std::fmt;
use std::hash::Hasher;
use std::sync::{Arc, PoisonError, RwLock};

use super::cause::{Cause, Position};
use super::stream::Class;
use super::token::Term;
use crate::id::{Receipt, SourceId};

/// Hears which events of a source are done, so that it can let go of them: Kafka commits, a queue acknowledges.
pub trait Tracker: Send + Sync {
    /// These events are done (K4); each event is named once. Called from a shard's loop: must not block.
    fn done(&self, positions: &[u64]);
}

/// A source of events as a stream describes it.
#[derive(Clone)]
pub struct Source {
    /// The stream's name.
    pub stream: Arc<str>,
    /// Events, or the ids of a resync.
    pub class: Class,
    /// Topic and partition, if the source is one of Kafka's.
    pub partition: Option<(Arc<str>, i32)>,
    /// Who wants to know when events are done; `None` where nothing is owed to the source.
    pub tracker: Option<Arc<dyn Tracker>>,
}

impl Source {
    /// A source to which nothing is owed: what it said is lost with the process, and a resync heals it.
    pub fn untracked(stream: impl Into<Arc<str>>, class: Class) -> Self {
        Self { stream: stream.into(), class, partition: None, tracker: None }
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source")
            .field("stream", &self.stream)
            .field("class", &self.class)
            .field("partition", &self.partition)
            .field("tracked", &self.tracker.is_some())
            .finish()
    }
}

/// All sources of one process, by number; numbers are never given twice.
///
/// It grows with the number of assignments made in the life of the process, a few dozen bytes each.
#[derive(Debug, Default)]
pub struct Sources {
    list: RwLock<Vec<Arc<Source>>>,
}

impl Sources {
    /// Numbers a new source.
    ///
    /// # Panics
    /// After 2^31 assignments in the life of a process.
    pub fn open(&self, source: Source) -> SourceId {
        let mut list = self.list.write().unwrap_or_else(PoisonError::into_inner);
        let number = u32::try_from(list.len()).expect("fewer than 2^31 assignments in the life of a process");
        let id = SourceId::numbered(number, source.tracker.is_some());
        list.push(Arc::new(source));
        id
    }

    /// The source behind a number.
    #[must_use]
    pub fn get(&self, id: SourceId) -> Option<Arc<Source>> {
        let index = usize::try_from(id.number()?).ok()?;
        self.list.read().unwrap_or_else(PoisonError::into_inner).get(index).cloned()
    }

    /// A receipt as people read it.
    #[must_use]
    pub fn cause(&self, receipt: Receipt, last_error: Option<&Arc<str>>) -> Cause {
        match receipt.source {
            SourceId::RETRY => Cause::Retry {
                attempt: u32::try_from(receipt.position).unwrap_or(u32::MAX),
                error: last_error.cloned(),
            },
            SourceId::REQUESTED => Cause::Requested {},
            SourceId::RECOVERED => Cause::Recovered {},
            SourceId::REDRIVE => Cause::Redrive {},
            SourceId::CANCELLED => Cause::Cancelled {},
            id => match self.get(id) {
                None => Cause::Trigger {},
                Some(source) => source.cause(receipt.position),
            },
        }
    }
}

impl Sources {
    /// The idempotency key of the runs that answer this event of this id: for an event of Kafka the same in every
    /// process and term, else the same within the term.
    #[must_use]
    pub fn key(&self, term: Term, id: &str, latest: Option<Receipt>) -> u64 {
        let mut hash = fnv::FnvHasher::default();
        hash.write(id.as_bytes());
        let source = latest.and_then(|receipt| self.get(receipt.source));
        match (latest, source.as_ref().and_then(|source| source.partition.as_ref())) {
            (Some(receipt), Some((topic, partition))) => {
                hash.write(topic.as_bytes());
                hash.write(&partition.to_le_bytes());
                hash.write(&receipt.position.to_le_bytes());
            }
            (latest, _) => {
                hash.write(&term.incarnation.to_le_bytes());
                hash.write(&term.revision.to_le_bytes());
                if let Some(receipt) = latest {
                    hash.write(&receipt.source.0.to_le_bytes());
                    hash.write(&receipt.position.to_le_bytes());
                }
            }
        }
        hash.finish()
    }
}

impl Source {
    fn cause(&self, position: u64) -> Cause {
        let stream = Arc::clone(&self.stream);
        match (self.class, &self.partition) {
            (Class::Resync, _) => Cause::Resync { stream },
            (Class::Trigger, _) => Cause::Trigger {},
            (Class::Event, None) => Cause::Event { stream, position: None },
            (Class::Event, Some((topic, partition))) => Cause::Event {
                stream,
                position: Some(Position { topic: Arc::clone(topic), partition: *partition, offset: position }),
            },
        }
    }
}
