//! The event stream: starts the consumer's thread, tells it of shards and room, and watches over it.
//!
//! Must never touch the client. When intake stops the future ends, and the thread goes on committing until the
//! [`KafkaCommitter`] closes it. Tested by the live tests.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::committer::{KafkaCommitter, Meeting, Running};
use super::instruments::{Gauges, Instruments};
use super::session::{Note, Session, Setup};
use super::settings::{SettingsError, StreamSettings};
use crate::contract::{EventStream, Events, StreamError};
use crate::id::ShardId;

/// Requests for room that wait to be looked at; one for each shard at the most, and those that find no place come
/// again.
const ROOMS_MAX: usize = 256;
/// After a restart the consumer before it gets this long to commit and close.
const HAND_OVER: Duration = Duration::from_secs(5);
/// The consumer's thread polls several times a second; silent for this long it is stuck, which is reported.
const STUCK: Duration = Duration::from_secs(30);
/// How often that is looked for.
const STUCK_CHECK: Duration = Duration::from_secs(5);

/// A stream of events from Kafka topics.
pub struct KafkaStream {
    settings: Arc<StreamSettings>,
    meeting: Arc<Meeting>,
    telemetry: OnceLock<(Arc<Gauges>, Arc<Instruments>)>,
}

impl KafkaStream {
    /// A stream with these settings. Nothing is connected before it runs.
    ///
    /// # Errors
    /// Settings that cannot be used.
    pub fn new(settings: StreamSettings) -> Result<Self, SettingsError> {
        settings.check()?;
        Ok(Self { settings: Arc::new(settings), meeting: Arc::default(), telemetry: OnceLock::new() })
    }

    /// The committer of this stream, to be called when the drain is over.
    #[must_use]
    pub fn committer(&self) -> KafkaCommitter {
        KafkaCommitter { meeting: Arc::clone(&self.meeting) }
    }

    /// Seconds since a Kafka broker last answered; `None` before the stream runs. Readiness looks at it.
    #[must_use]
    pub fn silence_seconds(&self) -> Option<f64> {
        self.telemetry.get().map(|(gauges, _)| gauges.silence(Instant::now()))
    }

    fn start(&self, events: &Events) -> Result<(Started, Sender<Note>), StreamError> {
        let (gauges, instruments) = self.telemetry.get_or_init(|| {
            let gauges = Gauges::new(Arc::clone(events.name()), self.settings.group.clone());
            let instruments = Arc::new(Instruments::new(events.meter(), &gauges));
            (gauges, instruments)
        });
        let (notes, inbox) = channel();
        let (rooms, wanted) = mpsc::channel(ROOMS_MAX);
        let (end, ended) = watch::channel(None);
        gauges.polled(Instant::now());
        let setup = Setup {
            settings: Arc::clone(&self.settings),
            events: events.clone(),
            gauges: Arc::clone(gauges),
            instruments: Arc::clone(instruments),
            notes: inbox,
            rooms,
        };
        let thread = std::thread::Builder::new().name("kafka consumer".into());
        let run = move || {
            let result = Session::new(setup).map_err(|error| error.to_string()).and_then(Session::run);
            end.send_replace(Some(result));
        };
        thread.spawn(run).map_err(|error| StreamError::failed(format!("no thread can be started: {error}")))?;
        self.meeting.set(Running { notes: notes.clone(), ended: ended.clone() });
        Ok((Started { wanted, ended, gauges: Arc::clone(gauges) }, notes))
    }
}

struct Started {
    wanted: mpsc::Receiver<ShardId>,
    ended: watch::Receiver<Option<Result<(), String>>>,
    gauges: Arc<Gauges>,
}

/// Tells the thread that intake is over, also when the future is dropped.
struct StopIntake(Sender<Note>);

impl Drop for StopIntake {
    fn drop(&mut self) {
        let _ = self.0.send(Note::StopIntake);
    }
}

impl EventStream for KafkaStream {
    async fn run(&mut self, events: Events) -> Result<(), StreamError> {
        // A consumer of an earlier run may still hold marks; two at once would commit against each other.
        let _ = self.meeting.close(HAND_OVER).await;
        let (started, notes) = self.start(&events)?;
        let stop = StopIntake(notes.clone());
        let result = attend(&events, started, &notes).await;
        drop(stop);
        result
    }
}

/// Passes on shards and room until intake stops or the thread ends.
async fn attend(events: &Events, started: Started, notes: &Sender<Note>) -> Result<(), StreamError> {
    let Started { mut wanted, mut ended, gauges } = started;
    let mut shards = events.shards();
    shards.mark_changed();
    let mut rooms = JoinSet::new();
    let mut check = tokio::time::interval(STUCK_CHECK);
    let mut stuck = false;
    loop {
        tokio::select! {
            () = events.stopping() => return Ok(()),
            end = ended.wait_for(Option::is_some) => {
                let text = match end.as_deref() {
                    Ok(Some(Err(text))) => text.clone(),
                    Ok(_) => "the Kafka consumer was closed".into(),
                    Err(_) => "the Kafka consumer's thread died".into(),
                };
                return Err(StreamError::Failed(text));
            }
            Ok(()) = shards.changed() => {
                let led = shards.borrow_and_update().clone();
                let _ = notes.send(Note::Shards(led));
            }
            Some(shard) = wanted.recv() => {
                let events = events.clone();
                rooms.spawn(async move {
                    events.room(shard).await;
                    shard
                });
            }
            Some(Ok(shard)) = rooms.join_next() => {
                let _ = notes.send(Note::Room(shard));
            }
            _ = check.tick() => {
                let silent = gauges.since_poll(Instant::now());
                if silent > STUCK.as_secs_f64() && !stuck {
                    stuck = true;
                    events.count_error("stuck");
                    let text = format!("the Kafka consumer's thread has not polled for {silent:.0} s");
                    tracing::error!(stream = %events.name(), "{text}");
                    events.report(Some(text));
                } else if silent < STUCK.as_secs_f64() && stuck {
                    stuck = false;
                    events.report(None);
                }
            }
        }
    }
}
