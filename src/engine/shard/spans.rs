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
        let span = match &mut note.span {
            // Events that came while the item waited for its retry: their producers' spans belong to it too.
            Some(span) => {
                span.link(links);
                span
            }
            none => none.insert(tracing.item(&info, &links)),
        };
        Some(tracing.attempt(span, &info))
    }

    /// Ends the span of an attempt, and that of its item once it is done or waits for somebody: attempts that failed or
    /// were cancelled are followed by others of the same item.
    pub(super) fn end_span(&mut self, slot: Slot, entry: &journal::Entry, next: Next) {
        let Some(note) = self.notes.get_mut(slot) else { return };
        let Some(span) = &mut note.span else { return };
        span.ended(entry, entry.next.map(|next| next.since(entry.ended).as_secs_f64()));
        let goes_on = matches!(next, Next::At(_) | Next::Again) && !is_success(entry);
        if !goes_on && let Some(span) = note.span.take() {
            span.finish(entry.outcome, entry.message());
        }
    }
}

/// A run that was asked for at a time is an item of its own; a retry is not.
const fn is_success(entry: &journal::Entry) -> bool {
    use crate::engine::view::RunOutcome;
    matches!(entry.outcome, RunOutcome::Done | RunOutcome::Requeued)
}
