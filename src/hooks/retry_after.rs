//! What a server says about when to come back: `Retry-After` as seconds or as an HTTP date (RFC 9110).
//!
//! Must never make a failing target be called faster than the growing delays would: what is not a time to come is no
//! answer.

use std::time::{Duration, SystemTime};

/// The longest wait that a server can ask for. A broken clock or a slip must not put an id off for days.
pub(super) const RETRY_AFTER_MAX: Duration = Duration::from_secs(60 * 60);

/// The delay that a `Retry-After` asks for, at most [`RETRY_AFTER_MAX`]; `None` if it asks for nothing that can be
/// kept: zero, a time that is past, a negative number, no time at all.
pub(super) fn parse(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    let wished = if !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit()) {
        // More digits than a u64 has are a wish for very long.
        Duration::from_secs(value.parse().unwrap_or(u64::MAX))
    } else {
        httpdate::parse_http_date(value).ok()?.duration_since(now).ok()?
    };
    (!wished.is_zero()).then(|| wished.min(RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b70_retry_after_is_kept_within_caps() {
        let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        let seconds = |n| Some(Duration::from_secs(n));
        for (value, wanted) in [
            ("1", seconds(1)),
            (" 120 ", seconds(120)),
            ("3600", seconds(3600)),
            ("3601", seconds(3600)),
            ("99999999999999999999999", seconds(3600)),
            ("Sun, 06 Nov 1994 08:50:07 GMT", seconds(30)),
            ("Sunday, 06-Nov-94 08:50:07 GMT", seconds(30)),
            ("Sat, 06 Nov 2094 08:49:37 GMT", seconds(3600)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", None),
            ("Sun, 06 Nov 1994 08:49:00 GMT", None),
            ("0", None),
            ("-1", None),
            ("1.5", None),
            ("5s", None),
            ("", None),
            ("soon", None),
        ] {
            assert_eq!(parse(value, now), wanted, "{value:?}");
        }
    }
}
