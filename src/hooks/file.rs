//! A small file that may change while the process runs: a secret, a token, a certificate.
//!
//! Must never keep a secret that was taken away: a file that cannot be read is an error, not the value of before. The
//! text of an error names the file, never what is in it. Tested with real files below.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How old what was read may be: a rotated secret is used a second later, and a busy hook reads its file once a second.
const FRESH_FOR: Duration = Duration::from_secs(1);

/// The largest such file, in bytes: a bundle of all public certificates has a quarter of it.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// A file that is read again when its value is needed and older than a second.
pub(super) struct WatchedFile {
    path: PathBuf,
    last: Mutex<Option<(Instant, Arc<[u8]>)>>,
}

impl fmt::Debug for WatchedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WatchedFile({})", self.path.display())
    }
}

/// A file cannot be used; the text names it and says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot use {path}: {reason}")]
pub struct FileError {
    path: String,
    reason: String,
}

impl WatchedFile {
    /// Names a file; nothing is read yet.
    pub(super) const fn new(path: PathBuf) -> Self {
        Self { path, last: Mutex::new(None) }
    }

    /// What is in the file. Files are on local disks or in memory, so that reading one here blocks for microseconds.
    ///
    /// # Errors
    /// The file cannot be read, is empty or too large.
    pub(super) fn read(&self) -> Result<Arc<[u8]>, FileError> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, bytes)) = &*last
            && at.elapsed() < FRESH_FOR
        {
            return Ok(Arc::clone(bytes));
        }
        *last = None;
        let bytes: Arc<[u8]> = read_small(&self.path).map_err(|reason| self.error(reason))?.into();
        *last = Some((Instant::now(), Arc::clone(&bytes)));
        Ok(bytes)
    }

    /// What is in the file, as text without the white space around it.
    ///
    /// # Errors
    /// As [`read`](Self::read), and if it is no text.
    pub(super) fn read_text(&self) -> Result<String, FileError> {
        let bytes = self.read()?;
        let text = std::str::from_utf8(&bytes).map_err(|_| self.error("it is not UTF-8 text"))?;
        Ok(text.trim().to_owned())
    }

    /// Reads the file again at its next use: a target refused what was in it, so it may have been rotated.
    pub(super) fn forget(&self) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// An error about what is in this file.
    pub(super) fn error(&self, reason: impl fmt::Display) -> FileError {
        FileError { path: self.path.display().to_string(), reason: reason.to_string() }
    }
}

fn read_small(path: &Path) -> Result<Vec<u8>, String> {
    let about = std::fs::metadata(path).map_err(|error| error.to_string())?;
    if !about.is_file() {
        return Err("it is not a file".to_owned());
    }
    if about.len() > FILE_BYTES_MAX {
        return Err(format!("it has {} bytes; at most {FILE_BYTES_MAX} are read", about.len()));
    }
    let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
    if bytes.iter().all(u8::is_ascii_whitespace) { Err("it is empty".to_owned()) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_again_after_it_was_forgotten_and_an_error_keeps_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, " one\n").unwrap();
        let file = WatchedFile::new(path.clone());
        assert_eq!(file.read_text().unwrap(), "one");
        std::fs::write(&path, "two").unwrap();
        file.forget();
        assert_eq!(file.read_text().unwrap(), "two");
        for (bytes, wanted) in [(&b" \n"[..], "it is empty"), (b"\xff", "it is not UTF-8 text")] {
            std::fs::write(&path, bytes).unwrap();
            file.forget();
            let error = file.read_text().unwrap_err().to_string();
            assert!(error.starts_with("cannot use /") && error.ends_with(wanted), "{error}");
        }
        std::fs::remove_file(&path).unwrap();
        file.forget();
        assert!(file.read().unwrap_err().to_string().contains("No such file"));
        assert_eq!(WatchedFile::new(dir.path().into()).read().unwrap_err().reason, "it is not a file");
    }

    #[test]
    fn a_rotated_secret_is_seen_within_its_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, "old").unwrap();
        let file = WatchedFile::new(path.clone());
        assert_eq!(file.read_text().unwrap(), "old");
        std::fs::write(&path, "new").unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        while file.read_text().unwrap() == "old" {
            assert!(Instant::now() < deadline, "the new secret was never read");
            std::thread::yield_now();
        }
    }
}
