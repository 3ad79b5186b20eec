//! Signatures as Standard Webhooks has them, so that a receiver knows who calls.
//!
//! Must never show a secret. Tested with the receiver's half of the same standard in `tests`.

use std::path::PathBuf;

use standardwebhooks::Webhook;

use super::file::{FileError, WatchedFile};
use super::text::Secrets;

/// The shortest key, in bytes; the standard asks for 24 to 64.
const KEY_BYTES_MIN: usize = 24;

/// What every secret may begin with.
const PREFIX: &str = "whsec_";

/// The file with the secrets, one a line: the first to sign is the newest, all sign while one is being replaced.
#[derive(Debug)]
pub(super) struct Signer {
    file: WatchedFile,
}

/// The secrets as they stand now.
pub(super) struct Keys(Vec<Webhook>);

impl Signer {
    pub(super) const fn new(path: PathBuf) -> Self {
        Self { file: WatchedFile::new(path) }
    }

    /// Reads the secrets, again if they may have changed, and notes them as what must not be shown.
    pub(super) fn keys(&self, secrets: &mut Secrets) -> Result<Keys, FileError> {
        let text = self.file.read_text()?;
        let mut keys = Vec::new();
        for (number, line) in text.lines().map(str::trim).filter(|line| !line.is_empty()).enumerate() {
            let encoded = line.strip_prefix(PREFIX).unwrap_or(line);
            secrets.add(line);
            secrets.add(encoded);
            keys.push(self.key(encoded, number + 1)?);
        }
        Ok(Keys(keys))
    }

    fn key(&self, encoded: &str, number: usize) -> Result<Webhook, FileError> {
        let wrong = |what: &str| {
            self.file.error(format_args!("secret {number} {what}; make one with: openssl rand -base64 32"))
        };
        // Base64 makes four letters of three bytes.
        if encoded.trim_end_matches('=').len() * 3 / 4 < KEY_BYTES_MIN {
            return Err(wrong("is shorter than 24 bytes"));
        }
        Webhook::new(encoded).map_err(|_| wrong("is not base64"))
    }

    /// The target refused the signature: the secret may have been rotated.
    pub(super) fn forget(&self) {
        self.file.forget();
    }
}

impl Keys {
    /// The value of `webhook-signature`: one signature per secret.
    pub(super) fn sign(&self, id: &str, timestamp: i64, body: &str) -> Result<String, standardwebhooks::WebhookError> {
        let signatures: Result<Vec<_>, _> = self.0.iter().map(|key| key.sign(id, timestamp, body.as_bytes())).collect();
        Ok(signatures?.join(" "))
    }
}
