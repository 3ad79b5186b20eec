//! Finds the entry of an id.
//!
//! FNV places an id (Q2) and is known to everybody; finding it uses a keyed hash, so that crafted ids cannot make the
//! table slow. The table holds slots and 32 bits of the hash, not ids: growing it touches no entry.
//!
//! It must never decide an order: nothing may depend on the seed. Tested below.

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use std::hash::{BuildHasher, Hasher};

use super::entry::{Slab, Slot};

/// The table is cut into so many parts by the top bits of the hash, each growing alone: doubling one of a million ids
/// at once would stop the loop for tens of milliseconds.
const PARTS: usize = 64;

#[derive(Debug)]
pub(super) struct Table {
    hasher: FixedState,
    parts: Vec<HashTable<(u32, Slot)>>,
}

/// The hash of an id, made once per event.
#[derive(Debug, Clone, Copy)]
pub(super) struct IdHash(u64);

impl IdHash {
    const fn part(self) -> usize {
        (self.0 >> 58) as usize
    }

    #[expect(clippy::cast_possible_truncation, reason = "the low half is kept on purpose")]
    const fn kept(self) -> u32 {
        self.0 as u32
    }

    /// The hash that the parts use; made from what is kept, so that growing needs no id.
    const fn spread(kept: u32) -> u64 {
        // hashbrown takes its control bits from the top and its index from the bottom.
        (kept as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

impl Table {
    pub(super) fn new(seed: u64) -> Self {
        Self { hasher: FixedState::with_seed(seed), parts: (0..PARTS).map(|_| HashTable::new()).collect() }
    }

    pub(super) fn hash(&self, id: &str) -> IdHash {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(id.as_bytes());
        IdHash(hasher.finish())
    }

    pub(super) fn find(&self, slab: &Slab, hash: IdHash, id: &str) -> Option<Slot> {
        self.parts[hash.part()]
            .find(IdHash::spread(hash.kept()), |(kept, slot)| *kept == hash.kept() && slab[*slot].name() == id)
            .map(|(_, slot)| *slot)
    }

    pub(super) fn insert(&mut self, hash: IdHash, slot: Slot) {
        self.parts[hash.part()]
            .insert_unique(IdHash::spread(hash.kept()), (hash.kept(), slot), |(kept, _)| IdHash::spread(*kept));
    }

    pub(super) fn remove(&mut self, slab: &Slab, slot: Slot) {
        let hash = self.hash(slab[slot].name());
        let found = self.parts[hash.part()]
            .find_entry(IdHash::spread(hash.kept()), |(kept, at)| *kept == hash.kept() && *at == slot);
        if let Ok(found) = found {
            found.remove();
        } else {
            debug_assert!(false, "an entry that the table does not know");
        }
    }

    /// How many ids it knows.
    pub(super) fn len(&self) -> usize {
        self.parts.iter().map(HashTable::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn finds_what_was_put_in_and_nothing_else() {
        for seed in [0, 1, u64::MAX] {
            let (mut table, mut slab, mut model) = (Table::new(seed), Slab::new(), HashMap::new());
            for round in 0..30_000_u64 {
                let id = format!("id-{}", round * 7_919 % 5_000);
                let hash = table.hash(&id);
                assert_eq!(table.find(&slab, hash, &id), model.get(&id).copied(), "seed {seed}, {id}");
                if let Some(slot) = model.remove(&id) {
                    table.remove(&slab, slot);
                    slab.remove(slot);
                } else {
                    let slot = slab.insert(id.as_str().into(), 0, 0);
                    table.insert(hash, slot);
                    model.insert(id, slot);
                }
                assert_eq!((table.len(), slab.len() as usize), (model.len(), model.len()));
            }
        }
    }

    #[test]
    fn ids_whose_kept_hashes_are_equal_are_told_apart() {
        // Two ids in one part with equal lower halves: as if the hash were poor.
        let (mut table, mut slab) = (Table::new(0), Slab::new());
        let hash = IdHash(42);
        let (a, b) = (slab.insert("a".into(), 0, 0), slab.insert("b".into(), 0, 0));
        table.insert(hash, a);
        table.insert(hash, b);
        assert_eq!(table.find(&slab, hash, "a"), Some(a));
        assert_eq!(table.find(&slab, hash, "b"), Some(b));
        assert_eq!(table.find(&slab, hash, "c"), None);
    }
}
