//! Ids that wait for a time, through the whole engine: into the delay queue, out of it before their time, and how late
//! they come.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use evenkeel::{Action, Failure, Reconciler, Run};
use serde_json::json;

use crate::alloc;
use crate::bed::{Bed, Nothing, block_on, ids};
use crate::measure::{Mark, Report, Spent, middle, percentiles, round};

const DELAYED: usize = 1_000_000;
/// Ids that ask for no further run: few enough to stay known, too many for the processor's cache.
const PLAIN: usize = 40_000;
/// Longer than the least distance of two runs of an id, so that an event makes it run at once.
const APART: Duration = Duration::from_millis(300);

/// Asks for another run, some time within an hour, half an hour from now.
struct Later(Nothing);

impl Reconciler for Later {
    async fn reconcile(&self, run: &Run) -> Result<Action, Failure> {
        let action = self.0.reconcile(run).await?;
        if run.id().starts_with("plain") {
            return Ok(action);
        }
        let scattered = self.0.tallies[0].runs().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        Ok(action.requeue_after(Duration::from_millis(1_800_000 + scattered % 3_600_000)))
    }
}

/// A million ids are run once and wait. Then each is run again by an event, in another order: out of the queue and in
/// again. What that costs beyond a run is told by runs of other ids that do not wait.
pub(crate) fn insert(name: &str, report: &mut Report) {
    let all = Arc::new(ids(DELAYED));
    // A step that shares no factor with a million visits each once.
    let scattered = Arc::new((0..DELAYED).map(|n| all[n * 618_033 % DELAYED].clone()).collect::<Vec<_>>());
    let plain = Arc::new((0..PLAIN).map(|n| format!("plain-{n:030}")).collect::<Vec<_>>());
    let (mut again, mut beyond, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
    let spent = crate::measure::median(3, || {
        block_on(1, async {
            let nothing = Nothing::default();
            let bed = Bed::of(Later(nothing.clone()), &nothing).await;
            bed.rounds(0, &plain, 1).await;
            let before = alloc::live();
            let inserted = timed(&bed, &all, 1).await;
            let text: usize = all.iter().map(String::len).sum();
            bytes.push((alloc::live() - before - text as i64) as f64 / DELAYED as f64);
            tokio::time::sleep(APART).await;
            let moved = timed(&bed, &scattered, 1).await.cpu_us();
            again.push(moved);
            beyond.push(moved - timed(&bed, &plain, 20).await.cpu_us());
            bed.stop().await;
            inserted
        })
    });
    let more = json!({
        "again_cpu_us": round(middle(again), 3),
        "cancel_and_insert_cpu_us": round(middle(beyond), 3),
        "bytes_per_id": round(middle(bytes), 1),
    });
    report.case(name, spent, None, more);
}

async fn timed(bed: &Bed, ids: &Arc<Vec<String>>, rounds: u64) -> Spent {
    let mark = Mark::now();
    bed.rounds(0, ids, rounds).await;
    mark.spent(rounds * ids.len() as u64)
}

/// Asks once for another run, and notes when that was due and when it came, in nanoseconds from the start.
#[derive(Clone)]
struct Timed {
    nothing: Nothing,
    begun: Instant,
    due: Arc<Vec<AtomicU64>>,
    came: Arc<Vec<AtomicU64>>,
}

impl Timed {
    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).expect("it does not run for centuries")
    }
}

impl Reconciler for Timed {
    async fn reconcile(&self, run: &Run) -> Result<Action, Failure> {
        let number: usize = run.id()[run.id().len() - 10..].parse().expect("ids end with their number");
        let due = self.due[number].load(Relaxed);
        let action = if due == 0 {
            // Due in the course of a second, half a second from now.
            let delay = Duration::from_micros(500_000 + (number as u64 * 7_919) % 1_000_000);
            self.due[number].store(self.now() + delay.as_nanos() as u64, Relaxed);
            Action::done().requeue_after(delay)
        } else {
            self.came[number].store(self.now(), Relaxed);
            Action::done()
        };
        self.nothing.tallies[0].count();
        Ok(action)
    }
}

/// How late runs begin that were asked for at a time.
pub(crate) fn lateness(name: &str, report: &mut Report) {
    const IDS: usize = 10_000;
    let ids = Arc::new(ids(IDS));
    let times = || Arc::new((0..IDS).map(|_| AtomicU64::new(0)).collect::<Vec<_>>());
    let nothing = Nothing::default();
    let timed = Timed { nothing: nothing.clone(), begun: Instant::now(), due: times(), came: times() };
    let spent = block_on(1, async {
        let bed = Bed::of(timed.clone(), &nothing).await;
        let mark = Mark::now();
        bed.tally(0).aim(2 * IDS as u64);
        let all = Arc::clone(&ids);
        bed.feed(0, move |feed| Box::pin(async move { feed.batches(&all).await })).await;
        bed.tally(0).reached().await;
        let spent = mark.spent(2 * IDS as u64);
        bed.stop().await;
        spent
    });
    let pairs = timed.due.iter().zip(timed.came.iter()).map(|(due, came)| (due.load(Relaxed), came.load(Relaxed)));
    let early = pairs.clone().filter(|(due, came)| came < due).count();
    let (p50, p99) = percentiles(pairs.map(|(due, came)| Duration::from_nanos(came.saturating_sub(due))).collect());
    let more = json!({"p50_ms": round(p50 / 1e3, 2), "p99_ms": round(p99 / 1e3, 2), "early": early});
    report.case(name, spent, None, more);
}
