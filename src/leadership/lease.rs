//! The lease of one process: when it must be renewed, and until when it surely holds (L3).
//!
//! Must never move the deadline for an answer that a beat has not confirmed: a member of etcd that was frozen answers
//! keepalives that renewed nothing. Tested below, and with all around it in `tests`.

use std::time::Duration;

use super::moment::Moment;
use super::timing::{AGAIN, MARGIN, renew_every, stop_before};

/// A lease's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub i64);

/// What came of a keepalive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keepalive {
    /// The server says that the lease lives, for so long from now, and in which term of its own it said so.
    Alive {
        /// The time to live.
        ttl: Duration,
        /// The term of etcd's own leader, as the answering member knows it.
        raft_term: u64,
    },
    /// The lease is no more.
    Gone,
    /// No answer.
    Failed,
}

/// What came of the beat after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beat {
    /// It was written, and every own key stood then.
    Written {
        /// The term of etcd's own leader.
        raft_term: u64,
    },
    /// The lease is no more.
    Gone,
    /// No answer.
    Failed,
}

/// What the lease needs now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    Keepalive,
    Beat,
}

/// A lease that was granted.
#[derive(Debug, Clone)]
pub(super) struct Lease {
    pub(super) id: LeaseId,
    ttl: Duration,
    /// When the last confirmed keepalive was sent, plus what it gave.
    valid_until: Moment,
    round: Round,
}

/// How far the renewal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Round {
    /// Nothing is under way; the next keepalive goes out then.
    Rest { until: Moment },
    /// A keepalive is under way.
    Asked { sent: Moment },
    /// It was answered; the beat is under way, or goes out then.
    Answered { sent: Moment, ttl: Duration, raft_term: u64, beat: Option<Moment> },
}

impl Lease {
    /// A lease that was asked for at this moment.
    pub(super) fn new(id: LeaseId, ttl: Duration, sent: Moment) -> Self {
        let round = Round::Rest { until: sent.after(renew_every(ttl)) };
        Self { id, ttl, valid_until: sent.after(ttl), round }
    }

    pub(super) const fn ttl(&self) -> Duration {
        self.ttl
    }

    /// From then on nothing may be done by it.
    pub(super) const fn deadline(&self) -> Moment {
        self.valid_until.before(MARGIN)
    }

    /// From then on nothing may be started by it.
    pub(super) fn ending(&self) -> Moment {
        self.deadline().before(stop_before(self.ttl))
    }

    /// When it needs something, unless an answer is awaited.
    pub(super) fn next_time(&self) -> Option<Moment> {
        match self.round {
            Round::Rest { until } => Some(until),
            Round::Asked { .. } => None,
            Round::Answered { beat, .. } => beat,
        }
    }

    /// What it needs, if it is time for it.
    pub(super) fn poll(&mut self, now: Moment) -> Option<Need> {
        match &mut self.round {
            Round::Rest { until } if *until <= now => {
                self.round = Round::Asked { sent: now };
                Some(Need::Keepalive)
            }
            Round::Answered { beat, .. } if beat.is_some_and(|at| at <= now) => {
                *beat = None;
                Some(Need::Beat)
            }
            _ => None,
        }
    }

    /// A keepalive was answered; gives whether the lease is gone.
    pub(super) fn kept(&mut self, now: Moment, answer: Keepalive) -> bool {
        let Round::Asked { sent } = self.round else { return false };
        self.round = match answer {
            Keepalive::Alive { ttl, .. } if ttl.is_zero() => return true,
            Keepalive::Gone => return true,
            Keepalive::Alive { ttl, raft_term } => {
                Round::Answered { sent, ttl: ttl.min(self.ttl), raft_term, beat: Some(now) }
            }
            Keepalive::Failed => Round::Rest { until: now.after(AGAIN) },
        };
        false
    }

    /// A beat was answered; gives whether the lease is gone.
    pub(super) fn beaten(&mut self, now: Moment, answer: Beat) -> bool {
        let Round::Answered { sent, ttl, raft_term, beat: None } = self.round else { return false };
        self.round = match answer {
            Beat::Gone => return true,
            Beat::Written { raft_term: term } if term == raft_term => {
                // A later moment stands where the time to live was cut and given back.
                self.valid_until = self.valid_until.max(sent.after(ttl));
                Round::Rest { until: sent.after(renew_every(self.ttl)) }
            }
            // Between the two etcd had another leader, or the answering member did not know of it: the keepalive proves
            // nothing.
            Beat::Written { .. } => Round::Rest { until: now },
            // No refusal: a later beat confirms too, while the keepalive is worth it.
            Beat::Failed if now.since(sent) < renew_every(self.ttl) => {
                Round::Answered { sent, ttl, raft_term, beat: Some(now.after(AGAIN)) }
            }
            Beat::Failed => Round::Rest { until: now },
        };
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    fn at(millis: u64) -> Moment {
        Moment(Duration::from_millis(millis))
    }

    fn lease() -> Lease {
        Lease::new(LeaseId(1), TTL, at(0))
    }

    fn alive(raft_term: u64) -> Keepalive {
        Keepalive::Alive { ttl: TTL, raft_term }
    }

    #[test]
    fn l3_the_deadline_counts_from_the_sending_and_only_a_beat_moves_it() {
        let mut lease = lease();
        assert_eq!((lease.deadline(), lease.ending()), (at(9_500), at(7_500)));
        assert_eq!((lease.poll(at(1_999)), lease.next_time()), (None, Some(at(2_000))));
        assert_eq!(lease.poll(at(2_000)), Some(Need::Keepalive));
        assert_eq!(lease.poll(at(2_500)), None, "one at a time");
        assert!(!lease.kept(at(2_900), alive(7)));
        assert_eq!(lease.deadline(), at(9_500), "an answer alone proves nothing");
        assert_eq!(lease.poll(at(2_900)), Some(Need::Beat));
        assert!(!lease.beaten(at(3_300), Beat::Written { raft_term: 7 }));
        assert_eq!(lease.deadline(), at(11_500), "from the sending, not from the answer");
        assert_eq!(lease.next_time(), Some(at(4_000)));
    }

    #[test]
    fn l3_another_term_discards_the_answer_and_asks_again_at_once() {
        let mut lease = lease();
        lease.poll(at(2_000));
        lease.kept(at(2_001), alive(7));
        lease.poll(at(2_001));
        assert!(!lease.beaten(at(2_010), Beat::Written { raft_term: 8 }));
        assert_eq!(lease.deadline(), at(9_500));
        assert_eq!(lease.poll(at(2_010)), Some(Need::Keepalive));
    }

    #[test]
    fn l3_no_answer_to_a_beat_is_no_refusal() {
        let mut lease = lease();
        lease.poll(at(2_000));
        lease.kept(at(2_001), alive(7));
        lease.poll(at(2_001));
        assert!(!lease.beaten(at(2_500), Beat::Failed));
        assert_eq!((lease.poll(at(2_500)), lease.poll(at(2_600))), (None, Some(Need::Beat)));
        lease.beaten(at(2_700), Beat::Written { raft_term: 7 });
        assert_eq!(lease.deadline(), at(11_500));
        lease.poll(at(4_000));
        lease.kept(at(4_001), alive(7));
        lease.poll(at(4_001));
        assert!(!lease.beaten(at(6_000), Beat::Failed), "by then a new keepalive is worth more");
        assert_eq!(lease.poll(at(6_000)), Some(Need::Keepalive));
    }

    #[test]
    fn b08_a_time_to_live_of_zero_is_a_loss_and_silence_is_none() {
        let mut silent = lease();
        silent.poll(at(2_000));
        assert!(!silent.kept(at(3_000), Keepalive::Failed));
        assert_eq!((silent.poll(at(3_050)), silent.poll(at(3_100))), (None, Some(Need::Keepalive)));
        assert_eq!(silent.deadline(), at(9_500));
        for gone in [Keepalive::Gone, Keepalive::Alive { ttl: Duration::ZERO, raft_term: 7 }] {
            let mut lease = lease();
            lease.poll(at(2_000));
            assert!(lease.kept(at(2_001), gone), "{gone:?}");
        }
        let mut lease = lease();
        lease.poll(at(2_000));
        lease.kept(at(2_001), alive(7));
        lease.poll(at(2_001));
        assert!(lease.beaten(at(2_002), Beat::Gone));
    }

    #[test]
    fn l3_a_shorter_time_to_live_counts() {
        let mut lease = lease();
        lease.poll(at(8_000));
        lease.kept(at(8_001), Keepalive::Alive { ttl: Duration::from_secs(3), raft_term: 7 });
        lease.poll(at(8_001));
        lease.beaten(at(8_002), Beat::Written { raft_term: 7 });
        assert_eq!(lease.deadline(), at(10_500));
    }

    #[test]
    fn l3_a_short_lease_stops_starting_a_fifth_before_its_deadline() {
        let lease = Lease::new(LeaseId(1), Duration::from_secs(3), at(0));
        assert_eq!((lease.deadline(), lease.ending()), (at(2_500), at(1_900)));
    }
}
