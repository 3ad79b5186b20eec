//! No-op reconciles through the whole engine: streams, queue, runs, metrics, journal. The ids are made before; that
//! they are handed over is part of what is timed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::alloc;
use crate::bed::{Bed, block_on, ids};
use crate::floor;
use crate::measure::{Mark, Report, Spent, beside, median, percentiles, round};

const SMALL: usize = 10_000;
const LARGE: usize = 1_000_000;
const TIMES: usize = 5;

fn small_floor(ids: &[String]) -> Spent {
    floor::run(ids, 100, floor::WAITING)
}

pub(crate) fn floor_small(name: &str, report: &mut Report) {
    let ids = ids(SMALL);
    report.case(name, median(TIMES, || small_floor(&ids)), None, json!({}));
}

pub(crate) fn floor_large(name: &str, report: &mut Report) {
    let ids = ids(LARGE);
    report.case(name, median(3, || floor::run(&ids, 1, LARGE + 1)), None, json!({}));
}

/// Few ids again and again, in batches, on one thread.
pub(crate) fn noop_small(name: &str, report: &mut Report) {
    const ROUNDS: u64 = 100;
    let ids = Arc::new(ids(SMALL));
    let (spent, floor) = block_on(1, async {
        let bed = Bed::start(1).await;
        bed.rounds(0, &ids, 1).await;
        let run = || {
            tokio::task::block_in_place(|| {
                tokio::runtime::Handle::current().block_on(async {
                    let mark = Mark::now();
                    bed.rounds(0, &ids, ROUNDS).await;
                    mark.spent(ROUNDS * SMALL as u64)
                })
            })
        };
        let measured = beside(TIMES, || small_floor(&ids), run);
        bed.stop().await;
        measured
    });
    report.case(name, spent, Some(floor), json!({}));
}

/// A million new ids at once: they all wait, and then they all run.
pub(crate) fn noop_large(name: &str, report: &mut Report) {
    let ids = Arc::new(ids(LARGE));
    let mut bytes = 0.0;
    let run = || {
        block_on(1, async {
            let bed = Bed::gated().await;
            let before = alloc::live();
            let mark = Mark::now();
            bed.tally(0).aim(LARGE as u64);
            let all = Arc::clone(&ids);
            bed.feed(0, move |feed| Box::pin(async move { feed.batches(&all).await })).await;
            while bed.owed().await < LARGE as u64 {}
            let text: usize = ids.iter().map(String::len).sum();
            bytes = (alloc::live() - before - text as i64) as f64 / LARGE as f64;
            bed.open();
            bed.tally(0).reached().await;
            let spent = mark.spent(LARGE as u64);
            bed.stop().await;
            spent
        })
    };
    let (spent, floor) = beside(3, || floor::run(&ids, 1, LARGE + 1), run);
    report.case(name, spent, Some(floor), json!({"bytes_per_id": round(bytes, 1)}));
}

/// Few ids again and again, one by one, from another thread than the loop's.
pub(crate) fn single(name: &str, report: &mut Report) {
    const ROUNDS: u64 = 50;
    let ids = Arc::new(ids(SMALL));
    let run = || {
        block_on(2, async {
            let bed = Bed::start(1).await;
            let mark = Mark::now();
            for round in 1..=ROUNDS {
                bed.tally(0).aim(round * SMALL as u64);
                let ids = Arc::clone(&ids);
                bed.feed(0, move |feed| Box::pin(async move { feed.singles(&ids).await })).await;
                bed.tally(0).reached().await;
            }
            let spent = mark.spent(ROUNDS * SMALL as u64);
            bed.stop().await;
            spent
        })
    };
    let (spent, floor) = beside(TIMES, || small_floor(&ids), run);
    report.case(name, spent, Some(floor), json!({}));
}

/// Ten events an id in a row: the nine after the first are absorbed.
pub(crate) fn dedup(name: &str, report: &mut Report) {
    const ROUNDS: u64 = 20;
    let ids = ids(SMALL);
    let tenfold: Arc<Vec<String>> = Arc::new(ids.iter().flat_map(|id| std::iter::repeat_n(id.clone(), 10)).collect());
    let mut per_run = 0.0;
    let run = || {
        block_on(1, async {
            let bed = Bed::start(1).await;
            let mark = Mark::now();
            for _ in 0..ROUNDS {
                let all = Arc::clone(&tenfold);
                bed.feed(0, move |feed| Box::pin(async move { feed.batches(&all).await })).await;
            }
            while bed.owed().await > 0 {}
            let events = ROUNDS * tenfold.len() as u64;
            let spent = mark.spent(events);
            per_run = events as f64 / bed.tally(0).runs() as f64;
            bed.stop().await;
            spent
        })
    };
    let (spent, floor) = beside(TIMES, || floor::run(&tenfold, 20, floor::WAITING), run);
    report.case(name, spent, Some(floor), json!({"events_per_run": round(per_run, 2)}));
}

/// One event into a loop that waits, from a thread that is none of the runtime's.
pub(crate) fn idle_latency(name: &str, report: &mut Report) {
    const EVENTS: usize = 5_000;
    let (latencies, spent) = block_on(1, async {
        let bed = Arc::new(Bed::start(1).await);
        let mark = Mark::now();
        let (sender, done) = tokio::sync::oneshot::channel();
        let fed = Arc::clone(&bed);
        let thread = std::thread::spawn(move || {
            let mut latencies = Vec::with_capacity(EVENTS);
            let tally = fed.tally(0);
            for n in 0..EVENTS {
                let id = format!("id-{n}");
                let before = tally.runs();
                let begun = Instant::now();
                fed.handle.trigger(&id).expect("an idle loop has room");
                while tally.runs() == before {
                    std::hint::spin_loop();
                }
                latencies.push(begun.elapsed());
                // The loop goes to sleep again.
                std::thread::park_timeout(Duration::from_micros(200));
            }
            drop(fed);
            let _ = sender.send(());
            latencies
        });
        done.await.expect("the thread ends");
        let spent = mark.spent(EVENTS as u64);
        let latencies = thread.join().expect("no panic");
        Arc::into_inner(bed).expect("the thread has ended").stop().await;
        (latencies, spent)
    });
    let (p50, p99) = percentiles(latencies);
    report.case(name, spent, None, json!({"p50_us": round(p50, 1), "p99_us": round(p99, 1)}));
}

/// One shard on one thread, and two on two, each with a stream and ids of its own.
pub(crate) fn two_shards(name: &str, report: &mut Report) {
    const ROUNDS: u64 = 200;
    let all = ids(SMALL);
    let run = |shards: usize| {
        let mut parts = vec![Vec::new(); shards];
        for id in &all {
            parts[evenkeel::id::fnv1a_32(id.as_bytes()).cast_signed().unsigned_abs() as usize % shards]
                .push(id.clone());
        }
        let parts: Vec<_> = parts.into_iter().map(Arc::new).collect();
        block_on(shards, async {
            let bed = Bed::start(shards as u32).await;
            let mark = Mark::now();
            match parts.as_slice() {
                [only] => bed.rounds(0, only, ROUNDS).await,
                [first, second] => {
                    tokio::join!(bed.rounds(0, first, ROUNDS), bed.rounds(1, second, ROUNDS));
                }
                _ => unreachable!("one shard or two"),
            }
            let spent = mark.spent(ROUNDS * SMALL as u64);
            bed.stop().await;
            spent
        })
    };
    let mut ones = Vec::new();
    let two = median(3, || {
        ones.push(run(1));
        run(2)
    });
    ones.sort_by(|a, b| a.cpu_us().total_cmp(&b.cpu_us()));
    let one = ones[1];
    // On a busy machine the threads may not have had a core each; what they would have done with one is in their time.
    let of_one = one.wall.as_secs_f64() / two.wall.as_secs_f64();
    let by_cpu = 2.0 * one.cpu_us() / two.cpu_us();
    report.case(name, two, None, json!({"of_one_shard": round(of_one, 2), "of_one_shard_by_cpu": round(by_cpu, 2)}));
}

/// Exactly so many no-op reconciles of few ids, for counting instructions: on one thread, without anything that depends
/// on how long it takes.
pub(crate) fn exactly(count: u64) {
    const ROUND: u64 = 1_000;
    let ids = Arc::new(ids(ROUND as usize));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let bed = Bed::unwatched().await;
        bed.rounds(0, &ids, count / ROUND).await;
        bed.stop().await;
    });
}
