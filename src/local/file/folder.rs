//! The folder and its first file.
//!
//! Must never leave a half-made file under the store's name: it is made beside it and renamed once it is on the disk.
//! So whatever stands under that name and cannot be read is damage, not a start that was interrupted (B66). Tested in
//! tests/it/store_file.rs.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::database::{Store, damaged};
use super::disk::OpenDisk;
use super::tables::{self, FILE_FORMAT};
use crate::contract::StoreError;

const STORE_FILE: &str = "store.redb";
const UNFINISHED_FILE: &str = "store.redb.new";

/// Makes the folder, if there is none.
pub(super) fn make(folder: &Path) -> Result<(), StoreError> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(|e| {
        let folder = folder.display();
        StoreError::Unusable(format!(
            "cannot make the data_dir {folder}: {e}; name a folder that this user may write to"
        ))
    })
}

/// The store's file, made if there is none. The folder's lock is held.
pub(super) fn store_file(folder: &Path, open_disk: &OpenDisk) -> Result<PathBuf, StoreError> {
    let path = folder.join(STORE_FILE);
    match std::fs::symlink_metadata(&path) {
        Ok(_) => Ok(path),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            first_file(folder, &path, open_disk)?;
            Ok(path)
        }
        Err(e) => Err(cannot_make(&path, &e)),
    }
}

fn first_file(folder: &Path, path: &Path, open_disk: &OpenDisk) -> Result<(), StoreError> {
    let unfinished = folder.join(UNFINISHED_FILE);
    let failed = |e: io::Error| cannot_make(path, &e);
    // Left by a start that was interrupted; nothing was ever promised on it.
    match std::fs::remove_file(&unfinished) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed(e)),
        _ => {}
    }
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished).map_err(failed)?;
    Store::create(&unfinished, open_disk).map_err(|e| failed(io::Error::other(e)))?;
    File::open(&unfinished).and_then(|file| file.sync_all()).map_err(failed)?;
    std::fs::rename(&unfinished, path).map_err(failed)?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)
}

fn cannot_make(path: &Path, error: &io::Error) -> StoreError {
    let path = path.display();
    StoreError::Unusable(format!("cannot make the store {path}: {error}; the folder must be writable for this user"))
}

/// Refuses a file of a newer layout.
pub(super) fn check_format(store: &Store) -> Result<(), StoreError> {
    let path = store.path();
    match store.read(tables::format) {
        Ok(Ok(1..=FILE_FORMAT)) => Ok(()),
        Ok(Ok(newer)) => Err(StoreError::Unusable(format!(
            "the store {} was made by a newer version of evenkeel (its format is {newer}, this version knows up to \
             {FILE_FORMAT}): run the version that made it",
            path.display()
        ))),
        Ok(Err(e)) | Err(e) => Err(StoreError::Unusable(damaged(path, &e.to_string()))),
    }
}
