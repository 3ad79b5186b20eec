//! Answers people and programs: trigger, explain, list, cancel, redrive. A page at a time, so that a question never
//! stops the loop.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::{Message, ShardLoop, Stage};
use crate::contract::OwedReason;
use crate::engine::journal;
use crate::engine::news::{Point, Seen, ShardNews};
use crate::engine::view::{
    Counts, Explanation, IdState, JournalEntry, JournalQuery, PAGE_MAX, QueueEntry, QueuePage, QueueQuery, ShardStatus,
    SteerAnswer, TriggerAnswer, TriggerResult, WaitFor,
};
use crate::id::{Causes, Receipt, WorkerId};
use crate::scheduler::{
    Admission, Arrival, ArrivalClass, CancelAnswer, EntryView, Next, ParkReason, Slot, State, Time, Why,
};

/// Places of the table looked at for one page, at most: a few milliseconds.
const LOOK_MAX: usize = 20_000;
/// Runs of one id that an explanation shows.
const EXPLAIN_RUNS: usize = 10;

impl ShardLoop {
    pub(super) fn answer(&mut self, now: Time, question: Message) {
        // A reply that nobody waits for any more is no fault.
        match question {
            Message::Trigger { ids, wait, reply } => {
                let answers = ids.into_iter().map(|(id, worker)| self.trigger(now, id, worker, wait)).collect();
                let _ = reply.send(answers);
            }
            Message::Explain { id, worker, reply } => {
                let _ = reply.send(self.explain(id, worker));
            }
            Message::Status { reply } => {
                let _ = reply.send(self.status());
            }
            Message::Page { query, after, reply } => {
                let _ = reply.send(self.page(&query, after));
            }
            Message::Journal { query, reply } => {
                let _ = reply.send(self.journal_page(&query));
            }
            Message::News { id, point, limit, reply } => {
                let _ = reply.send(self.news(id.as_deref(), point, limit));
            }
            Message::Cancel { id, reply } => {
                let _ = reply.send(self.cancel(now, id));
            }
            Message::Redrive { id, reply } => {
                let done = self.core.handle_redrive(now, &id);
                let reason = if done { "runs again, with a fresh count" } else { "it is not parked" };
                let _ = reply.send(SteerAnswer { id, done, reason: reason.into() });
            }
            Message::RedriveMatching { pattern, reply } => {
                let _ = reply.send(self.redrive_matching(now, &pattern));
            }
            Message::Ended(..) | Message::Recorded(_) | Message::StoreFailed(_) | Message::GoesOn(_) => {
                unreachable!("handled before questions are")
            }
        }
    }

    /// Admits one id; the answer comes when what the caller waits for has happened (X7).
    fn trigger(&mut self, now: Time, id: String, worker: WorkerId, wait: WaitFor) -> oneshot::Receiver<TriggerAnswer> {
        let (reply, answer) = oneshot::channel();
        if self.stage != Stage::Running {
            let reason = "the engine is stopping".to_owned();
            let _ = reply.send(TriggerAnswer { id, result: TriggerResult::Unavailable { reason } });
            return answer;
        }
        // Each trigger has a position of its own: the key of a run that answers another one must be another.
        let counters = self.core.counters();
        let receipt = Receipt::new(self.shared.trigger_source, counters.admitted + counters.present);
        let arrival = Arrival { id: &id, kind: 0, worker: worker.0, receipt, class: ArrivalClass::Trigger };
        let admission = self.core.handle_event(now, &arrival, &mut self.commands);
        let result = match (admission, wait) {
            (Admission::Refused, _) => TriggerResult::Full,
            (_, WaitFor::Done) => {
                if let Some(slot) = self.core.slot(&id) {
                    let after = self.core.counters().started;
                    self.notes.entry(slot).waiting.push((after, id, reply));
                }
                return answer;
            }
            (_, WaitFor::Durable) => return self.trigger_durably(id, reply, answer),
            (Admission::Admitted, WaitFor::Admitted) => TriggerResult::Admitted,
            (Admission::Present, WaitFor::Admitted) => TriggerResult::AlreadyPresent,
        };
        let _ = reply.send(TriggerAnswer { id, result });
        answer
    }

    fn trigger_durably(
        &mut self,
        id: String,
        reply: oneshot::Sender<TriggerAnswer>,
        answer: oneshot::Receiver<TriggerAnswer>,
    ) -> oneshot::Receiver<TriggerAnswer> {
        let issued = if self.shared.is_durable() { self.core.record_now(&id, &mut self.commands) } else { None };
        match issued {
            Some((slot, write)) => self.notes.entry(slot).durable.push((write, id, reply)),
            None => {
                let reason = "owed records cannot be kept here: the store is in memory or full".to_owned();
                let _ = reply.send(TriggerAnswer { id, result: TriggerResult::NotDurable { reason } });
            }
        }
        answer
    }

    /// A run has ended: tells who waits for it.
    pub(super) fn tell_waiting(&mut self, slot: Slot, run: u64, entry: &journal::Entry, next: Next) {
        let Some(note) = self.notes.get_mut(slot) else { return };
        if note.waiting.is_empty() {
            return;
        }
        // A cancelled run is followed by the one that answers, unless the id is parked.
        let answers = next != Next::Again || !matches!(entry.outcome, crate::engine::view::RunOutcome::Cancelled);
        for (after, id, reply) in std::mem::take(&mut note.waiting) {
            if after < run && answers {
                let result = TriggerResult::Ended { outcome: entry.outcome, message: entry.message().cloned() };
                let _ = reply.send(TriggerAnswer { id, result });
            } else {
                note.waiting.push((after, id, reply));
            }
        }
    }

    /// A record is durable: tells who waits for it.
    pub(super) fn tell_durable(&mut self, slot: Slot, write: u64) {
        let Some(note) = self.notes.get_mut(slot) else { return };
        for (wanted, id, reply) in std::mem::take(&mut note.durable) {
            if wanted <= write {
                let _ = reply.send(TriggerAnswer { id, result: TriggerResult::Durable });
            } else {
                note.durable.push((wanted, id, reply));
            }
        }
    }

    fn explain(&self, id: String, worker: WorkerId) -> Explanation {
        let why = self.core.why(&id);
        let (reason, sentence) = self.why_text(&why);
        let entry = self.core.view(&id).map(|view| self.queue_entry(&view));
        let held = self.intakes.iter().any(|held| held.holds(&id));
        let state = match why {
            Why::Idle => IdState::Idle,
            Why::Next | Why::WorkerBusy { .. } | Why::KindBusy { .. } | Why::Draining => IdState::Pending,
            Why::Running { .. } => IdState::Running,
            Why::Retry { .. } | Why::Requested { .. } | Why::TooSoon { .. } => IdState::Delayed,
            Why::Parked { .. } => IdState::Parked,
        };
        let journal = self.journal_page(&JournalQuery { id: Some(id.clone()), limit: Some(EXPLAIN_RUNS) });
        let (reason, why) = if held && matches!(why, Why::Idle) {
            ("held_back", "an event for it is held back: the shard is full (limits.admitted)".to_owned())
        } else {
            (reason, sentence)
        };
        Explanation { id, shard: self.id, worker, led: true, state, why, reason: reason.into(), entry, journal }
    }

    fn why_text(&self, why: &Why) -> (&'static str, String) {
        let at = |time: Time| self.shared.clock.timestamp(time);
        match why {
            Why::Idle => ("idle", "nothing is owed: no event since its last success, or none ever".into()),
            Why::Next => ("next", "it starts as soon as the loop comes to it".into()),
            Why::WorkerBusy { running, slots } => {
                ("worker_busy", format!("its worker runs {running} of {slots} ids at a time; it waits for a free slot"))
            }
            Why::KindBusy { running } => (
                "kind_busy",
                format!("all permits of `concurrency` are taken ({running} runs in this shard); it waits for one"),
            ),
            Why::Draining => ("draining", "the process is stopping and starts nothing more".into()),
            Why::Running { since, again, stopping } => {
                let mut text = format!("it runs since {}", at(*since));
                if *stopping {
                    text.push_str(", and was told to stop");
                }
                if *again {
                    text.push_str("; another run follows, since an event came meanwhile");
                }
                ("running", text)
            }
            Why::Retry { due, failures, overdue } => {
                let mut text = format!("it failed {failures} times in a row and is tried again at {}", at(*due));
                if *overdue {
                    text.push_str("; it would be given up, but no more ids can be parked (limits.owed_records)");
                }
                ("retry", text)
            }
            Why::Requested { due } => ("requested", format!("it asked to run again at {}", at(*due))),
            Why::TooSoon { due } => (
                "too_soon",
                format!("it ran a moment ago (timing.min_requeue); an event runs it again at {}", at(*due)),
            ),
            Why::Parked { reason, recorded } => {
                let text = match reason {
                    ParkReason::GivenUp => {
                        "it was given up after its last attempt; an event or `redrive` runs it again"
                    }
                    ParkReason::Cancelled => "somebody cancelled it; an event or `redrive` runs it again",
                    ParkReason::Stuck => {
                        "its runs blocked their threads three times; mend the reconciler, then `redrive` it"
                    }
                };
                let note = if *recorded { "" } else { " (not durable yet: its events are held)" };
                ("parked", format!("{text}{note}"))
            }
        }
    }

    fn status(&self) -> ShardStatus {
        let token = self.term.token(0).to_string();
        let term = token.rsplit_once('-').map(|(term, _)| term.to_owned());
        let runs = self.core.counters().started - u64::from(self.core.running());
        ShardStatus { shard: self.id, led: true, leader: None, until: None, term, counts: self.counts(), runs }
    }

    fn counts(&self) -> Counts {
        let levels = self.core.levels();
        Counts {
            pending: self.core.waiting().into(),
            running: self.core.running().into(),
            delayed: self.core.delayed().into(),
            parked: levels.parked.into(),
            owed_records: levels.records.into(),
            admitted: levels.admitted.into(),
            admitted_max: self.shared.limits.admitted.into(),
            timers: levels.timers.into(),
            timers_max: self.shared.limits.timers.into(),
        }
    }

    fn page(&self, query: &QueueQuery, after: Option<Slot>) -> (QueuePage, Option<Slot>) {
        let limit = query.limit.unwrap_or(PAGE_MAX).min(PAGE_MAX);
        let wanted = |state: State| query.state.is_none_or(|wanted| id_state(state) == wanted);
        let (found, next) = self.core.page(after, LOOK_MAX, limit, wanted);
        let entries = found.iter().map(|view| self.queue_entry(view)).collect();
        (QueuePage { entries, next: None }, next)
    }

    fn queue_entry(&self, view: &EntryView) -> QueueEntry {
        let note = self.notes.get(view.slot);
        let error = note.and_then(|note| note.error.as_ref());
        let mut causes = self.runs.causes(view.slot).unwrap_or(Causes::NONE);
        causes.extend(&view.causes);
        QueueEntry {
            id: view.id.to_string(),
            kind: self.shared.kinds[usize::from(view.kind)].name.to_string(),
            shard: self.id,
            worker: WorkerId(view.worker),
            state: id_state(view.state),
            attempt: view.failures,
            since: self.shared.clock.timestamp(view.since),
            due: view.due.map(|due| self.shared.clock.timestamp(due)),
            parked: view.parked.map(owed_reason),
            error: error.map(|error| error.to_string()),
            causes: causes.iter().map(|cause| self.shared.sources.cause(cause, error)).collect(),
            more_causes: causes.more(),
        }
    }

    fn journal_page(&self, query: &JournalQuery) -> Vec<JournalEntry> {
        let limit = query.limit.unwrap_or(PAGE_MAX).min(PAGE_MAX);
        let wanted = |entry: &&journal::Entry| query.id.as_deref().is_none_or(|id| *entry.id == *id);
        self.journal.latest().filter(wanted).take(limit).map(|entry| self.journal_view(entry)).collect()
    }

    fn news(&self, id: Option<&str>, point: Point, limit: usize) -> ShardNews {
        let runs = self.journal.pushed();
        let seen = match point {
            Point::After(Some(seen)) if seen.term == self.term => seen.runs,
            Point::After(_) | Point::History => 0,
        };
        let fresh = usize::try_from(runs.saturating_sub(seen)).unwrap_or(usize::MAX);
        let wanted = |entry: &&journal::Entry| id.is_none_or(|id| *entry.id == *id);
        let latest = self.journal.latest().take(fresh).filter(wanted).take(limit);
        let entries: Vec<_> = latest.map(|entry| self.journal_view(entry)).collect();
        let is_counted = id.is_none() && matches!(point, Point::After(_));
        let skipped = if is_counted { (fresh - entries.len()) as u64 } else { 0 };
        ShardNews { seen: Seen { term: self.term, runs }, entries, skipped }
    }

    fn journal_view(&self, entry: &journal::Entry) -> JournalEntry {
        let causes = entry.causes();
        JournalEntry {
            at: self.shared.clock.timestamp(entry.ended),
            id: Arc::clone(&entry.id),
            kind: Arc::clone(&self.shared.kinds[usize::from(entry.kind)].name),
            shard: self.id,
            worker: entry.worker,
            outcome: entry.outcome,
            attempt: entry.attempt,
            duration_seconds: entry.ended.since(entry.started).as_secs_f64(),
            waited_seconds: entry.started.since(entry.waiting_since).as_secs_f64(),
            causes: causes.iter().map(|c| self.shared.sources.cause(c, entry.cause_error())).collect(),
            more_causes: causes.more(),
            message: entry.message().cloned(),
            next: entry.next.map(|next| self.shared.clock.timestamp(next)),
        }
    }

    fn cancel(&mut self, now: Time, id: String) -> SteerAnswer {
        let (done, reason) = match self.core.handle_cancel(now, &id, &mut self.commands) {
            CancelAnswer::Stopping => (true, "its run was told to stop; it will be parked"),
            CancelAnswer::Parked => (true, "it waited for a run and is parked now"),
            CancelAnswer::AlreadyParked => (false, "it is parked already"),
            CancelAnswer::Idle => (false, "nothing is owed for it"),
            CancelAnswer::Full => (false, "no more ids can be parked (limits.owed_records); redrive some first"),
        };
        SteerAnswer { id, done, reason: reason.into() }
    }

    fn redrive_matching(&mut self, now: Time, pattern: &str) -> Vec<SteerAnswer> {
        let mut answers = Vec::new();
        let mut after = None;
        loop {
            let (next, released) = self.core.handle_redrive_matching(now, after, LOOK_MAX, |id| matches(pattern, id));
            answers.extend(released.into_iter().map(|id| SteerAnswer {
                id: id.to_string(),
                done: true,
                reason: "runs again, with a fresh count".into(),
            }));
            match next {
                Some(slot) => after = Some(slot),
                None => return answers,
            }
        }
    }
}

const fn id_state(state: State) -> IdState {
    match state {
        State::Free | State::Idle => IdState::Idle,
        State::Pending => IdState::Pending,
        State::Running => IdState::Running,
        State::Delayed => IdState::Delayed,
        State::Parked => IdState::Parked,
    }
}

const fn owed_reason(reason: ParkReason) -> OwedReason {
    match reason {
        ParkReason::GivenUp => OwedReason::GivenUp,
        ParkReason::Cancelled => OwedReason::Cancelled,
        ParkReason::Stuck => OwedReason::Stuck,
    }
}

/// Whether a pattern matches a whole id; `*` stands for any text.
fn matches(pattern: &str, id: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = id.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x1_patterns_match_whole_ids() {
        for (pattern, id, wanted) in [
            ("*", "", true),
            ("*", "a/b", true),
            ("a", "a", true),
            ("a", "ab", false),
            ("prod/*", "prod/x", true),
            ("prod/*", "dev/prod/x", false),
            ("*/Database/*", "prod/Database/orders", true),
            ("a*b*c", "a-b-c", true),
            ("a*b*c", "acb", false),
            ("ab*b", "ab", false),
            ("a*a", "a", false),
        ] {
            assert_eq!(matches(pattern, id), wanted, "{pattern} {id}");
        }
    }
}
