//! Spans (T2): one trace per item from its first event until it is done, through all its attempts, linked to the
//! producers' spans.
//!
//! Nothing is made unless the engine was given a tracer.

use std::sync::Arc;
use std::time::SystemTime;

use opentelemetry::global::BoxedTracer;
use opentelemetry::trace::{Link, SpanContext, SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context, KeyValue};

use super::journal;
use super::view::RunOutcome;
use crate::contract::FencingToken;
use crate::id::ShardId;

/// Makes spans.
pub(crate) struct Tracing {
    tracer: BoxedTracer,
}

/// The spans of one item: its root, and its present attempt.
#[derive(Debug)]
pub(crate) struct ItemSpan {
    root: Context,
    attempt: Option<Context>,
}

/// What a span of an attempt says.
pub(crate) struct AttemptInfo<'a> {
    pub(crate) kind: &'a str,
    pub(crate) id: &'a str,
    pub(crate) shard: ShardId,
    pub(crate) attempt: u32,
    pub(crate) token: FencingToken,
    pub(crate) waiting_since: SystemTime,
}

impl Tracing {
    pub(crate) fn new(tracer: BoxedTracer) -> Self {
        Self { tracer }
    }

    /// The root span of an item, begun when the item began to wait.
    pub(crate) fn item(&self, info: &AttemptInfo<'_>, links: &[SpanContext]) -> ItemSpan {
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
        ItemSpan { root, attempt: None }
    }

    /// Begins the span of an attempt; gives what the reconciler passes on.
    pub(crate) fn attempt(&self, item: &mut ItemSpan, info: &AttemptInfo<'_>) -> SpanContext {
        item.root.span().add_event("dequeue", Vec::new());
        let builder = self.tracer.span_builder("attempt").with_attributes([
            KeyValue::new("evenkeel.id", info.id.to_owned()),
            KeyValue::new("evenkeel.attempt", i64::from(info.attempt)),
            KeyValue::new("evenkeel.fencing_token", info.token.to_string()),
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

    /// Ends the attempt; says on the root what follows.
    pub(crate) fn ended(&mut self, entry: &journal::Entry, delay_seconds: Option<f64>) {
        if let Some(attempt) = self.attempt.take() {
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
