//! Which hash the producers use, told by events that came on a partition of another shard.
//!
//! Must never decide anything: it only finds the words for people. Tested below.

use std::collections::HashMap;
use std::sync::Arc;

use crate::id::Partitioner;

/// So many misrouted events of a topic are looked at before anything is said.
const SAMPLE: u64 = 100;
/// A hash that explains this share of them, in percent, is taken to be the producers'. By chance a hash that is not
/// explains one in as many as there are partitions.
const SURE_PERCENT: u64 = 95;

#[derive(Default)]
struct Counts {
    seen: u64,
    matches: [u64; Partitioner::ALL.len()],
}

/// Counts of misrouted events by topic.
#[derive(Default)]
pub(super) struct Tally {
    topics: HashMap<Arc<str>, Counts>,
}

impl Tally {
    /// Notes a misrouted event, and says what its topic's producers seem to do, once there are enough and then each
    /// time their number doubles.
    pub(super) fn note(&mut self, topic: &Arc<str>, key: &[u8], partition: i32, partitions: i32) -> Option<String> {
        let counts = self.topics.entry(Arc::clone(topic)).or_default();
        counts.seen += 1;
        let partitions_unsigned = partitions.max(1).unsigned_abs();
        for (matches, hash) in counts.matches.iter_mut().zip(Partitioner::ALL) {
            *matches += u64::from(hash.hash(key) % partitions_unsigned == partition.unsigned_abs());
        }
        let due = counts.seen >= SAMPLE && (counts.seen == SAMPLE || counts.seen.is_power_of_two());
        due.then(|| counts.verdict(topic, partitions))
    }
}

impl Counts {
    fn verdict(&self, topic: &str, partitions: i32) -> String {
        let best = Partitioner::ALL.into_iter().zip(self.matches).max_by_key(|(_, matches)| *matches);
        let what = match best {
            Some((hash, matches)) if partitions > 1 && matches * 100 >= self.seen * SURE_PERCENT => {
                let can_route = matches!(hash, Partitioner::Fnv1a | Partitioner::Murmur2 | Partitioner::Crc32);
                let advice =
                    if can_route { "set it as `hash`" } else { "set their partitioner to one that `hash` allows" };
                format!("its producers choose partitions by {}; {advice}", hash.name())
            }
            _ => {
                "no hash that is known explains their partitions; their key may not be the id, or they ignore it".into()
            }
        };
        format!("{} events of topic {topic} came on a partition of another shard: {what}", self.seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(partitions: i32, partition_of: impl Fn(&str) -> u32) -> Vec<String> {
        let mut tally = Tally::default();
        let topic: Arc<str> = "orders".into();
        let note = |i: u32| {
            let key = format!("prod/Database/{i}");
            let partition = i32::try_from(partition_of(&key)).unwrap();
            tally.note(&topic, key.as_bytes(), partition, partitions)
        };
        (0..300).filter_map(note).collect()
    }

    #[test]
    fn k3_the_log_says_which_hash_would_have_matched() {
        for hash in Partitioner::ALL {
            let said = said(12, |key| hash.hash(key.as_bytes()) % 12);
            assert_eq!(said.len(), 3, "at 100, 128 and 256: {said:?}");
            assert!(said[0].contains(&format!("partitions by {};", hash.name())), "{}: {said:?}", hash.name());
        }
        let said = said(12, |key| u32::try_from(key.len()).unwrap() % 12);
        assert!(said[0].contains("no hash that is known"), "{said:?}");
    }
}
