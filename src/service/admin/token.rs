//! The bearer tokens that the API asks for, from a file that may change while the process runs.
//!
//! Must never print a token, compare one in a time that depends on it, or let anybody in while the file is unusable.
//! Tested below and over HTTP in `tests/it/admin_security.rs`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use subtle::{Choice, ConstantTimeEq};

/// The longest file that is read: dozens of tokens.
const FILE_BYTES_MAX: u64 = 16 * 1024;
/// The shortest token: what is shorter can be guessed.
const TOKEN_BYTES_MIN: usize = 16;

/// A file with one token a line: several, so that a new one can be handed out before the old one goes.
pub(super) struct TokenFile {
    path: PathBuf,
    last: Mutex<Loaded>,
}

/// The file's content and how the file looked when it was read.
struct Loaded {
    tokens: Vec<Vec<u8>>,
    stamp: Stamp,
}

/// Tells a changed file from the one that was read.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    bytes: u64,
    file: u64,
}

/// The token file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("token file {path}: {reason}")]
pub struct TokenFileError {
    path: String,
    reason: String,
}

impl fmt::Debug for TokenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TokenFile").field(&self.path).finish()
    }
}

impl TokenFile {
    /// Reads the file for the first time.
    ///
    /// # Errors
    /// It cannot be read, or holds no usable token.
    pub(super) fn open(path: &Path) -> Result<Self, TokenFileError> {
        let stamp = stamp(path)?;
        let tokens = read(path)?;
        Ok(Self { path: path.to_owned(), last: Mutex::new(Loaded { tokens, stamp }) })
    }

    /// Whether the request carries one of the tokens; reads the file again if it has changed.
    ///
    /// # Errors
    /// The file cannot be used now: nobody gets in.
    pub(super) fn admits(&self, headers: &HeaderMap) -> Result<bool, TokenFileError> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let now = stamp(&self.path)?;
        if now != last.stamp {
            *last = Loaded { tokens: read(&self.path)?, stamp: now };
            tracing::info!(file = %self.path.display(), "the token file has changed and was read again");
        }
        let Some(given) = bearer(headers) else { return Ok(false) };
        // Every token is compared, so that the time says nothing of which one is right.
        let matching = last.tokens.iter().fold(Choice::from(0), |found, token| found | token.ct_eq(given));
        Ok(matching.into())
    }
}

/// The token of `Authorization: Bearer …`, if there is exactly one such header.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next()?.as_bytes();
    let (scheme, token) = value.split_at_checked(7)?;
    (values.next().is_none() && scheme.eq_ignore_ascii_case(b"bearer ")).then(|| token.trim_ascii())
}

fn stamp(path: &Path) -> Result<Stamp, TokenFileError> {
    let meta = std::fs::metadata(path).map_err(|e| unusable(path, e))?;
    if !meta.is_file() {
        return Err(unusable(path, "it is no file"));
    }
    #[cfg(unix)]
    let file = std::os::unix::fs::MetadataExt::ino(&meta);
    #[cfg(not(unix))]
    let file = 0;
    Ok(Stamp { modified: meta.modified().ok(), bytes: meta.len(), file })
}

fn read(path: &Path) -> Result<Vec<Vec<u8>>, TokenFileError> {
    use std::io::Read as _;
    let file = std::fs::File::open(path).map_err(|e| unusable(path, e))?;
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text).map_err(|e| unusable(path, e))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(unusable(path, format!("it has more than {FILE_BYTES_MAX} bytes")));
    }
    let mut tokens = Vec::new();
    for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let token = line.trim_ascii();
        if token.is_empty() {
            continue;
        }
        if token.len() < TOKEN_BYTES_MIN || !token.iter().all(u8::is_ascii_graphic) {
            let rule = format!("needs at least {TOKEN_BYTES_MIN} visible ASCII characters without spaces");
            return Err(unusable(path, format!("the token in line {} {rule}", number + 1)));
        }
        tokens.push(token.to_vec());
    }
    match tokens.is_empty() {
        true => Err(unusable(path, "it is empty; put a token into it, for example from `openssl rand -hex 32`")),
        false => Ok(tokens),
    }
}

fn unusable(path: &Path, reason: impl fmt::Display) -> TokenFileError {
    TokenFileError { path: path.display().to_string(), reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "old-token-0123456789";
    const NEW: &str = "new-token-0123456789";

    fn request(authorization: &str) -> HeaderMap {
        HeaderMap::from_iter([(AUTHORIZATION, authorization.parse().unwrap())])
    }

    #[test]
    fn only_the_whole_token_gets_in() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, format!("{OLD}\r\n\n{NEW}\n")).unwrap();
        let file = TokenFile::open(&path).unwrap();
        for good in [format!("Bearer {OLD}"), format!("bearer {NEW}"), format!("BEARER   {NEW} ")] {
            assert_eq!(file.admits(&request(&good)), Ok(true), "{good}");
        }
        for bad in ["", "Bearer", "Bearer ", "Bearer x", "Basic b2xk", &OLD[1..], &format!("Bearer {OLD}x"), OLD] {
            assert_eq!(file.admits(&request(bad)), Ok(false), "{bad}");
        }
        assert_eq!(file.admits(&HeaderMap::new()), Ok(false));
        let mut twice = request(&format!("Bearer {OLD}"));
        twice.append(AUTHORIZATION, format!("Bearer {OLD}").parse().unwrap());
        assert_eq!(file.admits(&twice), Ok(false));
    }

    #[test]
    fn a_changed_file_is_read_again_and_a_broken_one_lets_nobody_in() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, OLD).unwrap();
        let file = TokenFile::open(&path).unwrap();
        let (old, new) = (request(&format!("Bearer {OLD}")), request(&format!("Bearer {NEW}")));
        assert_eq!((file.admits(&old), file.admits(&new)), (Ok(true), Ok(false)));
        // As mounted secrets change: by a rename.
        std::fs::write(dir.path().join("next"), NEW).unwrap();
        std::fs::rename(dir.path().join("next"), &path).unwrap();
        assert_eq!((file.admits(&old), file.admits(&new)), (Ok(false), Ok(true)));
        std::fs::remove_file(&path).unwrap();
        assert!(file.admits(&new).is_err());
        std::fs::write(&path, format!("{OLD}\n{NEW}")).unwrap();
        assert_eq!(file.admits(&new), Ok(true));
    }

    #[test]
    fn what_is_no_token_is_refused_without_being_shown() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let long = "x".repeat(20_000);
        for (content, reason) in [
            ("", "it is empty"),
            ("\n \n", "it is empty"),
            ("canary", "the token in line 1 needs at least 16"),
            ("canary with spaces inside", "the token in line 1"),
            (&format!("{OLD}\ncanary-\u{e9}-0123456789"), "the token in line 2"),
            (&long, "more than 16384 bytes"),
        ] {
            std::fs::write(&path, content).unwrap();
            let error = TokenFile::open(&path).unwrap_err().to_string();
            assert!(error.contains(reason) && !error.contains("canary"), "{error}");
        }
        assert!(TokenFile::open(dir.path()).unwrap_err().to_string().contains("no file"));
        assert!(TokenFile::open(&dir.path().join("none")).unwrap_err().to_string().contains("No such file"));
    }
}
