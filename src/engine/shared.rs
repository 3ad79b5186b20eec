//! What the parts of one engine share: who is who, the ways into the shards, and how everything is.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use fnv::FnvHashMap;
use jiff::Timestamp;
use opentelemetry::metrics::Meter;
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::beacon::{Beacon, Polled};
use super::clock::Clock;
use super::intake::Intake;
use super::invoke::Invoke;
use super::options::{Limits, ReconcilerOptions, Timing};
use super::patience::Patience;
use super::pool::Pool;
use super::shard::Message;
use super::stats::{Instruments, ShardStats};
use super::trace::Tracing;
use super::view::StreamState;
use crate::contract::{DeadLetter, Elector, RecordStore, Sources, Term};
use crate::id::{Router, ShardId, SourceId};

/// Everything that the parts of one engine share.
pub(crate) struct Shared {
    pub(crate) name: Arc<str>,
    pub(crate) started: Timestamp,
    pub(crate) router: Router,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) limits: Limits,
    pub(crate) timing: Timing,
    pub(crate) patience: Patience,
    pub(crate) store: Option<Arc<dyn RecordStore>>,
    pub(crate) elector: Option<Arc<dyn Elector>>,
    pub(crate) dead_letters: BTreeMap<Arc<str>, Arc<dyn DeadLetter>>,
    pub(crate) sources: Arc<Sources>,
    pub(crate) shards: Vec<ShardDoor>,
    pub(crate) trigger_source: SourceId,
    pub(crate) led: watch::Sender<Vec<ShardId>>,
    pub(crate) streams: RwLock<Vec<Arc<StreamInfo>>>,
    pub(crate) meter: Meter,
    pub(crate) instruments: Instruments,
    pub(crate) clock: Clock,
    pub(crate) stop: Stop,
    pub(crate) problems: Problems,
    pub(crate) ready: AtomicBool,
    pub(crate) tracing: Option<Tracing>,
    pub(crate) incarnation: u32,
    /// Faults that tests plant in every term; see [`crate::scheduler::Shard::plant`].
    pub(crate) planted: Vec<String>,
}

/// One kind and its reconciler; for opaque ids there is one.
pub(crate) struct Kind {
    pub(crate) name: Arc<str>,
    pub(crate) reconciler: Box<dyn Invoke>,
    pub(crate) options: ReconcilerOptions,
    pub(crate) pool: Pool,
}

/// The stages of a stop, in order; each token is cancelled once.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stop {
    /// Somebody asked for it.
    pub(crate) asked: CancellationToken,
    /// No more events.
    pub(crate) intake: CancellationToken,
    /// The same as a plain flag, which costs an event less to look at.
    closed: Arc<AtomicBool>,
    /// The shards finish what runs, and record what is left.
    pub(crate) shards: CancellationToken,
    /// The engine is gone.
    pub(crate) over: CancellationToken,
}

impl Stop {
    /// From now on no event is taken.
    pub(crate) fn close_intake(&self) {
        self.closed.store(true, Relaxed);
        self.intake.cancel();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }
}

/// The way into one shard.
pub(crate) struct ShardDoor {
    /// Wakes the loop for an intake.
    pub(crate) wake: Notify,
    pub(crate) intakes: RwLock<Vec<Arc<Intake>>>,
    /// Bumped when an intake is added, so that the loop copies the list again only then.
    pub(crate) intakes_version: AtomicU64,
    pub(crate) triggers: Arc<Intake>,
    pub(crate) messages: mpsc::UnboundedSender<Message>,
    pub(crate) inbox: Mutex<Option<mpsc::UnboundedReceiver<Message>>>,
    pub(crate) led: AtomicBool,
    pub(crate) term: Mutex<Option<Term>>,
    pub(crate) stats: ShardStats,
    pub(crate) beacon: Beacon,
    /// The tasks of the runs under way, by slot.
    pub(crate) polled: Mutex<FnvHashMap<u32, Arc<Polled>>>,
}

impl ShardDoor {
    pub(crate) fn new() -> Self {
        let (messages, inbox) = mpsc::unbounded_channel();
        let triggers = Arc::new(Intake::new(crate::contract::Class::Trigger));
        Self {
            wake: Notify::new(),
            intakes: RwLock::new(vec![Arc::clone(&triggers)]),
            intakes_version: AtomicU64::new(1),
            triggers,
            messages,
            inbox: Mutex::new(Some(inbox)),
            led: AtomicBool::new(false),
            term: Mutex::new(None),
            stats: ShardStats::default(),
            beacon: Beacon::default(),
            polled: Mutex::default(),
        }
    }

    pub(crate) fn add_intake(&self, intake: Arc<Intake>) {
        self.intakes.write().unwrap_or_else(PoisonError::into_inner).push(intake);
        self.intakes_version.fetch_add(1, Relaxed);
    }

    pub(crate) fn is_led(&self) -> bool {
        self.led.load(Relaxed)
    }
}

/// How one stream is.
#[derive(Debug)]
pub(crate) struct StreamInfo {
    pub(crate) name: Arc<str>,
    pub(crate) events: AtomicU64,
    pub(crate) errors: AtomicU64,
    /// The same by short fixed names.
    pub(crate) errors_by_name: Mutex<BTreeMap<&'static str, u64>>,
    pub(crate) restarts: AtomicU64,
    pub(crate) state: Mutex<(StreamState, Option<String>)>,
}

impl StreamInfo {
    pub(crate) fn new(name: Arc<str>) -> Self {
        Self {
            name,
            events: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            errors_by_name: Mutex::default(),
            restarts: AtomicU64::new(0),
            state: Mutex::new((StreamState::Stopped, None)),
        }
    }

    pub(crate) fn count_error(&self, name: &'static str) {
        self.errors.fetch_add(1, Relaxed);
        *self.errors_by_name.lock().unwrap_or_else(PoisonError::into_inner).entry(name).or_default() += 1;
    }

    pub(crate) fn set(&self, state: StreamState, problem: Option<String>) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = (state, problem);
    }

    pub(crate) fn get(&self) -> (StreamState, Option<String>) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What is wrong, by who says so; shown in health and status. Saying it again replaces it.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    list: Mutex<BTreeMap<String, Problem>>,
}

#[derive(Debug, Clone)]
pub(crate) struct Problem {
    pub(crate) text: String,
    /// The process should be ended: something is stuck and cannot be freed (C4).
    pub(crate) fatal: bool,
}

impl Problems {
    pub(crate) fn set(&self, who: impl Into<String>, text: impl Into<String>, fatal: bool) {
        let problem = Problem { text: text.into(), fatal };
        self.list.lock().unwrap_or_else(PoisonError::into_inner).insert(who.into(), problem);
    }

    pub(crate) fn clear(&self, who: &str) {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).remove(who);
    }

    pub(crate) fn all(&self) -> Vec<Problem> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}

impl Shared {
    pub(crate) fn door(&self, shard: ShardId) -> &ShardDoor {
        &self.shards[usize::from(shard.0)]
    }

    pub(crate) fn set_term(&self, shard: ShardId, term: Option<Term>) {
        *self.door(shard).term.lock().unwrap_or_else(PoisonError::into_inner) = term;
    }

    /// The term of a shard, while this process leads it.
    pub(crate) fn term(&self, shard: ShardId) -> Option<Term> {
        *self.door(shard).term.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn streams(&self) -> Vec<Arc<StreamInfo>> {
        self.streams.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn wake(&self, shard: ShardId) {
        self.door(shard).wake.notify_one();
    }

    /// Whether owed records survive this process.
    pub(crate) fn is_durable(&self) -> bool {
        self.store.as_ref().is_some_and(|store| store.is_durable())
    }
}
