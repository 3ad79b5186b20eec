//! A leader that is killed, and one that is stopped in order: what is lost, what overlaps, and how long nobody runs.

use std::time::{Duration, Instant};

use super::world::{Fleet, summary};
use crate::engine_kill::Chance;

/// 20 times the leader is killed under load, and the other process takes over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k4_l9_b11_kill_9_of_the_leader_loses_nothing_and_overlaps_nothing() {
    const KILLS: usize = 20;
    let Some(mut fleet) = Fleet::start(1, Duration::from_secs(2)).await else { return };
    let (mut chance, mut deaths) = (Chance::new(), Vec::new());
    for _ in 0..KILLS {
        fleet.until_works(20).await;
        tokio::time::sleep(Duration::from_millis(chance.below(300))).await;
        deaths.push(Instant::now());
        fleet.leader.kill();
        fleet.leader = fleet.spawn();
        fleet.until_led().await;
        fleet.look().await;
    }
    fleet.until_works(20).await;
    let counted = fleet.finish().await;
    // From the death to the first run of the next term, for each shard.
    let gaps: Vec<Duration> = fleet
        .terms()
        .iter()
        .flat_map(|terms| terms.iter().skip(1))
        .filter_map(|(_, begun, _)| deaths.iter().rfind(|death| *death < begun).map(|death| *begun - *death))
        .collect();
    println!("{}", summary("takeover after kill -9", &gaps, fleet.ttl));
    assert!(gaps.len() >= KILLS, "{gaps:?}");
    counted.assert_alone();
}

/// 20 times the leader is stopped in order, with a lease so long that nobody could have waited for its end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l5_b09_an_orderly_hand_over_waits_for_no_lease_and_overlaps_nothing() {
    const STOPS: usize = 20;
    let Some(mut fleet) = Fleet::start(1, Duration::from_secs(30)).await else { return };
    for _ in 0..STOPS {
        fleet.until_works(20).await;
        let (status, _) = fleet.leader.stop();
        assert!(status.success(), "{}", fleet.leader.log());
        fleet.leader = fleet.spawn();
        fleet.until_led().await;
        fleet.look().await;
    }
    fleet.until_works(20).await;
    let counted = fleet.finish().await;
    // From the last end of a term to the first begin of the next, for each shard.
    let pairs: Vec<_> =
        fleet.terms().iter().flat_map(|terms| terms.windows(2).map(|w| (w[0].2, w[1].1)).collect::<Vec<_>>()).collect();
    let gaps: Vec<Duration> = pairs.iter().map(|(ended, begun)| begun.saturating_duration_since(*ended)).collect();
    println!("{}", summary("orderly hand-over", &gaps, fleet.ttl));
    assert!(gaps.len() >= STOPS, "{gaps:?}");
    assert!(gaps.iter().all(|gap| *gap < fleet.ttl), "{gaps:?}");
    counted.assert_alone();
}
