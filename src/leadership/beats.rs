//! When beats of other processes were received: so long after the last one a predecessor may still act (L9).

use std::collections::BTreeMap;

use super::lease::LeaseId;
use super::moment::Moment;

/// The beats that stand in etcd, and those that were needed last.
#[derive(Debug, Clone, Default)]
pub(super) struct Beats {
    received: BTreeMap<LeaseId, Received>,
}

#[derive(Debug, Clone, Copy)]
struct Received {
    /// At which revision it was written.
    revision: u64,
    /// When it was received here, which is later than it was written.
    at: Moment,
    /// Its key was deleted.
    gone: bool,
}

impl Beats {
    /// A beat was seen, by the watch or in a list; the same one counts once.
    pub(super) fn heard(&mut self, now: Moment, lease: LeaseId, revision: u64) {
        let fresh = self.received.get(&lease).is_none_or(|received| received.revision < revision);
        if fresh {
            self.received.insert(lease, Received { revision, at: now, gone: false });
        }
    }

    /// The key of a beat was deleted; when the last one was received stays known for who needs it.
    pub(super) fn deleted(&mut self, lease: LeaseId) {
        if let Some(received) = self.received.get_mut(&lease) {
            received.gone = true;
        }
    }

    /// When the last beat of a process was received.
    pub(super) fn last(&self, lease: LeaseId) -> Option<Moment> {
        self.received.get(&lease).map(|received| received.at)
    }

    /// Forgets the beats that are gone and that nobody needs.
    pub(super) fn forget(&mut self, needed: impl Fn(LeaseId) -> bool) {
        self.received.retain(|lease, received| !received.gone || needed(*lease));
    }
}
