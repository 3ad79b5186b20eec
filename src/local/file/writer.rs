//! The one thread that writes: it takes everything that waits and commits it as one group, since each commit costs a
//! sync of the disk however much is in it.
//!
//! Must never answer before the group is durable, nor let one caller's error touch another's changes. Tested by the
//! conformance suite (many tasks at once) and the crash tests.

use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::{mpsc, oneshot};

use super::database::Store;
use super::tables::{Change, Tables};
use crate::contract::{ClusterRecord, StoreError, Term};
use crate::id::ShardId;

/// How many callers may wait for the thread before the next one waits for a place: every shard a few times.
const WAITING_MAX: usize = 1_024;
/// How many changes go into one group before it is committed, so that a transaction fits the cache of pages.
const GROUP_CHANGES_MAX: usize = 10_000;

/// What a caller wants written.
pub(super) enum Work {
    Commit(Term, Vec<Change>),
    NextRevision(ShardId),
    CheckCluster(ClusterRecord),
}

/// What was done.
pub(super) enum Done {
    Committed,
    Revision(u64),
    Cluster(ClusterRecord),
}

/// Work, and who waits for it.
struct Job {
    work: Work,
    answer: oneshot::Sender<Result<Done, StoreError>>,
}

/// The way to the thread. Dropping it waits until everything is written and the file is closed.
pub(super) struct Writer {
    jobs: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(super) fn start(store: Arc<Store>) -> Result<Self, StoreError> {
        let (jobs, waiting) = mpsc::channel(WAITING_MAX);
        let thread = std::thread::Builder::new()
            .name("evenkeel-store".into())
            .spawn(move || run(&store, waiting))
            .map_err(|e| StoreError::Unusable(format!("cannot start the store's thread: {e}")))?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Has something written, in the order of the calls. Dropped before it is queued, nothing is written; after that,
    /// it is.
    pub(super) async fn ask(&self, work: Work) -> Result<Done, StoreError> {
        let gone = || StoreError::Unknown("the store's thread has ended".into());
        let (answer, answered) = oneshot::channel();
        let jobs = self.jobs.as_ref().ok_or_else(gone)?;
        jobs.send(Job { work, answer }).await.map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic was reported by the panic hook; there is nobody else to tell.
            let _ = thread.join();
        }
    }
}

fn run(store: &Store, mut waiting: mpsc::Receiver<Job>) {
    while let Some(first) = waiting.blocking_recv() {
        let group = gather(first, &mut waiting);
        match store.write(|tables| group.iter().map(|job| job.work.write(tables)).collect::<Result<Vec<_>, _>>()) {
            Ok(results) => {
                for (job, result) in group.into_iter().zip(results) {
                    // A caller that is gone does not want to know.
                    let _ = job.answer.send(result);
                }
            }
            Err(error) => {
                for job in group {
                    let _ = job.answer.send(Err(error.clone()));
                }
            }
        }
    }
}

fn gather(first: Job, waiting: &mut mpsc::Receiver<Job>) -> Vec<Job> {
    let mut changes = first.work.changes();
    let mut group = vec![first];
    while changes < GROUP_CHANGES_MAX {
        let Ok(job) = waiting.try_recv() else { break };
        changes += job.work.changes();
        group.push(job);
    }
    group
}

impl Work {
    fn changes(&self) -> usize {
        match self {
            Self::Commit(_, changes) => changes.len(),
            Self::NextRevision(_) | Self::CheckCluster(_) => 1,
        }
    }

    fn write(&self, tables: &mut Tables<'_>) -> Result<Result<Done, StoreError>, redb::Error> {
        Ok(match self {
            Self::Commit(term, changes) => tables.commit(*term, changes)?.map(|()| Done::Committed),
            Self::NextRevision(shard) => tables.next_revision(*shard)?.map(Done::Revision),
            Self::CheckCluster(wanted) => tables.check_cluster(wanted)?.map(Done::Cluster),
        })
    }
}
