//! Runs the event streams: while this process leads a shard, again after a failure, until intake stops (Q8).

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::log;
use super::shared::{Shared, StreamInfo};
use super::sink::StreamSink;
use super::view::StreamState;
use crate::contract::{BoxFuture, Class, EventStream, Events, StreamError};
use crate::id::ShardId;

/// A stream that failed is started again after this long, then after twice as long, up to the maximum; one that ran
/// for longer than the maximum starts from the first again.
const RESTART_FIRST: Duration = Duration::from_millis(250);
const RESTART_MAX: Duration = Duration::from_secs(30);

/// A stream of any type.
pub(crate) trait AnyStream: Send {
    fn run(&mut self, events: Events) -> BoxFuture<'_, Result<(), StreamError>>;
    fn class(&self) -> Class;
}

impl<S: EventStream> AnyStream for S {
    fn run(&mut self, events: Events) -> BoxFuture<'_, Result<(), StreamError>> {
        Box::pin(EventStream::run(self, events))
    }

    fn class(&self) -> Class {
        EventStream::class(self)
    }
}

/// A stream with its name, as the builder took it.
pub(crate) struct NamedStream {
    pub(crate) name: Arc<str>,
    pub(crate) stream: Box<dyn AnyStream>,
    pub(crate) critical: bool,
}

/// Runs one stream until intake stops; an error only of a critical one.
pub(crate) async fn supervise(
    shared: Arc<Shared>,
    mut named: NamedStream,
    info: Arc<StreamInfo>,
) -> Result<(), String> {
    let stopping = shared.stop.intake.clone();
    let class = named.stream.class();
    let events = Events::new(Arc::new(StreamSink::new(&shared, &info, class, stopping.clone())), class);
    let mut led = shared.led.subscribe();
    let mut delay = RESTART_FIRST;
    loop {
        let began = tokio::time::Instant::now();
        let outcome = tokio::select! {
            biased;
            () = stopping.cancelled() => break,
            led = leads(&mut led) => {
                if !led { break }
                info.set(StreamState::Running, None);
                tokio::select! {
                    biased;
                    () = stopping.cancelled() => break,
                    outcome = run_caught(&mut *named.stream, events.clone()) => outcome,
                }
            }
        };
        match outcome {
            Err(StreamError::Stopped(_)) => break,
            Ok(()) => {
                info.set(StreamState::Ended, Some("it ended by itself and gives no more events".into()));
                log::stream_ended(&shared, &named.name);
                if named.critical {
                    return Err("it ended by itself".into());
                }
                stopping.cancelled().await;
                break;
            }
            Err(error) => {
                let text = error.to_string();
                info.count_error("failed");
                if named.critical {
                    return Err(text);
                }
                if began.elapsed() > RESTART_MAX {
                    delay = RESTART_FIRST;
                }
                log::stream_failed(&shared, &named.name, &text, delay.as_secs_f64());
                info.set(StreamState::Restarting, Some(text));
                tokio::select! {
                    () = stopping.cancelled() => break,
                    () = tokio::time::sleep(delay) => {}
                }
                info.restarts.fetch_add(1, Relaxed);
                delay = (delay * 2).min(RESTART_MAX);
            }
        }
    }
    info.set(StreamState::Stopped, None);
    Ok(())
}

/// A stream that panics has failed like any other.
async fn run_caught(stream: &mut dyn AnyStream, events: Events) -> Result<(), StreamError> {
    let mut running = stream.run(events);
    std::future::poll_fn(move |context| {
        let poll = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| running.as_mut().poll(context)));
        poll.unwrap_or_else(|_| std::task::Poll::Ready(Err(StreamError::failed("it panicked"))))
    })
    .await
}

/// Waits until this process leads a shard; `false` once the engine is gone.
async fn leads(led: &mut tokio::sync::watch::Receiver<Vec<ShardId>>) -> bool {
    led.wait_for(|led| !led.is_empty()).await.is_ok()
}
