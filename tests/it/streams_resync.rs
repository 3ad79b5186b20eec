//! Resync (Q9, Q5, B20, B39), in virtual time.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel::local::Resync;
use evenkeel::{BoxFuture, Class, EventStream, IdList, ListError, StreamError};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::streams_sink::{FIRST, Sink, no_meter};

const HOUR: Duration = Duration::from_secs(3_600);

fn numbered(n: usize) -> Vec<String> {
    (0..n).map(|i| format!("id-{i:05}")).collect()
}

/// When lists began, and what the next ones are to be.
#[derive(Default)]
struct Script {
    begun: Mutex<Vec<Instant>>,
    failures: AtomicU32,
    takes: Mutex<Duration>,
    under_way: AtomicBool,
}

impl Script {
    fn begun(&self) -> Vec<Instant> {
        self.begun.lock().unwrap().clone()
    }
}

/// A resync of these ids without jitter, and its script.
fn resync(every: Duration, ids: Vec<String>) -> (Resync, Arc<Script>) {
    let script = Arc::new(Script::default());
    let list = Arc::clone(&script);
    let resync = Resync::every(every).jitter_percent(0).list_fn(move || {
        let (script, ids) = (Arc::clone(&list), ids.clone());
        async move {
            assert!(!script.under_way.swap(true, Ordering::Relaxed), "a list never overlaps the one before");
            script.begun.lock().unwrap().push(Instant::now());
            let takes = *script.takes.lock().unwrap();
            sleep(takes).await;
            script.under_way.store(false, Ordering::Relaxed);
            match script.failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)) {
                Ok(_) => Err("the inventory is down"),
                Err(_) => Ok(ids),
            }
        }
    });
    (resync, script)
}

#[tokio::test(start_paused = true)]
async fn q9_lists_at_once_and_then_every_interval() {
    let sink = Sink::new();
    let (resync, script) = resync(HOUR, numbered(10));
    assert_eq!(resync.class(), Class::Resync);
    let started = Instant::now();
    let running = sink.start(resync);
    sink.until(|sink| sink.taken().len() == 10).await;
    assert_eq!(started.elapsed(), Duration::ZERO, "at once");
    assert_eq!(sink.take(), numbered(10));
    for n in 1..=3 {
        sleep_until(started + HOUR * n - Duration::from_millis(2)).await;
        assert_eq!(sink.taken(), [""; 0]);
        sink.until(|sink| sink.taken().len() == 10).await;
        assert_eq!(sink.take(), numbered(10));
        // A timer is a millisecond late at most.
        assert!(started.elapsed() - HOUR * n <= Duration::from_millis(2));
    }
    assert_eq!(script.begun().len(), 4);
    sink.stopping.cancel();
    running.await.unwrap().1.unwrap();
}

#[tokio::test(start_paused = true)]
async fn q9_the_interval_carries_jitter() {
    let begun = Arc::new(Mutex::new(Vec::new()));
    let times = Arc::clone(&begun);
    let list = move || {
        times.lock().unwrap().push(Instant::now());
        async { Vec::new() }
    };
    let running = Sink::new().start(Resync::every(HOUR).jitter_percent(20).list_fn(list));
    sleep(HOUR * 40).await;
    running.abort();
    let begun = begun.lock().unwrap();
    let between: Vec<_> = begun.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let (low, high) = (HOUR * 8 / 10, HOUR * 12 / 10 + Duration::from_millis(2));
    assert!(between.iter().all(|d| (low..=high).contains(d)), "{between:?}");
    let (min, max) = (between.iter().min().unwrap(), between.iter().max().unwrap());
    assert!(between.len() >= 30 && *max - *min > HOUR / 20, "they differ: {between:?}");
}

#[tokio::test(start_paused = true)]
async fn q9_a_list_that_fails_is_made_again_and_nothing_is_concluded() {
    let sink = Sink::new();
    let (resync, script) = resync(Duration::from_secs(3), numbered(10));
    script.failures.store(6, Ordering::Relaxed);
    let running = sink.start(resync);
    sink.until(|sink| sink.errors.lock().unwrap().len() == 1).await;
    let problem = sink.problem.lock().unwrap().clone().unwrap();
    assert_eq!(problem, "the list of ids failed: the inventory is down; it is made again in 250ms");
    sink.until(|sink| sink.taken().len() == 10).await;
    assert_eq!(*sink.errors.lock().unwrap(), ["list"; 6]);
    assert_eq!(*sink.problem.lock().unwrap(), None, "all is well again");
    let begun = script.begun();
    let between: Vec<_> = begun.windows(2).map(|pair| (pair[1] - pair[0]).as_millis()).collect();
    let wanted = [250, 500, 1_000, 2_000, 3_000, 3_000];
    assert_eq!(between.len(), wanted.len());
    for (between, wanted) in between.iter().zip(wanted) {
        assert!((wanted..=wanted + 2).contains(between), "doubled, at most the interval: {between:?}");
    }

    // After a success the count begins anew.
    script.failures.store(1, Ordering::Relaxed);
    sink.take();
    sink.until(|sink| sink.taken().len() == 10).await;
    let begun = script.begun();
    let retried = begun[begun.len() - 1] - begun[begun.len() - 2];
    assert!((250..=252).contains(&retried.as_millis()), "{retried:?}");
    running.abort();
}

/// Says a number that is not the number of what it gives, or fails after half.
struct Half(Result<u64, ListError>);

impl IdList for Half {
    fn list(&self, into: mpsc::Sender<String>) -> BoxFuture<'_, Result<u64, ListError>> {
        Box::pin(async move {
            for id in numbered(5) {
                into.send(id).await.map_err(|e| ListError(e.to_string()))?;
            }
            self.0.clone()
        })
    }
}

#[tokio::test(start_paused = true)]
async fn q9_a_list_is_complete_when_it_says_so() {
    for (says, problem) in [
        (Ok(6), "the list says that it has 6 ids and gave 5"),
        (Err(ListError("line 6 is no UTF-8".into())), "line 6 is no UTF-8"),
    ] {
        let sink = Sink::new();
        let running = sink.start(Resync::every(HOUR).list(Half(says)));
        sink.until(|sink| sink.errors.lock().unwrap().len() == 3).await;
        assert!(sink.problem.lock().unwrap().as_ref().unwrap().contains(problem));
        assert_eq!(sink.taken().len(), 15, "what it named is looked at all the same");
        running.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn q9_b11_a_shard_that_is_newly_led_is_listed_at_once() {
    let sink = Sink::with(4, &[], usize::MAX, no_meter());
    let (resync, script) = resync(HOUR, numbered(400));
    let running = sink.start(resync);
    sleep(HOUR * 3).await;
    assert_eq!(script.begun().len(), 0, "nothing is led, nothing is listed");

    sink.lead(&[1]);
    sink.until(|sink| !sink.taken().is_empty()).await;
    sleep(Duration::from_secs(1)).await;
    let first = sink.take();
    let foreign = sink.foreign.swap(0, Ordering::Relaxed);
    assert!(first.len() > 50 && first.len() + usize::try_from(foreign).unwrap() == 400, "the others are passed over");

    sink.lead(&[1, 2, 3]);
    sink.until(|sink| !sink.taken().is_empty()).await;
    sleep(Duration::from_secs(1)).await;
    let second = sink.take();
    assert!(second.iter().all(|id| !first.contains(id)), "only those of the shards that are new");
    assert!(second.len() > 100);

    sink.lead(&[2, 3]);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(sink.taken(), [""; 0], "a shard that was lost asks for nothing");
    sink.lead(&[1, 2, 3]);
    sink.until(|sink| sink.taken().len() == first.len()).await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(sink.take(), first, "led again, listed again");

    // Lost and led again before anybody looked: which it was is not known, so all are listed.
    sink.lead(&[1]);
    sink.lead(&[1, 2, 3]);
    sink.until(|sink| sink.taken().len() == first.len() + second.len()).await;
    sink.take();
    // The interval goes on from the last list of everything.
    assert_eq!(script.begun().len(), 4);
    sleep(HOUR + Duration::from_secs(1)).await;
    assert_eq!(sink.take().len(), first.len() + second.len());
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn q9_a_shard_that_is_led_during_a_list_is_listed_after_it() {
    let sink = Sink::with(2, &[0], usize::MAX, no_meter());
    let (resync, script) = resync(HOUR, numbered(100));
    *script.takes.lock().unwrap() = Duration::from_secs(60);
    let running = sink.start(resync);
    sleep(Duration::from_secs(30)).await;
    sink.lead(&[0, 1]);
    sleep(Duration::from_secs(31)).await;
    assert_eq!(sink.take().len(), 100, "the list under way names them too");
    assert_eq!(script.begun().len(), 2, "but it may have been read before the shard was led");
    sleep(Duration::from_secs(60)).await;
    let again = sink.take().len();
    assert!(again > 20 && again < 80, "only those of the new shard: {again}");

    // A failure forgets none of it.
    script.failures.store(2, Ordering::Relaxed);
    sink.lead(&[0]);
    sink.lead(&[0, 1]);
    sink.until(|sink| !sink.taken().is_empty()).await;
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn q9_a_list_never_overlaps_the_one_before() {
    let sink = Sink::new();
    let (resync, script) = resync(Duration::from_secs(10), numbered(3));
    *script.takes.lock().unwrap() = Duration::from_secs(25);
    let running = sink.start(resync);
    sleep(Duration::from_secs(100)).await;
    let begun = script.begun();
    assert_eq!(begun.len(), 4, "the next begins when the one before has ended");
    assert!(begun.windows(2).all(|pair| pair[1] - pair[0] >= Duration::from_secs(25)));
    assert!(!running.is_finished());
    running.abort();
}

/// The list is handed over as fast as ids run, never faster, and whole.
#[tokio::test(start_paused = true)]
async fn b39_a_resync_is_paced_and_drops_nothing() {
    let sink = Sink::with(1, &[0], 1_000, no_meter());
    let (resync, script) = resync(Duration::from_secs(1), numbered(20_000));
    let running = sink.start(resync);
    sink.until(|sink| sink.waiting() == 1_000).await;
    sleep(Duration::from_secs(10)).await;
    assert_eq!(sink.taken().len(), 1_000, "no more than there is room for");
    assert_eq!(script.begun().len(), 1, "no second list on top of the first");
    let mut ran = 0;
    while ran < 20_000 {
        // Four workers of 10 ms each.
        sleep(Duration::from_millis(10)).await;
        ran += sink.run(FIRST, 4);
        assert!(sink.waiting() <= 1_000);
    }
    let taken = sink.taken();
    assert_eq!(taken[..20_000], numbered(20_000), "each id, once, in order");
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn b20_what_a_dropped_list_had_not_handed_over_is_in_the_next() {
    let sink = Sink::with(1, &[0], 10, no_meter());
    let (mut resync, _) = resync(HOUR, numbered(50));
    let run = resync.run(evenkeel::Events::new(sink.clone(), Class::Resync));
    assert!(tokio::time::timeout(Duration::from_secs(1), run).await.is_err(), "dropped while it waits for room");
    assert_eq!(sink.take().len(), 10);
    let running = sink.start(resync);
    let mut ran = 0;
    while ran < 60 {
        ran += sink.run(FIRST, 1);
        sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(sink.take(), numbered(50), "the whole list again, at once");
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn who_lost_events_asks_for_a_list_at_once() {
    let sink = Sink::new();
    let (ask, asked) = watch::channel(0);
    let (resync, script) = resync(HOUR, numbered(10));
    let running = sink.start(resync.asked_by(asked));
    sink.until(|sink| sink.take().len() == 10).await;

    sleep(HOUR / 2).await;
    let begun = Instant::now();
    ask.send_modify(|n| *n += 1);
    sink.until(|sink| sink.taken().len() == 10).await;
    assert_eq!((begun.elapsed(), script.begun().len()), (Duration::ZERO, 2));

    // Asked while a list goes on: another one after it.
    *script.takes.lock().unwrap() = Duration::from_secs(60);
    ask.send_modify(|n| *n += 1);
    sleep(Duration::from_secs(30)).await;
    ask.send_modify(|n| *n += 1);
    ask.send_modify(|n| *n += 1);
    sleep(Duration::from_secs(600)).await;
    assert_eq!(script.begun().len(), 4);

    drop(ask);
    sleep(HOUR * 2).await;
    assert_eq!(script.begun().len(), 6, "the interval goes on without anybody who could ask");
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn what_cannot_work_is_refused() {
    for (resync, wanted) in [
        (Resync::every(HOUR), "has no list of ids: give it one"),
        (Resync::every(Duration::ZERO).list_fn(|| async { Vec::new() }), "every 0ns is too often: at least 10ms"),
    ] {
        let (_, result) = Sink::new().start(resync).await.unwrap();
        let error = result.unwrap_err();
        assert!(matches!(error, StreamError::Failed(_)) && error.to_string().contains(wanted), "{error}");
    }
    // The longest interval there is overflows nothing.
    let running = Sink::new().start(Resync::every(Duration::MAX).jitter_percent(255).list_fn(|| async { Vec::new() }));
    sleep(HOUR * 24 * 100).await;
    assert!(!running.is_finished());
    running.abort();
}

#[cfg(feature = "cli")]
#[tokio::test(start_paused = true)]
async fn t3_lists_are_measured() {
    let (meter, page) = super::streams_sink::measured();
    let sink = Sink::with(1, &[0], usize::MAX, meter);
    let (resync, script) = resync(HOUR, numbered(7));
    script.failures.store(2, Ordering::Relaxed);
    *script.takes.lock().unwrap() = Duration::from_secs(3);
    let running = sink.start(resync);
    sink.until(|sink| sink.taken().len() == 7).await;
    sleep(Duration::from_secs(1)).await;
    let page = page();
    let value = |metric: &str, labels: &[&str]| {
        let line = page.lines().find(|l| l.starts_with(metric) && labels.iter().all(|label| l.contains(label)));
        line.and_then(|l| l.rsplit(' ').next()?.parse::<f64>().ok()).unwrap_or_else(|| panic!("{metric} in {page}"))
    };
    let stream = r#"evenkeel_stream="all""#;
    assert_eq!(value("evenkeel_resync_items", &[stream]), 7.0);
    let failed = [stream, r#"evenkeel_outcome="failed""#];
    let done = [stream, r#"evenkeel_outcome="done""#];
    assert_eq!(value("evenkeel_resync_duration_seconds_count", &failed), 2.0);
    assert_eq!(value("evenkeel_resync_duration_seconds_count", &done), 1.0);
    let seconds = value("evenkeel_resync_duration_seconds_sum", &done);
    assert!((3.0..3.1).contains(&seconds), "{seconds}");
    running.abort();
}
