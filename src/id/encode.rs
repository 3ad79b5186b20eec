//! The one encoding of an id wherever it becomes part of a path, key, file name or header (I1): percent, upper-case
//! hex.
//!
//! Only letters, digits, `-` and `_` stay as they are, so that `.` and `..` cannot walk a path and `~` cannot name a
//! home.

use std::borrow::Cow;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_');

/// Encodes an id for a path, key, file name or header.
#[must_use]
pub fn encode(id: &str) -> Cow<'_, str> {
    utf8_percent_encode(id, ESCAPED).into()
}

/// Undoes [`encode`]; `None` where the bytes are no UTF-8.
#[must_use]
pub fn decode(text: &str) -> Option<Cow<'_, str>> {
    percent_decode_str(text).decode_utf8().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i1_one_encoding_that_no_path_or_header_misreads() {
        for (id, wanted) in [
            ("orders-1_a", "orders-1_a"),
            ("..", "%2E%2E"),
            ("a/b%2f", "a%2Fb%252f"),
            ("é\r\n", "%C3%A9%0D%0A"),
            ("~root", "%7Eroot"),
        ] {
            assert_eq!(encode(id), wanted);
            assert_eq!(decode(wanted).as_deref(), Some(id));
        }
        assert_eq!(decode("%FF"), None);
    }
}
