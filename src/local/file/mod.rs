//! A store of owed records in a file: the default of a single machine.
//!
//! Must never start as if new where something stands that it cannot read (B66), nor share its folder (L6). All work on
//! the file happens off the async threads: writes on a thread of their own (`writer`), reads on the blocking pool.
//!
//! - `folder` makes the folder and the first file, `database` opens, reads, writes and judges failures,
//! - `tables` says what stands in it, `disk` watches what redb does to the file.
//!
//! Tested by the stores' conformance suite (tests/it/store.rs), by kills, damage and a full disk
//! (tests/it/store_file.rs, tests/it/store_crash.rs), and by faults under redb (`faults`).

mod database;
mod disk;
#[cfg(test)]
mod faults;
mod folder;
mod tables;
mod writer;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::database::Store;
use self::writer::{Done, Work, Writer};
use super::lock::FolderLock;
use crate::contract::{BoxFuture, ClusterRecord, OwedRecord, RecordChange, RecordStore, StoreError, Term};
use crate::id::ShardId;

/// Keeps owed records in one file of a folder that belongs to one process.
///
/// A commit is on the disk when it returns (fsync), and survives a kill and a loss of power; commits that wait at the
/// same time share one sync. Dropping the store waits for what is queued, closes the file and gives the folder back.
///
/// The folder is made with mode 0700, its files with 0600. `store.redb` holds everything; to back it up, copy it while
/// the process is stopped.
///
/// # When the disk is full
/// Commits answer [`StoreError::Refused`] and change nothing; once there is room, they work again by themselves. After
/// an error of the disk itself every call answers [`StoreError::Unusable`]: what was written last may not be there, and
/// only a new process can find out.
pub struct FileStore {
    // Dropped first: the thread writes what is queued.
    writer: Writer,
    store: Arc<Store>,
    folder: PathBuf,
}

impl FileStore {
    /// Opens the store of a folder, or makes one where there is none; checks every page, which takes about 2 seconds a
    /// GB.
    ///
    /// # Errors
    /// [`StoreError::Unusable`] if the folder cannot be used or belongs to another process, or the file is damaged or
    /// of a newer version; the message says what to do.
    ///
    /// # Cancel safety
    /// Dropped, it is opened all the same and closed again at once.
    pub async fn open(folder: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let folder = folder.into();
        blocking(move || Self::open_with(folder, Box::new(disk::open_file))).await
    }

    fn open_with(folder: PathBuf, open_disk: disk::OpenDisk) -> Result<Self, StoreError> {
        folder::make(&folder)?;
        let lock = FolderLock::take(&folder)?;
        let path = folder::store_file(&folder, &open_disk)?;
        let store = Arc::new(Store::open(path, open_disk, lock)?);
        folder::check_format(&store)?;
        let writer = Writer::start(Arc::clone(&store))?;
        Ok(Self { writer, store, folder })
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl RecordStore for FileStore {
    fn is_durable(&self) -> bool {
        true
    }

    fn check_cluster<'a>(&'a self, wanted: &'a ClusterRecord) -> BoxFuture<'a, Result<ClusterRecord, StoreError>> {
        Box::pin(async move {
            match self.writer.ask(Work::CheckCluster(wanted.clone())).await? {
                Done::Cluster(stands) => Ok(stands),
                _ => Err(mixed_up()),
            }
        })
    }

    fn next_revision(&self, shard: ShardId) -> BoxFuture<'_, Result<u64, StoreError>> {
        Box::pin(async move {
            match self.writer.ask(Work::NextRevision(shard)).await? {
                Done::Revision(revision) => Ok(revision),
                _ => Err(mixed_up()),
            }
        })
    }

    fn load<'a>(
        &'a self,
        shard: ShardId,
        after: Option<&'a str>,
        limit: usize,
    ) -> BoxFuture<'a, Result<Vec<OwedRecord>, StoreError>> {
        let (store, after) = (Arc::clone(&self.store), after.map(str::to_owned));
        Box::pin(blocking(move || {
            let page = store.read(|transaction| tables::load(transaction, shard, after.as_deref(), limit))?;
            page.into_iter().map(|(id, json)| understand(&id, &json)).collect()
        }))
    }

    fn commit<'a>(&'a self, term: Term, changes: &'a [RecordChange]) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let changes = changes.iter().map(|change| match change {
                RecordChange::Put(record) => (record.id.clone(), Some(record.to_json())),
                RecordChange::Delete(id) => (id.clone(), None),
            });
            self.writer.ask(Work::Commit(term, changes.collect())).await.map(|_| ())
        })
    }
}

impl fmt::Debug for FileStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileStore").field("folder", &self.folder).finish_non_exhaustive()
    }
}

fn understand(id: &[u8], json: &[u8]) -> Result<OwedRecord, StoreError> {
    let corrupt = |reason| StoreError::Corrupt { id: String::from_utf8_lossy(id).into_owned(), reason };
    let record = OwedRecord::from_json(json).map_err(corrupt)?;
    if record.id.as_bytes() != id {
        return Err(corrupt(format!("the record is one of {:?}", record.id)));
    }
    Ok(record)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let ended = tokio::task::spawn_blocking(work).await;
    ended.unwrap_or_else(|e| Err(StoreError::Unknown(format!("the work on the store did not end: {e}"))))
}

fn mixed_up() -> StoreError {
    StoreError::Unknown("the store's thread answered another question".into())
}
