//! Ids and where they belong: the id rules (I1), receipts, the hashes (K2), shard and worker of an id
//! (Q2), percent encoding.
//!
//! Must never know an event, a stream or a clock: everything here is a function of bytes.
//! Tested by golden vectors (`hash`) and by tables of good and bad ids below.

mod encode;
mod hash;
mod receipt;
mod routing;

pub use encode::{decode, encode};
pub use hash::{Partitioner, fnv1a_32};
pub(crate) use receipt::Mark;
pub use receipt::{CAUSES_KEPT, Causes, Receipt, SourceId};
pub use routing::{HasherFn, Place, Router, RouterError, SHARDS_MAX, ShardId, WORKERS_MAX, WorkerId};

use std::fmt;

use unicode_properties::{GeneralCategory, UnicodeGeneralCategory};

/// The longest id in bytes (I1). It fits a Kafka key, an etcd key and a file name's neighbourhood after encoding.
pub const ID_BYTES_MAX: usize = 512;

/// Why a text is no id (rule I1). The message says what is wrong and what is allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IdError {
    /// An empty id; streams ignore it, people are told.
    #[error("an id is empty; it needs 1 to {ID_BYTES_MAX} bytes of UTF-8")]
    Empty,
    /// More than [`ID_BYTES_MAX`] bytes.
    #[error("an id has {0} bytes; at most {ID_BYTES_MAX} are allowed")]
    TooLong(usize),
    /// Bytes that are no UTF-8.
    #[error("an id is not UTF-8 from byte {0} on")]
    NotUtf8(usize),
    /// A control or format character (Unicode Cc or Cf), which would make two ids look alike or break a log line.
    #[error("an id holds {0} at byte {1}; control and format characters are not allowed")]
    Character(CodePoint, usize),
}

/// A character, shown as its code point, since a control character printed raw would do what it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodePoint(pub char);

impl fmt::Display for CodePoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "U+{:04X}", u32::from(self.0))
    }
}

/// Checks a text against the id rules (I1).
///
/// # Errors
/// The first rule that it breaks.
pub fn check(id: &str) -> Result<(), IdError> {
    if id.is_empty() {
        return Err(IdError::Empty);
    }
    if id.len() > ID_BYTES_MAX {
        return Err(IdError::TooLong(id.len()));
    }
    if is_printable_ascii(id.as_bytes()) {
        return Ok(());
    }
    match id.char_indices().find(|(_, c)| !is_allowed(*c)) {
        Some((at, c)) => Err(IdError::Character(CodePoint(c), at)),
        None => Ok(()),
    }
}

/// Checks bytes from outside against the id rules and gives them back as text.
///
/// # Errors
/// The first rule that they break.
pub fn from_bytes(bytes: &[u8]) -> Result<&str, IdError> {
    if bytes.len() > ID_BYTES_MAX {
        return Err(IdError::TooLong(bytes.len()));
    }
    let id = std::str::from_utf8(bytes).map_err(|e| IdError::NotUtf8(e.valid_up_to()))?;
    check(id).map(|()| id)
}

/// Most ids are printable ASCII, and every event is checked: eight bytes at a time.
///
/// A byte below 0x20 borrows from its high bit, 0x7f carries into it, and others have it set.
fn is_printable_ascii(bytes: &[u8]) -> bool {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let stray = |word: u64| (word.wrapping_sub(0x20 * EACH) | word | word.wrapping_add(EACH)) & (0x80 * EACH);
    let Some(last) = bytes.last_chunk::<8>() else { return bytes.iter().all(|byte| (0x20..0x7f).contains(byte)) };
    // The last eight overlap those before them where the length is no multiple of eight.
    let words = bytes.as_chunks::<8>().0.iter().chain([last]);
    words.fold(0, |strays, word| strays | stray(u64::from_le_bytes(*word))) == 0
}

fn is_allowed(c: char) -> bool {
    !matches!(c.general_category(), GeneralCategory::Control | GeneralCategory::Format)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i1_accepts_what_the_rule_allows() {
        for id in ["a", "prod/Database/orders", "déjà/vu", "..", ".", "a:b\\c%2f", "-x", " ", "日本", &"x".repeat(512)]
        {
            assert_eq!(check(id), Ok(()), "{id:?}");
            assert_eq!(from_bytes(id.as_bytes()), Ok(id));
        }
    }

    #[test]
    fn i1_refuses_the_rest_and_names_the_place() {
        assert_eq!(check(""), Err(IdError::Empty));
        assert_eq!(check(&"x".repeat(513)), Err(IdError::TooLong(513)));
        for (id, c, at) in [
            ("a\0b", '\0', 1),
            ("a\nb", '\n', 1),
            ("é\u{202e}", '\u{202e}', 2),
            ("\u{7f}", '\u{7f}', 0),
            ("\u{200d}x", '\u{200d}', 0),
            ("\u{feff}", '\u{feff}', 0),
            ("x\u{85}", '\u{85}', 1),
        ] {
            assert_eq!(check(id), Err(IdError::Character(CodePoint(c), at)), "{id:?}");
        }
        assert_eq!(from_bytes(b"ab\xff"), Err(IdError::NotUtf8(2)));
        assert_eq!(from_bytes(&[0xff; 600]), Err(IdError::TooLong(600)));
        assert_eq!(from_bytes(b"\xed\xa0\x80"), Err(IdError::NotUtf8(0)), "a lone surrogate");
    }

    #[test]
    fn i1_never_normalises() {
        let (nfc, nfd) = ("caf\u{e9}", "cafe\u{301}");
        assert_ne!(nfc, nfd);
        assert_eq!((check(nfc), check(nfd)), (Ok(()), Ok(())));
        assert_eq!((fnv1a_32(nfc.as_bytes()), fnv1a_32(nfd.as_bytes())), (2_821_410_889, 3_604_845_623));
    }
}
