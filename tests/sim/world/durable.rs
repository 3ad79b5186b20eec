//! What outlives a term: the sources' logs, what was committed of them, the owed records; and what truly happened, as
//! nobody in the world can know it.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel::scheduler::{ArrivalClass, Record, Slot};

/// An event: its source and its position there.
pub(super) type Event = (usize, u64);

/// A change of a record on its way to the store.
#[derive(Debug)]
pub(super) enum Change {
    Write { slot: Slot, write: u64, record: Record, given_up: bool, covers: BTreeSet<Event> },
    Erase,
}

/// A record, and the events that it stands for.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) record: Record,
    pub(super) covers: BTreeSet<Event>,
}

#[derive(Debug, Default)]
pub(super) struct Durable {
    /// By source and position: the id and the class of an event; `None` is a gap.
    pub(super) logs: Vec<Vec<Option<(usize, ArrivalClass)>>>,
    pub(super) committed: Vec<u64>,
    pub(super) records: BTreeMap<usize, Stored>,
    /// Answered by a success of a run that began after they had been delivered.
    pub(super) covered: BTreeSet<Event>,
    /// Sent to the dead-letter topic.
    pub(super) letters: BTreeSet<Event>,
    /// Committed, but only a record stands for them, by id.
    owed: BTreeMap<usize, BTreeSet<Event>>,
}

impl Durable {
    pub(super) fn new(sources: usize) -> Self {
        Self { logs: vec![Vec::new(); sources], committed: vec![0; sources], ..Self::default() }
    }

    pub(super) fn apply(&mut self, durable: bool, id: usize, change: Change) {
        match change {
            Change::Write { record, given_up, covers, .. } => {
                if given_up && !durable {
                    self.letters.extend(&covers);
                }
                self.records.insert(id, Stored { record, covers });
            }
            Change::Erase => drop(self.records.remove(&id)),
        }
        self.check(id);
    }

    /// Everything of this source below the position counts as done from now on.
    pub(super) fn commit(&mut self, source: usize, low_water: u64) {
        let before = self.committed[source];
        for position in before..low_water {
            let index = usize::try_from(position).unwrap();
            if let Some((id, _)) = self.logs[source][index] {
                self.owed.entry(id).or_default().insert((source, position));
                self.check(id);
            }
        }
        self.committed[source] = before.max(low_water);
    }

    /// No event of this id that counts as done is lost: a success covers it, a record stands for it, or a dead letter
    /// does.
    pub(super) fn check(&mut self, id: usize) {
        let Some(owed) = self.owed.get_mut(&id) else { return };
        owed.retain(|event| !self.covered.contains(event) && !self.letters.contains(event));
        let stored = self.records.get(&id);
        let lost = owed.iter().find(|event| !stored.is_some_and(|stored| stored.covers.contains(event)));
        assert!(lost.is_none(), "event {lost:?} of k{id} is lost: committed, but neither done nor recorded");
    }

    pub(super) fn is_answered(&self, event: Event) -> bool {
        self.covered.contains(&event) || self.letters.contains(&event)
    }
}
