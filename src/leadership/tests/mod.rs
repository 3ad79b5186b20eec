//! Several processes and an etcd with faults, played from seeds: nobody acts beside another, and once the faults stop
//! every shard is led (L1, L3, L9).

mod etcd;
mod random;
mod world;

use world::{Plan, World};

/// Worlds for each kind of fault.
const SEEDS: u64 = 120;

/// Plays a plan from many seeds; gives what was counted over all of them.
fn play(plan: &Plan) -> world::Counts {
    let first = std::env::var("EVENKEEL_TEST_SEED").ok().map(|seed| seed.parse::<u64>().expect("a number"));
    let seeds = first.map_or(0..SEEDS, |seed| seed..seed + 1);
    let mut counts = world::Counts::default();
    for seed in seeds {
        let played = World::play(plan, seed);
        let hint = "EVENKEEL_TEST_SEED=NUMBER plays it again";
        assert_eq!(played.overlaps, 0, "two acted for one shard, seed {seed} ({hint}): {:?}", played.trace);
        assert_eq!(played.unled, 0, "shards are led by nobody after the faults, seed {seed} ({hint})");
        counts.add(&played);
    }
    counts
}

#[test]
fn l1_processes_that_come_and_go_never_act_together() {
    let counts = play(&Plan { kills: 3, handovers: 20, ..Plan::default() });
    assert!(counts.led > 10 * SEEDS, "{counts:?}");
    assert!(counts.orderly > SEEDS, "{counts:?}");
}

/// Keepalives that are answered and renew nothing, and leases that live and are revoked, by a leader that wakes up.
#[test]
fn l3_l9_a_leader_of_etcd_that_was_frozen_does_no_harm() {
    let counts = play(&Plan { frozen_leaders: 4, cuts: 2, ..Plan::default() });
    assert!(counts.wrongly_revoked > 50 && counts.empty_answers > 50, "the faults must happen: {counts:?}");
}

#[test]
fn b08_processes_that_are_cut_off_stop_in_time() {
    let counts = play(&Plan { cuts: 8, leader_changes: 2, ..Plan::default() });
    assert!(counts.by_deadline > SEEDS / 4, "{counts:?}");
}

#[test]
fn b10_a_process_that_was_frozen_acts_no_more_when_it_wakes() {
    let counts = play(&Plan { freezes: 6, ..Plan::default() });
    assert!(counts.by_deadline > SEEDS, "{counts:?}");
}

/// Every fault at once, several keys deleted by hand, and watches that end.
#[test]
fn b59_b61_after_any_faults_every_shard_is_led_again() {
    let plan = Plan {
        kills: 2,
        handovers: 5,
        frozen_leaders: 2,
        leader_changes: 2,
        cuts: 3,
        freezes: 2,
        deletions: 3,
        blinds: 4,
        ..Plan::default()
    };
    let counts = play(&plan);
    assert!(counts.by_deletion > 50 && counts.led > 5 * SEEDS, "{counts:?}");
}

/// What keeps two leaders apart is needed: without it the same worlds find them together. (The rule of the two terms is
/// not among it here: a beat that follows an empty answer makes a successor wait as well. It has tests of its own.)
#[test]
fn l3_l9_without_the_wait_or_the_cut_off_two_act_together() {
    let frozen = Plan { frozen_leaders: 4, cuts: 6, ..Plan::default() };
    let deleted = Plan { deletions: 6, cuts: 8, ..Plan::default() };
    let cut = Plan { cuts: 8, ..Plan::default() };
    for (name, plan) in [
        ("no wait after a wrongful revocation", Plan { notes_lie: true, ..frozen }),
        ("no wait after a deletion by hand", Plan { notes_lie: true, ..deleted }),
        ("runs that go on after the deadline", Plan { late_cut_off: true, ..cut }),
    ] {
        let found = (0..SEEDS).any(|seed| World::play(&plan, seed).overlaps > 0);
        assert!(found, "{name} must be found out");
    }
}
