//! etcd itself fails: its leader stands still and wakes, the majority is gone, members are restarted.

use std::time::{Duration, Instant};

use super::world::{Fleet, led};
use crate::support::until;

/// How often etcd's leader is frozen; `EVENKEEL_TEST_ROUNDS=20` asks for more.
fn rounds() -> usize {
    std::env::var("EVENKEEL_TEST_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(2)
}

/// An etcd leader that was frozen for longer than the lease and wakes up revokes leases that live; whatever it does, no
/// two runs of an id may overlap.
async fn freeze_the_leader(share: f64, more: Duration) {
    let ttl = Duration::from_secs(3);
    let Some(mut fleet) = Fleet::start(3, ttl).await else { return };
    let before = fleet.terms_begun();
    for _ in 0..rounds() {
        fleet.until_works(20).await;
        let frozen = fleet.members.leader().await;
        fleet.members.freeze(frozen);
        tokio::time::sleep(ttl.mul_f64(share) + more).await;
        fleet.members.thaw(frozen);
        fleet.until_works(20).await;
    }
    fleet.until_led().await;
    let counted = fleet.finish().await;
    let terms = fleet.terms_begun() - before;
    println!("etcd's leader frozen for {share} TTL + {more:?}, {} rounds: {terms} terms more", rounds());
    counted.assert_alone();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l3_an_etcd_leader_that_wakes_after_the_lease_makes_no_runs_overlap() {
    freeze_the_leader(1.0, Duration::from_secs(3)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l3_an_etcd_leader_that_wakes_within_the_lease_makes_no_runs_overlap() {
    freeze_the_leader(0.6, Duration::ZERO).await;
}

/// Without a majority nobody leads, and nothing begins; once it is back all goes on. Then each member is restarted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l1_l3_without_a_majority_nothing_runs_and_afterwards_all_goes_on() {
    let ttl = Duration::from_secs(3);
    let Some(mut fleet) = Fleet::start(3, ttl).await else { return };
    fleet.until_works(50).await;
    for at in [1, 2] {
        fleet.members.kill(at);
    }
    let lost = Instant::now();
    until("nobody leads", || led(&fleet.leader) + led(&fleet.standby) == 0).await;
    // A member that has just lost the majority may confirm one renewal more.
    let over = lost + ttl;
    tokio::time::sleep(ttl).await;
    let late = fleet.recorder.seen().iter().filter(|seen| seen.begun > over).count();
    assert_eq!(late, 0, "runs began {ttl:?} after the majority was lost");
    for at in [1, 2] {
        fleet.members.begin(at);
    }
    fleet.until_led().await;
    println!("led again {:?} after the majority was lost", lost.elapsed());
    fleet.until_works(50).await;
    for at in 0..3 {
        fleet.members.stop(at);
        fleet.members.restart(at);
        fleet.until_works(50).await;
    }
    fleet.until_led().await;
    fleet.finish().await.assert_alone();
}
