//! The journal as it grows, as server-sent events: `run` per run, `skipped` where the reader or the page was too slow
//! for the runs, `closed` with a reason at the end.
//!
//! Must never buffer more than one page for a reader. It pulls from the journal's ring, so a slow reader costs the
//! engine nothing: it misses runs, and is told how many. Tested below and in `tests/it/admin_follow.rs`.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::Instant;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use super::App;
use super::backend::JournalReader;
use super::problem::{BUSY, Problem};
use crate::engine::JournalNews;

/// How often the journal is looked at: nobody reads faster.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// The most runs shown of one look: 800 lines a second are beyond reading, and a page is a small buffer.
const LOOK_RUNS_MAX: usize = 200;
/// A reader that takes nothing for so long is told to come back.
const SLOW_MAX: Duration = Duration::from_secs(10);

/// Answers with the journal as it grows, of one id if it is given, after so many of its last runs.
pub(super) async fn follow(app: Arc<App>, id: Option<String>, history: usize) -> Result<Response, Problem> {
    let place = Arc::clone(&app.followers)
        .try_acquire_owned()
        .map_err(|_| Problem::new(BUSY, "too many readers follow the journal already"))?;
    let mut reader = app.backend.reader();
    let first = app.ask(reader.news(id.as_deref(), history)).await?;
    let (events, stream) = mpsc::channel(1);
    tokio::spawn(Follower { app, id, reader, events, _place: place }.run(first));
    let stream = ReceiverStream::new(stream).map(Ok::<_, Infallible>);
    Ok(Sse::new(stream).keep_alive(KeepAlive::default()).into_response())
}

/// One reader.
struct Follower {
    app: Arc<App>,
    id: Option<String>,
    reader: Box<dyn JournalReader>,
    events: mpsc::Sender<Event>,
    _place: OwnedSemaphorePermit,
}

/// Why a reader is fed no more.
enum End {
    Gone,
    Because(String),
}

impl Follower {
    async fn run(mut self, first: JournalNews) {
        let stop = self.app.stop.clone();
        let end = tokio::select! {
            end = feed(&mut *self.reader, self.id.as_deref(), first, &self.events) => end,
            () = stop.cancelled() => End::Because("the process is stopping".into()),
        };
        if let End::Because(reason) = end {
            let closed = Event::default().event("closed").json_data(json!({ "reason": reason }));
            // It may be gone by now.
            let _ = self.events.send(closed.unwrap_or_default()).await;
        }
    }
}

async fn feed(
    reader: &mut dyn JournalReader,
    id: Option<&str>,
    mut news: JournalNews,
    to: &mpsc::Sender<Event>,
) -> End {
    loop {
        for event in events(&news) {
            let began = Instant::now();
            if to.send(event).await.is_err() {
                return End::Gone;
            }
            if began.elapsed() > SLOW_MAX {
                return End::Because("too slow; connect again".into());
            }
        }
        tokio::select! {
            () = to.closed() => return End::Gone,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        news = match reader.news(id, LOOK_RUNS_MAX).await {
            Ok(news) => news,
            Err(error) => return End::Because(error.to_string()),
        };
    }
}

/// The events for a reader; plain values always have a JSON form.
fn events(news: &JournalNews) -> impl Iterator<Item = Event> {
    let skipped =
        (news.skipped > 0).then(|| Event::default().event("skipped").json_data(json!({ "runs": news.skipped })));
    let runs = news.entries.iter().map(|run| Event::default().event("run").json_data(run));
    skipped.into_iter().chain(runs).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::admin::Asked;

    /// A journal in which something happens all the time.
    struct Busy;

    impl JournalReader for Busy {
        fn news<'a>(&'a mut self, _: Option<&'a str>, limit: usize) -> Asked<'a, JournalNews> {
            Box::pin(async move { Ok(JournalNews { entries: Vec::new(), skipped: limit as u64 }) })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_comes_back_too_late_is_told_so() {
        let (to, mut reader) = mpsc::channel(1);
        let feeding = tokio::spawn(async move { feed(&mut Busy, None, JournalNews::default(), &to).await });
        // Read for longer than the patience, but all the time.
        let begun = Instant::now();
        while begun.elapsed() < SLOW_MAX * 2 {
            assert!(reader.recv().await.is_some());
        }
        tokio::time::sleep(SLOW_MAX * 2).await;
        let mut rest = 0;
        while reader.recv().await.is_some() {
            rest += 1;
        }
        assert_eq!(rest, 2, "what was under way, and nothing after it");
        assert!(matches!(feeding.await.unwrap(), End::Because(reason) if reason == "too slow; connect again"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_is_gone_is_fed_no_more() {
        let (to, reader) = mpsc::channel(1);
        drop(reader);
        let end = feed(&mut Busy, None, JournalNews::default(), &to).await;
        assert!(matches!(end, End::Gone));
    }
}
