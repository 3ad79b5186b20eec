//! Resync: everything that exists, again and again (Q9).
//!
//! Must never conclude anything from a list that failed, never drop an id because a queue is full (Q5), and never begin
//! a list while another goes on (B39). Tested in tests/it/streams_resync.rs, in virtual time.

mod list_fn;
mod pass;
mod plan;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use self::list_fn::ListFn;
pub use self::list_fn::Listed;
use self::pass::Pass;
use self::plan::Plan;
use crate::contract::{Class, EventStream, Events, IdList, StreamError};
use crate::id::ShardId;

/// How far an interval varies by default, in percent, so that processes started together do not list together for ever.
const JITTER_PERCENT: u8 = 10;
/// How far it may vary at most.
const JITTER_PERCENT_MAX: u8 = 50;
/// The shortest interval: below it the list would be all that the process does.
const EVERY_MIN: Duration = Duration::from_millis(10);
/// The longest interval; it keeps the arithmetic of times in range.
const EVERY_MAX: Duration = Duration::from_secs(366 * 86_400);

/// A stream that hands over every id: at once on start, for each shard that this process comes to lead, and every
/// interval.
///
/// It is paced: a shard keeps a bounded number of resync ids waiting and takes more as they run, and events go before
/// them. An id whose shard another process leads is passed over; that one lists for itself. Dropped in the middle of a
/// list (on shutdown, or when leadership is lost), what it had not handed over is not owed to anybody: the next list
/// names it again.
///
/// ```
/// use std::time::Duration;
///
/// use evenkeel::local::Resync;
///
/// let zones = Resync::every(Duration::from_secs(600)).list_fn(|| async {
///     let files = std::fs::read_dir("zones")?;
///     files.map(|file| Ok(file?.file_name().to_string_lossy().into_owned())).collect::<std::io::Result<Vec<_>>>()
/// });
/// ```
pub struct Resync {
    every: Duration,
    jitter_percent: u8,
    list: Option<Arc<dyn IdList>>,
    asked: Option<watch::Receiver<u64>>,
}

impl Resync {
    /// Lists every interval, from the begin of one list to the begin of the next; a list that takes longer is followed
    /// by the next one at once. At least 10 ms, at most a year.
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

    /// Lists at once when this number changes, beside the interval; for who knows that events were lost. What is asked
    /// while a list goes on is answered by another one after it.
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
        let pass = Pass::new(list, &events);
        let mut plan = Plan::new(self.every, self.jitter_percent, Instant::now());
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

/// Makes a pass while the plan hears what is led. The pass is polled on, never dropped for another branch: the id that
/// it has in hand is not lost (B20).
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

impl fmt::Debug for Resync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resync")
            .field("every", &self.every)
            .field("jitter_percent", &self.jitter_percent)
            .field("list", &self.list.is_some())
            .finish_non_exhaustive()
    }
}
