//! What is wrong with a stream, in words: one state for each thing that can be (K6).
//!
//! Must never flood: a trouble is logged when it begins, when it has lasted for long, and when it is over; in between
//! it is only counted. What stands is shown in health by `report`. Tested below.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use crate::contract::Events;

/// A trouble that lasts is logged again after this long.
const REMIND: Duration = Duration::from_secs(300);
/// Something that happened once (a lost offset) stays in health for this long.
const EVENT_SHOWN: Duration = Duration::from_secs(600);
/// A complaint of the client library that has no state of its own stays for this long after the last one.
const COMPLAINT_SHOWN: Duration = Duration::from_secs(30);
/// The longest text of one trouble in bytes; brokers' reasons can be long.
const TEXT_MAX: usize = 500;

/// The kinds of trouble, the gravest first; each has one text at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// The brokers refuse our login.
    Login,
    /// TLS fails: a certificate, an authority, a host name.
    Tls,
    /// No broker answers.
    Unreachable,
    /// We may not read a topic.
    Denied,
    /// We may not use the group.
    GroupDenied,
    /// A topic does not exist.
    TopicMissing,
    /// Another program uses our group.
    GroupInUse,
    /// Offsets cannot be committed.
    Commit,
    /// Events went to shards that another process leads.
    Foreign,
    /// The dead-letter topic does not take letters.
    DeadLetter,
    /// The hand-off topic does not take events.
    HandOff,
    /// Committed offsets are not in the log any more; events may be lost.
    OffsetReset,
    /// A topic's partitions do not fit the shards.
    Partitions,
    /// Events come on partitions of other shards: the producers' hash is another.
    Misrouted,
    /// Anything else that the client library complains of.
    Client,
}

impl Kind {
    /// A short fixed name for the metric.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Login => "login",
            Self::Tls => "tls",
            Self::Unreachable => "unreachable",
            Self::Denied => "denied",
            Self::GroupDenied => "group_denied",
            Self::TopicMissing => "topic_missing",
            Self::GroupInUse => "group_in_use",
            Self::Commit => "commit",
            Self::Foreign => "foreign",
            Self::DeadLetter => "dead_letter",
            Self::HandOff => "hand_off",
            Self::OffsetReset => "offset_reset",
            Self::Partitions => "partitions",
            Self::Misrouted => "misrouted",
            Self::Client => "client",
        }
    }

    /// How long it is shown after the last time; `None` for what lasts until it is over.
    const fn shown(self) -> Option<Duration> {
        match self {
            Self::OffsetReset | Self::Misrouted => Some(EVENT_SHOWN),
            Self::Client => Some(COMPLAINT_SHOWN),
            _ => None,
        }
    }
}

struct Trouble {
    text: String,
    since: Instant,
    last: Instant,
    logged: Instant,
    times: u64,
}

/// The troubles of one stream.
pub(super) struct Troubles {
    events: Events,
    standing: BTreeMap<Kind, Trouble>,
}

impl Troubles {
    pub(super) fn new(events: Events) -> Self {
        Self { events, standing: BTreeMap::new() }
    }

    /// Something is wrong, or still is.
    pub(super) fn raise(&mut self, kind: Kind, text: impl Into<String>, now: Instant) {
        self.events.count_error(kind.name());
        let mut text: String = text.into();
        if text.len() > TEXT_MAX {
            text.truncate((0..=TEXT_MAX).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0));
            text.push('…');
        }
        let stream = self.events.name();
        match self.standing.get_mut(&kind) {
            Some(trouble) => {
                let changed = trouble.text != text;
                trouble.times += 1;
                trouble.last = now;
                // A new text is news where it happens rarely; a storm of different reasons is not.
                if now.duration_since(trouble.logged) >= REMIND || (changed && kind == Kind::OffsetReset) {
                    tracing::warn!(%stream, trouble = kind.name(), times = trouble.times, "{text}");
                    trouble.logged = now;
                }
                if !changed {
                    return;
                }
                trouble.text = text;
            }
            None => {
                tracing::warn!(%stream, trouble = kind.name(), "{text}");
                self.standing.insert(kind, Trouble { text, since: now, last: now, logged: now, times: 1 });
            }
        }
        self.report();
    }

    /// Something is wrong as every look finds again: counted and said when it begins, and when it becomes something
    /// else.
    pub(super) fn hold(&mut self, kind: Kind, text: impl Into<String>, now: Instant) {
        let text = text.into();
        match self.standing.get(&kind) {
            Some(trouble) if trouble.text == text => {}
            Some(_) => {
                self.standing.remove(&kind);
                self.raise(kind, text, now);
            }
            None => self.raise(kind, text, now),
        }
    }

    /// It is over.
    pub(super) fn clear(&mut self, kind: Kind, now: Instant) {
        if let Some(trouble) = self.standing.remove(&kind) {
            let seconds = now.duration_since(trouble.since).as_secs();
            let stream = self.events.name();
            tracing::info!(%stream, trouble = kind.name(), times = trouble.times, seconds, "over: {}", trouble.text);
            self.report();
        }
    }

    /// A broker answered: whatever kept us from them is over.
    pub(super) fn answered(&mut self, now: Instant) {
        for kind in [Kind::Login, Kind::Tls, Kind::Unreachable] {
            self.clear(kind, now);
        }
    }

    /// Lets go of what happened long ago.
    pub(super) fn pass(&mut self, now: Instant) {
        let before = self.standing.len();
        self.standing.retain(|kind, trouble| kind.shown().is_none_or(|shown| now.duration_since(trouble.last) < shown));
        if self.standing.len() < before {
            self.report();
        }
    }

    pub(super) fn has(&self, kind: Kind) -> bool {
        self.standing.contains_key(&kind)
    }

    pub(super) fn has_any(&self, kinds: &[Kind]) -> bool {
        kinds.iter().any(|kind| self.has(*kind))
    }

    fn report(&self) {
        let mut text = String::new();
        for trouble in self.standing.values() {
            let _ = write!(text, "{}{}", if text.is_empty() { "" } else { "; " }, trouble.text);
        }
        self.events.report((!text.is_empty()).then_some(text));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kafka::testing::Recorder;

    #[test]
    fn k6_troubles_are_reported_once_and_end() {
        let (recorder, events) = Recorder::events(&[0]);
        let mut troubles = Troubles::new(events);
        let start = Instant::now();
        for _ in 0..100 {
            troubles.raise(Kind::Unreachable, "no broker answers", start);
        }
        troubles.raise(Kind::TopicMissing, "no topic", start);
        assert_eq!(recorder.reports(), [Some("no broker answers".into()), Some("no broker answers; no topic".into())]);
        assert_eq!(recorder.errors("unreachable"), 100);
        troubles.answered(start);
        troubles.clear(Kind::TopicMissing, start);
        troubles.clear(Kind::TopicMissing, start);
        assert_eq!(recorder.reports()[2..], [Some("no topic".into()), None]);
    }

    #[test]
    fn k6_what_happened_stays_shown_for_a_while() {
        let (recorder, events) = Recorder::events(&[0]);
        let mut troubles = Troubles::new(events);
        let start = Instant::now();
        troubles.raise(Kind::OffsetReset, "x".repeat(2_000), start);
        assert!(recorder.reports()[0].as_ref().is_some_and(|text| text.len() < 510));
        troubles.raise(Kind::Commit, "refused", start);
        troubles.pass(start + EVENT_SHOWN / 2);
        assert!(troubles.has(Kind::OffsetReset));
        troubles.pass(start + EVENT_SHOWN);
        assert!(!troubles.has(Kind::OffsetReset) && troubles.has(Kind::Commit), "a state lasts until it is over");
    }
}
