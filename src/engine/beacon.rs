//! What a shard's loop and the tasks of its runs do at this moment, readable from another thread even while they are
//! stuck (C4, L8).

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::id::ID_BYTES_MAX;

const WORDS: usize = ID_BYTES_MAX / 8;

/// Set by the loop, read by the watchdog. Copying an id is a few plain stores, so it costs a run next to nothing.
#[derive(Debug)]
pub(crate) struct Beacon {
    /// Grows whenever the loop begins something, so that who sees the same number twice knows that it still does the
    /// same.
    pulse: AtomicU64,
    waits: AtomicBool,
    /// Bytes of the id whose run is polled now; 0 for none.
    len: AtomicU32,
    attempt: AtomicU32,
    stuck: AtomicU32,
    words: [AtomicU64; WORDS],
}

impl Default for Beacon {
    fn default() -> Self {
        Self {
            pulse: AtomicU64::new(0),
            waits: AtomicBool::new(true),
            len: AtomicU32::new(0),
            attempt: AtomicU32::new(0),
            stuck: AtomicU32::new(0),
            words: [const { AtomicU64::new(0) }; WORDS],
        }
    }
}

/// What the loop is stuck in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Busy {
    /// The same as long as the loop does the same.
    pub(crate) pulse: u64,
    /// The run that blocks the thread; `None` if it is the loop's own work.
    pub(crate) run: Option<Blocking>,
}

/// A run that is polled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Blocking {
    pub(crate) id: String,
    pub(crate) attempt: u32,
    /// How often a run of it has blocked a thread until the process was ended.
    pub(crate) stuck: u32,
}

/// The task of a run, as another thread sees it.
#[derive(Debug)]
pub(crate) struct Polled {
    pub(crate) run: Blocking,
    /// Odd while it is polled. Grows with every poll, so that who sees the same odd number twice knows that the poll
    /// lasts.
    pulse: AtomicU64,
}

impl Polled {
    pub(crate) fn new(id: &str, attempt: u32, stuck: u8) -> Self {
        let run = Blocking { id: id.to_owned(), attempt, stuck: u32::from(stuck) };
        Self { run, pulse: AtomicU64::new(0) }
    }

    /// A poll begins or ends.
    pub(crate) fn turn(&self) {
        // Only the task writes it.
        self.pulse.store(self.pulse.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// The number of the poll that goes on.
    pub(crate) fn poll(&self) -> Option<u64> {
        Some(self.pulse.load(Ordering::Relaxed)).filter(|pulse| pulse % 2 == 1)
    }
}

impl Beacon {
    /// Grows whenever the loop begins something.
    pub(crate) fn pulse(&self) -> u64 {
        self.pulse.load(Ordering::Relaxed)
    }

    /// The loop does something of its own.
    pub(crate) fn busy(&self) {
        self.beat();
        self.waits.store(false, Ordering::Relaxed);
    }

    /// The loop waits.
    pub(crate) fn idle(&self) {
        self.waits.store(true, Ordering::Relaxed);
    }

    /// Only the loop writes it.
    fn beat(&self) {
        self.pulse.store(self.pulse.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// A run of this id is polled.
    pub(crate) fn enter(&self, id: &str, attempt: u32, stuck: u8) {
        let mut chunks = id.as_bytes().chunks_exact(8);
        let mut words = self.words.iter();
        for (chunk, word) in chunks.by_ref().zip(words.by_ref()) {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(chunk);
            word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
        }
        let rest = chunks.remainder();
        if let Some(word) = words.next().filter(|_| !rest.is_empty()) {
            let mut bytes = [0; 8];
            bytes[..rest.len()].copy_from_slice(rest);
            word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
        }
        self.beat();
        self.attempt.store(attempt, Ordering::Relaxed);
        self.stuck.store(u32::from(stuck), Ordering::Relaxed);
        // Ids are at most ID_BYTES_MAX long; the store releases the words before it.
        self.len.store(u32::try_from(id.len()).unwrap_or(0), Ordering::Release);
    }

    /// The poll has returned.
    pub(crate) fn leave(&self) {
        self.len.store(0, Ordering::Release);
    }

    /// What the loop does now, unless it waits. Only meaningful once it has lasted: while the loop moves on, words
    /// may mix.
    pub(crate) fn read(&self) -> Option<Busy> {
        if self.waits.load(Ordering::Relaxed) {
            return None;
        }
        let pulse = self.pulse.load(Ordering::Relaxed);
        let len = self.len.load(Ordering::Acquire) as usize;
        let bytes: Vec<u8> = self.words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect();
        let run = (len > 0 && len <= ID_BYTES_MAX).then(|| Blocking {
            id: String::from_utf8_lossy(&bytes[..len]).into_owned(),
            attempt: self.attempt.load(Ordering::Relaxed),
            stuck: self.stuck.load(Ordering::Relaxed),
        });
        Some(Busy { pulse, run })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c4_the_beacon_names_the_id_that_blocks() {
        let beacon = Beacon::default();
        assert_eq!(beacon.read(), None);
        beacon.busy();
        assert_eq!(beacon.read(), Some(Busy { pulse: 1, run: None }));
        for id in ["a", "12345678", "prod/Database/orders", &"x".repeat(512), "déjà"] {
            beacon.enter(id, 3, 1);
            let blocking = Blocking { id: id.to_owned(), attempt: 3, stuck: 1 };
            assert_eq!(beacon.read().unwrap().run, Some(blocking));
            beacon.leave();
            assert_eq!(beacon.read().unwrap().run, None);
        }
        beacon.idle();
        assert_eq!(beacon.read(), None);
    }
}
