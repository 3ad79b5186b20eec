//! The file under redb, watched: whether a sync has ever failed.
//!
//! Must never hide an error. After a failed sync the kernel may have dropped what it could not write and call it clean,
//! so that a later sync succeeds although nothing was kept; only this flag knows. Tested in `faults`.

use std::fs::OpenOptions;
use std::io;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::StorageBackend;
use redb::backends::FileBackend;
use redb::{BackendError, DatabaseError};

/// Opens what redb reads and writes; tests put faults in between.
pub(super) type OpenDisk = Box<dyn Fn(&Path) -> Result<Box<dyn StorageBackend>, DatabaseError> + Send + Sync>;

/// Opens a file that is there.
pub(super) fn open_file(path: &Path) -> Result<Box<dyn StorageBackend>, DatabaseError> {
    Ok(Box::new(FileBackend::new(OpenOptions::new().read(true).write(true).open(path)?)?))
}

/// A backend, and whether one of its syncs has failed.
#[derive(Debug)]
pub(super) struct Disk {
    pub(super) backend: Box<dyn StorageBackend>,
    pub(super) sync_failed: Arc<AtomicBool>,
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        self.backend.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.backend.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.backend.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.backend.sync_data().inspect_err(|_| self.sync_failed.store(true, Ordering::Release))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.backend.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.backend.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.backend.try_lock_range(start, end)
    }

    fn try_lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.backend.try_lock_shared_range(start, end)
    }

    fn lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.backend.lock_range(start, end)
    }

    fn lock_shared_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.backend.lock_shared_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.backend.unlock_range(start, end)
    }

    fn query_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.backend.query_lock_range(start, end)
    }
}
