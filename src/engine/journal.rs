//! The last runs of a shard, in a ring (X4, T5): who ran why, how it ended, what follows.

use std::sync::Arc;

use super::view::RunOutcome;
use crate::id::{Causes, WorkerId};
use crate::scheduler::Time;

/// Runs that a shard remembers: minutes of a usual one, and little enough (half a MiB) to stay in the processor's
/// cache, since every run writes an entry.
pub(crate) const JOURNAL_RUNS: usize = 4_096;

/// One run that has ended.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) id: Arc<str>,
    pub(crate) kind: u16,
    pub(crate) worker: WorkerId,
    pub(crate) outcome: RunOutcome,
    pub(crate) attempt: u32,
    pub(crate) waiting_since: Time,
    pub(crate) started: Time,
    pub(crate) ended: Time,
    pub(crate) causes: Causes,
    pub(crate) next: Option<Time>,
    /// Most runs have none.
    pub(crate) texts: Option<Box<Texts>>,
}

/// What a run said, and what the run before it said.
#[derive(Debug, Clone, Default)]
pub(crate) struct Texts {
    /// Its error, or its line for people.
    pub(crate) message: Option<Arc<str>>,
    /// The error that it is a retry of.
    pub(crate) cause_error: Option<Arc<str>>,
}

impl Entry {
    pub(crate) fn message(&self) -> Option<&Arc<str>> {
        self.texts.as_ref().and_then(|texts| texts.message.as_ref())
    }

    pub(crate) fn cause_error(&self) -> Option<&Arc<str>> {
        self.texts.as_ref().and_then(|texts| texts.cause_error.as_ref())
    }
}

#[derive(Debug, Default)]
pub(crate) struct Journal {
    ring: Vec<Entry>,
    next: usize,
    pushed: u64,
}

impl Journal {
    pub(crate) fn push(&mut self, entry: Entry) {
        self.pushed += 1;
        if self.ring.len() < JOURNAL_RUNS {
            self.ring.push(entry);
        } else {
            self.ring[self.next] = entry;
            self.next = (self.next + 1) % JOURNAL_RUNS;
        }
    }

    /// How many runs there were, those that have left the ring included.
    pub(crate) const fn pushed(&self) -> u64 {
        self.pushed
    }

    /// The runs, the latest first.
    pub(crate) fn latest(&self) -> impl Iterator<Item = &Entry> {
        let (newer, older) = self.ring.split_at(self.next);
        newer.iter().rev().chain(older.iter().rev())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x4_the_journal_is_bounded_and_gives_the_latest_first() {
        let mut journal = Journal::default();
        let time = |n: usize| Time(n as u64);
        for n in 0..JOURNAL_RUNS + 3 {
            journal.push(Entry {
                id: "a".into(),
                kind: 0,
                worker: WorkerId(0),
                outcome: RunOutcome::Done,
                attempt: 1,
                waiting_since: time(n),
                started: time(n),
                ended: time(n),
                causes: Causes::NONE,
                next: None,
                texts: None,
            });
        }
        let ended: Vec<_> = journal.latest().map(|entry| entry.ended.0).collect();
        assert_eq!((ended.len(), journal.pushed()), (JOURNAL_RUNS, JOURNAL_RUNS as u64 + 3));
        assert!(ended.windows(2).all(|pair| pair[0] == pair[1] + 1));
        assert_eq!(ended[0], JOURNAL_RUNS as u64 + 2);
    }
}
