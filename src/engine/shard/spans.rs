//! Spans of the runs of this shard, where the engine has a tracer. Where it has none, a run costs one look.

use std::sync::Arc;

use opentelemetry::trace::SpanContext;
use opentelemetry::{Context, ContextGuard};

use super::ShardLoop;
use crate::engine::journal;
use crate::engine::trace::{AttemptInfo, ItemTrace};
use crate::scheduler::{Next, Slot, Start};

impl ShardLoop {
    /// Begins the span of an attempt, and of its item with the first one.
    pub(super) fn attempt_span(&mut self, start: &Start) -> Option<SpanContext> {
        self.shared.tracing.as_ref()?;
        let shared = Arc::clone(&self.shared);
        let tracing = shared.tracing.as_ref()?;
        let is_in = match self.notes.get(start.slot).and_then(|note| note.trace.as_ref()) {
            Some(decided) => matches!(decided, ItemTrace::In(_)),
            None => tracing.samples(),
        };
        if !is_in {
            return Some(tracing.not_sampled());
        }
        let note = self.notes.entry(start.slot);
        let error = note.error.as_ref().filter(|_| start.attempt > 1);
        let causes = start.causes.iter().map(|cause| shared.sources.cause(cause, error).to_string());
        let info = AttemptInfo {
            kind: &shared.kinds[usize::from(start.kind)].name,
            id: &start.id,
            shard: self.id,
            attempt: start.attempt,
            token: self.term.token(start.run),
            waiting_since: shared.clock.wall(start.since),
            causes: causes.collect::<Vec<_>>().join(", "),
        };
        let links = std::mem::take(&mut note.links);
        let span = match &mut note.trace {
            // Events that came while the item waited for its retry: their producers' spans belong to it too.
            Some(ItemTrace::In(span)) => {
                span.link(links);
                span
            }
            trace => match trace.insert(ItemTrace::In(tracing.item(&info, &links))) {
                ItemTrace::In(span) => span,
                ItemTrace::Out => return None,
            },
        };
        Some(tracing.attempt(span, &info))
    }

    /// Ends the span of an attempt, and that of its item once it is done or waits for somebody: attempts that failed or
    /// were cancelled are followed by others of the same item. What is logged while the
    /// guard is held belongs to the attempt.
    pub(super) fn end_span(&mut self, slot: Slot, entry: &journal::Entry, next: Next) -> Option<ContextGuard> {
        self.shared.tracing.as_ref()?;
        let goes_on = matches!(next, Next::At(_) | Next::Again) && !is_success(entry);
        // What goes on has a note already: of its error.
        let note = self.notes.get_mut(slot)?;
        let attempt = match &mut note.trace {
            Some(ItemTrace::In(span)) => {
                span.ended(entry, entry.next.map(|next| next.since(entry.ended).as_secs_f64()))
            }
            Some(ItemTrace::Out) => None,
            none => {
                *none = goes_on.then_some(ItemTrace::Out);
                None
            }
        };
        if !goes_on && let Some(ItemTrace::In(span)) = note.trace.take() {
            span.finish(entry.outcome, entry.message());
        }
        attempt.map(Context::attach)
    }
}

/// A run that was asked for at a time is an item of its own; a retry is not.
const fn is_success(entry: &journal::Entry) -> bool {
    use crate::engine::view::RunOutcome;
    matches!(entry.outcome, RunOutcome::Done | RunOutcome::Requeued)
}
