//! Secrets: values that are used and never shown (B87).
//!
//! Must never give a secret to `Debug`, `Display` or `Serialize`. Tested below, and by the canary test of
//! `tests/it/config.rs`.

use std::fmt;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde::{Serialize, Serializer};

/// The largest secret file: keys and tokens are far smaller, and a wrong path may name anything.
const SECRET_FILE_BYTES_MAX: u64 = 64 * 1024;

/// A text that nobody is shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Takes a text out of sight.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text, for the one who must use it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("***")
    }
}

/// What the file of a secret says: the text, and what its owner should be warned of.
pub(super) struct SecretFile {
    pub text: String,
    pub warning: Option<String>,
}

impl SecretFile {
    /// Reads the file. Mounted secrets are often readable by everybody in their container, so that is a warning; one
    /// that everybody may write is refused.
    pub(super) fn read(path: &Path) -> Result<Self, String> {
        let (text, mode) = read_text(path)?;
        let shown = path.display();
        if mode & 0o002 != 0 {
            return Err(format!("{shown} may be written by everybody; `chmod 600` it"));
        }
        if text.trim().is_empty() {
            return Err(format!("{shown} is empty"));
        }
        let warning = (mode & 0o004 != 0).then(|| format!("{shown} may be read by everybody; `chmod 600` it"));
        Ok(Self { text, warning })
    }

    /// The text as one secret; one newline at its end belongs to the editor.
    pub(super) fn single(&self) -> Result<Secret, &'static str> {
        let line = self.text.strip_suffix('\n').unwrap_or(&self.text);
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.contains(['\n', '\r', '\0']) { Err("holds more than one line") } else { Ok(Secret::new(line)) }
    }
}

fn read_text(path: &Path) -> Result<(String, u32), String> {
    let shown = path.display();
    let cannot = |e: std::io::Error| format!("cannot read {shown}: {}", io_reason(&e));
    let metadata = fs::metadata(path).map_err(cannot)?;
    if !metadata.is_file() {
        let what = if metadata.is_dir() { "a folder" } else { "no regular file" };
        return Err(format!("{shown} is {what}"));
    }
    let mut bytes = Vec::new();
    fs::File::open(path).map_err(cannot)?.take(SECRET_FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() as u64 > SECRET_FILE_BYTES_MAX {
        return Err(format!("{shown} is larger than {} KiB; is it the right file?", SECRET_FILE_BYTES_MAX / 1024));
    }
    let text = String::from_utf8(bytes).map_err(|_| format!("{shown} is not UTF-8"))?;
    Ok((text, metadata.permissions().mode()))
}

/// The reason of an IO error without the number of the operating system.
pub(super) fn io_reason(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "no such file".to_owned(),
        std::io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        std::io::ErrorKind::IsADirectory => "it is a folder".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b87_a_secret_never_shows_itself() {
        let secret = Secret::new("hunter2");
        assert_eq!(format!("{secret:?} {secret} {:?}", Some(&secret)), "*** *** Some(***)");
        assert_eq!(serde_json::to_string(&secret).unwrap(), "\"***\"");
        assert_eq!(secret.expose(), "hunter2");
    }

    #[test]
    fn b87_secret_files_are_trimmed_and_checked() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &[u8], mode: u32| {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            SecretFile::read(&path)
        };
        for (text, secret) in [("x\n", "x"), ("x\r\n", "x"), ("x", "x"), (" x \n", " x ")] {
            let read = file("good", text.as_bytes(), 0o600).ok().unwrap();
            assert_eq!((read.single().unwrap().expose(), read.warning), (secret, None), "{text:?}");
        }
        assert!(file("lines", b"a\nb\n", 0o600).ok().unwrap().single().is_err());
        let warned = file("readable", b"x", 0o644).ok().unwrap().warning.unwrap();
        assert!(warned.ends_with("may be read by everybody; `chmod 600` it"), "{warned}");
        for (name, text, mode, says) in [
            ("writable", b"x".as_slice(), 0o666, "may be written by everybody"),
            ("empty", b"", 0o600, "is empty"),
            ("newline", b" \n", 0o600, "is empty"),
            ("latin", b"\xff", 0o600, "is not UTF-8"),
            ("large", &[b'x'; 70_000], 0o600, "larger than 64 KiB"),
        ] {
            let error = file(name, text, mode).err().unwrap();
            assert!(error.contains(says), "{name}: {error}");
        }
        assert!(SecretFile::read(dir.path()).err().unwrap().ends_with("is a folder"));
        assert!(SecretFile::read(&dir.path().join("none")).err().unwrap().ends_with("no such file"));
    }
}
