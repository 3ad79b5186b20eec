//! A small engine's side for the tests of this room: takes events, and remembers what it was told.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use opentelemetry::metrics::{Meter, MeterProvider as _, noop::NoopMeterProvider};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::contract::{BoxFuture, Class, Event, EventSink, Events, Offer, Sent, Source, Sources};
use crate::id::{ShardId, SourceId};

pub(super) struct Recorder {
    name: Arc<str>,
    sources: Sources,
    shards: watch::Sender<Vec<ShardId>>,
    stopping: CancellationToken,
    reports: Mutex<Vec<Option<String>>>,
    errors: Mutex<BTreeMap<&'static str, u64>>,
    meter: Meter,
}

impl Recorder {
    pub(super) fn events(shards: &[u16]) -> (Arc<Self>, Events) {
        let recorder = Arc::new(Self {
            name: "test".into(),
            sources: Sources::default(),
            shards: watch::Sender::new(shards.iter().map(|shard| ShardId(*shard)).collect()),
            stopping: CancellationToken::new(),
            reports: Mutex::default(),
            errors: Mutex::default(),
            meter: NoopMeterProvider::new().meter("test"),
        });
        (Arc::clone(&recorder), Events::new(recorder, Class::Event))
    }

    pub(super) fn reports(&self) -> Vec<Option<String>> {
        self.reports.lock().unwrap().clone()
    }

    pub(super) fn errors(&self, name: &str) -> u64 {
        self.errors.lock().unwrap().get(name).copied().unwrap_or_default()
    }
}

impl EventSink for Recorder {
    fn offer(&self, _: &Event<'_>) -> Offer {
        Offer::Sent(Sent::Taken)
    }

    fn room(&self, _: ShardId) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn open(&self, source: Source) -> SourceId {
        self.sources.open(source)
    }

    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn shards(&self) -> watch::Receiver<Vec<ShardId>> {
        self.shards.subscribe()
    }

    fn shard_of(&self, _: &str) -> Option<ShardId> {
        Some(ShardId(0))
    }

    fn stopping(&self) -> &CancellationToken {
        &self.stopping
    }

    fn report(&self, problem: Option<String>) {
        self.reports.lock().unwrap().push(problem);
    }

    fn count_error(&self, name: &'static str) {
        *self.errors.lock().unwrap().entry(name).or_default() += 1;
    }

    fn meter(&self) -> &Meter {
        &self.meter
    }
}
