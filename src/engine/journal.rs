//! The last runs of a shard, in a ring (X4, T5): who ran why, how it ended, what follows.

use std::sync::Arc;

use super::view::RunOutcome;
use crate::id::{Causes, WorkerId};
use crate::scheduler::Time;

/// Runs that a shard remembers: a few minutes of a busy one, about 2 MiB.
pub(crate) const JOURNAL_RUNS: usize = 8_192;

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
    pub(crate) cause_error: Option<Arc<str>>,
    pub(crate) message: Option<Arc<str>>,
    pub(crate) next: Option<Time>,
}

#[derive(Debug, Default)]
pub(crate) struct Journal {
    ring: Vec<Entry>,
    next: usize,
}

impl Journal {
    pub(crate) fn push(&mut self, entry: Entry) {
        if self.ring.len() < JOURNAL_RUNS {
            self.ring.push(entry);
        } else {
            self.ring[self.next] = entry;
            self.next = (self.next + 1) % JOURNAL_RUNS;
        }
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
                cause_error: None,
                message: None,
                next: None,
            });
        }
        let ended: Vec<_> = journal.latest().map(|entry| entry.ended.0).collect();
        assert_eq!(ended.len(), JOURNAL_RUNS);
        assert!(ended.windows(2).all(|pair| pair[0] == pair[1] + 1));
        assert_eq!(ended[0], JOURNAL_RUNS as u64 + 2);
    }
}
