//! The file in which a command may leave an answer: in a folder of its own that nobody else can enter, removed
//! afterwards.
//!
//! Must never follow a link, wait for a pipe's other end, or read more than the cap. Tested with real files below.

use std::fs::{OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use tempfile::TempDir;

use super::wire::ANSWER_BYTES_MAX;

/// Where an answer is left; the folder goes with this value.
pub(super) struct AnswerFile {
    path: PathBuf,
    _folder: TempDir,
}

impl AnswerFile {
    /// Makes the folder; the file is the command's to make.
    pub(super) fn new() -> io::Result<Self> {
        let folder =
            tempfile::Builder::new().prefix("evenkeel-").permissions(Permissions::from_mode(0o700)).tempdir()?;
        Ok(Self { path: folder.path().join("answer.json"), _folder: folder })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// What was left there; nothing if there is no file or an empty one.
    ///
    /// # Errors
    /// Something is there that cannot be an answer; the text says what.
    pub(super) fn read(&self) -> Result<Option<Vec<u8>>, String> {
        // Not following links and not waiting keep a command from making this process read what it should not, or for
        // ever.
        let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).unwrap_or(0);
        let file = match OpenOptions::new().read(true).custom_flags(flags).open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("it cannot be opened: {error}")),
        };
        let read = |error: io::Error| format!("it cannot be read: {error}");
        if !file.metadata().map_err(read)?.is_file() {
            return Err("it is not a file".to_owned());
        }
        let mut bytes = Vec::new();
        file.take(ANSWER_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map_err(read)?;
        if bytes.len() > ANSWER_BYTES_MAX {
            return Err(format!("it is larger than {ANSWER_BYTES_MAX} bytes"));
        }
        Ok(Some(bytes).filter(|bytes| !bytes.trim_ascii().is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_file_of_bounded_size_is_an_answer() {
        let answer = AnswerFile::new().unwrap();
        let folder = answer.path().parent().unwrap().to_owned();
        assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(answer.read(), Ok(None));

        std::fs::write(answer.path(), " \n").unwrap();
        assert_eq!(answer.read(), Ok(None));
        std::fs::write(answer.path(), "{}").unwrap();
        assert_eq!(answer.read(), Ok(Some(b"{}".to_vec())));
        std::fs::write(answer.path(), vec![b' '; ANSWER_BYTES_MAX + 1]).unwrap();
        assert!(answer.read().unwrap_err().contains("larger than"));

        std::fs::remove_file(answer.path()).unwrap();
        std::os::unix::fs::symlink("/dev/zero", answer.path()).unwrap();
        assert!(answer.read().unwrap_err().contains("cannot be opened"));
        std::fs::remove_file(answer.path()).unwrap();
        std::fs::create_dir(answer.path()).unwrap();
        assert!(answer.read().unwrap_err().contains("not a file"));
        std::fs::remove_dir(answer.path()).unwrap();
        let made = std::process::Command::new("mkfifo").arg(answer.path()).status().unwrap();
        assert!(made.success());
        assert!(answer.read().unwrap_err().contains("not a file"), "a pipe nobody writes to must not block");

        drop(answer);
        assert!(!folder.exists());
    }
}
