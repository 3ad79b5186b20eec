//! Receipts: which event, from which source. The scheduler knows no Kafka; to it an event is an id and a receipt.

use std::fmt;

/// A source of events as the engine numbers it: one partition of one assignment, one HTTP door, one resync of one
/// stream.
///
/// The first few numbers are reserved for causes that are no events; a source that comes later gets the next free
/// number, never one that was used before, so that a late answer of an earlier assignment settles nothing (B49).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceId(pub u32);

impl SourceId {
    /// A retry after a failure; the position is the number of the attempt that failed.
    pub const RETRY: Self = Self(0);
    /// A time that the reconciler asked for.
    pub const REQUESTED: Self = Self(1);
    /// An owed record of an earlier term.
    pub const RECOVERED: Self = Self(2);
    /// Released by a person from where it was parked.
    pub const REDRIVE: Self = Self(3);
    /// A run that was cancelled is followed by another (C2).
    pub const CANCELLED: Self = Self(4);
    /// The first number that a source can have.
    pub const FIRST: Self = Self(16);
    /// Set in the number of a source that wants to know when its events are done.
    const TRACKED: u32 = 1 << 31;

    /// The id of the source with this number, counted from 0.
    #[must_use]
    pub const fn numbered(number: u32, tracked: bool) -> Self {
        Self((Self::FIRST.0 + number) | if tracked { Self::TRACKED } else { 0 })
    }

    /// The number that [`numbered`](Self::numbered) was given; `None` for a reserved cause.
    #[must_use]
    pub const fn number(self) -> Option<u32> {
        (self.0 & !Self::TRACKED).checked_sub(Self::FIRST.0)
    }

    /// Whether the source wants to know when its events are done.
    #[must_use]
    pub const fn is_tracked(self) -> bool {
        self.0 & Self::TRACKED != 0
    }

    /// Whether this is a source of events, not one of the reserved causes.
    #[must_use]
    pub const fn is_event(self) -> bool {
        self.0 >= Self::FIRST.0
    }
}

/// Names one event: its source, and its position there (a Kafka offset, else a number that only grows).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Receipt {
    /// Where the event came from.
    pub source: SourceId,
    /// Its position there.
    pub position: u64,
}

impl Receipt {
    /// The receipt of an event of this source at this position.
    #[must_use]
    pub const fn new(source: SourceId, position: u64) -> Self {
        Self { source, position }
    }
}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.source.0, self.position)
    }
}

/// How many causes of one run are kept in full; the rest are counted (T5).
pub const CAUSES_KEPT: usize = 4;

/// A receipt or none in 12 bytes: an `Option<Receipt>` takes 24, and there are several in every entry and every run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(Rust, packed(4))]
pub(crate) struct Mark {
    source: u32,
    position: u64,
}

impl Mark {
    pub(crate) const NONE: Self = Self { source: u32::MAX, position: 0 };

    pub(crate) const fn new(receipt: Receipt) -> Self {
        Self { source: receipt.source.0, position: receipt.position }
    }

    pub(crate) const fn get(self) -> Option<Receipt> {
        if self.is_none() { None } else { Some(Receipt::new(SourceId(self.source), self.position)) }
    }

    pub(crate) const fn is_none(self) -> bool {
        self.source == u32::MAX
    }
}

/// What made an id owed a run: the first few receipts, and how many more there were.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Causes {
    kept: [Mark; CAUSES_KEPT],
    more: u32,
}

impl Causes {
    /// No cause yet.
    pub const NONE: Self = Self { kept: [Mark::NONE; CAUSES_KEPT], more: 0 };

    /// Causes with one entry.
    #[must_use]
    pub const fn one(cause: Receipt) -> Self {
        Self { kept: [Mark::new(cause), Mark::NONE, Mark::NONE, Mark::NONE], more: 0 }
    }

    /// Adds a cause, kept while there is room and else counted.
    pub fn add(&mut self, cause: Receipt) {
        match self.kept.iter_mut().find(|kept| kept.is_none()) {
            Some(free) => *free = Mark::new(cause),
            None => self.more = self.more.saturating_add(1),
        }
    }

    /// Adds all causes of another set.
    pub fn extend(&mut self, other: &Self) {
        for cause in other.iter() {
            self.add(cause);
        }
        self.more = self.more.saturating_add(other.more);
    }

    /// Drops kept causes that are not wanted.
    pub fn retain(&mut self, mut wanted: impl FnMut(&Receipt) -> bool) {
        let kept = std::mem::replace(&mut self.kept, Self::NONE.kept);
        for cause in kept.into_iter().filter_map(Mark::get).filter(|cause| wanted(cause)) {
            self.add(cause);
        }
    }

    /// The causes that were kept, the first one first.
    pub fn iter(&self) -> impl Iterator<Item = Receipt> + '_ {
        self.kept.iter().map_while(|kept| kept.get())
    }

    /// How many there were besides those kept.
    #[must_use]
    pub const fn more(&self) -> u32 {
        self.more
    }

    /// The cause, or the lack of one, if there are not several.
    pub(crate) const fn only(&self) -> Option<Mark> {
        if self.kept[1].is_none() && self.more == 0 { Some(self.kept[0]) } else { None }
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.kept[0].is_none()
    }
}

impl Default for Causes {
    fn default() -> Self {
        Self::NONE
    }
}

impl fmt::Debug for Causes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|c| c.to_string())).finish()?;
        if self.more > 0 { write!(f, "+{}", self.more) } else { Ok(()) }
    }
}
