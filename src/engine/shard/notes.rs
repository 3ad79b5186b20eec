//! What the engine remembers of few ids, by their place in the scheduler: errors, who waits, links of traces.

use std::sync::Arc;

use fnv::FnvHashMap;
use opentelemetry::trace::SpanContext;
use tokio::sync::oneshot;

use crate::contract::Cause;
use crate::engine::trace::ItemTrace;
use crate::engine::view::{TriggerAnswer, TriggerResult};
use crate::scheduler::{Shard, Slot};

/// Links to producers' spans that one item keeps.
const LINKS_MAX: usize = 8;

/// What is remembered of one id, until nothing is owed.
#[derive(Debug, Default)]
pub(super) struct Note {
    /// The error of its last attempt.
    pub(super) error: Option<Arc<str>>,
    /// The idempotency key of an owed record, until a new event comes.
    pub(super) key: Option<u64>,
    /// How often a run of it blocked a thread until the process was ended (C4).
    pub(super) stuck: u8,
    /// The causes in an owed record of an earlier term.
    pub(super) recovered: Vec<Cause>,
    /// Who waits for the end of a run that began after the run with this number.
    pub(super) waiting: Vec<(u64, String, oneshot::Sender<TriggerAnswer>)>,
    /// Who waits for a write with this number or a later one.
    pub(super) durable: Vec<(u64, String, oneshot::Sender<TriggerAnswer>)>,
    /// Spans of the producers whose events are not answered yet (K7).
    pub(super) links: Vec<SpanContext>,
    /// The trace from the first event until done (T2), once it was decided whether there is one.
    pub(super) trace: Option<ItemTrace>,
}

/// Notes by slot. Most ids have none.
#[derive(Debug, Default)]
pub(super) struct Notes {
    by_slot: FnvHashMap<u32, Note>,
}

impl Notes {
    pub(super) fn get(&self, slot: Slot) -> Option<&Note> {
        if self.by_slot.is_empty() { None } else { self.by_slot.get(&slot.0) }
    }

    pub(super) fn get_mut(&mut self, slot: Slot) -> Option<&mut Note> {
        if self.by_slot.is_empty() { None } else { self.by_slot.get_mut(&slot.0) }
    }

    pub(super) fn entry(&mut self, slot: Slot) -> &mut Note {
        self.by_slot.entry(slot.0).or_default()
    }

    /// Nothing is owed any more. Who waits for a record needs none now: what was asked for is done.
    pub(super) fn forget(&mut self, slot: Slot) {
        if self.by_slot.is_empty() {
            return;
        }
        for (_, id, reply) in self.by_slot.remove(&slot.0).map(|note| note.durable).unwrap_or_default() {
            let _ = reply.send(TriggerAnswer { id, result: TriggerResult::Durable });
        }
    }

    pub(super) fn clear(&mut self) {
        self.by_slot.clear();
    }

    /// Remembers the producer's span of an event.
    pub(super) fn link(&mut self, core: &Shard, id: &str, span: &SpanContext) {
        let Some(slot) = core.slot(id) else { return };
        let links = &mut self.entry(slot).links;
        if links.len() < LINKS_MAX {
            links.push(span.clone());
        }
    }
}
