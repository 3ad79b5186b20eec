//! Resync: everything that exists, again and again (Q9).
//!
//! Must never conclude anything from a list that failed, never drop an id because a queue is full (Q5), and never begin a
//! list while another goes on (B39). Tested in tests/it/streams_resync.rs, in virtual time.

use std::collections::BTreeSet;
use std::fmt::{self, Display};
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Histogram};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::contract::{BoxFuture, Class, EventStream, Events, IdList, ListError, Stopped, StreamError};
use crate::id::ShardId;

/// How far an interval varies by default, in percent, so that processes started together do not list together for ever.
const JITTER_PERCENT: u8 = 10;
/// How far it may vary at most.
const JITTER_PERCENT_MAX: u8 = 50;
/// The shortest interval: below it the list would be all that the process does.
const EVERY_MIN: Duration = Duration::from_millis(10);
/// The longest interval; it keeps the arithmetic of times in range.
const EVERY_MAX: Duration = Duration::from_secs(366 * 86_400);
/// How long after a failure the list is made again: first; doubled each time, up to the interval.
const RETRY_FIRST: Duration = Duration::from_millis(250);
/// How many ids a list may be ahead of the engine, so that reading them and waiting for room overlap.
const AHEAD_MAX: usize = 1_000;
/// The bounds of the histogram of durations, in seconds: from an empty list to a million slow ids.
const SECONDS: [f64; 12] = [0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0, 7_200.0];

/// A stream that hands over every id: at once on start, for each shard that this process comes to lead, and every interval.
///
/// It is paced: a shard keeps a bounded number of resync ids waiting and takes more as they run, and events go before them.
/// An id whose shard another process leads is passed over; that one lists for itself. Dropped in the middle of a list (on
/// shutdown, or when leadership is lost), what it had not handed over is not owed to anybody: the next list names it again.
///
/// ```
/// use std::time::Duration;
///
/// use evenkeel::local::Resync;
///
/// let nightly = Resync::every(Duration::from_secs(600))
///     .list_fn(|| async { std::fs::read_dir("zones")?.map(|e| Ok(e?.file_name().display().to_string())).collect::<std::io::Result<Vec<_>>>() });
/// ```
pub struct Resync {
    every: Duration,
    jitter_percent: u8,
    list: Option<Arc<dyn IdList>>,
    asked: Option<watch::Receiver<u64>>,
}

/// What a list function gives: the ids, or why there are none.
pub trait Listed {
    /// All ids that exist.
    ///
    /// # Errors
    /// The list is not complete.
    fn listed(self) -> Result<Vec<String>, ListError>;
}

impl Listed for Vec<String> {
    fn listed(self) -> Result<Vec<String>, ListError> {
        Ok(self)
    }
}

impl<E: Display> Listed for Result<Vec<String>, E> {
    fn listed(self) -> Result<Vec<String>, ListError> {
        self.map_err(|e| ListError(e.to_string()))
    }
}

impl Resync {
    /// Lists every interval, from the begin of one list to the begin of the next; a list that takes longer is followed by
    /// the next one at once. At least 10 ms, at most a year.
    #[must_use]
    pub fn every(interval: Duration) -> Self {
        Self { every: interval.min(EVERY_MAX), jitter_percent: JITTER_PERCENT, list: None, asked: None }
    }

    /// How far an interval varies up and down, in percent; at most 50, by default 10.
    #[must_use]
    pub fn jitter_percent(mut self, percent: u8) -> Self {
        self.jitter_percent = percent.min(JITTER_PERCENT_MAX);
        self
    }

    /// Where the ids come from. The list must end or fail by itself: the next one waits for it.
    #[must_use]
    pub fn list(mut self, list: impl IdList) -> Self {
        self.list = Some(Arc::new(list));
        self
    }

    /// A function that gives all ids at once, as a `Vec<String>` or a `Result` of one. For more than fit in memory, see
    /// [`list`](Self::list).
    #[must_use]
    pub fn list_fn<F, Fut>(self, list: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output: Listed> + Send + 'static,
    {
        self.list(ListFn(list))
    }

    /// Lists at once when this number changes, beside the interval; for who knows that events were lost. What is asked while
    /// a list goes on is answered by another one after it.
    #[must_use]
    pub fn asked_by(mut self, asked: watch::Receiver<u64>) -> Self {
        self.asked = Some(asked);
        self
    }
}

impl EventStream for Resync {
    async fn run(&mut self, events: Events) -> Result<(), StreamError> {
        let list = self
            .list
            .clone()
            .ok_or_else(|| StreamError::failed("a resync has no list of ids: give it one with `list` or `list_fn`"))?;
        if self.every < EVERY_MIN {
            let (every, min) = (self.every, EVERY_MIN);
            return Err(StreamError::failed(format!("a resync every {every:?} is too often: at least {min:?}")));
        }
        let mut asked = self.asked.clone();
        let mut shards = events.shards();
        let pass = Pass { list, events: &events, instruments: Instruments::new(&events) };
        let mut plan = Plan::new(self.every, self.jitter_percent);
        plan.observe(&shards.borrow_and_update());
        loop {
            let Some(scope) = plan.begin(Instant::now()) else {
                tokio::select! {
                    () = sleep_until(plan.next()) => {}
                    () = changed(&mut shards) => plan.observe(&shards.borrow_and_update()),
                    () = changed_if_any(&mut asked) => plan.ask(),
                    () = events.stopping() => return Ok(()),
                }
                continue;
            };
            match observed(pass.make(&scope), &mut plan, &mut shards).await? {
                Ok(()) => plan.succeeded(),
                Err(error) => {
                    let retry_in = plan.failed(scope, Instant::now());
                    pass.report(&error, retry_in);
                }
            }
        }
    }

    fn class(&self) -> Class {
        Class::Resync
    }
}

/// Makes a pass while the plan hears what is led. The pass is polled on, never dropped for another branch: the id that it has
/// in hand is not lost (B20).
async fn observed<T>(pass: impl Future<Output = T>, plan: &mut Plan, shards: &mut watch::Receiver<Vec<ShardId>>) -> T {
    let mut pass = std::pin::pin!(pass);
    loop {
        tokio::select! {
            biased;
            () = changed(shards) => plan.observe(&shards.borrow_and_update()),
            made = &mut pass => return made,
        }
    }
}

/// One list from begin to end, and what is told of it.
struct Pass<'a> {
    list: Arc<dyn IdList>,
    events: &'a Events,
    instruments: Instruments,
}

impl Pass<'_> {
    async fn make(&self, scope: &Scope) -> Result<Result<(), ListError>, Stopped> {
        let begun = Instant::now();
        let (into, ids) = mpsc::channel(AHEAD_MAX);
        let list = async { Ok(self.list.list(into).await) };
        let (listed, seen) = tokio::try_join!(list, self.hand_over(ids, scope))?;
        let made = match listed {
            Ok(said) if said != seen => Err(ListError(format!("the list says that it has {said} ids and gave {seen}"))),
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        };
        self.instruments.record(made.is_ok().then_some(seen), begun.elapsed());
        if made.is_ok() {
            self.events.report(None);
        }
        Ok(made)
    }

    /// Hands over what is listed, waiting while there is no room, and counts it.
    async fn hand_over(&self, mut ids: mpsc::Receiver<String>, scope: &Scope) -> Result<u64, Stopped> {
        let mut seen = 0;
        while let Some(id) = ids.recv().await {
            seen += 1;
            if scope.holds(self.events, &id) {
                // What belongs to another process is that one's to list.
                let _ = self.events.send(&id).await?;
            }
        }
        Ok(seen)
    }

    fn report(&self, error: &ListError, retry_in: Duration) {
        let stream = self.events.name();
        tracing::warn!(%stream, %error, ?retry_in, "the list of ids failed");
        self.events.count_error("list");
        self.events.report(Some(format!("the list of ids failed: {error}; it is made again in {retry_in:?}")));
    }
}

/// Which ids a pass hands over.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Scope {
    /// All.
    All,
    /// Those of shards that came to be led since the last pass began.
    Fresh(BTreeSet<ShardId>),
}

impl Scope {
    fn holds(&self, events: &Events, id: &str) -> bool {
        match self {
            Self::All => true,
            Self::Fresh(shards) => events.shard_of(id).is_some_and(|shard| shards.contains(&shard)),
        }
    }
}

/// When to list what: decided apart from doing it.
struct Plan {
    every: Duration,
    jitter_percent: u8,
    led: BTreeSet<ShardId>,
    /// Led, and not listed since.
    fresh: BTreeSet<ShardId>,
    /// Whether everything is to be listed, whatever the time.
    asked: bool,
    /// When everything is to be listed next.
    due: Instant,
    /// After a failure: when to list again, and how long that delay is.
    retry: Option<(Instant, Duration)>,
}

impl Plan {
    fn new(every: Duration, jitter_percent: u8) -> Self {
        let (led, fresh) = Default::default();
        Self { every, jitter_percent, led, fresh, asked: false, due: Instant::now(), retry: None }
    }

    /// Takes in which shards are led after a change. Where that are the same as before, some were lost and led again
    /// meanwhile, and nobody knows which.
    fn observe(&mut self, led: &[ShardId]) {
        let now: BTreeSet<_> = led.iter().copied().collect();
        if now == self.led {
            self.led.clear();
        }
        self.fresh.retain(|shard| now.contains(shard));
        self.fresh.extend(now.difference(&self.led));
        self.led = now;
    }

    fn ask(&mut self) {
        self.asked = true;
    }

    /// What to list now, if anything.
    fn begin(&mut self, now: Instant) -> Option<Scope> {
        if self.led.is_empty() || self.retry.is_some_and(|(at, _)| now < at) {
            return None;
        }
        if self.asked || now >= self.due || (self.fresh == self.led) {
            self.fresh.clear();
            self.asked = false;
            self.due = now + jittered(self.every, self.jitter_percent, RandomState::new().hash_one(0));
            return Some(Scope::All);
        }
        (!self.fresh.is_empty()).then(|| Scope::Fresh(std::mem::take(&mut self.fresh)))
    }

    /// When to look again, if nothing else happens; `None`: only when something does.
    fn next(&self) -> Option<Instant> {
        (!self.led.is_empty()).then(|| self.retry.map_or(self.due, |(at, _)| at))
    }

    fn succeeded(&mut self) {
        self.retry = None;
    }

    /// Owes the same again, and says after which delay.
    fn failed(&mut self, scope: Scope, now: Instant) -> Duration {
        match scope {
            Scope::All => self.asked = true,
            Scope::Fresh(shards) => self.fresh.extend(shards.intersection(&self.led)),
        }
        let delay = self.retry.map_or(RETRY_FIRST, |(_, before)| before * 2).min(self.every);
        self.retry = Some((now + delay, delay));
        delay
    }
}

/// The interval, longer or shorter by at most so many percent.
fn jittered(every: Duration, percent: u8, chance: u64) -> Duration {
    let spread = every / 100 * u32::from(percent);
    let part = u32::try_from(chance % 2_001).unwrap_or(0);
    every - spread + spread / 1_000 * part
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Resolves when a value has changed; never, once nobody can change it.
async fn changed<T>(value: &mut watch::Receiver<T>) {
    if value.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

async fn changed_if_any<T>(value: &mut Option<watch::Receiver<T>>) {
    match value {
        Some(value) => changed(value).await,
        None => std::future::pending().await,
    }
}

/// What is measured (T3).
struct Instruments {
    stream: KeyValue,
    items: Counter<u64>,
    duration: Histogram<f64>,
}

impl Instruments {
    fn new(events: &Events) -> Self {
        let meter = events.meter();
        Self {
            stream: KeyValue::new("evenkeel.stream", events.name().to_string()),
            items: meter
                .u64_counter("evenkeel.resync.items")
                .with_unit("{id}")
                .with_description("Ids named by complete lists")
                .build(),
            duration: meter
                .f64_histogram("evenkeel.resync.duration")
                .with_unit("s")
                .with_description("Time from the begin of a list until its last id was handed over")
                .with_boundaries(SECONDS.to_vec())
                .build(),
        }
    }

    fn record(&self, items: Option<u64>, took: Duration) {
        let outcome = if items.is_some() { "done" } else { "failed" };
        let outcome = KeyValue::new("evenkeel.outcome", outcome);
        self.duration.record(took.as_secs_f64(), &[self.stream.clone(), outcome]);
        if let Some(items) = items {
            self.items.add(items, std::slice::from_ref(&self.stream));
        }
    }
}

/// A function as a list.
struct ListFn<F>(F);

impl<F, Fut> IdList for ListFn<F>
where
    F: Fn() -> Fut + Send + Sync + 'static,
    Fut: Future<Output: Listed> + Send + 'static,
{
    fn list(&self, into: mpsc::Sender<String>) -> BoxFuture<'_, Result<u64, ListError>> {
        let list = (self.0)();
        Box::pin(async move {
            let ids = list.await.listed()?;
            let mut sent = 0;
            for id in ids {
                if into.send(id).await.is_err() {
                    break;
                }
                sent += 1;
            }
            Ok(sent)
        })
    }
}

impl fmt::Debug for Resync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resync")
            .field("every", &self.every)
            .field("jitter_percent", &self.jitter_percent)
            .field("list", &self.list.is_some())
            .finish_non_exhaustive()
    }
}
