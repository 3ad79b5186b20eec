//! The lock on a data folder: one process at a time (L6).
//!
//! Must never be taken from a process that lives: the kernel holds it and gives it back when the holder ends, however
//! it ends. The file it stands on only says who. Tested below and in tests/it/store_file.rs.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::contract::StoreError;

/// The longest text that is read from a lock file, in bytes: a process id has at most 10.
const HOLDER_BYTES_MAX: u64 = 32;

/// Held as long as this value lives.
#[derive(Debug)]
pub(super) struct FolderLock {
    _file: File,
}

impl FolderLock {
    /// Takes the lock of a folder, or says who has it.
    pub(super) fn take(folder: &Path) -> Result<Self, StoreError> {
        let path = folder.join("lock");
        let failed = |error| {
            StoreError::Unusable(format!(
                "cannot lock {}: {error}; the folder must be writable for this user, on a file system with locks",
                path.display()
            ))
        };
        let mut options = OpenOptions::new();
        let mut file =
            options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StoreError::Unusable(taken(folder, &file))),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        // Written after the lock is had, so that the text is the holder's own.
        file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(failed)?;
        Ok(Self { _file: file })
    }
}

fn taken(folder: &Path, file: &File) -> String {
    let mut text = String::new();
    let holder = match file.take(HOLDER_BYTES_MAX).read_to_string(&mut text).map(|_| text.trim().parse::<u32>()) {
        Ok(Ok(pid)) if pid == std::process::id() => "this process already".to_owned(),
        Ok(Ok(pid)) => format!("process {pid}"),
        // Its holder has locked it a moment ago and not yet written who it is.
        _ => "another process".to_owned(),
    };
    let folder = folder.display();
    format!("{folder} is in use by {holder}: stop that one, or give this one a data_dir of its own")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l6_a_folder_has_one_holder_and_its_name_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let lock = FolderLock::take(folder.path()).unwrap();
        let refused = FolderLock::take(folder.path()).unwrap_err().to_string();
        assert!(refused.contains("in use by this process already: stop that one"), "{refused}");
        std::fs::write(folder.path().join("lock"), "1\n").unwrap();
        let refused = FolderLock::take(folder.path()).unwrap_err().to_string();
        assert!(refused.contains("in use by process 1: stop that one"), "{refused}");
        std::fs::write(folder.path().join("lock"), [0xff; 100]).unwrap();
        let refused = FolderLock::take(folder.path()).unwrap_err().to_string();
        assert!(refused.contains("in use by another process: "), "{refused}");
        drop(lock);
        FolderLock::take(folder.path()).unwrap();
        assert_eq!(std::fs::read_to_string(folder.path().join("lock")).unwrap(), format!("{}\n", std::process::id()));
    }

    #[test]
    fn l6_a_folder_that_cannot_be_locked_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("lock")).unwrap();
        let refused = FolderLock::take(folder.path()).unwrap_err().to_string();
        assert!(refused.contains("cannot lock ") && refused.contains("must be writable"), "{refused}");
    }
}
