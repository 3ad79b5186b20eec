//! One process among those that lead: what it holds, what it may do, and what it has to do next (L1, L3, L9).
//!
//! A value that is given the time and what etcd said, and answers with commands; whoever drives it sends them and
//! brings the answers, and calls [`Member::handle_time`] once it has brought what there was: that alone looks at all
//! shards, the others at the one that they are about. Every handler looks at the clock first, so that an answer that
//! comes after the deadline, as after a freeze, revives nothing. Must never let two processes act for one shard at a
//! time: tested in `tests`, in a world with the faults of etcd that were measured.

use std::collections::BTreeMap;
use std::time::Duration;

use super::beats::Beats;
use super::lease::{Beat, Keepalive, Lease, LeaseId, Need};
use super::moment::Moment;
use super::seat::{Holder, Listed, Note, Own, Seat};
use super::timing::{CUT_OFF, CUT_OFF_LATE, GRANT_RETRY, RETRY, TAKES_MAX, stop_before};
use crate::id::ShardId;

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Ask for a lease; answered by [`Member::granted`].
    Grant,
    /// Send a keepalive; answered by [`Member::kept`].
    Keep(LeaseId),
    /// Write a beat, if all these leader keys stand with these create revisions; answered by [`Member::beaten`], or
    /// by [`Member::deleted`] for those that do not and another try.
    Beat(LeaseId, Vec<(ShardId, u64)>),
    /// Create a leader key and its note, and write a beat, if the key is absent and the note was last written at this
    /// revision (0 for none); answered by [`Member::taken`].
    Take(ShardId, LeaseId, u64),
    /// Delete the leader key of this term and note that it has stopped, as far as nobody came after it; answered by
    /// [`Member::given`].
    Give(ShardId, u64),
    /// The engine leads this shard from now on, in this term.
    Lead(ShardId, u64),
    /// Nothing may start any more, and runs are told to stop.
    Ending(ShardId),
    /// Nothing may be done any more; what runs is cut off.
    Ended(ShardId, Why),
    /// What runs should have ended by now: end the process.
    Overrun(ShardId),
}

/// Why a term has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// No renewal was confirmed in time.
    Deadline,
    /// The leader key was deleted or overwritten.
    KeyGone,
    /// The lease ran out or was revoked.
    LeaseGone,
    /// etcd was restored from a backup.
    Restored,
}

/// What came of [`Command::Take`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// Created at this revision.
    Done(u64),
    /// It stands, or the note was written by somebody else; this is who holds it, if anybody, at this revision.
    Refused(Option<Holder>, u64),
    /// No answer, or an error: it may be created or not.
    Failed,
}

/// What came of [`Command::Give`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Given {
    /// At this revision the key was gone and the note said that the term has stopped.
    Done(u64),
    /// Somebody came after it; nothing was left to write.
    Late,
    /// No answer, or an error.
    Failed,
}

/// A change of the keys, as the watch tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// A leader key was written.
    Leader(ShardId, Holder),
    /// A leader key was deleted.
    LeaderGone(ShardId),
    /// A note was written.
    Note(ShardId, Note),
    /// A note was deleted.
    NoteGone(ShardId),
    /// A beat was written.
    Beat(LeaseId),
    /// A beat was deleted.
    BeatGone(LeaseId),
}

/// All keys at one revision.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct List {
    /// The revision.
    pub revision: u64,
    /// The leader keys.
    pub leaders: Vec<(ShardId, Holder)>,
    /// The notes.
    pub notes: Vec<(ShardId, Note)>,
    /// The beats, and the revisions at which they were written.
    pub beats: Vec<(LeaseId, u64)>,
}

/// One process among those that lead.
#[derive(Debug, Clone)]
pub struct Member {
    /// What is asked for; the server may grant more.
    ttl: Duration,
    lease: Option<Lease>,
    grant: Grant,
    seats: BTreeMap<ShardId, Seat>,
    beats: Beats,
    /// The terms that the beat under way looks at.
    beaten: Vec<(ShardId, u64)>,
    /// Whether the watch is up to date.
    sighted: bool,
    /// The newest revision of a list.
    revision: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Grant {
    /// None is needed before then.
    At(Moment),
    Asked(Moment),
}

impl Member {
    /// A process that wants a lease of this time to live.
    #[must_use]
    pub fn new(shards: u16, ttl: Duration) -> Self {
        Self {
            ttl,
            lease: None,
            grant: Grant::At(Moment::default()),
            seats: (0..shards).map(|shard| (ShardId(shard), Seat::new())).collect(),
            beats: Beats::default(),
            beaten: Vec::new(),
            sighted: false,
            revision: 0,
        }
    }

    /// Time has passed.
    pub fn handle_time(&mut self, now: Moment, out: &mut Vec<Command>) {
        self.tend_lease(now, out);
        let standing = Standing::of(self.lease.as_ref(), self.sighted, now);
        let taking = self.seats.values().filter(|seat| seat.own == Own::Taking).count();
        let mut room = TAKES_MAX.saturating_sub(taking);
        for (shard, seat) in &mut self.seats {
            tend(*shard, seat, standing, &mut room, out);
        }
    }

    /// When [`handle_time`](Self::handle_time) has something to do after now; `None` while only answers are awaited.
    #[must_use]
    pub fn next_time(&self, now: Moment) -> Option<Moment> {
        let of_grant = match self.grant {
            Grant::At(at) if self.lease.is_none() => Some(at),
            _ => None,
        };
        let lease = self.lease.as_ref();
        let of_seats = self.seats.values().filter_map(|seat| match seat.own {
            // One that is free and not taken waits for the lease or the watch, which say when they come.
            Own::Nothing if seat.wanted => seat.free_from().filter(|from| *from > now),
            Own::Nothing | Own::Taking | Own::Giving { busy: true, .. } => None,
            Own::Held { ending: false, .. } => lease.map(|lease| ending(seat, lease)),
            Own::Held { ending: true, .. } => Some(seat.until),
            Own::Over { cut_off, .. } => cut_off,
            Own::Giving { busy: false, .. } => Some(seat.retry_at),
        });
        of_seats.chain(of_grant).chain(lease.and_then(Lease::next_time)).min()
    }

    /// The engine wants to lead a shard.
    pub fn want(&mut self, now: Moment, shard: ShardId, out: &mut Vec<Command>) {
        self.change(now, shard, out, |seat| seat.wanted = true);
    }

    /// It does not want to any more, before it came to lead.
    pub fn unwant(&mut self, now: Moment, shard: ShardId, out: &mut Vec<Command>) {
        self.change(now, shard, out, |seat| seat.wanted = false);
    }

    /// The engine gives a term back: its last run has ended, and what is owed is written.
    pub fn release(&mut self, now: Moment, shard: ShardId, term: u64, out: &mut Vec<Command>) {
        self.change(now, shard, out, |seat| {
            if let Own::Held { revision, .. } | Own::Over { revision, .. } = seat.own
                && revision == term
            {
                seat.own = Own::Giving { revision, busy: false };
                seat.retry_at = now;
            }
        });
    }

    /// [`Command::Grant`] was answered; `None` for an error or no answer.
    pub fn granted(&mut self, now: Moment, granted: Option<(LeaseId, Duration)>, out: &mut Vec<Command>) {
        if let Grant::Asked(sent) = self.grant {
            self.lease = granted.map(|(id, ttl)| Lease::new(id, ttl, sent));
            self.grant = Grant::At(now.after(GRANT_RETRY));
        }
        self.handle_time(now, out);
    }

    /// [`Command::Keep`] was answered.
    pub fn kept(&mut self, now: Moment, lease: LeaseId, answer: Keepalive, out: &mut Vec<Command>) {
        // The deadline may have passed before the answer came; then it revives nothing.
        self.handle_time(now, out);
        let Some(lease) = self.lease.as_mut().filter(|held| held.id == lease) else { return };
        if lease.kept(now, answer) {
            self.lease_is_gone(now, out);
        }
        self.handle_time(now, out);
    }

    /// [`Command::Beat`] was answered.
    pub fn beaten(&mut self, now: Moment, lease: LeaseId, answer: Beat, out: &mut Vec<Command>) {
        self.handle_time(now, out);
        let Some(lease) = self.lease.as_mut().filter(|held| held.id == lease) else { return };
        if lease.beaten(now, answer) {
            self.lease_is_gone(now, out);
        } else if matches!(answer, Beat::Written { .. }) {
            // What is proved is proved for the keys that the beat saw, and no others: one that was taken meanwhile may
            // be gone again.
            let deadline = lease.deadline();
            for (shard, revision) in std::mem::take(&mut self.beaten) {
                if let Some(seat) = self.seats.get_mut(&shard).filter(|seat| seat.held() == Some(revision)) {
                    seat.until = seat.until.max(deadline);
                }
            }
        }
        self.handle_time(now, out);
    }

    /// Own leader keys are gone, or not what they were.
    pub fn deleted(&mut self, now: Moment, terms: &[(ShardId, u64)], out: &mut Vec<Command>) {
        self.handle_time(now, out);
        for (shard, revision) in terms {
            if let Some(seat) = self.seats.get_mut(shard).filter(|seat| seat.held() == Some(*revision)) {
                lose(*shard, seat, now, Why::KeyGone, out);
            }
        }
        self.handle_time(now, out);
    }

    /// [`Command::Take`] was answered.
    pub fn taken(&mut self, now: Moment, shard: ShardId, lease: LeaseId, answer: Taken, out: &mut Vec<Command>) {
        let ttl = self.lease.as_ref().map(Lease::ttl);
        self.change(now, shard, out, |seat| {
            if seat.own == Own::Taking {
                seat.own = Own::Nothing;
            }
            match answer {
                // Now it stands on this process's lease, and is led or given back like any that is found so.
                Taken::Done(revision) => {
                    seat.taken(revision, Holder { revision, lease });
                    seat.noted(Note { written: revision, lease, ttl, stopped: false });
                }
                Taken::Refused(holder, at) => {
                    if let Some(holder) = holder {
                        seat.taken(at, holder);
                    }
                    seat.retry_at = now.after(RETRY);
                }
                Taken::Failed => seat.retry_at = now.after(RETRY),
            }
        });
    }

    /// [`Command::Give`] was answered.
    pub fn given(&mut self, now: Moment, shard: ShardId, answer: Given, out: &mut Vec<Command>) {
        let ttl = self.ttl;
        self.change(now, shard, out, |seat| {
            let Own::Giving { revision, .. } = seat.own else { return };
            let is_own = seat.holder.is_some_and(|holder| holder.revision == revision);
            seat.own = Own::Nothing;
            match answer {
                Given::Done(at) => {
                    if is_own {
                        seat.freed(now, at, None, ttl);
                    }
                    if let Some(note) = seat.note.filter(|note| note.written == revision) {
                        seat.noted(Note { written: at, stopped: true, ..note });
                    }
                }
                // The watch will tell who; until then the note's revision keeps this process from taking it.
                Given::Late if is_own => seat.holder = None,
                Given::Late => {}
                Given::Failed => {
                    seat.own = Own::Giving { revision, busy: false };
                    seat.retry_at = now.after(RETRY);
                }
            }
        });
    }

    /// All keys were read, after the watch had begun.
    pub fn listed(&mut self, now: Moment, list: &List, out: &mut Vec<Command>) {
        self.handle_time(now, out);
        if list.revision < self.revision {
            self.restored(now, out);
        }
        self.revision = list.revision;
        for (lease, written) in &list.beats {
            self.beats.heard(now, *lease, *written);
        }
        let mut told: BTreeMap<ShardId, Listed> = BTreeMap::new();
        for (shard, holder) in &list.leaders {
            told.entry(*shard).or_default().holder = Some(*holder);
        }
        for (shard, note) in &list.notes {
            told.entry(*shard).or_default().note = Some(*note);
        }
        for (shard, seat) in &mut self.seats {
            seat.listed(now, list.revision, told.remove(shard).unwrap_or_default(), self.ttl);
        }
        self.sighted = true;
        self.handle_time(now, out);
    }

    /// The watch told a change, in the order of revisions.
    pub fn saw(&mut self, now: Moment, at: u64, change: Change, out: &mut Vec<Command>) {
        match change {
            Change::Leader(shard, holder) => self.change(now, shard, out, |seat| seat.taken(at, holder)),
            Change::LeaderGone(shard) => {
                let predecessor = self.seats.get(&shard).and_then(Seat::predecessor);
                let (last, ttl) = (predecessor.and_then(|lease| self.beats.last(lease)), self.ttl);
                self.change(now, shard, out, |seat| seat.freed(now, at, last, ttl));
            }
            Change::Note(shard, note) => self.change(now, shard, out, |seat| seat.noted(note)),
            Change::NoteGone(shard) => self.change(now, shard, out, |seat| seat.unnoted(at)),
            Change::Beat(lease) => self.beats.heard(now, lease, at),
            Change::BeatGone(lease) => {
                self.beats.deleted(lease);
                let seats = &self.seats;
                let needed = |lease| seats.values().any(|seat| seat.note.is_some_and(|note| note.lease == lease));
                self.beats.forget(needed);
            }
        }
    }

    /// The watch is not up to date any more: nothing is taken until it is.
    pub fn blind(&mut self) {
        self.sighted = false;
    }

    /// Who holds a shard's leader key, as far as this process knows.
    #[must_use]
    pub fn holder(&self, shard: ShardId) -> Option<Holder> {
        self.seats.get(&shard).and_then(|seat| seat.holder)
    }

    /// The terms that this process leads, each with the moment from which on nothing may be done in it.
    pub fn held(&self) -> impl Iterator<Item = (ShardId, u64, Moment)> + '_ {
        self.seats.iter().filter_map(|(shard, seat)| Some((*shard, seat.held()?, seat.until)))
    }

    /// The lease, if nothing hangs on it that is not given back: it can be revoked at the end of the process.
    #[must_use]
    pub fn idle_lease(&self) -> Option<LeaseId> {
        let idle = self.seats.values().all(|seat| seat.own == Own::Nothing);
        self.lease.as_ref().filter(|_| idle).map(|lease| lease.id)
    }

    fn change(&mut self, now: Moment, shard: ShardId, out: &mut Vec<Command>, change: impl FnOnce(&mut Seat)) {
        let standing = Standing::of(self.lease.as_ref(), self.sighted, now);
        if let Some(seat) = self.seats.get_mut(&shard) {
            // Keys are taken when time is looked at, so many at a time.
            tend(shard, seat, standing, &mut 0, out);
            change(seat);
            tend(shard, seat, standing, &mut 0, out);
        }
    }

    fn lease_is_gone(&mut self, now: Moment, out: &mut Vec<Command>) {
        for (shard, seat) in &mut self.seats {
            lose(*shard, seat, now, Why::LeaseGone, out);
        }
        self.lease = None;
        self.grant = Grant::At(now);
    }

    fn restored(&mut self, now: Moment, out: &mut Vec<Command>) {
        for (shard, seat) in &mut self.seats {
            lose(*shard, seat, now, Why::Restored, out);
            seat.forget();
        }
    }

    fn tend_lease(&mut self, now: Moment, out: &mut Vec<Command>) {
        match (&mut self.lease, self.grant) {
            (None, Grant::At(at)) if at <= now => {
                self.grant = Grant::Asked(now);
                out.push(Command::Grant);
            }
            (None, _) => {}
            (Some(lease), _) => match lease.poll(now) {
                None => {}
                Some(Need::Keepalive) => out.push(Command::Keep(lease.id)),
                Some(Need::Beat) => {
                    let id = lease.id;
                    self.beaten = self.held().map(|(shard, revision, _)| (shard, revision)).collect();
                    out.push(Command::Beat(id, self.beaten.clone()));
                }
            },
        }
    }
}

/// What the lease and the watch allow at a moment.
#[derive(Clone, Copy)]
struct Standing<'a> {
    now: Moment,
    lease: Option<&'a Lease>,
    /// Whether something new may start.
    may_start: bool,
    /// Whether what is known of the keys is up to date.
    sighted: bool,
}

impl<'a> Standing<'a> {
    fn of(lease: Option<&'a Lease>, sighted: bool, now: Moment) -> Self {
        Self { now, lease, may_start: lease.is_some_and(|lease| now < lease.ending()), sighted }
    }
}

/// Does for one shard what has come due.
fn tend(shard: ShardId, seat: &mut Seat, standing: Standing<'_>, room: &mut usize, out: &mut Vec<Command>) {
    let now = standing.now;
    match seat.own {
        Own::Nothing => take(shard, seat, standing, room, out),
        Own::Held { revision, ending: is_ending } => {
            let Some(lease) = standing.lease else { return };
            let stands = seat.holder.is_some_and(|holder| holder.revision == revision && holder.lease == lease.id);
            if !stands {
                lose(shard, seat, now, Why::KeyGone, out);
            } else if now >= seat.until {
                lose(shard, seat, now, Why::Deadline, out);
            } else if !is_ending && now >= ending(seat, lease) {
                seat.own = Own::Held { revision, ending: true };
                out.push(Command::Ending(shard));
            }
        }
        Own::Over { revision, cut_off: Some(at) } if at <= now => {
            seat.own = Own::Over { revision, cut_off: None };
            out.push(Command::Overrun(shard));
        }
        Own::Giving { revision, busy: false } if seat.retry_at <= now => {
            seat.own = Own::Giving { revision, busy: true };
            out.push(Command::Give(shard, revision));
        }
        Own::Taking | Own::Over { .. } | Own::Giving { .. } => {}
    }
}

/// Leads a key that stands on this process's lease, or takes one that is free, if there is room for another request.
fn take(shard: ShardId, seat: &mut Seat, standing: Standing<'_>, room: &mut usize, out: &mut Vec<Command>) {
    let Some(lease) = standing.lease else { return };
    if let Some(holder) = seat.holder.filter(|holder| holder.lease == lease.id) {
        let revision = holder.revision;
        if seat.wanted && standing.now < ending(seat, lease) {
            seat.wanted = false;
            seat.own = Own::Held { revision, ending: false };
            out.push(Command::Lead(shard, revision));
        } else {
            seat.own = Own::Giving { revision, busy: true };
            out.push(Command::Give(shard, revision));
        }
        return;
    }
    let is_free = seat.free_from().is_some_and(|from| from <= standing.now);
    if seat.wanted && standing.may_start && standing.sighted && is_free && *room > 0 {
        *room -= 1;
        seat.own = Own::Taking;
        seat.until = lease.deadline();
        out.push(Command::Take(shard, lease.id, seat.note.map_or(0, |note| note.written)));
    }
}

/// When nothing may start any more in a term.
fn ending(seat: &Seat, lease: &Lease) -> Moment {
    seat.until.before(stop_before(lease.ttl()))
}

/// A term has ended; what still runs of it must end by the moment at which another may act.
fn lose(shard: ShardId, seat: &mut Seat, now: Moment, why: Why, out: &mut Vec<Command>) {
    let Own::Held { revision, .. } = seat.own else { return };
    let in_time = Some(seat.until.after(CUT_OFF)).filter(|until| now < *until);
    let cut_off = in_time.unwrap_or_else(|| now.after(CUT_OFF_LATE));
    seat.own = Own::Over { revision, cut_off: Some(cut_off) };
    out.push(Command::Ended(shard, why));
}
