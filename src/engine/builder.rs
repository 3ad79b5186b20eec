//! Puts an engine together.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use jiff::Timestamp;
use opentelemetry::global::BoxedTracer;
use opentelemetry::metrics::Meter;
use tokio::sync::watch;

use super::Engine;
use super::clock::Clock;
use super::invoke::{Invoke, Invoker};
use super::options::{Limits, ReconcilerOptions, Sharding, Timing};
use super::patience::Patience;
use super::pool::Pool;
use super::shared::{Kind, Problems, ShardDoor, Shared, Stop, StreamInfo};
use super::stats::{Instruments, SCOPE};
use super::streams::NamedStream;
use super::trace::Tracing;
use crate::contract::{Class, DeadLetter, Elector, EventStream, Reconciler, RecordStore, Source, Sources};
use crate::id::{HasherFn, Router, RouterError};
use crate::scheduler::DELAY_MAX;

/// Builds an [`Engine`].
#[must_use = "a builder does nothing until it is built"]
pub struct Builder {
    name: String,
    sharding: Sharding,
    hasher: Option<HasherFn>,
    reconciler: Option<Box<dyn Invoke>>,
    options: ReconcilerOptions,
    limits: Limits,
    timing: Timing,
    streams: Vec<NamedStream>,
    store: Option<Arc<dyn RecordStore>>,
    elector: Option<Arc<dyn Elector>>,
    dead_letters: BTreeMap<Arc<str>, Arc<dyn DeadLetter>>,
    meter: Option<Meter>,
    tracer: Option<BoxedTracer>,
    trace_share: f64,
    incarnation: u32,
    planted: Vec<String>,
    patience: Patience,
}

/// The parts do not make an engine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// No reconciler was given.
    #[error("an engine needs a reconciler; give it one with `Builder::reconciler`")]
    NoReconciler,
    /// The name is empty or too long.
    #[error("the name of an engine needs 1 to 200 bytes without control characters, not {0:?}")]
    Name(String),
    /// Two streams have the same name.
    #[error("two streams are called {0:?}; each needs a name of its own")]
    StreamTwice(String),
    /// Shards, workers or hash cannot be.
    #[error(transparent)]
    Router(#[from] RouterError),
    /// A number that must be at least 1 is 0.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    /// A duration is out of range.
    #[error("{0} must be between {1:?} and {2:?}")]
    Duration(&'static str, Duration, Duration),
    /// The retry rules make no sense.
    #[error("retry needs factor ≥ 1, jitter from 0 to 1, and initial ≤ max_delay")]
    Retry,
}

impl Builder {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            sharding: Sharding::default(),
            hasher: None,
            reconciler: None,
            options: ReconcilerOptions::default(),
            limits: Limits::default(),
            timing: Timing::default(),
            streams: Vec::new(),
            store: None,
            elector: None,
            dead_letters: BTreeMap::new(),
            meter: None,
            tracer: None,
            trace_share: 1.0,
            incarnation: 1,
            planted: Vec::new(),
            patience: Patience::USUAL,
        }
    }

    /// What makes the world true for an id. Needed.
    pub fn reconciler(mut self, reconciler: impl Reconciler) -> Self {
        self.reconciler = Some(Box::new(Invoker::new(reconciler)));
        self
    }

    /// How the reconciler is run: lanes, concurrency, timeout, retries.
    pub fn options(mut self, options: ReconcilerOptions) -> Self {
        self.options = options;
        self
    }

    /// An event stream under a name of its own. One that fails is started again (Q8).
    pub fn stream(mut self, name: &str, stream: impl EventStream) -> Self {
        self.streams.push(NamedStream { name: name.into(), stream: Box::new(stream), critical: false });
        self
    }

    /// An event stream without which the engine cannot go on: its failure ends [`Engine::run`] with its error (Q8).
    pub fn critical_stream(mut self, name: &str, stream: impl EventStream) -> Self {
        self.streams.push(NamedStream { name: name.into(), stream: Box::new(stream), critical: true });
        self
    }

    /// How ids are spread; one for the whole cluster (Q2).
    pub fn sharding(mut self, sharding: Sharding) -> Self {
        self.sharding = sharding;
        self
    }

    /// A hash of your own in place of [`Sharding::hash`]; `None` drops the event.
    pub fn hasher(mut self, hasher: impl Fn(&str) -> Option<u32> + Send + Sync + 'static) -> Self {
        self.hasher = Some(Arc::new(hasher));
        self
    }

    /// Bounds of each shard (D6).
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// How long things may take.
    pub fn timing(mut self, timing: Timing) -> Self {
        self.timing = timing;
        self
    }

    /// Where owed records are kept (D12). Without, offsets are held until their runs succeed, and parked ids are lost
    /// with the process.
    pub fn store(mut self, store: Arc<dyn RecordStore>) -> Self {
        self.store = Some(store);
        self
    }

    /// Who decides which shards this process leads. Without, it leads all, and fencing tokens come from the calendar;
    /// with [`LocalElector`](crate::local::LocalElector) they come from the store's counter (L4, L6).
    pub fn elector(mut self, elector: Arc<dyn Elector>) -> Self {
        self.elector = Some(elector);
        self
    }

    /// Where ids go that this stream asked for and that were given up (D3).
    pub fn dead_letter(mut self, stream: &str, to: Arc<dyn DeadLetter>) -> Self {
        self.dead_letters.insert(stream.into(), to);
        self
    }

    /// Where the engine's instruments come from; the global meter provider by default.
    pub fn meter(mut self, meter: Meter) -> Self {
        self.meter = Some(meter);
        self
    }

    /// Makes spans with this tracer; none by default.
    pub fn tracer(mut self, tracer: BoxedTracer) -> Self {
        self.tracer = Some(tracer);
        self
    }

    /// Of which share of the items a trace is made, from 0 to 1; all by default. It is decided before the tracer is
    /// asked, so that an item without a trace costs next to nothing.
    pub fn trace_share(mut self, share: f64) -> Self {
        self.trace_share = share;
        self
    }

    /// The first part of fencing tokens, to be raised when a store was restored from a backup (L4).
    pub fn incarnation(mut self, incarnation: u32) -> Self {
        self.incarnation = incarnation;
        self
    }

    /// Plants a fault in every shard, so that a test can show that it would be found.
    #[doc(hidden)]
    pub fn plant(mut self, fault: &str) -> Self {
        self.planted.push(fault.to_owned());
        self
    }

    /// Finds what blocks a thread ten times sooner, for tests of that; in earnest a busy machine would look like a
    /// fault.
    #[doc(hidden)]
    pub fn hasty(mut self) -> Self {
        self.patience = Patience::hasty();
        self
    }

    /// Checks the parts and puts them together. Must be called inside a Tokio runtime.
    ///
    /// # Errors
    /// What is missing or out of range.
    pub fn build(self) -> Result<Engine, BuildError> {
        self.check()?;
        let name: Arc<str> = self.name.as_str().into();
        let mut router = Router::new(self.sharding.hash, self.sharding.shards, u32::from(self.options.workers))?;
        if let Some(hasher) = self.hasher {
            router = router.with_hasher(hasher);
        }
        let reconciler = self.reconciler.ok_or(BuildError::NoReconciler)?;
        let pool = Pool::new(self.options.concurrency);
        let kinds = vec![Kind { name: Arc::clone(&name), reconciler, options: self.options, pool }];
        let meter = self.meter.unwrap_or_else(|| opentelemetry::global::meter(SCOPE));
        let sources = Arc::new(Sources::default());
        let infos = self.streams.iter().map(|named| Arc::new(StreamInfo::new(Arc::clone(&named.name)))).collect();
        let shared = Arc::new(Shared {
            started: Timestamp::now(),
            kinds,
            limits: self.limits,
            timing: self.timing,
            patience: self.patience,
            store: self.store,
            elector: self.elector,
            dead_letters: self.dead_letters,
            trigger_source: sources.open(Source::untracked("trigger", Class::Trigger)),
            sources,
            shards: (0..router.shards()).map(|_| ShardDoor::new()).collect(),
            led: watch::Sender::new(Vec::new()),
            streams: RwLock::new(infos),
            instruments: Instruments::new(&meter),
            meter,
            clock: Clock::start(),
            stop: Stop::default(),
            problems: Problems::default(),
            ready: AtomicBool::new(false),
            tracing: self.tracer.map(|tracer| Tracing::new(tracer, self.trace_share)),
            incarnation: self.incarnation,
            planted: self.planted,
            router,
            name,
        });
        Ok(Engine::new(shared, self.streams))
    }

    fn check(&self) -> Result<(), BuildError> {
        if self.name.is_empty() || self.name.len() > 200 || self.name.chars().any(char::is_control) {
            return Err(BuildError::Name(self.name.clone()));
        }
        for (index, named) in self.streams.iter().enumerate() {
            if self.streams[..index].iter().any(|other| other.name == named.name) {
                return Err(BuildError::StreamTwice(named.name.to_string()));
            }
        }
        for (name, number) in [
            ("concurrency", self.options.concurrency),
            ("limits.admitted", self.limits.admitted),
            ("limits.timers", self.limits.timers),
            ("limits.owed_records", self.limits.owed_records),
        ] {
            if number == 0 {
                return Err(BuildError::Zero(name));
            }
        }
        let ms = Duration::from_millis(1);
        let resolution_max = Duration::from_secs(1);
        for (name, value, low, high) in [
            ("timing.resolution", self.timing.resolution, ms, resolution_max),
            ("timing.max_hold", self.timing.max_hold, ms, DELAY_MAX),
            ("timing.min_requeue", self.timing.min_requeue, ms, DELAY_MAX),
            ("timing.drain", self.timing.drain, ms, DELAY_MAX),
            ("cancel_grace", self.options.cancel_grace, Duration::ZERO, DELAY_MAX),
            ("timeout", self.options.timeout.unwrap_or(ms), ms, DELAY_MAX),
            ("retry.initial", self.options.retry.initial, ms, DELAY_MAX),
            ("retry.max_delay", self.options.retry.max_delay, ms, DELAY_MAX),
        ] {
            if value < low || value > high {
                return Err(BuildError::Duration(name, low, high));
            }
        }
        let retry = self.options.retry;
        let sound = retry.factor >= 1.0 && retry.factor.is_finite() && (0.0..=1.0).contains(&retry.jitter);
        if !sound || retry.initial > retry.max_delay {
            return Err(BuildError::Retry);
        }
        Ok(())
    }
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder").field("name", &self.name).finish_non_exhaustive()
    }
}
