//! The least such an engine does for each event: FNV-1a of the id, dedup in, bounded queue in and out, dedup out, a
//! no-op call. One thread, an `Arc<str>` per event, at most 1,024 waiting or all of them.

use std::collections::{HashSet, VecDeque};
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use evenkeel::id::fnv1a_32;
use fnv::FnvHasher;

use crate::measure::{Mark, Spent};

/// So many may wait where they do not all wait.
pub(crate) const WAITING: usize = 1_024;

trait Call {
    fn call(&self, id: &str) -> bool;
}

struct Nothing;

impl Call for Nothing {
    fn call(&self, id: &str) -> bool {
        std::hint::black_box(id).is_empty()
    }
}

/// Passes every id through, `rounds` times, with at most `waiting` in the queue.
pub(crate) fn run(ids: &[String], rounds: usize, waiting: usize) -> Spent {
    let reconciler: Box<dyn Call> = Box::new(Nothing);
    let mark = Mark::now();
    let mut seen: HashSet<Arc<str>, BuildHasherDefault<FnvHasher>> = HashSet::default();
    let mut queue: VecDeque<Arc<str>> = VecDeque::new();
    let mut shards = [0_u64; 8];
    for _ in 0..rounds {
        for id in ids {
            let id: Arc<str> = id.as_str().into();
            shards[fnv1a_32(id.as_bytes()) as usize % 8] += 1;
            if seen.insert(Arc::clone(&id)) {
                queue.push_back(id);
            }
            if queue.len() >= waiting {
                drain(&mut queue, &mut seen, &*reconciler);
            }
        }
    }
    drain(&mut queue, &mut seen, &*reconciler);
    std::hint::black_box(shards);
    mark.spent((ids.len() * rounds) as u64)
}

fn drain(queue: &mut VecDeque<Arc<str>>, seen: &mut HashSet<Arc<str>, BuildHasherDefault<FnvHasher>>, to: &dyn Call) {
    while let Some(id) = queue.pop_front() {
        seen.remove(&id);
        to.call(&id);
    }
}
