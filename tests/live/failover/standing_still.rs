//! A process that stands still for longer than its lease, with runs under way.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::world::{Fleet, term};
use crate::run_world::Process;

/// What a process says when a term is over.
const NO_MORE: &str = "leads the shard no more";

/// What it does when it wakes comes too late: its records are refused, and so are its calls at a target that checks
/// tokens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b10_l4_what_a_process_does_after_standing_still_is_refused() {
    const ROUNDS: usize = 5;
    let Some(mut fleet) = Fleet::start(1, Duration::from_secs(2)).await else { return };
    let mut late_calls = 0;
    for _ in 0..ROUNDS {
        fleet.until_works(20).await;
        fleet.leader.signal(Signal::STOP);
        let over = fleet.recorder.seen().iter().map(|seen| term(&seen.token)).max().unwrap();
        let later = || fleet.recorder.seen().iter().filter(|seen| term(&seen.token) > over).count();
        crate::support::until("the other one runs", || later() > 20).await;
        let heard = |process: &Process| process.lines().iter().filter(|line| line.contains(NO_MORE)).count();
        let (woken, before) = (Instant::now(), heard(&fleet.leader));
        fleet.leader.signal(Signal::CONT);
        crate::support::until("it has heard of it", || heard(&fleet.leader) > before).await;
        fleet.until_led().await;
        let seen = fleet.recorder.seen();
        late_calls += seen.iter().filter(|seen| term(&seen.token) <= over && seen.begun > woken).count();
        fleet.look().await;
    }
    fleet.until_works(20).await;
    let counted = fleet.finish().await;
    println!(
        "{ROUNDS} times stood still: {late_calls} calls began after it woke, {} of all are refused",
        counted.refused
    );
    counted.assert_sound();
}
