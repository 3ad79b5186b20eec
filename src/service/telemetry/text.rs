//! Text for people: no value may do anything to a terminal or break a line, and durations read like speech.
//!
//! Must never change what programs read (JSON, metrics). Tested by the tables below.

use std::borrow::Cow;
use std::fmt::Write as _;

use unicode_properties::{GeneralCategory, UnicodeGeneralCategory};

/// The text with control, format and line-separating characters as escapes: `\n`, `\u{1b}`.
///
/// Ids cannot hold such characters (I1), errors of reconcilers and servers can.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    if text.bytes().all(|b| (0x20..0x7f).contains(&b)) || !text.chars().any(is_unprintable) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if is_unprintable(c) => write!(out, "\\u{{{:x}}}", u32::from(c)).unwrap_or_default(),
            c => out.push(c),
        }
    }
    Cow::Owned(out)
}

fn is_unprintable(c: char) -> bool {
    matches!(
        c.general_category(),
        GeneralCategory::Control
            | GeneralCategory::Format
            | GeneralCategory::LineSeparator
            | GeneralCategory::ParagraphSeparator
    )
}

/// The first `max` characters, with an ellipsis where some are missing: for errors that repeat what was typed.
pub(crate) fn shortened(text: &str, max: usize) -> Cow<'_, str> {
    match text.char_indices().nth(max) {
        Some((at, _)) => Cow::Owned(format!("{}…", &text[..at])),
        None => Cow::Borrowed(text),
    }
}

/// A duration as a person would say it: `0.4 ms`, `31 ms`, `2.5 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`.
pub(crate) fn seconds(seconds: f64) -> String {
    const DAY: u64 = 86_400;
    let seconds = if seconds.is_finite() { seconds.max(0.0) } else { 0.0 };
    match seconds {
        s if s < 0.01 => format!("{} ms", one_decimal(s * 1e3)),
        s if s < 0.9995 => format!("{:.0} ms", s * 1e3),
        s if s < 59.95 => format!("{} s", one_decimal(s)),
        s => {
            // Float to integer saturates, so even an absurd duration prints.
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "saturates; never negative here"
            )]
            let whole = s.round() as u64;
            match whole {
                s if s < 3_600 => two(s / 60, "min", s % 60, "s"),
                s if s < DAY => two(s / 3_600, "h", s % 3_600 / 60, "min"),
                s => two(s / DAY, "d", s % DAY / 3_600, "h"),
            }
        }
    }
}

fn one_decimal(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

fn two(large: u64, large_unit: &str, small: u64, small_unit: &str) -> String {
    match small {
        0 => format!("{large} {large_unit}"),
        small => format!("{large} {large_unit} {small} {small_unit}"),
    }
}

/// A count with its thousands set apart: `12,345`.
pub(crate) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_and_format_characters_are_shown_not_obeyed() {
        for (text, shown) in [
            ("plain é 日本", "plain é 日本"),
            ("a\nb\r\tc", "a\\nb\\r\\tc"),
            ("\u{1b}[31mred\u{7}", "\\u{1b}[31mred\\u{7}"),
            ("x\u{202e}y\u{200b}", "x\\u{202e}y\\u{200b}"),
            ("\u{2028}\u{85}", "\\u{2028}\\u{85}"),
        ] {
            assert_eq!(printable(text), shown);
        }
    }

    #[test]
    fn durations_read_like_speech() {
        for (value, shown) in [
            (0.0, "0 ms"),
            (0.000_42, "0.4 ms"),
            (0.009_96, "10 ms"),
            (0.031, "31 ms"),
            (0.999_4, "999 ms"),
            (0.999_9, "1 s"),
            (2.5, "2.5 s"),
            (59.96, "1 min"),
            (200.0, "3 min 20 s"),
            (3_600.0, "1 h"),
            (7_500.0, "2 h 5 min"),
            (273_600.0, "3 d 4 h"),
            (-1.0, "0 ms"),
            (f64::NAN, "0 ms"),
            (1e300, "213503982334601 d 7 h"),
        ] {
            assert_eq!(seconds(value), shown, "{value}");
        }
    }

    #[test]
    fn counts_have_their_thousands_apart() {
        for (n, shown) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count(n), shown);
        }
    }

    #[test]
    fn what_was_typed_is_repeated_in_part() {
        assert_eq!(shortened("äöü", 3), "äöü");
        assert_eq!(shortened("äöüx", 3), "äöü…");
    }
}
