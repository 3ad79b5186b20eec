//! One shard as one process knows it: who holds its leader key, whether it is free, and what this process has of it.
//!
//! What etcd says comes by three ways, the watch, a list and the answers to own requests, and not in order: every fact
//! carries the revision at which it became true, and an older one is no news. Tested in `tests`.

use std::time::Duration;

use super::lease::LeaseId;
use super::moment::Moment;
use super::timing::takeover_wait;

/// Who holds a leader key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// The create revision of the key: the term.
    pub revision: u64,
    /// The lease that it hangs on; 0 where another program wrote the key.
    pub lease: LeaseId,
}

/// The last term of a shard, as its note says; it outlives the leader key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Note {
    /// At which revision the note was written.
    pub written: u64,
    /// The lease of that term's leader.
    pub lease: LeaseId,
    /// Its time to live; `None` where the note cannot be read.
    pub ttl: Option<Duration>,
    /// Whether the leader said that its last run has stopped.
    pub stopped: bool,
}

/// What this process has of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Own {
    /// Nothing.
    Nothing,
    /// The leader key is being created.
    Taking,
    /// It leads.
    Held {
        revision: u64,
        /// Whether it was told that it ends.
        ending: bool,
    },
    /// It has lost the shard, and its runs may not have ended yet.
    Over {
        revision: u64,
        /// When they must have ended; `None` once that was said.
        cut_off: Option<Moment>,
    },
    /// All has ended, and that is being written down.
    Giving { revision: u64, busy: bool },
}

#[derive(Debug, Clone)]
pub(super) struct Seat {
    /// Whether the engine waits for it.
    pub(super) wanted: bool,
    pub(super) own: Own,
    pub(super) holder: Option<Holder>,
    pub(super) note: Option<Note>,
    /// The revision of the newest news about the leader key.
    seen: u64,
    /// Where nobody holds it: a predecessor that has not said that it stopped may act until then.
    pub(super) free_at: Moment,
    /// Until when what this process has is proved to be its own: by a beat that saw the key, or, for one just taken, by
    /// the lease as it was when that was asked for.
    pub(super) until: Moment,
    /// What failed is not tried again before.
    pub(super) retry_at: Moment,
    /// Whether a list has told of it.
    listed: bool,
}

/// What a list says of one shard.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Listed {
    pub(super) holder: Option<Holder>,
    pub(super) note: Option<Note>,
}

impl Seat {
    pub(super) const fn new() -> Self {
        Self {
            wanted: false,
            own: Own::Nothing,
            holder: None,
            note: None,
            seen: 0,
            free_at: Moment(Duration::ZERO),
            until: Moment(Duration::ZERO),
            retry_at: Moment(Duration::ZERO),
            listed: false,
        }
    }

    /// The leader key was created or written at this revision.
    pub(super) fn taken(&mut self, at: u64, holder: Holder) {
        if at > self.seen {
            self.seen = at;
            self.holder = Some(holder);
        }
    }

    /// The lease of the last leader, as far as is known.
    pub(super) fn predecessor(&self) -> Option<LeaseId> {
        self.note.map(|note| note.lease).or(self.holder.map(|holder| holder.lease))
    }

    /// The leader key was deleted at this revision; the last beat of its leader was received at that moment. `ttl` is
    /// for a leader of whom nothing is known.
    pub(super) fn freed(&mut self, now: Moment, at: u64, last_beat: Option<Moment>, ttl: Duration) {
        if at > self.seen {
            self.seen = at;
            self.free_at = last_beat.unwrap_or(now).after(self.wait(ttl));
            self.holder = None;
        }
    }

    fn wait(&self, ttl: Duration) -> Duration {
        takeover_wait(self.note.and_then(|note| note.ttl).unwrap_or(ttl))
    }

    /// The note of the last term was written.
    pub(super) fn noted(&mut self, note: Note) {
        if self.note.is_none_or(|known| known.written < note.written) {
            self.note = Some(note);
        }
    }

    /// The note was deleted, by hand.
    pub(super) fn unnoted(&mut self, at: u64) {
        self.note = self.note.filter(|note| note.written > at);
    }

    /// A whole list was read at this revision: what it does not have is not there.
    pub(super) fn listed(&mut self, now: Moment, at: u64, told: Listed, ttl: Duration) {
        if at < self.seen {
            return;
        }
        let another_term = self.note.map(|note| note.written) != told.note.map(|note| note.written);
        let is_news = !self.listed || self.holder.is_some() || another_term;
        self.note = told.note;
        (self.listed, self.seen) = (true, at);
        if told.holder.is_none() && is_news {
            // Its deletion was not seen, and beats before it may not have been.
            let never_led = self.holder.is_none() && told.note.is_none();
            self.free_at = if never_led { now } else { now.after(self.wait(ttl)) };
        }
        self.holder = told.holder;
    }

    /// All that was known is worth nothing: etcd was restored from a backup.
    pub(super) const fn forget(&mut self) {
        (self.holder, self.note, self.seen, self.listed) = (None, None, 0, false);
    }

    /// From when on the leader key may be taken; `None` while somebody holds it.
    pub(super) fn free_from(&self) -> Option<Moment> {
        match (self.holder, self.note) {
            (Some(_), _) => None,
            (None, Some(note)) if note.stopped => Some(self.retry_at),
            (None, _) => Some(self.free_at.max(self.retry_at)),
        }
    }

    /// The term that this process leads.
    pub(super) const fn held(&self) -> Option<u64> {
        match self.own {
            Own::Held { revision, .. } => Some(revision),
            _ => None,
        }
    }
}
