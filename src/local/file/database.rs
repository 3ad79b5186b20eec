//! The open database: reads, group commits, and what to make of a failure.
//!
//! Must never answer that a write did not happen where it may have, nor go on after a failed sync. redb refuses
//! everything after an I/O error until it is opened anew, so a failure here always ends in opening anew, and in a look
//! whether the group that failed is there. Tested in `faults` and tests/it/store_file.rs.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use redb::{Database, ReadTransaction, ReadableDatabase};

use super::super::lock::FolderLock;
use super::disk::{Disk, OpenDisk};
use super::tables::{self, Tables};
use crate::contract::StoreError;

/// Memory for pages, in bytes: enough for the inner pages of a million records, little beside the entries themselves.
const CACHE_BYTES: usize = 32 << 20;

/// The database, open or waiting to be opened anew.
pub(super) struct Store {
    path: PathBuf,
    open_disk: OpenDisk,
    sync_failed: Arc<AtomicBool>,
    /// Held for reading as long as a transaction lives: two open databases on one file would destroy it.
    database: RwLock<Option<Database>>,
    /// The number of the last group that is known to be there.
    group: Mutex<u64>,
    /// Given back after the file is closed, which a read may put off.
    _lock: FolderLock,
}

/// How a write failed.
struct Failed {
    reason: String,
    /// Whether the commit had begun, so that it may have happened.
    committing: bool,
}

impl Store {
    /// Opens the file, checking every page of it.
    pub(super) fn open(path: PathBuf, open_disk: OpenDisk, lock: FolderLock) -> Result<Self, StoreError> {
        let store = Self {
            path,
            open_disk,
            sync_failed: Arc::default(),
            database: RwLock::new(None),
            group: Mutex::new(0),
            _lock: lock,
        };
        let database = store.open_database(true).map_err(|e| StoreError::Unusable(store.explain(&e)))?;
        *store.slot() = Some(database);
        let group = store.stored_group().map_err(|e| StoreError::Unusable(damaged(&store.path, &e.to_string())))?;
        *store.group() = group;
        Ok(store)
    }

    /// Makes a store in a file that is there and empty.
    pub(super) fn create(path: &Path, open_disk: &OpenDisk) -> Result<(), redb::Error> {
        let backend = open_disk(path)?;
        let database = Database::builder().create_with_backend(Disk { backend, sync_failed: Arc::default() })?;
        let transaction = database.begin_write()?;
        let mut tables = Tables::open(&transaction)?;
        tables.initialise()?;
        drop(tables);
        transaction.commit()?;
        database.close()?;
        Ok(())
    }

    /// Where it stands.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads in a transaction of its own; many go on at once, beside a write.
    pub(super) fn read<T>(
        &self,
        read: impl FnOnce(&ReadTransaction) -> Result<T, redb::Error>,
    ) -> Result<T, StoreError> {
        self.ensure_open(StoreError::Unknown)?;
        let failed = {
            let slot = self.database.read().unwrap_or_else(PoisonError::into_inner);
            let database = slot.as_ref().ok_or_else(|| StoreError::Unknown("it is being opened anew".into()))?;
            match database.begin_read().map_err(redb::Error::from).and_then(|transaction| read(&transaction)) {
                Ok(result) => return Ok(result),
                Err(error) => error,
            }
        };
        let reason = self.reason(&failed);
        match failed {
            redb::Error::Io(_) | redb::Error::PreviousIo => *self.slot() = None,
            redb::Error::DatabaseClosed => {}
            _ => return Err(StoreError::Corrupt { id: self.path.display().to_string(), reason }),
        }
        Err(StoreError::Unknown(reason))
    }

    /// Writes in one transaction, durable on return: all of it or, on an error, what the error says. The work may be
    /// called for naught, so it must do nothing but write to the tables.
    pub(super) fn write<T>(
        &self,
        work: impl FnOnce(&mut Tables<'_>) -> Result<T, redb::Error>,
    ) -> Result<T, StoreError> {
        self.ensure_open(StoreError::Refused)?;
        let attempt = catch_unwind(AssertUnwindSafe(|| self.attempt(work)));
        match attempt {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(failed)) => Err(self.settle(&failed)),
            Err(_) => Err(self.settle(&Failed { reason: "the database panicked".into(), committing: true })),
        }
    }

    fn attempt<T>(&self, work: impl FnOnce(&mut Tables<'_>) -> Result<T, redb::Error>) -> Result<T, Failed> {
        let before = |error| Failed { reason: self.reason(&error), committing: false };
        let slot = self.database.read().unwrap_or_else(PoisonError::into_inner);
        let database = slot.as_ref().ok_or_else(|| Failed { reason: "it is closed".into(), committing: false })?;
        let transaction = database.begin_write().map_err(|e| before(e.into()))?;
        let mut group = self.group();
        let mut tables = Tables::open(&transaction).map_err(before)?;
        let result = work(&mut tables).map_err(before)?;
        if !tables.dirty {
            return Ok(result);
        }
        tables.number(*group + 1).map_err(before)?;
        drop(tables);
        transaction.commit().map_err(|e| Failed { reason: self.reason(&e.into()), committing: true })?;
        *group += 1;
        Ok(result)
    }

    /// After a failed write: opens the database anew and finds out whether the write is there.
    fn settle(&self, failed: &Failed) -> StoreError {
        *self.slot() = None;
        if self.sync_failed.load(Ordering::Acquire) {
            return StoreError::Unknown(failed.reason.clone());
        }
        let before = *self.group();
        match self.stored_group() {
            Ok(group) if group == before => StoreError::Refused(failed.reason.clone()),
            Err(_) if !failed.committing => StoreError::Refused(failed.reason.clone()),
            Ok(group) => {
                *self.group() = group;
                StoreError::Unknown(failed.reason.clone())
            }
            Err(error) => StoreError::Unknown(format!("{}; then: {error}", failed.reason)),
        }
    }

    fn stored_group(&self) -> Result<u64, StoreError> {
        self.read(tables::group)?
    }

    /// Opens the database where a failure has closed it.
    fn ensure_open(&self, failed: fn(String) -> StoreError) -> Result<(), StoreError> {
        if self.sync_failed.load(Ordering::Acquire) {
            return Err(StoreError::Unusable(format!(
                "the disk did not keep what was written to {}: check the disk, then start this process again",
                self.path.display()
            )));
        }
        if self.database.read().unwrap_or_else(PoisonError::into_inner).is_some() {
            return Ok(());
        }
        let mut slot = self.slot();
        if slot.is_none() {
            *slot = Some(self.open_database(false).map_err(|e| failed(self.explain(&e)))?);
        }
        Ok(())
    }

    fn open_database(&self, check: bool) -> Result<Database, redb::Error> {
        let open = || {
            let backend = (self.open_disk)(&self.path)?;
            // redb would make a new database of it.
            if backend.len()? == 0 {
                return Err(redb::Error::Corrupted("it is empty".into()));
            }
            let disk = Disk { backend, sync_failed: Arc::clone(&self.sync_failed) };
            let mut builder = Database::builder();
            builder.set_cache_size(CACHE_BYTES).set_check_integrity_on_open(check);
            Ok(builder.create_with_backend(disk)?)
        };
        // redb may panic on a damaged file.
        let opened = catch_unwind(AssertUnwindSafe(open));
        opened.unwrap_or_else(|_| Err(redb::Error::Corrupted("the database panicked on it".into())))
    }

    /// Why something failed on the open file.
    fn reason(&self, error: &redb::Error) -> String {
        let path = self.path.display();
        match error {
            redb::Error::Io(e) if is_full(e) => format!("{path}: {e}; make room there, then it goes on by itself"),
            redb::Error::Io(e) => format!("{path}: {e}"),
            error => format!("{path}: {error}"),
        }
    }

    /// What is wrong with the file, and what to do.
    fn explain(&self, error: &redb::Error) -> String {
        let path = self.path.display();
        match error {
            redb::Error::Io(e) if !is_damage(e) => format!(
                "cannot open the store {path}: {e}; it must be readable and writable for this user, on a disk with room"
            ),
            redb::Error::DatabaseAlreadyOpen => format!("the store {path} is open in another program: end that one"),
            redb::Error::UpgradeRequired(_) => damaged(&self.path, "it has the format of another version of redb"),
            error => damaged(&self.path, &error.to_string()),
        }
    }

    fn slot(&self) -> std::sync::RwLockWriteGuard<'_, Option<Database>> {
        self.database.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn group(&self) -> std::sync::MutexGuard<'_, u64> {
        self.group.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

/// Whether an I/O error comes from what stands in the file, not from the disk under it.
fn is_damage(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidInput)
}

/// Says that a store is damaged, and what to do; it is never taken for a new one (B66).
pub(super) fn damaged(path: &Path, reason: &str) -> String {
    format!(
        "the store {path} is damaged ({reason}): put a copy from a backup in its place; or, to go on without the owed \
         records that it held, move it away and start again (a resync finds what still exists)",
        path = path.display()
    )
}
