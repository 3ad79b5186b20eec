//! The last runs of a shard, in a ring (X4, T5): who ran why, how it ended, what follows.

use std::sync::Arc;

use super::view::RunOutcome;
use crate::id::{Causes, Mark, WorkerId};
use crate::scheduler::Time;

/// Runs that a shard remembers: minutes of a usual one, and little enough (a third of a MiB) to stay in the processor's
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
    pub(crate) next: Option<Time>,
    /// Why it ran, if one cause says it; see [`told`].
    pub(crate) cause: Mark,
    pub(crate) more: Option<Box<More>>,
}

/// What the entries of few runs have.
#[derive(Debug, Clone)]
pub(crate) struct More {
    causes: Causes,
    /// Its error, or its line for people.
    message: Option<Arc<str>>,
    /// The error that it is a retry of.
    cause_error: Option<Arc<str>>,
}

/// Why a run ran and what it said, in as little as it takes.
pub(crate) fn told(
    causes: &Causes,
    message: Option<Arc<str>>,
    cause_error: Option<Arc<str>>,
) -> (Mark, Option<Box<More>>) {
    match causes.only() {
        Some(cause) if message.is_none() && cause_error.is_none() => (cause, None),
        _ => (Mark::NONE, Some(Box::new(More { causes: *causes, message, cause_error }))),
    }
}

impl Entry {
    pub(crate) fn causes(&self) -> Causes {
        let one = || self.cause.get().map_or(Causes::NONE, Causes::one);
        self.more.as_ref().map_or_else(one, |more| more.causes)
    }

    pub(crate) fn message(&self) -> Option<&Arc<str>> {
        self.more.as_ref().and_then(|more| more.message.as_ref())
    }

    pub(crate) fn cause_error(&self) -> Option<&Arc<str>> {
        self.more.as_ref().and_then(|more| more.cause_error.as_ref())
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
    use crate::id::{Receipt, SourceId};

    fn entry(n: usize) -> Entry {
        let time = Time(n as u64);
        Entry {
            id: "a".into(),
            kind: 0,
            worker: WorkerId(0),
            outcome: RunOutcome::Done,
            attempt: 1,
            waiting_since: time,
            started: time,
            ended: time,
            next: None,
            cause: Mark::NONE,
            more: None,
        }
    }

    #[test]
    fn x4_the_journal_is_bounded_and_gives_the_latest_first() {
        let mut journal = Journal::default();
        (0..JOURNAL_RUNS + 3).for_each(|n| journal.push(entry(n)));
        let ended: Vec<_> = journal.latest().map(|entry| entry.ended.0).collect();
        assert_eq!((ended.len(), journal.pushed()), (JOURNAL_RUNS, JOURNAL_RUNS as u64 + 3));
        assert!(ended.windows(2).all(|pair| pair[0] == pair[1] + 1));
        assert_eq!(ended[0], JOURNAL_RUNS as u64 + 2);
    }

    #[test]
    fn t5_an_entry_gives_back_the_causes_and_texts_of_its_run() {
        assert!(size_of::<Entry>() <= 88, "{} bytes: every run writes one", size_of::<Entry>());
        let cause = |position| Receipt::new(SourceId::numbered(0, true), position);
        let mut many = Causes::one(cause(1));
        (2..7).for_each(|position| many.add(cause(position)));
        let said = Some(Arc::from("no route"));
        for causes in [Causes::NONE, Causes::one(cause(1)), many] {
            for (message, cause_error) in [(None, None), (said.clone(), None), (None, said.clone())] {
                let (cause, more) = told(&causes, message.clone(), cause_error.clone());
                let is_short = causes.more() == 0 && message.is_none() && cause_error.is_none();
                assert_eq!(more.is_none(), is_short, "{causes:?}");
                let entry = Entry { cause, more, ..entry(1) };
                assert_eq!(entry.causes(), causes);
                assert_eq!((entry.message(), entry.cause_error()), (message.as_ref(), cause_error.as_ref()));
            }
        }
    }
}
