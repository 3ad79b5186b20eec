//! The engine's side of a stream: places ids, fills the open batches, says when there is no room.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use opentelemetry::metrics::Meter;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::intake::Intake;
use super::log;
use super::shared::{Shared, StreamInfo};
use super::view::StreamState;
use crate::contract::{BoxFuture, Class, Event, EventSink, Offer, Sent, Source};
use crate::id::{Place, ShardId, SourceId, WorkerId, check};

/// One stream's way into all shards.
pub(crate) struct StreamSink {
    shared: Arc<Shared>,
    info: Arc<StreamInfo>,
    intakes: Vec<Arc<Intake>>,
    stopping: CancellationToken,
}

impl StreamSink {
    pub(crate) fn new(shared: &Arc<Shared>, info: &Arc<StreamInfo>, class: Class, stopping: CancellationToken) -> Self {
        let intakes = shared
            .shards
            .iter()
            .map(|door| {
                let intake = Arc::new(Intake::new(class));
                door.add_intake(Arc::clone(&intake));
                intake
            })
            .collect();
        Self { shared: Arc::clone(shared), info: Arc::clone(info), intakes, stopping }
    }

    /// Where an event goes, or what becomes of it if it goes nowhere.
    fn place(&self, event: &Event<'_>) -> Result<Place, Offer> {
        if event.id.is_empty() {
            return Err(Offer::Sent(Sent::Dropped));
        }
        if let Err(error) = check(event.id) {
            self.info.count_error("invalid_id");
            log::refused_id(&self.info.name, &error);
            return Err(Offer::Refused(error));
        }
        let Some(place) = self.shared.router.place(event.id) else { return Err(Offer::Sent(Sent::Dropped)) };
        if self.shared.stop.is_closed() {
            return Err(Offer::Stopped);
        }
        if !self.shared.door(place.shard).is_led() {
            return Err(Offer::Sent(Sent::Foreign(place.shard)));
        }
        Ok(place)
    }

    /// Hands events of one shard to it; gives how many it took.
    fn push<'e>(&self, shard: ShardId, events: impl IntoIterator<Item = (&'e Event<'e>, WorkerId)>) -> usize {
        let pushed = self.intakes[usize::from(shard.0)].push(events);
        if pushed.first && pushed.count > 0 {
            self.shared.wake(shard);
        }
        self.info.events.fetch_add(pushed.count as u64, Relaxed);
        pushed.count
    }
}

impl EventSink for StreamSink {
    fn offer(&self, event: &Event<'_>) -> Offer {
        match self.place(event) {
            Err(offer) => offer,
            Ok(place) => match self.push(place.shard, [(event, place.worker)]) {
                0 => Offer::Full(place.shard),
                _ => Offer::Sent(Sent::Taken),
            },
        }
    }

    fn offer_all(&self, events: &[Event<'_>]) -> (usize, Option<Offer>) {
        let mut done = 0;
        while done < events.len() {
            let place = match self.place(&events[done]) {
                Ok(place) => place,
                Err(Offer::Stopped) => return (done, Some(Offer::Stopped)),
                Err(_) => {
                    done += 1;
                    continue;
                }
            };
            // As many as follow for the same shard go in under one lock.
            let shard = place.shard;
            let rest = &events[done + 1..];
            let same = rest
                .iter()
                .map_while(|event| self.place(event).ok().filter(|p| p.shard == shard).map(|p| (event, p.worker)));
            let mut wanted = 0;
            let batch = std::iter::once((&events[done], place.worker)).chain(same).inspect(|_| wanted += 1);
            let taken = self.push(shard, batch);
            done += taken;
            if taken < wanted {
                return (done, Some(Offer::Full(shard)));
            }
        }
        (done, None)
    }

    fn room(&self, shard: ShardId) -> BoxFuture<'_, ()> {
        Box::pin(self.intakes[usize::from(shard.0)].room())
    }

    fn open(&self, source: Source) -> SourceId {
        self.shared.sources.open(source)
    }

    fn name(&self) -> &Arc<str> {
        &self.info.name
    }

    fn shards(&self) -> watch::Receiver<Vec<ShardId>> {
        self.shared.led.subscribe()
    }

    fn shard_of(&self, id: &str) -> Option<ShardId> {
        self.shared.router.place(id).map(|place| place.shard)
    }

    fn stopping(&self) -> &CancellationToken {
        &self.stopping
    }

    fn report(&self, problem: Option<String>) {
        match problem {
            None => self.info.set(StreamState::Running, None),
            Some(problem) => self.info.set(StreamState::Degraded, Some(problem)),
        }
    }

    fn count_error(&self, name: &'static str) {
        self.info.count_error(name);
    }

    fn meter(&self) -> &Meter {
        &self.shared.meter
    }
}
