//! Faults under redb: a disk that is full at any step, that does not sync, that loses its power (B66).
//!
//! Must never be part of a build: tests only. The disk is an image in memory that knows what has been synced.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};

use redb::StorageBackend;

use super::FileStore;
use crate::contract::{OwedReason, OwedRecord, RecordChange, RecordStore, StoreError, Term};
use crate::id::ShardId;

const SHARD: ShardId = ShardId(1);
const TERM: Term = Term { shard: SHARD, incarnation: 1, revision: 1 };
/// A commit writes so many records, all with the number of the commit.
const BATCH: u32 = 10;

#[derive(Debug, Clone)]
enum Op {
    Write(usize, Vec<u8>),
    SetLen(usize),
}

#[derive(Debug, Default)]
struct Image {
    /// What a reader sees.
    now: Vec<u8>,
    /// What the last sync has kept.
    safe: Vec<u8>,
    /// What came after it.
    pending: Vec<Op>,
    /// How many writes still succeed; `None`: all.
    writes_left: Option<u64>,
    fault: Option<io::ErrorKind>,
    sync_fails: bool,
    syncs: u32,
    /// What might be found after a loss of power at some moment, and which commits were answered by then.
    cuts: Vec<(Vec<u8>, u32)>,
    answered: u32,
    chance: u64,
}

/// An image; and a lock that holds up every sync while a test has it.
#[derive(Debug, Clone, Default)]
struct Disk(Arc<Mutex<Image>>, Arc<Mutex<()>>);

impl Image {
    fn below(&mut self, bound: u64) -> u64 {
        self.chance = self.chance.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.chance >> 33) % bound
    }

    fn apply(image: &mut Vec<u8>, op: &Op) {
        match op {
            Op::SetLen(length) => image.resize(*length, 0),
            Op::Write(at, data) => image[*at..*at + data.len()].copy_from_slice(data),
        }
    }

    fn change(&mut self, op: Op) -> io::Result<()> {
        match &mut self.writes_left {
            Some(0) => return Err(self.fault.unwrap_or(io::ErrorKind::StorageFull).into()),
            Some(left) => *left -= 1,
            None => {}
        }
        Self::apply(&mut self.now, &op);
        self.pending.push(op);
        if self.chance != 0 && self.below(4) == 0 {
            let cut = self.cut();
            self.cuts.push((cut, self.answered));
        }
        Ok(())
    }

    /// What stands on the disk if the power goes now: what was synced, and of the rest any part. The length is one that
    /// the file had; of a write any 512 bytes may be missing.
    fn cut(&mut self) -> Vec<u8> {
        let mut image = self.safe.clone();
        let pending = self.pending.clone();
        let resizes = pending.iter().filter(|op| matches!(op, Op::SetLen(_))).count();
        let kept = self.below(resizes as u64 + 1);
        let mut resized = 0;
        for op in &pending {
            match op {
                Op::SetLen(_) if resized < kept => {
                    resized += 1;
                    Self::apply(&mut image, op);
                }
                Op::SetLen(_) => {}
                Op::Write(at, data) => {
                    let whole = self.below(3);
                    for (i, sector) in data.chunks(512).enumerate() {
                        let from = at + i * 512;
                        if from + sector.len() <= image.len() && (whole == 0 || (whole == 1 && self.below(2) == 0)) {
                            image[from..from + sector.len()].copy_from_slice(sector);
                        }
                    }
                }
            }
        }
        image
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap().now.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let (image, at) = (self.0.lock().unwrap(), usize::try_from(offset).unwrap());
        let from = image.now.get(at..at + out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(from);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.lock().unwrap().change(Op::SetLen(usize::try_from(len).unwrap()))
    }

    fn sync_data(&self) -> io::Result<()> {
        drop(self.1.lock().unwrap());
        let mut image = self.0.lock().unwrap();
        if image.sync_fails {
            return Err(io::Error::other("the disk is on fire"));
        }
        image.syncs += 1;
        image.safe = image.now.clone();
        image.pending.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.lock().unwrap().change(Op::Write(usize::try_from(offset).unwrap(), data.to_vec()))
    }
}

fn open(folder: &Path, disk: &Disk) -> Result<FileStore, StoreError> {
    let disk = disk.clone();
    FileStore::open_with(folder.to_owned(), Box::new(move |_| Ok(Box::new(disk.clone()))))
}

fn record(id: &str, attempt: u32) -> OwedRecord {
    let error = Some("e".repeat(200));
    let due = std::time::SystemTime::UNIX_EPOCH;
    OwedRecord { id: id.into(), due, attempt, reason: OwedReason::Held, key: 1, stuck: 0, error, causes: vec![] }
}

fn batch(n: u32) -> Vec<RecordChange> {
    let mut changes: Vec<_> = (0..BATCH).map(|i| RecordChange::Put(record(&format!("a{i}"), n))).collect();
    // Comes and goes, so that pages are freed and used again.
    changes.extend((0..30).map(|i| match (i + n).is_multiple_of(3) {
        true => RecordChange::Delete(format!("b{i}")),
        false => RecordChange::Put(record(&format!("b{i}"), n)),
    }));
    changes
}

/// The commit that stands in the store; fails on one that stands there by halves.
async fn stands(store: &FileStore) -> Result<u32, StoreError> {
    let all = store.load(SHARD, None, usize::MAX).await?;
    let own: Vec<u32> = all.iter().filter(|r| r.id.starts_with('a')).map(|r| r.attempt).collect();
    assert!(own.iter().all(|n| *n == own[0]) && [0, BATCH as usize].contains(&own.len()), "by halves: {own:?}");
    Ok(own.first().copied().unwrap_or(0))
}

/// Everything that waits while the disk syncs goes into one group; each caller gets its own answer.
#[tokio::test]
async fn d12_commits_that_wait_share_a_sync() {
    let (folder, disk) = (tempfile::tempdir().unwrap(), Disk::default());
    let store = open(folder.path(), &disk).unwrap();
    let syncs = || std::mem::take(&mut disk.0.lock().unwrap().syncs);
    store.commit(TERM, &batch(1)).await.unwrap();
    syncs();
    store.commit(TERM, &batch(2)).await.unwrap();
    let of_one = syncs();
    assert!(of_one > 0);

    let held = disk.1.lock().unwrap();
    let over = Term { revision: 0, ..TERM };
    let changes: Vec<_> = (0..100).map(|i| [RecordChange::Put(record(&format!("c{i:03}"), i))]).collect();
    let mut commits: Vec<_> =
        changes.iter().enumerate().map(|(i, c)| store.commit(if i == 50 { over } else { TERM }, c)).collect();
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    for commit in &mut commits {
        assert!(commit.as_mut().poll(&mut context).is_pending(), "nothing is answered before it is on the disk");
    }
    drop(held);
    for (i, commit) in commits.into_iter().enumerate() {
        match commit.await {
            Err(StoreError::Fenced) if i == 50 => {}
            answer => answer.unwrap_or_else(|e| panic!("commit {i}: {e}")),
        }
    }
    // The first may have begun alone, before the others came.
    assert!(syncs() <= 2 * of_one, "100 commits took more than two groups");
    let all = store.load(SHARD, Some("c"), 1_000).await.unwrap();
    assert_eq!(all.len(), 99, "all but the one whose term is over");
}

#[tokio::test]
async fn b66_a_disk_that_fails_at_any_step_leaves_the_old_or_the_new() {
    for fault in [io::ErrorKind::StorageFull, io::ErrorKind::Other] {
        let (mut refused, mut steps) = (0, 0);
        loop {
            let (folder, disk) = (tempfile::tempdir().unwrap(), Disk::default());
            let store = open(folder.path(), &disk).unwrap();
            store.commit(TERM, &batch(1)).await.unwrap();

            (disk.0.lock().unwrap().writes_left, disk.0.lock().unwrap().fault) = (Some(steps), Some(fault));
            let answer = store.commit(TERM, &batch(2)).await;
            let during = stands(&store).await;
            disk.0.lock().unwrap().writes_left = None;
            let after = stands(&store).await.unwrap();
            match &answer {
                Ok(()) => assert_eq!(after, 2),
                Err(StoreError::Refused(_)) => assert_eq!(after, 1, "step {steps}: nothing was written"),
                Err(StoreError::Unknown(_)) => assert!([1, 2].contains(&after)),
                Err(error) => panic!("{error:?}"),
            }
            assert!(during.is_err() || during.unwrap() == after, "step {steps}: no state in between is seen");
            store.commit(TERM, &batch(3)).await.expect("it goes on by itself");
            drop(store);
            assert_eq!(stands(&open(folder.path(), &disk).unwrap()).await.unwrap(), 3);

            refused += u32::from(matches!(answer, Err(StoreError::Refused(_))));
            steps += 1;
            if answer.is_ok() {
                break;
            }
        }
        assert!(steps > 5 && refused > 0, "{fault}: {refused} refused in {steps} steps");
    }
}

#[tokio::test]
async fn b66_after_a_failed_sync_nothing_is_believed() {
    let (folder, disk) = (tempfile::tempdir().unwrap(), Disk::default());
    let store = open(folder.path(), &disk).unwrap();
    store.commit(TERM, &batch(1)).await.unwrap();
    disk.0.lock().unwrap().sync_fails = true;
    let error = store.commit(TERM, &batch(2)).await.unwrap_err();
    assert!(error.is_unknown() && error.to_string().contains("on fire"), "{error}");
    // As with a real disk, the next sync would succeed.
    disk.0.lock().unwrap().sync_fails = false;
    for error in [store.commit(TERM, &batch(3)).await.unwrap_err(), stands(&store).await.unwrap_err()] {
        assert!(matches!(error, StoreError::Unusable(_)), "{error:?}");
        assert!(
            error.to_string().contains("did not keep what was written") && error.to_string().contains("check the disk")
        );
    }
    drop(store);
    // What the disk really has.
    let image = disk.0.lock().unwrap().safe.clone();
    disk.0.lock().unwrap().now = image;
    let store = open(folder.path(), &disk).unwrap();
    assert!([1, 2].contains(&stands(&store).await.unwrap()));
    store.commit(TERM, &batch(4)).await.unwrap();
}

#[tokio::test]
async fn b66_a_loss_of_power_loses_nothing_that_was_answered() {
    use std::hash::{BuildHasher, RandomState};
    let seed = RandomState::new().hash_one(0) | 1;
    println!("seed {seed}");
    let (folder, disk) = (tempfile::tempdir().unwrap(), Disk::default());
    let store = open(folder.path(), &disk).unwrap();
    disk.0.lock().unwrap().chance = seed;
    for n in 1..=40 {
        store.commit(TERM, &batch(n)).await.unwrap();
        disk.0.lock().unwrap().answered = n;
    }
    drop(store);
    let cuts = std::mem::take(&mut disk.0.lock().unwrap().cuts);
    assert!(cuts.len() > 50, "{} moments were tried", cuts.len());
    for (image, answered) in cuts {
        let disk =
            Disk(Arc::new(Mutex::new(Image { now: image.clone(), safe: image, ..Image::default() })), Arc::default());
        let store = open(folder.path(), &disk).unwrap_or_else(|e| panic!("after commit {answered}: {e}"));
        let found = stands(&store).await.unwrap();
        assert!(found == answered || found == answered + 1, "commit {answered} was answered, {found} stands");
        store.commit(TERM, &batch(found + 1)).await.unwrap();
    }
}
