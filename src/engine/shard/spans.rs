//! Spans of the runs of this shard, where the engine has a tracer.

use opentelemetry::trace::SpanContext;

use super::ShardLoop;
use crate::engine::journal;
use crate::engine::trace::AttemptInfo;
use crate::scheduler::{Next, Slot, Start};

impl ShardLoop {
    /// Begins the span of an attempt, and of its item with the first one.
    pub(super) fn attempt_span(&mut self, start: &Start) -> Option<SpanContext> {
        let shared = std::sync::Arc::clone(&self.shared);
        let tracing = shared.tracing.as_ref()?;
        let info = AttemptInfo {
            kind: &shared.kinds[usize::from(start.kind)].name,
            id: &start.id,
            shard: self.id,
            attempt: start.attempt,
            token: self.term.token(start.run),
            waiting_since: shared.clock.wall(start.since),
        };
        let note = self.notes.entry(start.slot);
        let links = std::mem::take(&mut note.links);
        let span = note.span.get_or_insert_with(|| tracing.item(&info, &links));
        Some(tracing.attempt(span, &info))
    }

    /// Ends the span of an attempt, and that of its item when nothing follows by itself.
    pub(super) fn end_span(&mut self, slot: Slot, entry: &journal::Entry, next: Next) {
        let Some(note) = self.notes.get_mut(slot) else { return };
        let Some(span) = &mut note.span else { return };
        span.ended(entry, entry.next.map(|next| next.since(entry.ended).as_secs_f64()));
        let retried = matches!(next, Next::At(_)) && !is_success(entry);
        if !retried && let Some(span) = note.span.take() {
            span.finish(entry.outcome, entry.message());
        }
    }
}

/// A run that was asked for at a time is an item of its own; a retry is not.
const fn is_success(entry: &journal::Entry) -> bool {
    use crate::engine::view::RunOutcome;
    matches!(entry.outcome, RunOutcome::Done | RunOutcome::Requeued)
}
