//! The journal as it grows, as server-sent events: `run` per run, `skipped` where the reader or the page was too slow for the
//! runs, `closed` with a reason at the end.
//!
//! Must never buffer more than one page for a reader. It pulls from the journal's ring, so a slow reader costs the engine
//! nothing: it misses runs, and is told how many. Tested in `tests/it/admin_follow.rs`.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tokio_stream::Stream;
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::App;
use super::problem::{BUSY, Problem};
use crate::engine::view::JournalQuery;

/// How often the journal is looked at: nobody reads faster.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// The most runs shown of one look: 800 lines a second are beyond reading, and a page is a small buffer.
const LOOK_RUNS_MAX: usize = 200;
/// A reader that takes nothing for so long is told to come back.
const SLOW_MAX: Duration = Duration::from_secs(10);

/// Answers with the journal as it grows: after run number `wanted.after`, or the last `wanted.limit` runs and what follows if
/// `with_history`, else what follows.
pub(super) fn follow(
    app: &Arc<App>,
    wanted: JournalQuery,
    with_history: bool,
    headers: &HeaderMap,
) -> Result<Response, Problem> {
    let place = Arc::clone(&app.followers)
        .try_acquire_owned()
        .map_err(|_| Problem::new(BUSY, "too many readers follow the journal already"))?;
    let seen = headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse().ok()).or(wanted.after);
    let mut look = tokio::time::interval(LOOK_EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut follower = Follower {
        seen: 0,
        id: wanted.id.clone(),
        pending: VecDeque::new(),
        look,
        polled: Instant::now(),
        stop: Box::pin(app.stop.clone().cancelled_owned()),
        ended: false,
        app: Arc::clone(app),
        _place: place,
    };
    match seen {
        Some(number) => follower.seen = number,
        None => follower.start(&wanted, with_history),
    }
    Ok(Sse::new(follower).keep_alive(KeepAlive::default()).into_response())
}

/// One reader.
struct Follower {
    app: Arc<App>,
    id: Option<String>,
    /// The number of the last run that it was shown or spared.
    seen: u64,
    pending: VecDeque<Event>,
    look: Interval,
    polled: Instant,
    stop: Pin<Box<WaitForCancellationFutureOwned>>,
    ended: bool,
    _place: OwnedSemaphorePermit,
}

impl Follower {
    /// Begins at the journal's end, after showing its last runs if asked.
    fn start(&mut self, wanted: &JournalQuery, with_history: bool) {
        let last = JournalQuery { limit: Some(1), ..JournalQuery::default() };
        self.seen = self.app.backend.journal(&last).first().map_or(0, |run| run.number);
        if with_history {
            for run in self.app.backend.journal(wanted).iter().rev().filter(|run| run.number <= self.seen) {
                self.pending.extend(Event::default().id(run.number.to_string()).event("run").json_data(run));
            }
        }
    }

    fn read(&mut self) {
        let query = JournalQuery { id: self.id.clone(), limit: Some(LOOK_RUNS_MAX), after: Some(self.seen) };
        let runs = self.app.backend.journal(&query);
        let first = runs.last().map_or(0, |run| run.number);
        // Numbers have gaps where only one id is shown.
        if self.id.is_none() && first > self.seen + 1 {
            let skipped = json!({ "runs": first - self.seen - 1 });
            self.pending.extend(Event::default().event("skipped").json_data(skipped));
        }
        for run in runs.iter().rev() {
            self.pending.extend(Event::default().id(run.number.to_string()).event("run").json_data(run));
            self.seen = self.seen.max(run.number);
        }
    }

    fn close(&mut self, reason: &str) -> Event {
        self.ended = true;
        self.pending.clear();
        Event::default().event("closed").json_data(json!({ "reason": reason })).unwrap_or_default()
    }
}

impl Stream for Follower {
    type Item = Result<Event, Infallible>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.ended {
            return Poll::Ready(None);
        }
        if this.stop.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Some(Ok(this.close("the process is stopping"))));
        }
        let idle = this.polled.elapsed();
        this.polled = Instant::now();
        if idle > SLOW_MAX {
            return Poll::Ready(Some(
                Ok(this.close("too slow: connect again, with Last-Event-ID for what was missed")),
            ));
        }
        loop {
            if let Some(event) = this.pending.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            ready!(this.look.poll_tick(cx));
            this.read();
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;
    use tokio_stream::StreamExt as _;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::contract::BoxFuture;
    use crate::engine::Select;
    use crate::engine::view::{
        Explanation, Health, JournalEntry, QueuePage, QueueQuery, ShardStatus, Status, SteerAnswer, TriggerAnswer,
        WaitFor,
    };
    use crate::service::admin::{Asked, Backend};
    use crate::service::telemetry::metrics::Metrics;

    /// A journal in which nothing happens.
    struct Quiet;

    impl Backend for Quiet {
        fn journal(&self, _: &JournalQuery) -> Vec<JournalEntry> {
            Vec::new()
        }
        fn trigger(&self, _: Vec<String>, _: WaitFor) -> BoxFuture<'_, Vec<TriggerAnswer>> {
            unimplemented!()
        }
        fn explain<'a>(&'a self, _: &'a str) -> Asked<'a, Explanation> {
            unimplemented!()
        }
        fn status(&self) -> Asked<'_, Status> {
            unimplemented!()
        }
        fn shards(&self) -> Asked<'_, Vec<ShardStatus>> {
            unimplemented!()
        }
        fn queues(&self, _: QueueQuery) -> Asked<'_, QueuePage> {
            unimplemented!()
        }
        fn redrive(&self, _: Select) -> Asked<'_, Vec<SteerAnswer>> {
            unimplemented!()
        }
        fn cancel(&self, _: Vec<String>) -> Asked<'_, Vec<SteerAnswer>> {
            unimplemented!()
        }
        fn drain(&self) {}
        fn health(&self) -> Health {
            unimplemented!()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_comes_back_too_late_is_told_so() {
        let app = Arc::new(App {
            backend: Arc::new(Quiet),
            page: Metrics::new("dns").unwrap().page(),
            stop: CancellationToken::new(),
            body_patience: Duration::ZERO,
            waiters: Semaphore::new(1),
            followers: Arc::new(Semaphore::new(1)),
        });
        let response = follow(&app, JournalQuery::default(), false, &HeaderMap::new()).unwrap();
        let mut events = response.into_body().into_data_stream();
        // Quiet for long, but read all the time: comments keep the connection.
        for _ in 0..10 {
            assert_eq!(events.next().await.unwrap().unwrap(), ":\n\n");
        }
        tokio::time::advance(SLOW_MAX + Duration::from_millis(1)).await;
        let last = events.next().await.unwrap().unwrap();
        let wanted =
            "event: closed\ndata: {\"reason\":\"too slow: connect again, with Last-Event-ID for what was missed\"}\n\n";
        assert_eq!(last, wanted);
        assert!(events.next().await.is_none());
        assert_eq!(app.followers.available_permits(), 0, "held as long as the body is");
        drop(events);
        assert_eq!(app.followers.available_permits(), 1);
    }
}
