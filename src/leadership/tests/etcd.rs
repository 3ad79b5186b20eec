//! An etcd as far as leadership needs it: leases, keys, revisions, and its faults as they were measured.

use std::collections::BTreeMap;

use super::random::Random;
use crate::id::ShardId;
use crate::leadership::{Change, Holder, LeaseId, List, Note};

/// Milliseconds.
pub(super) type Millis = u64;

pub(super) const TTL: Millis = 10_000;

/// A lease, as the leader of etcd sees it.
#[derive(Clone, Copy)]
struct Granted {
    until: Millis,
}

#[derive(Default)]
pub(super) struct Etcd {
    pub(super) revision: u64,
    pub(super) raft_term: u64,
    next_lease: i64,
    leases: BTreeMap<LeaseId, Granted>,
    pub(super) leaders: BTreeMap<ShardId, Holder>,
    pub(super) notes: BTreeMap<ShardId, Note>,
    beats: BTreeMap<LeaseId, u64>,
    /// Changes that nobody was told of yet.
    pub(super) changes: Vec<(u64, Change)>,
    /// What a leader that was frozen knows of the leases.
    old: Option<BTreeMap<LeaseId, Granted>>,
    /// Until when nobody leads the cluster.
    pub(super) leaderless_until: Millis,
    /// A note says that its term has stopped when it has only begun: a planted fault.
    pub(super) notes_lie: bool,
}

impl Etcd {
    pub(super) fn grant(&mut self, now: Millis) -> LeaseId {
        self.next_lease += 1;
        let id = LeaseId(self.next_lease);
        self.leases.insert(id, Granted { until: now + TTL });
        id
    }

    /// Renews a lease that is there.
    pub(super) fn renew(&mut self, now: Millis, lease: LeaseId) -> bool {
        self.leases.get_mut(&lease).map(|granted| granted.until = now + TTL).is_some()
    }

    pub(super) fn lives(&self, lease: LeaseId) -> bool {
        self.leases.contains_key(&lease)
    }

    fn write(&mut self, changes: impl IntoIterator<Item = Change>) -> u64 {
        self.revision += 1;
        self.changes.extend(changes.into_iter().map(|change| (self.revision, change)));
        self.revision
    }

    pub(super) fn beat(&mut self, lease: LeaseId) {
        let revision = self.write([Change::Beat(lease)]);
        self.beats.insert(lease, revision);
    }

    /// Creates a leader key, if it is absent and the note is the expected one.
    pub(super) fn take(&mut self, shard: ShardId, lease: LeaseId, note: u64) -> Option<u64> {
        let written = self.notes.get(&shard).map_or(0, |note| note.written);
        if self.leaders.contains_key(&shard) || written != note || !self.lives(lease) {
            return None;
        }
        let revision = self.revision + 1;
        let holder = Holder { revision, lease };
        let ttl = Some(std::time::Duration::from_millis(TTL));
        let note = Note { written: revision, lease, ttl, stopped: self.notes_lie };
        self.write([Change::Note(shard, note), Change::Leader(shard, holder), Change::Beat(lease)]);
        self.leaders.insert(shard, holder);
        self.notes.insert(shard, note);
        self.beats.insert(lease, revision);
        Some(revision)
    }

    /// Deletes the leader key of a term and notes that it has stopped, if nobody came after it.
    pub(super) fn give(&mut self, shard: ShardId, term: u64) -> Option<u64> {
        let stands = self.leaders.get(&shard).is_some_and(|holder| holder.revision == term);
        let note = self.notes.get(&shard).copied().filter(|note| stands || note.written == term)?;
        let note = Note { written: self.revision + 1, stopped: true, ..note };
        let deleted = stands.then_some(Change::LeaderGone(shard));
        self.write([Change::Note(shard, note)].into_iter().chain(deleted));
        self.notes.insert(shard, note);
        if stands {
            self.leaders.remove(&shard);
        }
        Some(self.revision)
    }

    pub(super) fn delete(&mut self, shard: ShardId) -> bool {
        let deleted = self.leaders.remove(&shard).is_some();
        if deleted {
            self.write([Change::LeaderGone(shard)]);
        }
        deleted
    }

    pub(super) fn revoke(&mut self, lease: LeaseId) {
        if self.leases.remove(&lease).is_none() {
            return;
        }
        let of_lease = |(shard, holder): (&ShardId, &Holder)| (holder.lease == lease).then_some(*shard);
        let shards: Vec<ShardId> = self.leaders.iter().filter_map(of_lease).collect();
        let beat = self.beats.remove(&lease).map(|_| Change::BeatGone(lease));
        let mut changes: Vec<Change> = beat.into_iter().collect();
        for shard in shards {
            self.leaders.remove(&shard);
            changes.push(Change::LeaderGone(shard));
        }
        self.write(changes);
    }

    /// Leases that have run out; some are dropped later than others.
    pub(super) fn expire(&mut self, now: Millis, random: &mut Random) {
        if now < self.leaderless_until {
            return;
        }
        let late = |random: &mut Random| random.range(0, 500);
        let due: Vec<LeaseId> =
            self.leases.iter().filter(|(_, lease)| lease.until + late(random) < now).map(|(id, _)| *id).collect();
        due.into_iter().for_each(|id| self.revoke(id));
    }

    /// Another leader: every lease lives as long again.
    pub(super) fn change_leader(&mut self, now: Millis, random: &mut Random) {
        self.leaderless_until = now + random.range(1_000, 2_000);
        self.raft_term += 1;
        for lease in self.leases.values_mut() {
            lease.until = self.leaderless_until + TTL;
        }
    }

    /// The leader stands still, and another takes its place.
    pub(super) fn freeze_leader(&mut self, now: Millis, random: &mut Random) {
        self.old = Some(self.leases.clone());
        self.change_leader(now, random);
    }

    pub(super) fn has_frozen_member(&self) -> bool {
        self.old.is_some()
    }

    /// The leader of old wakes up and may revoke what has run out by its own clock; gives how many leases lived.
    pub(super) fn wake(&mut self, now: Millis, random: &mut Random) -> u64 {
        let Some(old) = self.old.take() else { return 0 };
        let due = old.into_iter().filter(|(_, lease)| lease.until < now).map(|(id, _)| id);
        let due: Vec<LeaseId> = due.filter(|id| self.lives(*id) && random.chance(60)).collect();
        due.iter().for_each(|id| self.revoke(*id));
        due.len() as u64
    }

    pub(super) fn list(&self) -> List {
        List {
            revision: self.revision,
            leaders: self.leaders.iter().map(|(shard, holder)| (*shard, *holder)).collect(),
            notes: self.notes.iter().map(|(shard, note)| (*shard, *note)).collect(),
            beats: self.beats.iter().map(|(lease, revision)| (*lease, *revision)).collect(),
        }
    }
}
