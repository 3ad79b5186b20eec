//! Spans (T2): one trace per item from its first event until it is done, through all its attempts, linked to the
//! producers' spans.
//!
//! Nothing is made unless the engine was given a tracer, and nothing is allocated for an item that is not sampled: that
//! is decided here, before the tracer is asked. Tested in `tests/it/engine_telemetry.rs`.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::SystemTime;

use opentelemetry::global::BoxedTracer;
use opentelemetry::trace::{Link, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId};
use opentelemetry::trace::{TraceState, Tracer};
use opentelemetry::{Context, KeyValue};

use super::journal;
use super::view::RunOutcome;
use crate::contract::FencingToken;
use crate::id::ShardId;

/// How many items have a trace at once. One that fails for days keeps its root span open, some kilobytes, and a million
/// may fail at once; items beyond this number go without.
const OPEN_MAX: usize = 10_000;

/// Makes spans.
pub(crate) struct Tracing {
    tracer: BoxedTracer,
    /// An item is sampled when its number is below this; `None` takes all.
    below: Option<u64>,
    /// The last number that was drawn.
    drawn: AtomicU64,
    /// How many items have an open trace.
    open: Arc<AtomicUsize>,
}

/// What was decided for an item, remembered through its attempts.
#[derive(Debug)]
pub(crate) enum ItemTrace {
    /// It has no trace.
    Out,
    /// It has one.
    In(ItemSpan),
}

/// The spans of one item: its root, and its present attempt.
#[derive(Debug)]
pub(crate) struct ItemSpan {
    root: Context,
    attempt: Option<Context>,
    _open: Open,
}

/// Counts an open trace until it is dropped.
#[derive(Debug)]
struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// What a span of an attempt says.
pub(crate) struct AttemptInfo<'a> {
    pub(crate) kind: &'a str,
    pub(crate) id: &'a str,
    pub(crate) shard: ShardId,
    pub(crate) attempt: u32,
    pub(crate) token: FencingToken,
    pub(crate) waiting_since: SystemTime,
    /// Why it runs, in words (T5).
    pub(crate) causes: String,
}

impl Tracing {
    /// A trace for this share of the items, from 0 to 1.
    pub(crate) fn new(tracer: BoxedTracer, share: f64) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a float saturates where it becomes an integer"
        )]
        let below = (share < 1.0).then_some((share * u64::MAX as f64) as u64);
        let drawn = AtomicU64::new(RandomState::new().hash_one("evenkeel"));
        Self { tracer, below, drawn, open: Arc::default() }
    }

    /// Decides whether an item gets a trace.
    pub(crate) fn samples(&self) -> bool {
        self.below.is_none_or(|below| self.draw() < below) && self.open.load(Relaxed) < OPEN_MAX
    }

    /// What the reconciler of an item without a trace passes on, so that others do not begin one in the middle either.
    pub(crate) fn not_sampled(&self) -> SpanContext {
        let trace = u128::from(self.draw()) << 64 | u128::from(self.draw());
        let span = SpanId::from(self.draw() | 1);
        SpanContext::new(TraceId::from(trace), span, TraceFlags::NOT_SAMPLED, false, TraceState::NONE)
    }

    /// The next number of SplitMix64: good enough to choose by, and one addition of all shards together.
    fn draw(&self) -> u64 {
        const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
        let z = self.drawn.fetch_add(STEP, Relaxed).wrapping_add(STEP);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The root span of an item, begun when the item began to wait.
    pub(crate) fn item(&self, info: &AttemptInfo<'_>, links: &[SpanContext]) -> ItemSpan {
        self.open.fetch_add(1, Relaxed);
        let builder = self
            .tracer
            .span_builder(format!("reconcile {}", info.kind))
            .with_kind(SpanKind::Consumer)
            .with_start_time(info.waiting_since)
            .with_links(links.iter().map(|span| Link::new(span.clone(), Vec::new(), 0)).collect())
            .with_attributes([
                KeyValue::new("evenkeel.id", info.id.to_owned()),
                KeyValue::new("evenkeel.kind", info.kind.to_owned()),
                KeyValue::new("evenkeel.shard", i64::from(info.shard.0)),
            ]);
        // A root of its own: an item may answer many producers, so their spans are links, not parents.
        let root = Context::new().with_span(self.tracer.build_with_context(builder, &Context::new()));
        root.span().add_event_with_timestamp("enqueue", info.waiting_since, Vec::new());
        ItemSpan { root, attempt: None, _open: Open(Arc::clone(&self.open)) }
    }

    /// Begins the span of an attempt; gives what the reconciler passes on.
    pub(crate) fn attempt(&self, item: &mut ItemSpan, info: &AttemptInfo<'_>) -> SpanContext {
        item.root.span().add_event("dequeue", Vec::new());
        let builder = self.tracer.span_builder("attempt").with_attributes([
            KeyValue::new("evenkeel.id", info.id.to_owned()),
            KeyValue::new("evenkeel.attempt", i64::from(info.attempt)),
            KeyValue::new("evenkeel.fencing_token", info.token.to_string()),
            KeyValue::new("evenkeel.causes", info.causes.clone()),
        ]);
        let attempt = item.root.with_span(self.tracer.build_with_context(builder, &item.root));
        let context = attempt.span().span_context().clone();
        item.attempt = Some(attempt);
        context
    }
}

impl ItemSpan {
    /// Links the item to more producers' spans.
    pub(crate) fn link(&self, links: Vec<SpanContext>) {
        let span = self.root.span();
        links.into_iter().for_each(|link| span.add_link(link, Vec::new()));
    }

    /// Ends the attempt; says on the root what follows. Gives the attempt's context, for what is logged about it.
    pub(crate) fn ended(&mut self, entry: &journal::Entry, delay_seconds: Option<f64>) -> Option<Context> {
        let attempt = self.attempt.take();
        if let Some(attempt) = &attempt {
            let span = attempt.span();
            span.set_attribute(KeyValue::new("evenkeel.outcome", entry.outcome.name()));
            if !matches!(entry.outcome, RunOutcome::Done | RunOutcome::Requeued) {
                let text = entry.message().cloned().unwrap_or_default();
                let name = if entry.outcome == RunOutcome::Panicked { "panic" } else { "exception" };
                span.add_event(name, vec![KeyValue::new("exception.message", text.to_string())]);
                span.set_status(Status::error(text.to_string()));
            }
            span.end();
        }
        if let Some(delay) = delay_seconds {
            self.root.span().add_event("requeue", vec![KeyValue::new("evenkeel.delay_seconds", delay)]);
        }
        attempt
    }

    /// Nothing is owed any more, or somebody must come first.
    pub(crate) fn finish(self, outcome: RunOutcome, message: Option<&Arc<str>>) {
        let span = self.root.span();
        span.set_attribute(KeyValue::new("evenkeel.outcome", outcome.name()));
        if matches!(outcome, RunOutcome::Done | RunOutcome::Requeued) {
            span.set_status(Status::Ok);
        } else {
            span.set_status(Status::error(message.map(ToString::to_string).unwrap_or_default()));
        }
        span.end();
    }
}
