//! A small world around the ledger: logs with gaps, a leader that may die at any step, full tables, owed records, late
//! answers.
//!
//! After every step each event below a committed offset must have been answered by a successful run that began after
//! its delivery, or stand in an owed record (K4, D12); when the disturbance stops, every event must be answered. The
//! leader here is a plain reading of those rules; it names every event that is done to the ledger, as the engine does.
//! Each fault that can be planted must be caught by some seed, so that this test can fail.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::ledger::Ledger;

/// An event: its partition and its offset.
type Mark = (usize, u64);
type Id = u64;

/// A fault to plant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// Commits the next offset to be delivered.
    CommitsThePosition,
    /// An event counts as done when it is handed over.
    DoneAtDelivery,
    /// A run covers what arrived while it ran.
    CoversTheWholeRun,
    /// A failed run counts.
    FailureCounts,
    /// An event that met a full table is not owed yet.
    HandIsNotOwed,
    /// A record settles what came after it was written.
    RecordSettlesAll,
    /// A success deletes a record that covers later events.
    DeletesTooMuch,
    /// Answers of the leader before go to the ledger of this one.
    KeepsTheOldLedger,
}

const FAULTS: [Fault; 8] = [
    Fault::CommitsThePosition,
    Fault::DoneAtDelivery,
    Fault::CoversTheWholeRun,
    Fault::FailureCounts,
    Fault::HandIsNotOwed,
    Fault::RecordSettlesAll,
    Fault::DeletesTooMuch,
    Fault::KeepsTheOldLedger,
];

/// A seeded source of choices (splitmix64); enough for a test, and the same everywhere.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.roll() % n.max(1)
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        let at = usize::try_from(self.below(of.len() as u64)).unwrap();
        of.get(at).copied()
    }
}

/// What outlives the leader, and what truly happened.
struct World {
    /// By partition and offset: the id, or none for a gap.
    logs: Vec<Vec<Option<Id>>>,
    committed: Vec<u64>,
    records: BTreeMap<Id, BTreeSet<Mark>>,
    answered: BTreeSet<Mark>,
}

enum Answer {
    Commit(usize, u64),
    Record(Id, BTreeSet<Mark>, u64),
    Delete(Id, BTreeSet<Mark>),
}

#[derive(Default)]
struct Entry {
    /// Events that wait for a run.
    waiting: BTreeSet<Mark>,
    /// Events that the run under way covers.
    running: Option<BTreeSet<Mark>>,
    /// When that run began, and when the last event came, counted in deliveries.
    began: u64,
    last: u64,
    /// Events that the record covers, and when the last of them came.
    recorded: Option<(BTreeSet<Mark>, u64)>,
    owed_a_run: bool,
}

struct Leader {
    ledgers: Vec<Ledger>,
    next: Vec<u64>,
    hand: Vec<Option<(Id, u64)>>,
    entries: BTreeMap<Id, Entry>,
    answers: VecDeque<Answer>,
    limit: usize,
    fault: Fault,
    clock: u64,
}

impl Leader {
    fn new(world: &World, limit: usize, fault: Fault) -> Self {
        let mut entries: BTreeMap<Id, Entry> = BTreeMap::new();
        for (id, events) in &world.records {
            let entry = entries.entry(*id).or_default();
            entry.recorded = Some((events.clone(), 0));
            entry.owed_a_run = true;
        }
        Self {
            ledgers: world.committed.iter().map(|offset| Ledger::new(*offset)).collect(),
            next: world.committed.clone(),
            hand: vec![None; world.logs.len()],
            entries,
            answers: VecDeque::new(),
            limit,
            fault,
            clock: 0,
        }
    }

    fn busy(&self) -> usize {
        self.entries.values().filter(|entry| entry.owed_a_run || entry.running.is_some()).count()
    }

    fn deliver(&mut self, world: &World, p: usize) {
        let (id, offset) = match self.hand[p] {
            Some(held) => held,
            None => {
                let log = &world.logs[p];
                while log.get(index(self.next[p])).is_some_and(Option::is_none) {
                    self.next[p] += 1;
                }
                self.ledgers[p].reached(self.next[p]);
                let Some(Some(id)) = log.get(index(self.next[p])) else { return };
                let offset = self.next[p];
                self.next[p] += 1;
                if self.fault == Fault::HandIsNotOwed {
                    self.ledgers[p].reached(offset + 1);
                } else {
                    self.ledgers[p].deliver(offset, 0);
                }
                (*id, offset)
            }
        };
        let known = self.entries.get(&id).is_some_and(|entry| entry.owed_a_run || entry.running.is_some());
        if !known && self.busy() >= self.limit {
            self.hand[p] = Some((id, offset));
            return;
        }
        self.hand[p] = None;
        if self.fault == Fault::HandIsNotOwed {
            self.ledgers[p].deliver(offset, 0);
        }
        let entry = self.entries.entry(id).or_default();
        entry.owed_a_run = true;
        if self.fault == Fault::DoneAtDelivery {
            self.ledgers[p].done(offset);
        }
        self.clock += 1;
        entry.last = self.clock;
        entry.waiting.insert((p, offset));
    }

    fn start(&mut self, id: Id) {
        let entry = self.entries.get_mut(&id).unwrap();
        if entry.running.is_none() && entry.owed_a_run {
            entry.owed_a_run = false;
            let mut covers = std::mem::take(&mut entry.waiting);
            covers.extend(entry.recorded.iter().flat_map(|(events, _)| events));
            entry.began = self.clock;
            entry.running = Some(covers);
        }
    }

    fn end(&mut self, world: &mut World, id: Id, success: bool) {
        let entry = self.entries.get_mut(&id).unwrap();
        let Some(mut covered) = entry.running.take() else { return };
        // What truly was answered, whatever the leader believes.
        if success {
            world.answered.extend(covered.iter().copied());
        }
        if self.fault == Fault::CoversTheWholeRun {
            covered.extend(std::mem::take(&mut entry.waiting));
        }
        if success || self.fault == Fault::FailureCounts {
            for (p, offset) in &covered {
                self.ledgers[*p].done(*offset);
            }
            if let Some((recorded, last)) = &entry.recorded
                && (*last <= entry.began || self.fault == Fault::DeletesTooMuch)
            {
                self.answers.push_back(Answer::Delete(id, recorded.clone()));
            }
        } else {
            entry.waiting.extend(covered);
            entry.owed_a_run = true;
        }
    }

    /// The id's record is to be written with all that has arrived so far.
    fn record(&mut self, id: Id) {
        let entry = &self.entries[&id];
        let mut events = entry.waiting.clone();
        events.extend(entry.running.iter().flatten());
        events.extend(entry.recorded.iter().flat_map(|(events, _)| events));
        self.answers.push_back(Answer::Record(id, events, entry.last));
    }

    fn commit(&mut self, p: usize) {
        let mark = match self.fault {
            Fault::CommitsThePosition => self.ledgers[p].position(),
            _ => self.ledgers[p].low_water(),
        };
        self.answers.push_back(Answer::Commit(p, mark));
    }

    /// The oldest answer comes: what it says is durable from now on.
    fn answer(&mut self, world: &mut World) {
        match self.answers.pop_front() {
            None => {}
            Some(Answer::Commit(p, mark)) => world.committed[p] = world.committed[p].max(mark),
            Some(Answer::Record(id, events, last)) => {
                world.records.insert(id, events.clone());
                let entry = self.entries.entry(id).or_default();
                let mut settled = events.clone();
                if self.fault == Fault::RecordSettlesAll {
                    settled.extend(std::mem::take(&mut entry.waiting));
                }
                for (p, offset) in settled {
                    self.ledgers[p].done(offset);
                }
                entry.recorded = Some((events, last));
                if entry.running.is_none() {
                    entry.owed_a_run = true;
                }
            }
            Some(Answer::Delete(id, events)) => {
                let entry = self.entries.entry(id).or_default();
                if entry.recorded.as_ref().is_some_and(|(recorded, _)| *recorded == events) {
                    world.records.remove(&id);
                    entry.recorded = None;
                }
            }
        }
    }
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).unwrap()
}

/// The first event that is lost: below a commit, not answered, in no record.
fn lost(world: &World) -> Option<String> {
    for (p, log) in world.logs.iter().enumerate() {
        for offset in 0..world.committed[p].min(log.len() as u64) {
            let Some(id) = log[index(offset)] else { continue };
            let recorded = world.records.get(&id).is_some_and(|events| events.contains(&(p, offset)));
            if !recorded && !world.answered.contains(&(p, offset)) {
                return Some(format!("event {p}/{offset} of id {id} is lost"));
            }
        }
    }
    None
}

/// One step of disturbance.
fn disturb(world: &mut World, leader: &mut Leader, dice: &mut Dice, ids: u64) {
    let p = index(dice.below(world.logs.len() as u64));
    let of = |leader: &Leader, which: fn(&Entry) -> bool| -> Vec<Id> {
        leader.entries.iter().filter(|(_, entry)| which(entry)).map(|(id, _)| *id).collect()
    };
    match dice.below(100) {
        0..20 => {
            let id = dice.below(ids + 1);
            world.logs[p].push((id < ids).then_some(id));
        }
        20..40 => leader.deliver(world, p),
        40..55 => {
            if let Some(id) = dice.pick(&of(leader, |entry| entry.owed_a_run && entry.running.is_none())) {
                leader.start(id);
            }
        }
        55..70 => {
            if let Some(id) = dice.pick(&of(leader, |entry| entry.running.is_some())) {
                let success = dice.below(10) < 6;
                leader.end(world, id, success);
            }
        }
        70..78 => {
            if let Some(id) = dice.pick(&of(leader, |entry| entry.owed_a_run || entry.running.is_some())) {
                leader.record(id);
            }
        }
        78..86 => leader.commit(p),
        86..98 => leader.answer(world),
        98 => {
            let ledgers = leader.ledgers.clone();
            *leader = Leader::new(world, leader.limit, leader.fault);
            if leader.fault == Fault::KeepsTheOldLedger {
                // As if late answers reached the new ledger: everything that was owed is taken for done.
                for (new, mut old) in leader.ledgers.iter_mut().zip(ledgers) {
                    new.reached(old.position());
                    let _ = old.low_water();
                }
            }
        }
        _ => {}
    }
}

/// The disturbance has stopped: everything must come to rest, and every event be answered.
fn settle(world: &mut World, leader: &mut Leader) -> Result<(), String> {
    for _ in 0..20_000 {
        for p in 0..world.logs.len() {
            leader.deliver(world, p);
        }
        let ids: Vec<Id> = leader.entries.keys().copied().collect();
        for id in ids {
            leader.start(id);
            leader.end(world, id, true);
        }
        for p in 0..world.logs.len() {
            leader.commit(p);
        }
        while !leader.answers.is_empty() {
            leader.answer(world);
            if let Some(text) = lost(world) {
                return Err(text);
            }
        }
        let committed = world.committed.iter().zip(&world.logs).all(|(mark, log)| *mark == log.len() as u64);
        if committed && leader.busy() == 0 && world.records.is_empty() {
            let all = world.logs.iter().enumerate().flat_map(|(p, log)| {
                log.iter().enumerate().filter(|(_, id)| id.is_some()).map(move |(offset, _)| (p, offset as u64))
            });
            return match all.into_iter().find(|mark| !world.answered.contains(mark)) {
                Some((p, offset)) => Err(format!("event {p}/{offset} was never answered")),
                None => Ok(()),
            };
        }
    }
    Err(format!("never at rest: {:?}", world.committed))
}

fn simulate(seed: u64, steps: u32, fault: Fault) -> Result<(), String> {
    let mut dice = Dice(seed);
    let partitions = index(1 + dice.below(3));
    let mut world = World {
        logs: vec![Vec::new(); partitions],
        committed: vec![0; partitions],
        records: BTreeMap::new(),
        answered: BTreeSet::new(),
    };
    let limit = index(1 + dice.below(6));
    let ids = 1 + dice.below(8);
    let mut leader = Leader::new(&world, limit, fault);
    for _ in 0..steps {
        disturb(&mut world, &mut leader, &mut dice, ids);
        if let Some(text) = lost(&world) {
            return Err(text);
        }
    }
    settle(&mut world, &mut leader)
}

const STEPS: u32 = 300;

#[test]
fn k4_d12_no_event_is_lost_in_a_thousand_worlds() {
    for seed in 0..1_000 {
        if let Err(text) = simulate(seed, STEPS, Fault::None) {
            panic!("seed {seed}: {text}");
        }
    }
}

#[test]
fn k4_d12_every_planted_fault_is_caught() {
    for fault in FAULTS {
        let caught = (0..500).find(|seed| simulate(*seed, STEPS, fault).is_err());
        assert!(caught.is_some(), "{fault:?} went unnoticed");
    }
}
